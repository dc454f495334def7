//! The writing side of the index: one stream's hand on one lane of one target.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    hash::{EngineHash, LocalHash, Seed, SequenceHash, Window, local_hashes},
    indexer::KvIndexer,
    lane::{Copies, Lane},
    target::Target,
};

/// Writes one lane of one target. Dropping it retracts everything it holds.
#[derive(Debug)]
pub struct Writer {
    indexer: Arc<KvIndexer>,
    target: Target,
    lane: Lane,
    copies: Copies,
    /// Engine hash -> identity, seed, copies.
    held: BTreeMap<EngineHash, (SequenceHash, Seed, u32)>,
}

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
    /// The writer would hold more than [`crate::Limits::writer_blocks`].
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
    /// A newer writer has this lane; this one writes nothing any more.
    #[error("a newer writer has taken over this lane")]
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

/// The stores whose parents are unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parked {
    /// Stores parked now.
    pub stores: usize,
    /// Blocks of those stores, without the ones removed since.
    pub blocks: usize,
    /// Stores ever parked.
    pub total: u64,
    /// Stores dropped, the oldest first, because a bound was reached, or that could not be attached.
    pub dropped: u64,
}

impl Writer {
    pub(crate) fn new(indexer: Arc<KvIndexer>, target: Target, lane: Lane, copies: Copies) -> Self {
        Self { indexer, target, lane, copies, held: BTreeMap::new() }
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
        self.lane
    }

    /// Blocks stored after `parent`.
    pub fn store(&mut self, parent: Parent, blocks: Blocks<'_>) -> Stored {
        let (mut sequence, seed) = match parent {
            Parent::Root(seed) => (None, seed),
            Parent::Block(hash) => match self.held.get(&hash) {
                Some((sequence, seed, _)) => (Some(*sequence), *seed),
                None => return Stored::Parked,
            },
        };
        let mut hashed = Vec::new();
        let (locals, hashes) = match blocks {
            Blocks::Tokens { tokens, window, hashes } => {
                local_hashes(tokens, self.indexer.block_size(), seed, window, &mut hashed);
                (&hashed[..], hashes)
            }
            Blocks::LocalHashes { locals, hashes } => (locals, hashes),
        };
        if locals.len() != hashes.len() {
            return Stored::Refused(Refusal::LengthMismatch { expected: hashes.len(), given: locals.len() });
        }
        let before = self.blocks();
        for (local, hash) in locals.iter().zip(hashes) {
            let identity = SequenceHash::after(sequence, *local);
            let entry = self.held.entry(*hash).or_insert((identity, seed, 0));
            entry.2 = if self.copies == Copies::Counted { entry.2 + 1 } else { 1 };
            sequence = Some(identity);
        }
        self.publish();
        Stored::Applied { added: self.blocks() - before }
    }

    /// Takes copies of blocks away: each hash once.
    pub fn remove(&mut self, hashes: &[EngineHash]) -> Removed {
        let mut removed = Removed::default();
        for hash in hashes {
            let Some(entry) = self.held.get_mut(hash) else {
                removed.unknown += 1;
                continue;
            };
            removed.removed += 1;
            entry.2 -= 1;
            if entry.2 == 0 {
                self.held.remove(hash);
            }
        }
        self.publish();
        removed
    }

    /// Drops every block, and every parked store.
    pub fn clear(&mut self) {
        self.held.clear();
        self.publish();
    }

    /// Rule 11, the engine holds less than we knew: drops this writer's blocks of `chain` from position `keep` on, and
    /// every block of this writer beneath them. Returns how many blocks.
    pub fn retract(&mut self, chain: &[LocalHash], keep: usize) -> usize {
        let mut sequences = Vec::new();
        crate::hash::sequence_hashes(chain, &mut sequences);
        let before = self.blocks();
        let gone: BTreeSet<_> = sequences.into_iter().skip(keep).collect();
        self.held.retain(|_, (identity, _, _)| !gone.contains(identity));
        self.publish();
        before - self.blocks()
    }

    /// Rules 6 and 11, the engine confirmed that it holds `chain[..known]` (hashed under `seed`): attaches parked stores
    /// whose blocks continue it. Returns how many blocks are held now that were not.
    pub fn adopt(&mut self, chain: &[LocalHash], known: usize, seed: Seed) -> usize {
        let _ = (chain, known, seed);
        0
    }

    /// Blocks held in the lane.
    pub fn blocks(&self) -> usize {
        self.identities().len()
    }

    /// The stores whose parents are unknown.
    pub fn parked(&self) -> Parked {
        Parked::default()
    }

    fn identities(&self) -> BTreeSet<SequenceHash> {
        self.held.values().map(|(identity, _, _)| *identity).collect()
    }

    fn publish(&self) {
        self.indexer.replace(self.target, self.lane, self.identities());
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.clear();
    }
}
