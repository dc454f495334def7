//! The writing side of the index: one stream's hand on one lane of one target.

mod attach;
mod confirm;
mod keep;
mod next;
mod scratch;

use std::sync::Arc;

use scratch::{KEPT_BLOCKS, SHARED_BLOCKS, Scratch};

use crate::{
    hash::EngineHash,
    hold::Unplaced,
    indexer::KvIndexer,
    lane::{Copies, Lane},
    names::{Names, Place},
    node::BlockId,
    parked::{Parked, ParkedStores},
    seats::Owner,
    store::{Blocks, Parent, Refusal, Removed, Stored},
    target::Target,
};

/// Writes one lane of one target. Dropping it retracts everything it holds.
///
/// What it does is seen by lookups at once, at the latest when the call returns. A store is seen from its head on; a
/// clear and the drop are seen in one step.
#[derive(Debug)]
pub struct Writer {
    indexer: Arc<KvIndexer>,
    owner: Owner,
    target: Target,
    copies: Copies,
    names: Names,
    parked: ParkedStores,
    scratch: Scratch,
}

impl Writer {
    pub(crate) fn new(indexer: Arc<KvIndexer>, owner: Owner, target: Target, copies: Copies) -> Self {
        let (names, parked) = (Names::default(), ParkedStores::default());
        Self { indexer, owner, target, copies, names, parked, scratch: Scratch::default() }
    }

    /// The index it writes.
    pub fn indexer(&self) -> &Arc<KvIndexer> {
        &self.indexer
    }

    /// The target it writes for.
    pub fn target(&self) -> Target {
        self.target
    }

    /// The lane it writes.
    pub fn lane(&self) -> Lane {
        self.owner.seat.lane
    }

    /// Blocks held in the lane.
    pub fn blocks(&self) -> usize {
        self.names.blocks()
    }

    /// The stores whose parents are unknown.
    pub fn parked(&self) -> Parked {
        self.parked.report()
    }

    /// Blocks stored after `parent`.
    ///
    /// Unless it is parked or refused, each block is held from now on under its hash, with one more copy where copies
    /// are counted, and parked stores that waited for one of them are attached. A hash that named another block until
    /// now names this one only: the engine knows best what its names mean. No blocks at all is a store that adds nothing.
    pub fn store(&mut self, parent: Parent, blocks: Blocks<'_>) -> Stored {
        match self.store_next(parent, blocks) {
            Some(stored) => stored,
            None => self.store_any(parent, blocks),
        }
    }

    /// Kept apart, so that what is told most often needs few words of the stack.
    #[inline(never)]
    fn store_any(&mut self, parent: Parent, blocks: Blocks<'_>) -> Stored {
        let len = blocks.hashes().len();
        self.scratch.lend(len);
        let stored = self.try_store(parent, blocks).unwrap_or_else(Stored::Refused);
        self.give_back(len);
        stored
    }

    fn try_store(&mut self, parent: Parent, blocks: Blocks<'_>) -> Result<Stored, Refusal> {
        let Scratch { distinct, mixed, .. } = &mut self.scratch;
        Names::mix(blocks.hashes(), mixed);
        blocks.check(mixed, parent, self.indexer.block_size(), distinct)?;
        if blocks.hashes().is_empty() {
            return Ok(Stored::Applied { added: 0 });
        }
        let place = match parent {
            Parent::Root(seed) => Some(Place { block: None, sequence: None, seed }),
            Parent::Block(hash) => self.place(hash)?,
        };
        if let Some(place) = place {
            self.step_through(place, blocks);
            match self.attach(place, blocks.hashes()) {
                Ok(added) => {
                    let found = self.waiting_for(blocks.hashes(), place.seed);
                    return Ok(Stored::Applied { added: added + self.attach_all(found) });
                }
                Err(Unplaced::Refused(refusal)) => return Err(refusal),
                Err(Unplaced::Gone) => {}
            }
        }
        match parent {
            // Not reached: the root is never gone.
            Parent::Root(_) => Ok(Stored::Applied { added: 0 }),
            Parent::Block(hash) => {
                self.names.unanchor(hash);
                self.parked.park(hash, blocks, self.indexer.limits()).map(|()| Stored::Parked)
            }
        }
    }

