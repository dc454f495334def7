//! What turning prompts into tokens costs, read at each scrape.

use std::{fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::DescriptorEncoder,
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};
use prompt::{Counter, Counters, Pool, remote};

use crate::metrics::family;

/// Asked at each scrape.
#[derive(Debug)]
pub(crate) struct PromptCollector {
    pub(crate) pool: Arc<Pool>,
    pub(crate) remote: Arc<remote::Counters>,
}

const PREFIX: &str = "dynamo_frontend";
const NO_LABELS: [(&str, &str); 0] = [];

impl Collector for PromptCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let queued = ConstGauge::new(self.pool.queued() as i64);
        family(&mut encoder, PREFIX, "prompt_jobs_queued", "Jobs that wait for a prompt thread", [(&NO_LABELS, queued)].into_iter())?;
        let Counters { pooled, inline, busy, panicked, rendered, text_cache_hits, encoded_bytes, encoded_tokens } = &**self.pool.counters();
        let remote::Counters { hits, misses, tokens } = &*self.remote;
        let counters: [(&str, &str, &Counter); 11] = [
            ("prompt_jobs", "Jobs done by prompt threads: reading, hashing, rendering, tokenising", pooled),
            ("prompt_jobs_inline", "The same where no thread was needed", inline),
            ("prompt_jobs_refused", "Jobs refused because too many waited", busy),
            ("prompt_jobs_panicked", "Jobs that panicked", panicked),
            ("chats_rendered", "Chats turned into text", rendered),
            ("text_cache_hits", "Texts whose tokens were remembered", text_cache_hits),
            ("tokenized_bytes", "Bytes of text tokenised", encoded_bytes),
            ("tokenized_tokens", "Tokens that came of it", encoded_tokens),
            ("engine_tokenize_cache_hits", "Questions to an engine's /tokenize that memory answered", hits),
            ("engine_tokenize_cache_misses", "Those that an engine was asked", misses),
            ("engine_tokenize_tokens", "Tokens that engines answered", tokens),
        ];
        for (name, help, counter) in counters {
            family(&mut encoder, PREFIX, name, help, [(&NO_LABELS, ConstCounter::new(counter.value()))].into_iter())?;
        }
        Ok(())
    }
}
