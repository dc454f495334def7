//! The tokens of an echoed prompt, for logprobs.

use serde_json::Value;

use crate::{answer::Answer, choice::Entry, text::Detokenizer};
use prompt::Endpoint;

impl Answer {
    /// The prompt's tokens with what the engine told of them; none where no logprobs are wanted.
    pub(crate) fn echo_entries(&self, at: usize) -> Vec<Entry> {
        let (Some(top), Endpoint::Completions) = (self.shape.logprobs, self.shape.endpoint) else { return Vec::new() };
        let Some(prompt) = self.shape.prompt_of(at) else { return Vec::new() };
        let told = self.legs.get(at).and_then(|leg| leg.told.prompt_logprobs.as_ref());
        let vocabulary = &self.rules.vocabulary;
        let shows = |id: u32| !(self.shape.skip_special_tokens && vocabulary.is_special(id));
        let mut detokenizer = Detokenizer::after(&[], vocabulary, shows);
        let (mut text, mut offset) = (String::new(), 0);
        prompt
            .ids
            .iter()
            .enumerate()
            .map(|(place, &id)| {
                let entry = Entry { offset, ..entry(id, told.and_then(|told| told.get(place)), top as usize) };
                if shows(id) {
                    detokenizer.push(id, vocabulary, &mut text);
                }
                offset += text.chars().count();
                text.clear();
                entry
            })
            .collect()
    }
}

/// The token `id` where `told` are the likeliest tokens at its place, by their ids: each a number, or an object with `logprob`
/// and perhaps `rank`.
fn entry(id: u32, told: Option<&Value>, most: usize) -> Entry {
    let of = |value: &Value| value.as_f64().or_else(|| value.get("logprob")?.as_f64());
    let rank = |value: &Value| value.get("rank").and_then(Value::as_u64).unwrap_or(u64::MAX);
    let told = told.and_then(Value::as_object);
    let logprob = told.and_then(|told| of(told.get(itoa::Buffer::new().format(id))?));
    let mut top: Vec<(u64, (u32, f64))> = told
        .into_iter()
        .flatten()
        .filter_map(|(token, value)| Some((rank(value), (token.parse().ok()?, of(value)?))))
        .filter(|(rank, _)| *rank == u64::MAX || *rank <= most as u64)
        .collect();
    top.sort_by_key(|(rank, _)| *rank);
    Entry { id, logprob, top: top.into_iter().take(most).map(|(_, alternative)| alternative).collect(), offset: 0 }
}
