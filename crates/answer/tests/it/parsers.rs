//! Thoughts and calls of tools in chats: what the client gets, and why the answer ended.

use std::sync::Arc;

use answer::{
    Shape,
    reasoning::ReasoningParser,
    tools::{Plan, ToolParser},
};
use prompt::{Endpoint, ToolChoice};
use proptest::prelude::*;
use serde_json::{Value, json};
use wire::generate::{EngineOutput, FinishReason};

use crate::{
    harness::{answer, cut, events, finished, shape, tokens},
    models::{BYTE_LEVEL, END, HELLO, TOOL, ascii},
};

const CALL: &str = r#"<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>"#;

fn asked(stream: bool, choice: ToolChoice) -> Shape {
    let mut asked = shape(Endpoint::Chat, stream);
    let (reasoning, tools) = (Some(ReasoningParser::Think), Some(ToolParser::Hermes));
    asked.parse = Plan { reasoning, tools, choice, parallel: true, schemas: Arc::default() };
    asked
}

/// The message and finish reason of a whole body.
fn message(body: &str) -> (Value, Value) {
    let body: Value = serde_json::from_str(body).expect("JSON");
    let choice = &body["choices"][0];
    let mut message = choice["message"].clone();
    for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        assert!(call["id"].as_str().expect("an id").starts_with("call_"));
        call["id"] = json!("ID");
    }
    (message, choice["finish_reason"].clone())
}

/// The same of a stream, its deltas put together as the official client does it.
fn assembled(stream: &str) -> (Value, Value) {
    let (mut content, mut reasoning, mut finish) = (String::new(), String::new(), Value::Null);
    let mut calls: Vec<Value> = Vec::new();
    for event in events(stream) {
        let choice = &event["choices"][0];
        let delta = &choice["delta"];
        content.push_str(delta["content"].as_str().unwrap_or_default());
        reasoning.push_str(delta["reasoning_content"].as_str().unwrap_or_default());
        for piece in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = usize::try_from(piece["index"].as_u64().expect("an index")).expect("small");
            if index == calls.len() {
                assert!(piece["id"].as_str().expect("an id").starts_with("call_"));
                calls.push(json!({"id": "ID", "type": piece["type"], "function": {"name": piece["function"]["name"], "arguments": ""}}));
            }
            let function = &mut calls[index]["function"];
            function["arguments"] = json!(format!(
                "{}{}",
                function["arguments"].as_str().expect("text"),
                piece["function"]["arguments"].as_str().unwrap_or_default()
            ));
        }
        if !choice["finish_reason"].is_null() {
            finish = choice["finish_reason"].clone();
        }
    }
    let is_more = !calls.is_empty() || !reasoning.is_empty();
    let content = if content.is_empty() && is_more { Value::Null } else { json!(content) };
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if !reasoning.is_empty() {
        message["reasoning_content"] = json!(reasoning);
    }
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    (message, finish)
}

fn both(choice: &ToolChoice, outputs: &[EngineOutput]) -> (Value, Value) {
    let whole = message(&answer(asked(false, choice.clone()), &BYTE_LEVEL.vocabulary, outputs));
    assert_eq!(assembled(&answer(asked(true, choice.clone()), &BYTE_LEVEL.vocabulary, outputs)), whole);
    whole
}

fn said(text: &str) -> [EngineOutput; 2] {
    [tokens(&ascii(text)), finished(FinishReason::Stop)]
}

fn call() -> Value {
    json!([{"id": "ID", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}])
}

#[test]
fn a_thought_and_a_call() {
    let (message, finish) = both(&ToolChoice::Auto, &said(&format!("<think>hm</think>{CALL}")));
    let expected = json!({"role": "assistant", "content": null, "refusal": null, "reasoning_content": "hm", "tool_calls": call()});
    assert_eq!((message, finish), (expected, json!("tool_calls")));
}

#[test]
fn an_answer_without_either() {
    let (message, finish) = both(&ToolChoice::Auto, &said("hi"));
    assert_eq!((message, finish), (json!({"role": "assistant", "content": "hi", "refusal": null}), json!("stop")));
}

