//! `/tokenize`: the engine's own tokens.

use serde::Deserialize;

/// A prompt as the engine tokenises it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokenized {
    /// Its token ids.
    pub tokens: Vec<u32>,
    /// The model's longest context in tokens, if the engine says so.
    pub max_model_len: Option<u32>,
}

#[derive(Deserialize)]
struct Answer {
    tokens: Vec<u32>,
    #[serde(default)]
    count: Option<usize>,
    #[serde(default)]
    max_model_len: Option<u32>,
}

pub(super) fn read(answer: &[u8]) -> Result<Tokenized, String> {
    let answer: Answer = serde_json::from_slice(answer).map_err(|error| error.to_string())?;
    match answer.count {
        Some(count) if count != answer.tokens.len() => Err(format!("it counts {count} tokens and lists {}", answer.tokens.len())),
        Some(_) | None => Ok(Tokenized { tokens: answer.tokens, max_model_len: answer.max_model_len }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_taken_where_the_count_agrees() {
        let read = |text: &str| read(text.as_bytes());
        let answer = r#"{"count": 2, "max_model_len": 2048, "tokens": [1, 944], "token_strs": null}"#;
        assert_eq!(read(answer), Ok(Tokenized { tokens: vec![1, 944], max_model_len: Some(2048) }));
        assert!(read(r#"{"count": 3, "tokens": [1]}"#).is_err());
        assert!(read(r#"{"tokens": [-1]}"#).is_err());
        assert!(read(r#"{"detail": "Not Found"}"#).is_err());
    }
}
