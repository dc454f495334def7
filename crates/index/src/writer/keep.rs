//! Taking over what a lane holds from a complete list of it.

use parking_lot::RwLockReadGuard;

use super::Writer;
use crate::{
    hash::{EngineHash, SequenceHash},
    trie::CHUNK_BLOCKS,
};

impl Writer {
    /// Of a complete list of what the lane holds, `is_listed` tells whether a name means this block: drops every name of
    /// which it says no, and every parked store. What is held then was held before and is on the list, so whoever stores
    /// the list next, parents first, goes from the old state to the new one without a moment in which a lookup sees more
    /// than one of them. Returns how many blocks are not held any more.
    pub fn keep(&mut self, mut is_listed: impl FnMut(EngineHash, SequenceHash) -> bool) -> usize {
        self.parked.clear();
        self.names.unanchor_all();
        let before = self.names.blocks();
        let mut gone = Vec::new();
        let mut trie = self.indexer.trie.read();
        if trie.seats.in_force(self.owner) {
            for (at, (name, block)) in self.names.iter().enumerate() {
                if at % CHUNK_BLOCKS == CHUNK_BLOCKS - 1 {
                    RwLockReadGuard::bump(&mut trie);
                }
                if trie.block(block).is_none_or(|(_, identity, _)| !is_listed(name, identity)) {
                    gone.push((name, block));
                }
            }
        }
        drop(trie);
        self.forget_all(gone);
        self.give_back(0);
        before - self.names.blocks()
    }
}
