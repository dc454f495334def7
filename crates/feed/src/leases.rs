//! The lanes that no event fills: blocks held for a while because of what was sent or answered (rules 11 and 12).

use std::{
    cmp::Reverse,
    collections::BTreeSet,
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use index::{
    Blocks, Copies, EngineHash, KvIndexer, Lane, LocalHash, Parent, Prefixes, Seed, SequenceHash, Target, Writer, sequence_hashes,
};

/// Blocks one call of [`Leases::expire`] gives back at most (rule 16).
const EXPIRED_BLOCKS: usize = 512;
/// Hash tables for the pieces of one lane.
const TABLES: usize = 16;

/// A lane of one target whose blocks end by time and are bounded in number.
///
/// A held chain holds its whole prefix at least as long as its end, so blocks always go leaf first. Every block is named by
/// its sequence hash. Time is kept by pieces of chains, which end where chains part. Dropping the leases empties the lane.
#[derive(Debug)]
pub struct Leases {
    writer: Writer,
    ttl: Duration,
    capacity: NonZeroUsize,
    pieces: Prefixes<Stamp>,
    /// Every piece, the least recently held first, and children before their parents.
    order: BTreeSet<Turn>,
    holds: u64,
    sequences: Vec<SequenceHash>,
    names: Vec<EngineHash>,
}

/// When a piece was last held, and where it is.
#[derive(Clone, Copy, Debug)]
struct Stamp {
    at: Instant,
    /// Of the hold, which another at the same instant has not.
    hold: u64,
    /// Blocks before it.
    depth: usize,
}

/// A piece's place in the order in which they end, and its first block.
type Turn = (Instant, u64, Reverse<usize>, SequenceHash);

impl Stamp {
    fn turn(self, first: SequenceHash) -> Turn {
        (self.at, self.hold, Reverse(self.depth), first)
    }
}

/// The blocks that one [`Leases::hold`] added, so that they can be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Added {
    /// Leading blocks that were held already.
    before: usize,
    /// Leading blocks that are held with it.
    until: usize,
    hold: u64,
}

impl Leases {
    /// An empty lane of `target` in `indexer`; `capacity` is in blocks.
    pub fn new(indexer: &Arc<KvIndexer>, target: Target, lane: Lane, ttl: Duration, capacity: NonZeroUsize) -> Self {
        let writer = indexer.writer(target, lane, Copies::Set);
        let (pieces, order) = (Prefixes::new(TABLES), BTreeSet::new());
        Self { writer, ttl, capacity, pieces, order, holds: 0, sequences: Vec::new(), names: Vec::new() }
    }

    /// Holds the blocks of `chain` until `now` plus the time to live, those held already too. Beyond the capacity the
    /// blocks held longest ago go first; of a chain longer than the capacity only the leading blocks are held.
    pub fn hold(&mut self, now: Instant, chain: &[LocalHash]) -> Added {
        let chain = &chain[..chain.len().min(self.capacity.get())];
        let mut sequences = std::mem::take(&mut self.sequences);
        sequence_hashes(chain, &mut sequences);
        self.holds += 1;
        // The prefix that is held already is made recent first, so that room is not made at its cost.
        let held = self.renew(now, &sequences);
        self.make_room(sequences.len() - held);
        if held < sequences.len() {
            self.add(held, Stamp { at: now, hold: self.holds, depth: held }, &sequences[held..]);
            self.store(held, chain, &sequences);
        }
        let added = Added { before: held, until: sequences.len(), hold: self.holds };
        self.sequences = sequences;
        added
    }

    /// Gives back what a hold of `chain` added, because what it was held for did not happen. What was held again since
    /// stays, and so does what was held before.
    pub fn give_back(&mut self, chain: &[LocalHash], added: Added) {
        let mut sequences = std::mem::take(&mut self.sequences);
        sequence_hashes(&chain[..added.until.min(chain.len())], &mut sequences);
        self.names.clear();
        let mut rest = sequences.get(added.before..).unwrap_or_default();
        let mut later = Vec::new();
        while let Some(first) = rest.first()
            && let Some(piece) = self.pieces.get(*first)
        {
            // Who held a block again held its whole prefix, so that these are the last ones.
            if piece.value.hold == added.hold {
                later.push(*first);
            }
            rest = rest.get(piece.blocks().len()..).unwrap_or_default();
        }
        for first in later.into_iter().rev() {
            self.take(first, usize::MAX);
        }
        self.writer.remove(&self.names);
        self.sequences = sequences;
    }