    /// After a call of `blocks` blocks: the thread's buffers go back, none is kept that is too large for where it is.
    fn give_back(&mut self, blocks: usize) {
        self.scratch.settle(if blocks > KEPT_BLOCKS { SHARED_BLOCKS } else { KEPT_BLOCKS });
        self.scratch.lend(blocks);
    }

    /// Where blocks go that follow the block `hash` names.
    fn place(&mut self, hash: EngineHash) -> Result<Option<Place>, Refusal> {
        let Some(known) = self.names.known(hash) else { return Ok(None) };
        self.names.is_no_end(hash);
        let place = self.indexer.place(self.owner, known);
        if place.is_none() {
            self.superseded();
            return Err(Refusal::Superseded);
        }
        Ok(place)
    }

    /// Takes copies of blocks away, each hash once: with [`Copies::Counted`] one copy, a parked one first; with
    /// [`Copies::Set`] the block.
    pub fn remove(&mut self, hashes: &[EngineHash]) -> Removed {
        let mut removed = Removed::default();
        self.scratch.lend(hashes.len());
        let Scratch { mixed, queue, .. } = &mut self.scratch;
        let mut queue = std::mem::take(queue);
        Names::mix(hashes, mixed);
        for (at, hash) in hashes.iter().enumerate() {
            self.names.approach(mixed, at);
            let parked = !self.parked.is_empty() && self.parked.remove(*hash, self.copies);
            let known = match self.copies {
                Copies::Counted if parked => Some(None),
                Copies::Counted | Copies::Set => self.names.remove((*hash, mixed[at]), self.copies),
            };
            queue.extend(known.flatten());
            if parked || known.is_some() {
                removed.removed += 1;
            } else {
                removed.unknown += 1;
            }
        }
        // Given up from the end of the queue: in the order they were named.
        queue.reverse();
        self.release(&mut queue);
        self.scratch.queue = queue;
        self.give_back(hashes.len());
        removed
    }

    /// From now on what is held is a set, as if made with [`Copies::Set`]: copies counted until now are one (rule 4).
    pub fn count_as_set(&mut self) {
        // A removal from a set does not look at how often a block was stored.
        self.copies = Copies::Set;
    }

    /// Drops every block and every parked store (rule 5).
    pub fn clear(&mut self) {
        self.parked.clear();
        let seen = self.names.blocks() > 0 && self.indexer.hide(self.owner);
        let strips = self.names.take_all();
        if seen {
            self.indexer.vacate(self.owner, strips);
        }
    }

    /// Drops names with all their copies, of blocks that lie anywhere.
    fn forget_all(&mut self, mut gone: Vec<(EngineHash, BlockId)>) {
        // By block: those of a node go at once. And not in the order of the table of names, whose one end would be full and whose
        // other end empty, so that each search were long.
        gone.sort_unstable_by_key(|(_, block)| std::cmp::Reverse(*block));
        let gone: Vec<_> = gone.into_iter().map(|(hash, _)| hash).collect();
        self.forget(&gone);
    }

    /// Drops names with all their copies.
    fn forget(&mut self, hashes: &[EngineHash]) {
        let mut queue = std::mem::take(&mut self.scratch.queue);
        queue.extend(hashes.iter().rev().filter_map(|hash| self.names.forget(*hash)));
        self.release(&mut queue);
        self.scratch.queue = queue;
    }

    fn release(&mut self, queue: &mut Vec<BlockId>) {
        if !queue.is_empty() && !self.indexer.release(self.owner, queue) {
            self.superseded();
        }
    }

    fn unplaced(&mut self, unplaced: Unplaced) -> Unplaced {
        if unplaced == Unplaced::Refused(Refusal::Superseded) {
            self.superseded();
        }
        unplaced
    }

    /// A superseded writer forgets what it thinks it holds; the one that took over has swept it.
    fn superseded(&mut self) {
        self.parked.clear();
        self.names.take_all();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.clear();
        self.indexer.leave(self.owner);
    }
}
