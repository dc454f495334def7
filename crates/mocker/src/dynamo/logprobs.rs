//! Log-probabilities that mean nothing and look right: the chosen token is the likeliest, others follow in a row.

use serde_json::{Value, json};
use wire::generate::TopLogprob;

use crate::text::Text;

/// Alternatives to a token, at most.
const MAX_ALTERNATIVES: u32 = 20;
/// Between one alternative and the next.
const STEP: f64 = 0.5;

/// Of one token.
pub(super) fn chosen(token: u32) -> f64 {
    -0.1 * f64::from(token % 10)
}

/// The token and its alternatives, the likeliest first.
pub(super) fn top(text: &Text, token: u32, alternatives: u32) -> Vec<TopLogprob> {
    let others = 1..alternatives.min(MAX_ALTERNATIVES);
    let ids = std::iter::once(token).chain(others.map(|step| (token + step) % text.vocabulary_size().max(1)));
    ids.take(alternatives as usize)
        .zip(1..)
        .map(|(token_id, rank)| TopLogprob {
            rank,
            token_id,
            token: Some(text.word(token_id)),
            logprob: chosen(token) - STEP * f64::from(rank - 1),
            bytes: None,
        })
        .collect()
}

/// Of the tokens of a prompt, as engines tell them beside an answer: nothing for the first, and for each other by its id.
pub(super) fn prompt(text: &Text, prompt: &[u32]) -> Value {
    let entry = |token: &u32| json!({ token.to_string(): {"logprob": chosen(*token), "rank": 1, "decoded_token": text.word(*token)} });
    let entries = prompt.iter().enumerate().map(|(at, token)| if at == 0 { Value::Null } else { entry(token) });
    json!({"prompt_logprobs": entries.collect::<Vec<_>>()})
}