/// A call that is cut off is no whole one, and the client is told why it ended.
#[test]
fn a_call_cut_off() {
    let outputs = [tokens(&ascii(r#"<tool_call>{"name": "f", "arguments": {"x": "#)), finished(FinishReason::Length)];
    let (message, finish) = both(&ToolChoice::Auto, &outputs);
    assert_eq!(message["tool_calls"][0]["function"]["name"], "f");
    assert_eq!(finish, "length");
}

#[test]
fn no_tool_is_to_be_called() {
    let (message, finish) = both(&ToolChoice::None, &said(CALL));
    assert_eq!((message["content"].as_str(), message.get("tool_calls"), finish), (Some(CALL), None, json!("stop")));
}

/// The engine was bound to JSON: there is no marker. As OpenAI has it, a named call ends with `stop`.
#[test]
fn required_and_named() {
    let (message, finish) = both(&ToolChoice::Required, &said(r#"[{"name": "f", "parameters": {"x": 1}}]"#));
    assert_eq!((&message["tool_calls"], finish), (&call(), json!("tool_calls")));
    let (message, finish) = both(&ToolChoice::Named("f".to_owned()), &said(r#"{"x": 1}"#));
    assert_eq!((&message["tool_calls"], finish), (&call(), json!("stop")));
}

/// A stop string is looked for in all of the text, thoughts included, and cuts before the parsers see it.
#[test]
fn stop_strings_come_first() {
    let mut asked = asked(false, ToolChoice::Auto);
    asked.stops.strings = vec!["mm".to_owned()];
    let body = answer(asked, &BYTE_LEVEL.vocabulary, &said("<think>hmm</think>x"));
    assert_eq!(message(&body).0["reasoning_content"], "h");
}

/// Logprobs of a parsed text go with whatever chunk comes next, and none is lost.
#[test]
fn logprobs_of_parsed_text() {
    let text = format!("<think>hm</think>{CALL}");
    let output = EngineOutput { log_probs: Some(vec![-1.0; text.len()]), ..tokens(&ascii(&text)) };
    let mut asked = asked(true, ToolChoice::Auto);
    asked.logprobs = Some(0);
    let stream = answer(asked, &BYTE_LEVEL.vocabulary, &[output, finished(FinishReason::Stop)]);
    let told: usize = events(&stream).iter().map(|event| event["choices"][0]["logprobs"]["content"].as_array().map_or(0, Vec::len)).sum();
    assert_eq!(told, text.len());
}

/// Special tokens that are markers are text for the parsers; the others stay out.
#[test]
fn markers_among_special_tokens() {
    let model = crate::models::with_markers();
    let mut ids = vec![model.marker("<tool_call>")];
    ids.extend(ascii(r#"{"name": "f", "arguments": {"x": 1}}"#));
    ids.extend([model.marker("</tool_call>"), model.marker("<|end|>")]);
    for (choice, content, finish) in
        [(ToolChoice::Auto, Value::Null, "tool_calls"), (ToolChoice::None, json!(r#"{"name": "f", "arguments": {"x": 1}}"#), "stop")]
    {
        let outputs = [tokens(&ids), finished(FinishReason::Eos)];
        let (message, reason) = message(&answer(asked(false, choice), &model.vocabulary, &outputs));
        assert_eq!((&message["content"], reason), (&content, json!(finish)));
    }
}

/// Completions have no parsers, whatever the card says.
#[test]
fn completions_are_left_as_they_are() {
    let mut asked = asked(false, ToolChoice::Auto);
    asked.endpoint = Endpoint::Completions;
    let body: Value = serde_json::from_str(&answer(asked, &BYTE_LEVEL.vocabulary, &said(CALL))).expect("JSON");
    assert_eq!(body["choices"][0]["text"], CALL);
}

proptest! {
    /// However the tokens are cut, streamed or not, the message is the same.
    #[test]
    fn cuts_do_not_matter(
        parts in proptest::collection::vec(prop_oneof![
            Just(ascii("<think>")), Just(ascii("</think>")), Just(ascii(CALL)), Just(ascii("<tool_call>")), Just(ascii(" x\n")),
            Just(vec![HELLO]), Just(vec![TOOL, END]), Just(ascii("{\"a\"")),
        ], 0..7),
        cuts in proptest::collection::vec(1_usize..9, 1..4),
    ) {
        let ids = parts.concat();
        let whole = message(&answer(asked(false, ToolChoice::Auto), &BYTE_LEVEL.vocabulary, &cut(&ids, &[ids.len()])));
        let cut_up = message(&answer(asked(false, ToolChoice::Auto), &BYTE_LEVEL.vocabulary, &cut(&ids, &cuts)));
        let streamed = assembled(&answer(asked(true, ToolChoice::Auto), &BYTE_LEVEL.vocabulary, &cut(&ids, &cuts)));
        prop_assert_eq!(&cut_up, &whole);
        prop_assert_eq!(&streamed, &whole);
    }
}
