//! Block hashing: the identities every party of the fleet must agree on, bit for bit.
//!
//! XXH3-64 with an explicit seed over little-endian bytes. A *local* hash names the tokens of one block under a seed
//! (adapter and cache salt); a *sequence* hash names a block together with everything before it. Multimodal parts are
//! left out: their blocks never match a text prompt (rule 9).

mod recent;
mod windows;

use std::num::NonZeroU32;

pub use recent::{Hashed, RecentPrompts, Recipe};
use windows::Windows;
use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::{Immutable, IntoBytes};

/// Seed of the chain step, and of local hashes without adapter and salt.
const BASE: u64 = 1337;
/// Inner seeds keep the same text apart in its different roles: adapter name, cache salt, adapter number, group.
const ADAPTER_NAME: u64 = 0;
const CACHE_SALT: u64 = 1;
const ADAPTER_NUMBER: u64 = 2;
const GROUP: u64 = 3;

/// Tokens per block; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockSize(NonZeroU32);

impl BlockSize {
    /// `None` for zero.
    pub const fn new(tokens: u32) -> Option<Self> {
        match NonZeroU32::new(tokens) {
            Some(tokens) => Some(Self(tokens)),
            None => None,
        }
    }

    /// Tokens per block.
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

impl std::fmt::Display for BlockSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What a block's local hash starts from: the adapter and the cache salt of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seed(u64);

impl Seed {
    /// No adapter, no salt.
    pub const BASE: Self = Self(BASE);

    /// The seed of a named adapter and a cache salt; an empty text is the same as none.
    pub fn new(adapter: Option<&str>, salt: Option<&str>) -> Self {
        Self::BASE.plus(adapter, ADAPTER_NAME).plus(salt, CACHE_SALT)
    }

    /// The seed of an adapter known only by number (rule 13): it equals no named adapter's and not the base model's, so
    /// nothing stored under it is credited to either.
    pub fn numbered(id: i64, salt: Option<&str>) -> Self {
        let own = xxh3_64_with_seed(&id.to_le_bytes(), ADAPTER_NUMBER);
        Self(BASE.wrapping_add(own)).plus(salt, CACHE_SALT)
    }

    /// The number itself, as the vectors print it.
    pub const fn get(self) -> u64 {
        self.0
    }

    fn plus(self, text: Option<&str>, role: u64) -> Self {
        match text {
            Some(text) if !text.is_empty() => Self(self.0.wrapping_add(xxh3_64_with_seed(text.as_bytes(), role))),
            Some(_) | None => self,
        }
    }
}

/// The hash of one block's tokens under its [`Seed`]: what the index navigates by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, IntoBytes, Immutable)]
#[repr(transparent)]
pub struct LocalHash(pub u64);

/// The hash of a block and everything before it: the block's identity across workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceHash(pub u64);

impl SequenceHash {
    /// The identity of a block after `parent` (`None`: the first block of a prompt).
    pub fn after(parent: Option<Self>, local: LocalHash) -> Self {
        let Some(parent) = parent else { return Self(local.0) };
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&parent.0.to_le_bytes());
        bytes[8..].copy_from_slice(&local.0.to_le_bytes());
        Self(xxh3_64_with_seed(&bytes, BASE))
    }
}

/// An engine's own name for a block: opaque, meaningful on one target only (rule 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineHash(pub u64);

impl EngineHash {
    /// The name inside one cache group of the engine (rule 4 counts copies per group); group 0 is the plain name.
    pub fn in_group(self, group: u32) -> Self {
        if group == 0 {
            return self;
        }
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&self.0.to_le_bytes());
        bytes[8..].copy_from_slice(&group.to_le_bytes());
        Self(xxh3_64_with_seed(&bytes, GROUP))
    }
}

/// How many tokens one block's hash covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// The block's own tokens.
    Plain,
    /// The block's tokens and the next one (EAGLE draft models cache bigrams).
    Eagle,
}

impl Window {
    /// Tokens one hash looks at.
    pub(crate) fn tokens(self, block_size: BlockSize) -> usize {
        let stride = block_size.get() as usize;
        match self {
            Self::Plain => stride,
            Self::Eagle => stride + 1,
        }
    }

    /// Tokens that make up exactly `blocks` hashes.
    pub(crate) fn span(self, blocks: usize, block_size: BlockSize) -> usize {
        match blocks.checked_sub(1) {
            Some(before_last) => before_last.saturating_mul(block_size.get() as usize).saturating_add(self.tokens(block_size)),
            None => 0,
        }
    }
}

/// Fills `out` (cleared first) with the local hash of each block whose whole window lies in `tokens`; a partial last
/// block has none.
pub fn local_hashes(tokens: &[u32], block_size: BlockSize, seed: Seed, window: Window, out: &mut Vec<LocalHash>) {
    out.clear();
    let stride = block_size.get() as usize;
    let window = window.tokens(block_size);
    if tokens.len() < window {
        return;
    }
    out.reserve((tokens.len() - window) / stride + 1);
    Windows::new(seed.0).hash_all(tokens, window, stride, out);
}

/// Fills `out` (cleared first) with the identity of each block of `chain`.
pub fn sequence_hashes(chain: &[LocalHash], out: &mut Vec<SequenceHash>) {
    out.clear();
    out.reserve(chain.len());
    let mut parent = None;
    for local in chain {
        let sequence = SequenceHash::after(parent, *local);
        out.push(sequence);
        parent = Some(sequence);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn groups_keep_names_apart_and_group_zero_is_the_name_itself() {
        let names: BTreeSet<_> = (0..8).flat_map(|group| (0..100).map(move |hash| EngineHash(hash).in_group(group))).collect();
        assert_eq!(names.len(), 800);
        assert_eq!(EngineHash(42).in_group(0), EngineHash(42));
    }

    #[test]
    fn a_window_spans_its_blocks_and_nothing_overflows() {
        let most = BlockSize(NonZeroU32::MAX);
        assert_eq!(Window::Plain.span(usize::MAX, most), usize::MAX);
        assert_eq!((Window::Eagle.span(0, most), Window::Eagle.span(1, most)), (0, 1 << 32));
        let mut out = vec![LocalHash(1)];
        local_hashes(&[1, 2, 3], most, Seed::BASE, Window::Eagle, &mut out);
        assert!(out.is_empty());
    }
}
