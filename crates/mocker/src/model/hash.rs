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

/// Digest of a text with one more token: of two texts, or of one and its beginning, never the same in practice.
pub(super) fn longer(text: u64, token: u32) -> u64 {
    (text ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

/// A number drawn for what comes behind a text.
pub(super) fn draw(text: u64, choice: u32) -> u64 {
    let mut hasher = DefaultHasher::new();
    ("draw", text, choice).hash(&mut hasher);
    hasher.finish()
}

/// Digest of tokens, the same in every process.
pub(super) fn tokens(adapter: Option<&str>, tokens: &[u32]) -> u64 {
    tokens.iter().fold(root(0, adapter, None), |text, token| longer(text, *token))
}
