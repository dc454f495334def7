//! What engines tell most often: one new block, where their last one ended.

use super::Writer;
use crate::{
    hash::{EngineHash, LocalHash, Seed, SequenceHash, local_hashes},
    names::Place,
    node::BlockRef,
    store::{Blocks, Parent, Stored},
};

impl Writer {
    /// Stores one block after the end of a store before it. `None`, and nothing is changed: it is not as simple as that.
    pub(super) fn store_next(&mut self, parent: Parent, blocks: Blocks<'_>) -> Option<Stored> {
        let (Parent::Block(parent), [hash]) = (parent, blocks.hashes()) else { return None };
        if parent == *hash {
            return None;
        }
        let place = self.names.end(parent)?;
        let local = self.only_local(blocks, place.seed)?;
        self.go_on(place, local, *hash).then(|| {
            self.names.is_no_end(parent);
            Stored::Applied { added: 1 }
        })
    }

    /// The local hash of the one block there is.
    fn only_local(&mut self, blocks: Blocks<'_>, seed: Seed) -> Option<LocalHash> {
        match blocks {
            Blocks::LocalHashes { locals, .. } => match locals {
                [local] => Some(*local),
                _ => None,
            },
            Blocks::Tokens { tokens, window, .. } => {
                let (size, locals) = (self.indexer.block_size(), &mut self.scratch.locals);
                if tokens.len() != window.span(1, size) {
                    return None;
                }
                local_hashes(tokens, size, seed, window, locals);
                locals.first().copied()
            }
        }
    }

    /// Puts one block after `place`, if the end of what this writer stored is there, and the name is new. `false`, and nothing is
    /// changed: it takes the way of all stores.
    pub(super) fn go_on(&mut self, place: Place, local: LocalHash, hash: EngineHash) -> bool {
        let Some(from) = place.block else { return false };
        if !self.parked.is_empty() || self.names.len() >= self.indexer.limits().writer_blocks {
            return false;
        }
        let Some(opening) = self.names.opening(hash) else { return false };
        let identity = SequenceHash::after(place.sequence, local);
        let Some(seed) = self.indexer.go_on(self.owner, from, (local, identity)) else { return false };
        let block = BlockRef { id: from.id.plus(1), ..from };
        self.names.store_at(opening, hash, block.id, (seed != place.seed).then_some(place.seed));
        self.names.ends_at(hash, block, (identity, place.seed));
        true
    }
}
