//! The engine itself, in virtual time: no clock, no socket, no task.
//!
//! It imitates what real engines do as far as a router can see it: prefix caching by chained hashes, copies of one
//! block, eviction leaf first in least-recently-used order, chunked prefill, several requests a step, preemption,
//! generated tokens that fill blocks. [`Engine::step`] plans and runs one scheduler step at once and says how long it
//! would have taken; whoever drives the engine decides what that duration means.
//!
//! Left out on purpose: attention, logits, sampling parameters, sliding windows, other cache groups, host tiers.
//! The chain of hashes is this crate's own and shares nothing with what consumers of the events compute.

mod blocks;
mod engine;
mod hash;
mod output;
mod request;
#[cfg(test)]
mod tests;

pub use self::engine::{Engine, Gauges, MAX_UNFINISHED, Refused, Totals};
pub use self::output::Vocabulary;

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

/// A digest of tokens, the same in every process: two engines that computed the same prompt agree on it.
pub fn digest(tokens: &[u32]) -> u64 {
    hash::tokens(None, tokens)
}

/// A change of the prefix cache, in the order it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// A run of blocks that follow each other in one sequence was stored. Blocks already cached elsewhere in
    /// the pool are announced again: they are copies, and each copy is removed on its own.
    Stored(StoredBlocks),
    /// One copy of a block was evicted.
    Removed {
        /// The engine's hash of the block.
        hash: u64,
    },
    /// Everything was dropped.
    Cleared,
}

/// The blocks of a [`KvEvent::Stored`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBlocks {
    /// The engine's hashes, first block first.
    pub hashes: Vec<u64>,
    /// Hash of the block before the first; `None` at the start of a sequence.
    pub parent: Option<u64>,
    /// Token ids of all the blocks: `hashes.len() * block_size` of them.
    pub tokens: Vec<u32>,
    /// The adapter the sequence was computed with.
    pub adapter: Option<Arc<str>>,
    /// The cache salt of the sequence.
    pub salt: Option<Arc<str>>,
}

/// Which engine to resemble where they differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// vLLM: a block computed twice is kept twice; blocks are stored as soon as the step that fills them is planned.
    #[default]
    Vllm,
    /// SGLang: a tree holds each block once; generated tokens enter it when their request ends; the first batch of
    /// a process begins with a clear.
    Sglang,
}

/// How the engine behaves. Rates are those of the simulated hardware, before any speed-up.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Which engine to resemble.
    pub style: Style,
    /// Tokens per block.
    pub block_size: NonZeroU32,
    /// Blocks in the pool; they must hold at least one sequence of `max_model_len`.
    pub blocks: u32,
    /// Longest sequence, prompt and output together, in tokens.
    pub max_model_len: u32,
    /// Tokens computed in one step at most; a longer prefill is split into chunks.
    pub max_batched_tokens: u32,
    /// Sequences in one step at most.
    pub max_sequences: u32,
    /// Prefill speed in tokens per second, over all sequences of a step.
    pub prefill_tokens_per_s: f64,
    /// Decode speed in tokens per second of each sequence: a step that decodes takes at least its inverse.
    pub decode_tokens_per_s: f64,
    /// Seed of the block hashes: two engines with one seed name the same block alike.
    pub hash_seed: u64,
    /// What the engine can say.
    pub vocabulary: Vocabulary,
}

impl EngineConfig {
    fn check(&self) -> Result<(), ConfigError> {
        let capacity_tokens = u64::from(self.blocks) * u64::from(self.block_size.get());
        if self.max_model_len < 2 {
            return Err(ConfigError("max model length must be at least 2 tokens".to_owned()));
        }
        if capacity_tokens < u64::from(self.max_model_len) {
            return Err(ConfigError(format!(
                "{} blocks of {} tokens cannot hold one sequence of {} tokens: give more blocks or a smaller max model length",
                self.blocks, self.block_size, self.max_model_len
            )));
        }
        if self.max_batched_tokens == 0 || self.max_sequences == 0 {
            return Err(ConfigError("a step needs at least one token and one sequence".to_owned()));
        }
        for (name, rate) in [("prefill", self.prefill_tokens_per_s), ("decode", self.decode_tokens_per_s)] {
            if !rate.is_finite() || rate <= 0.0 {
                return Err(ConfigError(format!("{name} rate {rate} must be a positive number of tokens per second")));
            }
        }
        if self.vocabulary.words.is_empty() {
            return Err(ConfigError("the vocabulary to answer from is empty".to_owned()));
        }
        Ok(())
    }
}

/// A configuration no engine can run with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub(crate) String);

/// One sequence to generate. A body with several prompts or `n` above one is several of these.
#[derive(Clone, Debug, Default)]
pub struct NewRequest {
    /// Prompt token ids, at least one.
    pub prompt: Vec<u32>,
    /// Adapter to compute with.
    pub adapter: Option<Arc<str>>,
    /// Cache salt: part of the key of every block of the sequence.
    pub salt: Option<Arc<str>>,
    /// Tokens to generate at most, at least one; cut at `max_model_len`.
    pub max_tokens: u32,
    /// Go on after the end-of-sequence token would have come.
    pub ignore_eos: bool,
    /// Tokens before which the end-of-sequence token does not come; it never comes first.
    pub min_tokens: u32,
    /// Which of several answers to the same prompt this is: each number answers differently.
    pub choice: u32,
    /// Another engine computed the prompt and handed over its blocks: only the last token is computed here.
    pub prefilled: bool,
}

/// Names one request inside one engine; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) u64);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What one scheduler step did.
#[derive(Clone, Debug)]
pub struct Step {
    /// How long the step takes at the configured rates.
    pub duration: Duration,
    /// Changes of the cache, oldest first: one batch. Removals come before the store that displaced them.
    pub events: Vec<KvEvent>,
    /// Tokens generated, one per sequence that got one.
    pub outputs: Vec<Output>,
}

/// One generated token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    /// Whose it is.
    pub request: RequestId,
    /// The token.
    pub token: u32,
    /// Prompt tokens found in the cache when the request was first scheduled.
    pub cached_tokens: u32,
    /// Set on the last token.
    pub finish: Option<Finish>,
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The end-of-sequence token came.
    Stop,
    /// `max_tokens` or the engine's length was reached.
    Length,
}
