//! Requests, and what their answers say.

use std::fmt;

use serde_json::{Value, json};

use crate::support::http::Answer;

/// A request to be sent.
#[derive(Clone)]
pub(super) struct Ask {
    pub(super) path: &'static str,
    pub(super) body: Value,
}

impl Ask {
    /// A completion of a text, of token ids, or of anything else that is a prompt.
    pub(super) fn completion(model: &str, prompt: impl Into<Value>) -> Self {
        Self::new("/v1/completions", model, "prompt", prompt.into())
    }

    /// An answer to a conversation.
    pub(super) fn chat(model: &str, messages: &[Value]) -> Self {
        Self::new("/v1/chat/completions", model, "messages", messages.into())
    }

    fn new(path: &'static str, model: &str, key: &str, input: Value) -> Self {
        let mut body = json!({"model": model, "max_tokens": 6, "temperature": 0, "ignore_eos": true, "return_token_ids": true});
        body[key] = input;
        Self { path, body }
    }

    pub(super) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.body[key] = value.into();
        self
    }

    pub(super) fn salted(self, salt: &str) -> Self {
        self.with("cache_salt", salt)
    }

    /// Streamed if `yes`, with the usage at its end.
    pub(super) fn streamed_if(self, yes: bool) -> Self {
        if yes { self.with("stream", true).with("stream_options", json!({"include_usage": true})) } else { self }
    }
}

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.path, self.body)
    }
}

/// What a successful answer says.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) text: String,
    pub(super) token_ids: Vec<u32>,
    /// Error events of a stream.
    pub(super) errors: usize,
    pub(super) is_complete: bool,
}

impl Said {
    /// Reads a plain answer or a stream, which may have broken off.
    pub(super) fn of(answer: &Answer) -> Self {
        let mut said = Self::default();
        if !answer.header("content-type").starts_with("text/event-stream") {
            said.read(&answer.json());
            said.is_complete = true;
            return said;
        }
        for line in answer.text().lines() {
            match line.strip_prefix("data: ") {
                Some("[DONE]") => said.is_complete = true,
                Some(event) => said.read(&serde_json::from_str(event).unwrap_or_else(|_| panic!("no event: {line}"))),
                None => assert!(line.is_empty(), "in a stream: {line}"),
            }
        }
        said
    }

    fn read(&mut self, json: &Value) {
        self.errors += usize::from(json.get("error").is_some());
        let choice = &json["choices"][0];
        let text = [&choice["text"], &choice["message"]["content"], &choice["delta"]["content"]].into_iter().find_map(Value::as_str);
        self.text.push_str(text.unwrap_or_default());
        let ids = choice["token_ids"].as_array().into_iter().flatten();
        self.token_ids.extend(ids.map(|id| id.as_u64().unwrap() as u32));
        if let Some(prompt_tokens) = json["usage"]["prompt_tokens"].as_u64() {
            self.prompt_tokens = prompt_tokens;
            // Nothing cached is shown as null, or not at all.
            self.cached_tokens = json["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
        }
    }
}

/// Sentences that are the same in every run.
pub(super) struct Words(u64);

impl Words {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// A text of so many words, about as many tokens or a few more.
    pub(super) fn text(&mut self, words: usize) -> String {
        const KNOWN: [&str; 24] = [
            "the", "engine", "holds", "a", "prefix", "of", "every", "prompt", "while", "it", "waits", "for", "what", "comes", "next",
            "and", "then", "Zürich", "asks", "who", "removed", "block", "42", "(again)",
        ];
        let words: Vec<&str> = (0..words).map(|_| KNOWN[self.next() as usize % KNOWN.len()]).collect();
        words.join(" ") + "."
    }

    /// So many token ids of the vocabulary, none of them special.
    pub(super) fn ids(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| 100 + (self.next() % 1900) as u32).collect()
    }
}

/// One turn of a conversation.
pub(super) fn turn(role: &str, content: impl Into<Value>) -> Value {
    json!({"role": role, "content": content.into()})
}