    /// Gives back blocks whose time is over, at most 512 at once: call again while [`Leases::next_expiry`] is due. Returns
    /// how many.
    pub fn expire(&mut self, now: Instant) -> usize {
        self.names.clear();
        while self.names.len() < EXPIRED_BLOCKS
            && let Some((held, .., first)) = self.order.first().copied()
            && held + self.ttl <= now
        {
            self.take(first, EXPIRED_BLOCKS - self.names.len());
        }
        self.writer.remove(&self.names);
        self.names.len()
    }

    /// When the next block's time is over.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.order.first().map(|(held, ..)| *held + self.ttl)
    }

    /// Gives back every block, as when the worker's cache was emptied.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.order.clear();
        self.writer.clear();
    }

    /// Blocks held.
    pub fn blocks(&self) -> usize {
        self.pieces.blocks()
    }

    /// Makes the leading blocks recent that are held already; how many they are.
    fn renew(&mut self, now: Instant, chain: &[SequenceHash]) -> usize {
        let mut held = 0;
        while let Some(first) = chain.get(held).copied()
            && let Some(piece) = self.pieces.get(first)
        {
            let (known, whole, before) = (piece.agrees(&chain[held..]), piece.blocks().len(), piece.value);
            self.order.remove(&before.turn(first));
            if known < whole
                && let Some(rest) = self.pieces.cut(first, known)
            {
                self.add(held + known, before, &rest);
            }
            let stamp = Stamp { at: now, hold: self.holds, depth: held };
            if let Some(piece) = self.pieces.get_mut(first) {
                piece.value = stamp;
            }
            self.order.insert(stamp.turn(first));
            held += known;
        }
        held
    }

    /// Adds a piece that begins behind `depth` blocks, held when `stamp` says.
    fn add(&mut self, depth: usize, stamp: Stamp, blocks: &[SequenceHash]) {
        let Some(first) = blocks.first() else { return };
        let stamp = Stamp { depth, ..stamp };
        self.pieces.insert(blocks, stamp);
        self.order.insert(stamp.turn(*first));
    }

    /// Takes up to `most` blocks from the end of a piece without children, and notes their names, the last one first.
    fn take(&mut self, first: SequenceHash, most: usize) {
        let Some(piece) = self.pieces.get(first) else { return };
        let (len, stamp) = (piece.blocks().len(), piece.value);
        let taken = if most < len {
            self.pieces.cut(first, len - most)
        } else {
            self.order.remove(&stamp.turn(first));
            self.pieces.remove(first).map(|piece| piece.blocks().into())
        };
        self.names.extend(taken.iter().flatten().rev().map(|block| EngineHash(block.0)));
    }

    fn make_room(&mut self, wanted: usize) {
        let excess = (self.blocks() + wanted).saturating_sub(self.capacity.get());
        self.names.clear();
        while self.names.len() < excess
            && let Some((.., first)) = self.order.first().copied()
        {
            self.take(first, excess - self.names.len());
        }
        self.writer.remove(&self.names);
    }

    /// Puts the blocks of `chain` behind the first `held`, which just got their piece, into the index.
    fn store(&mut self, held: usize, chain: &[LocalHash], sequences: &[SequenceHash]) {
        self.names.clear();
        self.names.extend(sequences[held..].iter().map(|block| EngineHash(block.0)));
        // The seed would matter only to children stored by their tokens, and there are none in this lane.
        let parent = match held.checked_sub(1) {
            Some(last) => Parent::Block(EngineHash(sequences[last].0)),
            None => Parent::Root(Seed::BASE),
        };
        let stored = self.writer.store(parent, Blocks::LocalHashes { locals: &chain[held..], hashes: &self.names });
        if let index::Stored::Refused(refusal) = stored {
            tracing::debug!(lane = ?self.writer.lane(), %refusal, "blocks not held");
            self.names.clear();
            self.take(sequences[held], usize::MAX);
            self.writer.remove(&self.names);
        }
    }
}
