//! Predictions against what engines report, counted.

use std::fmt;

use super::{
    ask::{Ask, Said},
    vllm::BLOCK_TOKENS,
};

/// Rule 3: what a request hits of `overlap` leading blocks.
pub(super) fn usable_tokens(overlap_blocks: u64, prompt_tokens: u64) -> u64 {
    BLOCK_TOKENS * overlap_blocks.min(prompt_tokens.saturating_sub(1) / BLOCK_TOKENS)
}

/// How predictions compare with answers.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) requests: u64,
    pub(super) equal: u64,
    pub(super) below: u64,
    pub(super) above: u64,
    /// Answers with at least one cached block.
    pub(super) hits: u64,
    /// Answers with other prompt tokens than the frontend's count.
    pub(super) other_counts: u64,
    pub(super) server_errors: u64,
    /// Each prediction that was not equal, and each other count, in words.
    pub(super) differences: Vec<String>,
}

impl Figures {
    /// Counts one answer; `overlap_blocks` of its prompt were known on the worker that gave it.
    pub(super) fn compare(&mut self, ask: &Ask, overlap_blocks: u64, said: &Said) {
        self.requests += 1;
        self.hits += u64::from(said.cached_tokens > 0);
        let (predicted, cached) = (usable_tokens(overlap_blocks, said.prompt_tokens), said.cached_tokens);
        match predicted.cmp(&cached) {
            std::cmp::Ordering::Equal => return self.equal += 1,
            std::cmp::Ordering::Less => self.below += 1,
            std::cmp::Ordering::Greater => self.above += 1,
        }
        self.differences.push(format!("predicted {predicted}, cached {cached} of {}: {ask}", said.prompt_tokens));
    }

    /// Counts a status that is not 200.
    pub(super) fn failed(&mut self, ask: &Ask, status: http::StatusCode) {
        self.requests += 1;
        self.server_errors += u64::from(status.is_server_error());
        self.differences.push(format!("{status}: {ask}"));
    }

    pub(super) fn counted(&mut self, ask: &Ask, ours: u64, theirs: u64) {
        if ours != theirs {
            self.other_counts += 1;
            self.differences.push(format!("{ours} tokens for the frontend, {theirs} for the engine: {ask}"));
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, equal, below, above, hits, other_counts, server_errors, .. } = self;
        write!(
            f,
            "{requests} requests, {hits} with a hit; predicted equal {equal}, below {below}, above {above}; \
             {other_counts} other token counts; {server_errors} 5xx"
        )
    }
}
