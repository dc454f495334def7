//! Questions to `/tokenize` and their answers.

use bytes::Bytes;
use prompt::remote::{self, Ask, Cache};
use prompt::{Endpoint, Tokens};
use serde_json::{Value, json};

use crate::parse;

fn posts(endpoint: Endpoint, body: Value) -> Vec<Value> {
    let asks = remote::asks(&parse(endpoint, &body).expect("a good body")).expect("questions");
    asks.iter()
        .map(|ask| match ask {
            Ask::Post(body) => serde_json::from_slice(body).expect("JSON"),
            Ask::Known(tokens) => json!({"known": tokens.ids.to_vec()}),
        })
        .collect()
}

#[test]
fn questions_carry_what_shapes_the_prompt() {
    assert_eq!(
        posts(Endpoint::Completions, json!({"model": "m", "prompt": ["a", "b"], "max_tokens": 3})),
        [
            json!({"model": "m", "add_special_tokens": true, "prompt": "a"}),
            json!({"model": "m", "add_special_tokens": true, "prompt": "b"})
        ]
    );
    assert_eq!(posts(Endpoint::Completions, json!({"model": "m", "prompt": [7, 8]})), [json!({"known": [7, 8]})]);
    let messages = json!([{"role": "user", "content": [{"type": "text", "text": "é"}]}]);
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    assert_eq!(
        posts(
            Endpoint::Chat,
            json!({"model": "m", "messages": messages, "tools": tools, "temperature": 0,
            "chat_template_kwargs": {"a": 1}, "reasoning_effort": "none", "documents": [{"text": "d"}]})
        ),
        [json!({"model": "m", "add_special_tokens": false, "messages": messages, "add_generation_prompt": true,
            "continue_final_message": false, "tools": tools,
            "chat_template_kwargs": {"a": 1, "documents": [{"text": "d"}], "reasoning_effort": "none", "enable_thinking": false}})]
    );
}

#[test]
fn nothing_is_asked_that_an_engine_cannot_answer() {
    let kind = |endpoint, body: Value| remote::asks(&parse(endpoint, &body).expect("a good body")).expect_err("no question").kind();
    let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/"}}]}]);
    assert_eq!(kind(Endpoint::Chat, json!({"model": "m", "messages": image})), "unsupported");
    let user = json!([{"role": "user", "content": "u"}]);
    assert_eq!(kind(Endpoint::Chat, json!({"model": "m", "messages": user, "chat_template": "x"})), "own_template");
    assert_eq!(kind(Endpoint::Completions, json!({"model": "m", "prompt_embeds": "AA=="})), "opaque");
    assert_eq!(kind(Endpoint::Completions, json!({"model": "m", "prompt": "x", "truncate_prompt_tokens": 1})), "unsupported");
}

#[test]
fn answers_are_remembered_by_question() {
    let cache = Cache::default();
    let (question, other) = (Bytes::from_static(b"{\"model\":\"a\"}"), Bytes::from_static(b"{\"model\":\"b\"}"));
    assert_eq!(cache.get(&question), None);
    assert_eq!(cache.answered(&question, vec![1, 944, 267]).matchable(), [1, 944, 267]);
    assert_eq!(cache.get(&question).as_ref().map(Tokens::matchable), Some(&[1, 944, 267][..]));
    assert_eq!(cache.get(&other), None);
    let counters = cache.counters();
    assert_eq!((counters.hits.value(), counters.misses.value(), counters.tokens.value()), (1, 2, 3));
}
