//! The lanes that no event fills: blocks held for a while because of what was sent or answered (rules 11 and 12).

use std::{
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use index::{Blocks, Copies, EngineHash, KvIndexer, Lane, LocalHash, Parent, Seed, SequenceHash, Target, Writer, sequence_hashes};
use lru::LruCache;

/// Blocks one call of [`Leases::expire`] gives back at most (rule 16).
const EXPIRED_BLOCKS: usize = 512;

/// A lane of one target whose blocks end by time and are bounded in number.
///
/// A held chain holds its whole prefix at least as long as its end, so blocks always go leaf first. Every block is named by
/// its sequence hash. Dropping the leases empties the lane.
#[derive(Debug)]
pub struct Leases {
    writer: Writer,
    ttl: Duration,
    capacity: NonZeroUsize,
    /// When each block was last held. Least recent first, and children before their parents.
    blocks: LruCache<SequenceHash, Instant>,
    sequences: Vec<SequenceHash>,
    names: Vec<EngineHash>,
}

/// The blocks that one [`Leases::hold`] added, so that they can be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Added {
    /// Leading blocks that were held already.
    before: usize,
    /// Leading blocks that are held with it.
    until: usize,
    at: Instant,
}

impl Leases {
    /// An empty lane of `target` in `indexer`; `capacity` is in blocks.
    pub fn new(indexer: &Arc<KvIndexer>, target: Target, lane: Lane, ttl: Duration, capacity: NonZeroUsize) -> Self {
        let writer = indexer.writer(target, lane, Copies::Set);
        Self { writer, ttl, capacity, blocks: LruCache::unbounded(), sequences: Vec::new(), names: Vec::new() }
    }

    /// Holds the blocks of `chain` until `now` plus the time to live, those held already too. Beyond the capacity the
    /// blocks held longest ago go first; of a chain longer than the capacity only the leading blocks are held.
    pub fn hold(&mut self, now: Instant, chain: &[LocalHash]) -> Added {
        let chain = &chain[..chain.len().min(self.capacity.get())];
        let mut sequences = std::mem::take(&mut self.sequences);
        sequence_hashes(chain, &mut sequences);
        let held = sequences.iter().take_while(|block| self.blocks.contains(block)).count();
        // The prefix that is held already is made recent first, so that room is not made at its cost.
        for block in sequences[..held].iter().rev() {
            self.blocks.promote(block);
        }
        self.make_room(sequences.len() - held);
        for block in sequences.iter().rev() {
            self.blocks.put(*block, now);
        }
        if held < sequences.len() {
            self.store(chain, &sequences);
        }
        let added = Added { before: held, until: sequences.len(), at: now };
        self.sequences = sequences;
        added
    }

    /// Gives back what a hold of `chain` added, because what it was held for did not happen. What was held again since
    /// stays, and so does what was held before.
    pub fn give_back(&mut self, chain: &[LocalHash], added: Added) {
        let mut sequences = std::mem::take(&mut self.sequences);
        sequence_hashes(&chain[..added.until.min(chain.len())], &mut sequences);
        self.names.clear();
        // Leaf first, as ever. Who held a block again held its whole prefix.
        for block in sequences.iter().skip(added.before).rev() {
            match self.blocks.peek(block) {
                Some(held) if *held == added.at => {
                    self.blocks.pop(block);
                    self.names.push(EngineHash(block.0));
                }
                Some(_) => break,
                None => {}
            }
        }
        self.writer.remove(&self.names);
        self.sequences = sequences;
    }

    /// Gives back blocks whose time is over, at most 512 at once: call again while [`Leases::next_expiry`] is due. Returns
    /// how many.
    pub fn expire(&mut self, now: Instant) -> usize {
        self.names.clear();
        while self.names.len() < EXPIRED_BLOCKS
            && let Some((_, held)) = self.blocks.peek_lru()
            && *held + self.ttl <= now
            && let Some((block, _)) = self.blocks.pop_lru()
        {
            self.names.push(EngineHash(block.0));
        }
        self.writer.remove(&self.names);
        self.names.len()
    }

    /// When the next block's time is over.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.blocks.peek_lru().map(|(_, held)| *held + self.ttl)
    }

    /// Gives back every block, as when the worker's cache was emptied.
    pub fn clear(&mut self) {
        self.blocks.clear();
        self.writer.clear();
    }

    /// Blocks held.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    fn make_room(&mut self, wanted: usize) {
        let excess = (self.blocks.len() + wanted).saturating_sub(self.capacity.get());
        self.names.clear();
        for _ in 0..excess {
            if let Some((block, _)) = self.blocks.pop_lru() {
                self.names.push(EngineHash(block.0));
            }
        }
        self.writer.remove(&self.names);
    }

    fn store(&mut self, chain: &[LocalHash], sequences: &[SequenceHash]) {
        self.names.clear();
        self.names.extend(sequences.iter().map(|block| EngineHash(block.0)));
        // The seed would matter only to children stored by their tokens, and there are none in this lane.
        let stored = self.writer.store(Parent::Root(Seed::BASE), Blocks::LocalHashes { locals: chain, hashes: &self.names });
        if let index::Stored::Refused(refusal) = stored {
            tracing::debug!(lane = ?self.writer.lane(), %refusal, "blocks not held");
            for block in sequences {
                self.blocks.pop(block);
            }
            self.writer.remove(&self.names);
        }
    }
}
