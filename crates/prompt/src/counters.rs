//! What preparing prompts costs.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Its value.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What preparing prompts costs, for metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Jobs done by the pool's threads.
    pub pooled: Counter,
    /// Requests that needed no thread: token ids, and bodies small enough to read at once.
    pub inline: Counter,
    /// Jobs refused because the queue was full.
    pub busy: Counter,
    /// Jobs that panicked.
    pub panicked: Counter,
    /// Chats rendered.
    pub rendered: Counter,
    /// Texts whose token ids were remembered.
    pub text_cache_hits: Counter,
    /// Bytes of text tokenised.
    pub encoded_bytes: Counter,
    /// Tokens that came of it.
    pub encoded_tokens: Counter,
}
