//! One body out of the chunks of a stream, for a client that did not ask for a stream.
//!
//! What chunks add to goes one behind the other: texts, arguments of calls, log-probabilities. Of anything else the last word counts. So
//! what engines add beside OpenAI's fields gets to the client too.

use std::collections::BTreeMap;

use prompt::Endpoint;
use serde_json::{Map, Value, json};

/// Texts that come in parts.
const IN_PARTS: [&str; 6] = ["content", "reasoning_content", "reasoning", "refusal", "arguments", "text"];

/// What has come of an answer in chunks.
#[derive(Debug)]
pub struct Whole {
    endpoint: Endpoint,
    body: Map<String, Value>,
    /// By their index.
    choices: BTreeMap<u64, Map<String, Value>>,
    held: usize,
}

impl Whole {
    /// Nothing yet.
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, body: Map::new(), choices: BTreeMap::new(), held: 0 }
    }

    /// Adds a chunk, in JSON.
    ///
    /// # Errors
    /// It is none.
    pub fn push(&mut self, chunk: &[u8]) -> serde_json::Result<()> {
        for (name, value) in serde_json::from_slice::<Map<String, Value>>(chunk)? {
            match (name.as_str(), value) {
                ("choices", Value::Array(choices)) => choices.into_iter().for_each(|choice| self.choose(choice)),
                (_, Value::Null) => {}
                (_, value) => {
                    self.held += name.len() + weight(&value);
                    let before = self.body.insert(name.clone(), value);
                    self.held -= before.map_or(0, |before| name.len() + weight(&before));
                }
            }
        }
        Ok(())
    }

    /// Bytes of what is kept for the body, roughly. The caller bounds it.
    pub fn held_bytes(&self) -> usize {
        self.held
    }

    fn choose(&mut self, choice: Value) {
        let Value::Object(choice) = choice else { return };
        let index = choice.get("index").and_then(Value::as_u64).unwrap_or(0);
        let chosen = self.choices.entry(index).or_default();
        for (name, value) in choice {
            let name = if name == "delta" { "message".to_owned() } else { name };
            self.held += enter(chosen, &name, value);
        }
    }

    /// The body.
    pub fn end(mut self) -> String {
        let is_chat = self.endpoint == Endpoint::Chat;
        let choices = self.choices.into_iter().map(|(index, mut choice)| {
            choice.insert("index".to_owned(), index.into());
            let message = if is_chat { choice.entry("message").or_insert_with(|| json!({})).as_object_mut() } else { None };
            if let Some(message) = message {
                message.entry("role").or_insert_with(|| "assistant".into());
                message.entry("content").or_insert(Value::Null);
                // They count calls on their way alone.
                let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
                calls.into_iter().flatten().filter_map(Value::as_object_mut).for_each(|call| drop(call.remove("index")));
            }
            Value::Object(choice)
        });
        self.body.insert("choices".to_owned(), choices.collect());
        self.body.insert("object".to_owned(), if is_chat { "chat.completion" } else { "text_completion" }.into());
        Value::Object(self.body).to_string()
    }
}

/// The same for a field, which may be new.
fn enter(fields: &mut Map<String, Value>, name: &str, more: Value) -> usize {
    let new = if fields.contains_key(name) { 0 } else { name.len() };
    new + add(fields.entry(name).or_insert(Value::Null), name, more)
}

/// Adds what a chunk says of `name` to what was said before. Returns by how many bytes that is more, roughly.
fn add(to: &mut Value, name: &str, more: Value) -> usize {
    match (to, more) {
        (_, Value::Null) => 0,
        (Value::String(to), Value::String(more)) if IN_PARTS.contains(&name) => {
            to.push_str(&more);
            more.len()
        }
        (Value::Object(to), Value::Object(more)) => more.into_iter().map(|(name, value)| enter(to, &name, value)).sum(),
        (Value::Array(to), Value::Array(more)) => more.into_iter().map(|more| place(to, more)).sum(),
        (to, more) => {
            let bytes = weight(&more).saturating_sub(weight(to));
            *to = more;
            bytes
        }
    }
}

/// Bytes of a value, roughly.
fn weight(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(weight).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + weight(value)).sum(),
    }
}

