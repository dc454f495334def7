//! The engine's own names for blocks: a chain of keyed hashes.
//!
//! Nothing outside may compute these: consumers must treat an engine's hashes as opaque, and with a random seed per
//! process a test that relies on their values fails.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Hash of the empty sequence: covers the seed, the adapter and the salt, so that sequences of different adapters or
/// salts share nothing.
pub(super) fn root(seed: u64, adapter: Option<&str>, salt: Option<&str>) -> u64 {
    let mut hasher = DefaultHasher::new();
    ("root", seed, adapter, salt).hash(&mut hasher);
    hasher.finish()
}

/// Hash of a block after `parent`.
pub(super) fn block(parent: u64, tokens: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    ("block", parent, tokens).hash(&mut hasher);
    hasher.finish()
}

/// A number drawn for one position of one answer.
pub(super) fn draw(prompt: u64, choice: u32, position: u32) -> u64 {
    let mut hasher = DefaultHasher::new();
    ("draw", prompt, choice, position).hash(&mut hasher);
    hasher.finish()
}
