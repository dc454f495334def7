//! What an answer costs: each token once.

use wire::generate::EngineUsage;

use crate::shape::{Shape, Usage};

/// Token counts of all choices so far.
#[derive(Debug)]
pub(crate) struct Tally {
    prompts: Vec<PromptTally>,
    /// Which legs have told what was cached. A worker that takes a leg over reports what it knows of a longer prompt.
    reported: Vec<bool>,
    n: usize,
    prompt_tokens: u64,
    completion_tokens: u64,
    cached_tokens: Option<u64>,
}

#[derive(Debug)]
struct PromptTally {
    tokens: u32,
    cached: Option<u32>,
}

impl Tally {
    pub(crate) fn new(shape: &Shape) -> Self {
        let prompts: Vec<PromptTally> = shape
            .prompts
            .iter()
            .map(|prompt| PromptTally { tokens: u32::try_from(prompt.ids.len()).unwrap_or(u32::MAX), cached: None })
            .collect();
        Self {
            reported: vec![false; shape.choices()],
            n: shape.n.max(1) as usize,
            prompt_tokens: prompts.iter().map(|prompt| u64::from(prompt.tokens)).sum(),
            completion_tokens: 0,
            cached_tokens: None,
            prompts,
        }
    }

    /// `new` tokens came for choice `at`, and perhaps a report.
    pub(crate) fn count(&mut self, at: usize, new: usize, report: Option<&EngineUsage>) {
        self.completion_tokens += new as u64;
        let Some(cached) = report.and_then(|report| report.cached_tokens) else { return };
        let (Some(reported), Some(prompt)) = (self.reported.get_mut(at), self.prompts.get_mut(at / self.n)) else { return };
        if std::mem::replace(reported, true) {
            return;
        }
        // Of several choices of one prompt, the later ones find what the first has computed: the least was there before.
        let least = cached.min(prompt.tokens).min(prompt.cached.unwrap_or(u32::MAX));
        let before = u64::from(prompt.cached.replace(least).unwrap_or(0));
        self.cached_tokens = Some(self.cached_tokens.unwrap_or(0) - before + u64::from(least));
    }

    pub(crate) fn usage(&self) -> Usage {
        let Self { prompt_tokens, completion_tokens, cached_tokens, .. } = *self;
        Usage { prompt_tokens, completion_tokens, cached_tokens }
    }
}
