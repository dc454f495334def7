//! A stream of events taken apart as a strict client does, and the two ways it may end.

use http::StatusCode;
use serde_json::Value;

use crate::support::http::Ending;

/// The events of one stream.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Chunks of the answer.
    pub(super) chunks: Vec<Value>,
    /// Events that are no JSON: what was open when the worker broke off.
    pub(super) torn: Vec<String>,
    pub(super) errors: Vec<Value>,
    /// `[DONE]` came.
    pub(super) done: bool,
    /// The kind of the last event.
    last: Option<Kind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Chunk,
    Torn,
    Error,
    Done,
}

impl Events {
    /// Takes a body apart; its last event must be complete.
    pub(super) fn of(body: &str) -> Self {
        let mut events = Self::default();
        let body = body.replace("\r\n", "\n");
        assert!(body.ends_with("\n\n"), "an event has no end: {body:?}");
        for event in body.split("\n\n").filter(|event| !event.is_empty()) {
            let data: Vec<&str> = event.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim).collect();
            let kind = events.add(event, &data.join("\n"));
            events.last = Some(kind);
        }
        events
    }

    fn add(&mut self, event: &str, data: &str) -> Kind {
        if data == "[DONE]" {
            self.done = true;
            return Kind::Done;
        }
        match serde_json::from_str::<Value>(data) {
            Ok(json) if json.get("error").is_some() => {
                self.errors.push(json);
                Kind::Error
            }
            Ok(json) => {
                self.chunks.push(json);
                Kind::Chunk
            }
            Err(_) => {
                self.torn.push(event.to_owned());
                Kind::Torn
            }
        }
    }

    /// Chunks that carry a token.
    pub(super) fn tokens(&self) -> usize {
        self.chunks.iter().filter(|chunk| chunk["choices"].as_array().is_some_and(|choices| !choices.is_empty())).count()
    }
}

/// A stream that was told to its end: all its tokens, `[DONE]`, no error.
pub(super) fn assert_finished(ending: &Ending, tokens: u32) {
    assert_eq!(ending.answer.status, StatusCode::OK, "{}", ending.answer.text());
    let events = Events::of(&ending.answer.text());
    assert!(ending.whole && events.done && events.torn.is_empty() && events.errors.is_empty(), "{events:?}");
    assert_eq!(events.last, Some(Kind::Done));
    assert_eq!(events.tokens(), tokens as usize, "{events:?}");
}

/// A stream that broke: what had come, one error event at its end, no `[DONE]`, and the connection closed.
pub(super) fn assert_broken(ending: &Ending, code: &str) -> Events {
    assert_eq!(ending.answer.status, StatusCode::OK, "{}", ending.answer.text());
    assert_eq!(ending.answer.header("content-type").split(';').next(), Some("text/event-stream"));
    let events = Events::of(&ending.answer.text());
    assert!(!ending.whole, "the connection is left open: {events:?}");
    assert!(!events.done && events.torn.len() <= 1 && events.last == Some(Kind::Error), "{events:?}");
    let [error] = &events.errors[..] else { panic!("not one error: {events:?}") };
    assert_openai(error);
    assert_eq!(error["error"]["code"], code, "{error}");
    events
}

/// An error as OpenAI's clients read it.
pub(super) fn assert_openai(body: &Value) {
    let error = body["error"].as_object().unwrap_or_else(|| panic!("no error object: {body}"));
    let keys: Vec<&str> = error.keys().map(String::as_str).collect();
    assert_eq!(keys, ["message", "type", "param", "code"], "{body}");
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()) && error["type"].is_string(), "{body}");
}
