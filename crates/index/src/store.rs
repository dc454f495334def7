//! What a writer is told, and what it answers.

use crate::hash::{BlockSize, EngineHash, LocalHash, Seed, Window};

/// Up to this many names are compared each with each.
const FEW_NAMES: usize = 8;

/// What the first block of a store follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// Nothing: it starts a prompt with this adapter and salt.
    Root(Seed),
    /// The block this writer's engine calls so; the seed is that block's.
    Block(EngineHash),
}

/// Consecutive blocks of one store, `hashes[i]` naming block `i`.
#[derive(Clone, Copy, Debug)]
pub enum Blocks<'a> {
    /// As the engine tells them: tokens, to be hashed here.
    Tokens {
        /// The blocks' tokens: exactly `hashes` x block size, and one more for [`Window::Eagle`].
        tokens: &'a [u32],
        /// What a block's hash covers.
        window: Window,
        /// The engine's names.
        hashes: &'a [EngineHash],
    },
    /// As publishers tell them: hashed already.
    LocalHashes {
        /// One for each of `hashes`.
        locals: &'a [LocalHash],
        /// The engine's names.
        hashes: &'a [EngineHash],
    },
}

/// What became of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// In the index.
    Applied {
        /// Blocks this lane holds now and did not before, those of parked stores that could be attached included.
        added: usize,
    },
    /// Its parent is unknown on this writer: kept aside, credited to nobody (rule 6).
    Parked,
    /// Not a store one can believe or keep: nothing was changed.
    Refused(Refusal),
}

/// Why a store was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Tokens or local hashes do not fit the number of blocks.
    #[error("{given} tokens or hashes given where {expected} make up the blocks")]
    LengthMismatch {
        /// What `hashes` call for.
        expected: usize,
        /// What came.
        given: usize,
    },
    /// Two blocks of the store have one name.
    #[error("one store names two blocks {0:?}")]
    DuplicateHash(EngineHash),
    /// The parent is one of the store's own blocks.
    #[error("block {0:?} is given as its own ancestor")]
    SelfParent(EngineHash),
    /// The chain would be longer than [`crate::Limits::chain_blocks`].
    #[error("chain would be longer than {limit} blocks")]
    ChainTooLong {
        /// The bound.
        limit: usize,
    },
    /// The writer would hold more names than [`crate::Limits::writer_blocks`].
    #[error("target would hold more than {limit} blocks")]
    WriterFull {
        /// The bound.
        limit: usize,
    },
    /// The index would hold more than [`crate::Limits::index_blocks`].
    #[error("index would hold more than {limit} distinct blocks")]
    IndexFull {
        /// The bound.
        limit: usize,
    },
    /// Its parent is unknown and it alone is over [`crate::Limits::parked_bytes`].
    #[error("parent unknown, and more than {limit} bytes to park")]
    TooLargeToPark {
        /// The bound.
        limit: usize,
    },
    /// A newer writer or holder has this lane; this one writes nothing any more.
    #[error("another has taken over this lane")]
    Superseded,
}

/// What became of a removal, counted by hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Hashes this writer knew, parked blocks included.
    pub removed: usize,
    /// Hashes it did not know.
    pub unknown: usize,
}

impl Blocks<'_> {
    /// The engine's names, block by block.
    pub(crate) fn hashes(&self) -> &[EngineHash] {
        match self {
            Self::Tokens { hashes, .. } | Self::LocalHashes { hashes, .. } => hashes,
        }
    }

    /// Whether this is a store one can believe. `mixed`: its names, as [`crate::names::Names::mix`] has them.
    pub(crate) fn check(&self, mixed: &[u64], parent: Parent, block_size: BlockSize, distinct: &mut Distinct) -> Result<(), Refusal> {
        let hashes = self.hashes();
        let (expected, given) = match self {
            Self::Tokens { tokens, window, .. } => (window.span(hashes.len(), block_size), tokens.len()),
            Self::LocalHashes { locals, .. } => (hashes.len(), locals.len()),
        };
        if expected != given {
            return Err(Refusal::LengthMismatch { expected, given });
        }
        if let Parent::Block(parent) = parent
            && hashes.contains(&parent)
        {
            return Err(Refusal::SelfParent(parent));
        }
        match distinct.twice(mixed) {
            Some(at) => Err(Refusal::DuplicateHash(hashes[at])),
            None => Ok(()),
        }
    }
}

/// Finds names given twice; kept for its memory.
#[derive(Debug, Default)]
pub(crate) struct Distinct {
    /// Open addressing: one more than the index of a name, or 0.
    places: Vec<u32>,
}

impl Distinct {
    /// Where a name stands that stands in `mixed` before, too, if there is one.
    fn twice(&mut self, mixed: &[u64]) -> Option<usize> {
        if mixed.len() <= FEW_NAMES {
            return (0..mixed.len()).find(|at| mixed[..*at].contains(&mixed[*at]));
        }
        let size = (mixed.len() * 2).next_power_of_two();
        self.places.clear();
        self.places.resize(size, 0);
        for (index, name) in mixed.iter().enumerate() {
            let mut at = *name as usize & (size - 1);
            while let Some(other) = self.places[at].checked_sub(1) {
                if mixed[other as usize] == *name {
                    return Some(index);
                }
                at = (at + 1) & (size - 1);
            }
            self.places[at] = index as u32 + 1;
        }
        None
    }
}