/// Adds an element to the one of its index, or behind the last.
fn place(to: &mut Vec<Value>, more: Value) -> usize {
    let index = more.get("index").and_then(Value::as_u64);
    let known = index.and_then(|index| to.iter_mut().find(|one| one.get("index").and_then(Value::as_u64) == Some(index)));
    match known {
        Some(known) => add(known, "", more),
        None => {
            let bytes = weight(&more);
            to.push(more);
            bytes
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(endpoint: Endpoint, chunks: &[Value]) -> Value {
        let mut whole = Whole::new(endpoint);
        chunks.iter().for_each(|chunk| whole.push(chunk.to_string().as_bytes()).unwrap());
        serde_json::from_str(&whole.end()).unwrap()
    }

    #[test]
    fn a_chat_is_put_together() {
        let chunk = |choice: Value| json!({"id": "c", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [choice], "usage": null});
        let call = |index: u32, fields: Value| {
            let mut call = json!({"index": index});
            call.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            json!({"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": null})
        };
        let chunks = [
            chunk(
                json!({"index": 0, "delta": {"role": "assistant", "content": "a"}, "finish_reason": null, "logprobs": {"content": [{"token": "a"}]}}),
            ),
            chunk(json!({"index": 1, "delta": {"role": "assistant", "reasoning_content": "well, "}, "finish_reason": null})),
            chunk(
                json!({"index": 0, "delta": {"role": "assistant", "content": "b"}, "finish_reason": null, "logprobs": {"content": [{"token": "b"}]}}),
            ),
            chunk(json!({"index": 1, "delta": {"reasoning_content": "yes"}, "finish_reason": null})),
            chunk(call(0, json!({"id": "x", "type": "function", "function": {"name": "sum", "arguments": "{\"a\""}}))),
            chunk(call(1, json!({"id": "y", "type": "function", "function": {"name": "now", "arguments": "{}"}}))),
            chunk(call(0, json!({"function": {"arguments": ":1}"}}))),
            chunk(json!({"index": 0, "delta": {}, "finish_reason": "tool_calls"})),
            chunk(json!({"index": 1, "delta": {}, "finish_reason": "stop", "stop_reason": 2})),
            json!({"id": "c", "choices": [], "usage": {"prompt_tokens": 3}}),
        ];
        assert_eq!(
            whole(Endpoint::Chat, &chunks),
            json!({"id": "c", "object": "chat.completion", "created": 7, "model": "m", "usage": {"prompt_tokens": 3}, "choices": [
                {"index": 0, "finish_reason": "tool_calls", "logprobs": {"content": [{"token": "a"}, {"token": "b"}]},
                    "message": {"role": "assistant", "content": "ab", "tool_calls": [
                        {"id": "x", "type": "function", "function": {"name": "sum", "arguments": "{\"a\":1}"}},
                        {"id": "y", "type": "function", "function": {"name": "now", "arguments": "{}"}},
                    ]}},
                {"index": 1, "finish_reason": "stop", "stop_reason": 2,
                    "message": {"role": "assistant", "content": null, "reasoning_content": "well, yes"}},
            ]})
        );
    }

    #[test]
    fn a_completion_is_put_together() {
        let chunk = |index: u32, text: &str, reason: Option<&str>| {
            json!({"id": "c", "object": "text_completion", "choices": [{"index": index, "text": text,
            "finish_reason": reason, "logprobs": {"tokens": [text], "token_logprobs": [-0.5]}}]})
        };
        let chunks = [chunk(1, "x", None), chunk(0, "a", None), chunk(0, "b", Some("length")), chunk(1, "y", Some("stop"))];
        assert_eq!(
            whole(Endpoint::Completions, &chunks),
            json!({"id": "c", "object": "text_completion", "choices": [
                {"index": 0, "text": "ab", "finish_reason": "length", "logprobs": {"tokens": ["a", "b"], "token_logprobs": [-0.5, -0.5]}},
                {"index": 1, "text": "xy", "finish_reason": "stop", "logprobs": {"tokens": ["x", "y"], "token_logprobs": [-0.5, -0.5]}},
            ]})
        );
    }

    #[test]
    fn what_is_no_chunk_is_refused_and_what_is_kept_is_counted() {
        let mut whole = Whole::new(Endpoint::Chat);
        assert!(whole.push(b"[]").is_err());
        for _ in 0..100 {
            let logprobs = json!({"content": [{"token": "abcd", "logprob": -0.5}]});
            let chunk =
                json!({"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "abcd"}, "logprobs": logprobs}]});
            whole.push(chunk.to_string().as_bytes()).unwrap();
        }
        let (held, written) = (whole.held_bytes(), whole.end().len());
        assert!((written / 2..written * 2).contains(&held), "{held} for {written}");
    }

    /// An engine may add fields of its own without end.
    #[test]
    fn fields_of_any_name_are_counted_and_those_said_again_once() {
        let held = |chunk: &dyn Fn(usize) -> Value| {
            let mut whole = Whole::new(Endpoint::Chat);
            (0..1_000).for_each(|at| whole.push(chunk(at).to_string().as_bytes()).unwrap());
            whole.held_bytes()
        };
        let name = |at: usize| format!("field-{at:04}");
        assert!(held(&|at| json!({name(at): "abcd"})) >= 14_000);
        assert!(held(&|at| json!({"choices": [{name(at): null}]})) >= 10_000);
        assert!(held(&|at| json!({"choices": [{"delta": {name(at): null}}]})) >= 10_000);
        assert!(held(&|_| json!({"id": "c", "usage": {"prompt_tokens": 1}, "choices": [{"delta": {"role": null}}]})) < 100);
    }
}
