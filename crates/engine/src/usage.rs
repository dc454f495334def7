//! The token counts an engine reports about an answer.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use serde::Deserialize;

use crate::field::{Field, Value};

static USAGE_KEY: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"usage\""));

/// What the engine counted, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens generated; 0 where the engine does not say.
    pub completion_tokens: u64,
    /// Of the prompt, how many were in the cache. `None` where the engine does not report it (vLLM needs
    /// `--enable-prompt-tokens-details`, SGLang `--enable-cache-report`).
    pub cached_tokens: Option<u64>,
}

/// Takes the last `usage` object out of an answer on its way.
#[derive(Debug)]
pub(crate) struct UsageWatch {
    field: Field,
    last: Option<Usage>,
}

impl UsageWatch {
    pub(crate) fn new() -> Self {
        Self { field: Field::new(&USAGE_KEY), last: None }
    }

    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        let last = &mut self.last;
        self.field.feed(bytes, |value| match value {
            Value::Object(json) => *last = parse(json).or(*last),
            Value::Other(_) => {}
        });
    }

    /// The latest counts so far; engines repeat them with growing numbers, or send them once at the end.
    pub(crate) fn last(&self) -> Option<Usage> {
        self.last
    }
}

/// The object's shape in the OpenAI API.
#[derive(Deserialize)]
struct UsageObject {
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: Option<u64>,
    #[serde(default)]
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Deserialize)]
struct PromptDetails {
    #[serde(default)]
    cached_tokens: Option<u64>,
}

fn parse(json: &[u8]) -> Option<Usage> {
    let object: UsageObject = serde_json::from_slice(json).ok()?;
    Some(Usage {
        prompt_tokens: object.prompt_tokens,
        completion_tokens: object.completion_tokens.unwrap_or(0),
        cached_tokens: object.prompt_tokens_details.and_then(|details| details.cached_tokens),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(text: &str) -> Option<Usage> {
        let mut watch = UsageWatch::new();
        watch.feed(text.as_bytes());
        watch.last()
    }

    #[test]
    fn counts_are_read_with_and_without_details() {
        let engine = r#"{"choices":[],"usage": {"prompt_tokens": 120, "total_tokens": 144, "completion_tokens": 24,
            "prompt_tokens_details": {"cached_tokens": 96, "multimodal_tokens": null}, "completion_tokens_details": null}}"#;
        let expected = Usage { prompt_tokens: 120, completion_tokens: 24, cached_tokens: Some(96) };
        assert_eq!(usage(engine), Some(expected));
        let bare = r#""usage":{"prompt_tokens":7,"total_tokens":7,"prompt_tokens_details":null}"#;
        assert_eq!(usage(bare), Some(Usage { prompt_tokens: 7, completion_tokens: 0, cached_tokens: None }));
    }

    #[test]
    fn null_or_foreign_objects_do_not_displace_real_counts() {
        let text = r#""usage":{"prompt_tokens":7} "usage":null "usage":{"watts":3} "usage":{"prompt_tokens":"x"}"#;
        assert_eq!(usage(text).map(|usage| usage.prompt_tokens), Some(7));
    }

    #[test]
    fn a_model_that_writes_usage_is_not_believed() {
        let body = r#"{"text":"\"usage\":{\"prompt_tokens\":1}"}"#;
        assert_eq!(usage(body), None);
    }
}
