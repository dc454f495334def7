//! The buffers of a writer's calls.

use std::cell::RefCell;

use crate::{hash::LocalHash, node::BlockId, steps::Steps, store::Distinct, trie::Run};

/// Buffers kept for their memory.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) distinct: Distinct,
    /// The names of the call at hand, as the table of names has them.
    pub(super) mixed: Vec<u64>,
    pub(super) locals: Vec<LocalHash>,
    pub(super) steps: Steps,
    pub(super) runs: Vec<Run>,
    /// Steps whose names are held already, and the blocks those mean.
    pub(super) held: Vec<(usize, BlockId)>,
    pub(super) queue: Vec<BlockId>,
}

/// A writer keeps buffers for as many blocks: thousands of writers may have seen one long prompt each.
pub(super) const KEPT_BLOCKS: usize = 64;
/// Stores and removals of more are done in buffers that a thread's writers share, and these are kept up to so many.
pub(super) const SHARED_BLOCKS: usize = 1024;

thread_local! {
    /// For what is larger than a writer's own buffers. At rest nothing in it is of use but its memory.
    static SHARED: RefCell<Scratch> = RefCell::default();
}

impl Scratch {
    /// For a call of so many blocks: the thread's buffers where they are many, and back again after it.
    pub(super) fn lend(&mut self, blocks: usize) {
        if blocks > KEPT_BLOCKS {
            // A thread that is about to end has none any more; then new ones are made.
            let _ = SHARED.try_with(|shared| std::mem::swap(self, &mut shared.borrow_mut()));
        }
    }

    /// Gives up memory for more than `most` blocks.
    pub(super) fn settle(&mut self, most: usize) {
        if self.steps.len() > most || self.mixed.capacity() > 2 * most || self.queue.capacity() > 4 * most {
            *self = Self::default();
        }
    }
}
