//! What engines tell most often: one new block, where their last one ended.

use super::Writer;
use crate::{
    hash::{EngineHash, LocalHash, Seed, SequenceHash, local_hashes},
    names::{Known, Place, Tail},
    store::{Blocks, Parent, Stored},
};

impl Writer {
    /// Stores one block after the end of a store before it. `None`, and nothing is changed: it is not as simple as that.
    pub(super) fn store_next(&mut self, parent: Parent, blocks: Blocks<'_>) -> Option<Stored> {
        let (Parent::Block(parent), [hash]) = (parent, blocks.hashes()) else { return None };
        let mixed = self.names.approach_one(*hash);
        let tail = match self.names.end(parent) {
            Some(tail) => tail,
            None => self.lost_end(parent)?,
        };
        if parent == *hash || !self.parked.is_empty() || self.names.len() >= self.indexer.limits().writer_blocks {
            return None;
        }
        let local = self.only_local(blocks, tail.seed)?;
        let identity = SequenceHash::after(Some(tail.sequence), local);
        let opening = self.names.opening(mixed)?;
        let seed = self.indexer.go_on(self.owner, tail.block, (local, identity))?;
        self.names.store_at(opening, *hash, tail.block.plus(1), (seed != tail.seed).then_some(tail.seed));
        self.names.end_moves(tail, *hash, identity);
        Some(Stored::Applied { added: 1 })
    }

    /// The block `parent` names, which may be an end that is not remembered.
    #[cold]
    fn lost_end(&self, parent: EngineHash) -> Option<Tail> {
        let Some(known @ Known::Held(block, _)) = self.names.known(parent) else { return None };
        let Place { sequence, seed, .. } = self.indexer.place(self.owner, known)?;
        Some(Tail { at: None, block, sequence: sequence?, seed })
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
}
