//! The lanes that no event fills: blocks held for a while because of what was sent or answered (rules 11 and 12).

use std::{
    cmp::Reverse,
    collections::BTreeSet,
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use index::{Held, Holder, KvIndexer, Lane, LocalHash, Prefixes, SequenceHash, Target, sequence_hashes};

/// Blocks one call of [`Leases::expire`] gives back at most (rule 16).
const EXPIRED_BLOCKS: usize = 512;
/// Hash tables for the pieces of one lane.
const TABLES: usize = 16;

/// A lane of one target whose blocks end by time and are bounded in number.
///
/// A held chain holds its whole prefix at least as long as its end, so blocks always go leaf first. Time is kept by pieces
/// of chains, which end where chains part. Dropping the leases empties the lane.
#[derive(Debug)]
pub struct Leases {
    holder: Holder,
    ttl: Duration,
    capacity: NonZeroUsize,
    pieces: Prefixes<Lease>,
    /// Every piece, the least recently held first, and children before their parents.
    order: BTreeSet<Turn>,
    holds: u64,
    /// Of the last hold: none is older than the one before, else room for a chain would be made at the cost of its own prefix.
    latest: Option<Instant>,
}

/// What is known of a piece.
#[derive(Debug)]
struct Lease {
    stamp: Stamp,
    /// Its blocks, as the index has them.
    held: Held,
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
        let holder = indexer.holder(target, lane);
        Self { holder, ttl, capacity, pieces: Prefixes::new(TABLES), order: BTreeSet::new(), holds: 0, latest: None }
    }

    /// Holds the blocks of `chain` until `now` plus the time to live, those held already too. Beyond the capacity the
    /// blocks held longest ago go first; of a chain longer than the capacity only the leading blocks are held. A `now` before
    /// that of an earlier hold counts as that one's.
    pub fn hold(&mut self, now: Instant, chain: &[LocalHash]) -> Added {
        let now = self.latest.map_or(now, |latest| latest.max(now));
        self.latest = Some(now);
        let chain = &chain[..chain.len().min(self.capacity.get())];
        let mut sequences = Vec::new();
        sequence_hashes(chain, &mut sequences);
        self.holds += 1;
        // The prefix that is held already is made recent first, so that room is not made at its cost.
        let (held, last) = self.renew(now, &sequences);
        self.make_room(sequences.len() - held);
        let mut until = held;
        if held < sequences.len() {
            let after = last.and_then(|piece| self.pieces.get(piece)).map(|piece| &piece.value.held);
            match self.holder.hold(after, &chain[held..], &sequences[held..]) {
                Ok(blocks) => {
                    self.add(&sequences[held..], Lease { stamp: Stamp { at: now, hold: self.holds, depth: held }, held: blocks });
                    until = sequences.len();
                }
                Err(refusal) => tracing::debug!(lane = ?self.holder.lane(), %refusal, "blocks not held"),
            }
        }
        Added { before: held, until, hold: self.holds }
    }

    /// Gives back what a hold of `chain` added, because what it was held for did not happen. What was held again since
    /// stays, and so does what was held before.
    pub fn give_back(&mut self, chain: &[LocalHash], added: Added) {
        let mut sequences = Vec::new();
        sequence_hashes(&chain[..added.until.min(chain.len())], &mut sequences);
        let mut rest = sequences.get(added.before..).unwrap_or_default();
        let mut later = Vec::new();
        while let Some(first) = rest.first()
            && let Some(piece) = self.pieces.get(*first)
        {
            // Who held a block again held its whole prefix, so that these are the last ones.
            if piece.value.stamp.hold == added.hold {
                later.push(*first);
            }
            rest = rest.get(piece.blocks().len()..).unwrap_or_default();
        }
        let taken: Vec<_> = later.into_iter().rev().filter_map(|first| self.take(first, usize::MAX)).collect();
        self.holder.give_back(&taken);
    }

    /// Gives back blocks whose time is over, at most 512 at once: call again while [`Leases::next_expiry`] is due. Returns
    /// how many.
    pub fn expire(&mut self, now: Instant) -> usize {
        let ttl = self.ttl;
        self.give_back_oldest(EXPIRED_BLOCKS, |held| held + ttl <= now)
    }

    /// When the next block's time is over.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.order.first().map(|(held, ..)| *held + self.ttl)
    }

    /// Gives back every block, as when the worker's cache was emptied.
    pub fn clear(&mut self) {
        self.order.clear();
        self.holder.clear(self.pieces.drain().map(|piece| piece.value.held));
    }

    /// Blocks held.
    pub fn blocks(&self) -> usize {
        self.pieces.blocks()
    }

    /// Makes the leading blocks recent that are held already; how many they are, and the first block of their last piece.
    fn renew(&mut self, now: Instant, chain: &[SequenceHash]) -> (usize, Option<SequenceHash>) {
        let (mut depth, mut last) = (0, None);
        while let Some(first) = chain.get(depth).copied()
            && let Some(piece) = self.pieces.get(first)
        {
            let known = piece.agrees(&chain[depth..]);
            self.part(first, known);
            let stamp = Stamp { at: now, hold: self.holds, depth };
            if let Some(piece) = self.pieces.get_mut(first) {
                self.order.remove(&piece.value.stamp.turn(first));
                piece.value.stamp = stamp;
                self.order.insert(stamp.turn(first));
            }
            (depth, last) = (depth + known, Some(first));
        }
        (depth, last)
    }

    /// Parts a piece in two that were held at the same time, the second from its block number `at` on, where that is within it.
    fn part(&mut self, first: SequenceHash, at: usize) {
        if let Some(blocks) = self.pieces.cut(first, at)
            && let Some(piece) = self.pieces.get_mut(first)
        {
            let (held, before) = (piece.value.held.split_off(at), piece.value.stamp);
            self.add(&blocks, Lease { stamp: Stamp { depth: before.depth + at, ..before }, held });
        }
    }

    fn add(&mut self, blocks: &[SequenceHash], lease: Lease) {
        let Some(first) = blocks.first() else { return };
        self.order.insert(lease.stamp.turn(*first));
        self.pieces.insert(blocks, lease);
    }

    /// Takes up to `most` blocks, at least one, from the end of a piece without children: they are to be given back.
    fn take(&mut self, first: SequenceHash, most: usize) -> Option<Held> {
        let piece = self.pieces.get(first)?;
        let (len, stamp) = (piece.blocks().len(), piece.value.stamp);
        if most < len {
            self.pieces.cut(first, len - most)?;
            return self.pieces.get_mut(first).map(|piece| piece.value.held.split_off(len - most));
        }
        self.order.remove(&stamp.turn(first));
        self.pieces.remove(first).map(|piece| piece.value.held)
    }

    fn make_room(&mut self, wanted: usize) {
        let excess = (self.blocks() + wanted).saturating_sub(self.capacity.get());
        self.give_back_oldest(excess, |_| true);
    }

    /// Gives back up to `most` blocks, those held longest ago first, as long as `is_over` says so of when; how many.
    fn give_back_oldest(&mut self, most: usize, is_over: impl Fn(Instant) -> bool) -> usize {
        let (mut taken, mut blocks) = (Vec::new(), 0);
        while blocks < most
            && let Some((held, .., first)) = self.order.first().copied()
            && is_over(held)
            && let Some(held) = self.take(first, most - blocks)
        {
            blocks += held.blocks();
            taken.push(held);
        }
        self.holder.give_back(&taken);
        blocks
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        self.clear();
    }
}
