//! Request bodies: what is read of them, and what is refused.

use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::ApiError;
use crate::text::{ChatMessage, Ending};

/// Answers per prompt at most.
const MAX_CHOICES: u32 = 128;
/// Prompts of one body at most.
const MAX_PROMPTS: usize = 1_024;
/// Longest cache salt, in characters.
const MAX_SALT_CHARS: usize = 1_024;
/// Tokens of a plain completion that does not say.
const DEFAULT_COMPLETION_TOKENS: u32 = 16;

/// What both generation routes read; everything else in a body is ignored.
#[derive(Debug, Deserialize)]
pub(super) struct Sampling {
    pub(super) model: Option<String>,
    #[serde(default)]
    pub(super) stream: Option<bool>,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
    #[serde(default)]
    n: Option<u32>,
    #[serde(default)]
    max_tokens: Option<u32>,
    #[serde(default)]
    max_completion_tokens: Option<u32>,
    #[serde(default)]
    ignore_eos: Option<bool>,
    #[serde(default)]
    cache_salt: Option<String>,
    #[serde(default)]
    pub(super) return_token_ids: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

/// Sampling that has been checked.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) n: u32,
    pub(super) max_tokens: u32,
    pub(super) ignore_eos: bool,
    pub(super) salt: Option<Arc<str>>,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) return_token_ids: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct CompletionBody {
    #[serde(flatten)]
    pub(super) sampling: Sampling,
    #[serde(default)]
    prompt: Value,
}

#[derive(Debug, Deserialize)]
pub(super) struct ChatBody {
    #[serde(flatten)]
    pub(super) sampling: Sampling,
    #[serde(flatten)]
    pub(super) chat: Chat,
}

/// The part of a chat body that decides its text; `/tokenize` reads it too.
#[derive(Debug, Deserialize)]
pub(super) struct Chat {
    #[serde(default)]
    pub(super) messages: Option<Vec<ChatMessage>>,
    #[serde(default)]
    add_generation_prompt: Option<bool>,
    #[serde(default)]
    continue_final_message: Option<bool>,
}

/// One prompt of a completions body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

/// Reads a JSON body.
pub(super) fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::invalid(format!("1 validation error:\n  {error}"), "body"))
}

impl Sampling {
    /// Checks what was read. `unlimited` is how many tokens a body gets that names no limit.
    pub(super) fn check(self, limit: Unlimited) -> Result<Checked, ApiError> {
        let n = self.n.unwrap_or(1);
        if !(1..=MAX_CHOICES).contains(&n) {
            return Err(ApiError::bad_request(format!("n must be between 1 and {MAX_CHOICES}, got {n}.")).param("n"));
        }
        let max_tokens = self.max_completion_tokens.or(self.max_tokens).unwrap_or(limit.tokens());
        if max_tokens == 0 {
            return Err(ApiError::bad_request("max_tokens must be at least 1, got 0.".to_owned()).param("max_tokens"));
        }
        let salt = self.cache_salt.as_deref();
        if salt.is_some_and(|salt| salt.is_empty() || salt.chars().count() > MAX_SALT_CHARS) {
            return Err(ApiError::bad_request(format!(
                "Parameter 'cache_salt' must be a non-empty string of at most {MAX_SALT_CHARS} characters if provided."
            ))
            .param("cache_salt"));
        }
        let stream = self.stream.unwrap_or(false);
        if self.stream_options.is_some() && !stream {
            return Err(ApiError::bad_request("Stream options can only be defined when `stream=True`.".to_owned()).param("stream_options"));
        }
        Ok(Checked {
            n,
            max_tokens,
            ignore_eos: self.ignore_eos.unwrap_or(false),
            salt: salt.map(Into::into),
            stream,
            include_usage: self.stream_options.is_some_and(|options| options.include_usage),
            return_token_ids: self.return_token_ids.unwrap_or(false),
        })
    }
}

/// How long an answer may be when the body does not say.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unlimited {
    /// A plain completion: 16 tokens.
    Completion,
    /// A chat: up to the length of the model.
    Chat,
}

impl Unlimited {
    fn tokens(self) -> u32 {
        match self {
            Self::Completion => DEFAULT_COMPLETION_TOKENS,
            Self::Chat => u32::MAX,
        }
    }
}

impl CompletionBody {
    /// The prompts: a string, token ids, or a list of either.
    pub(super) fn prompts(&self, vocabulary_size: u32) -> Result<Vec<Prompt>, ApiError> {
        let prompts = match &self.prompt {
            Value::Null => {
                let message = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)";
                return Err(ApiError::bad_request(message.to_owned()).param("prompt"));
            }
            Value::String(text) => vec![Prompt::Text(text.clone())],
            Value::Array(items) if items.first().is_some_and(Value::is_number) => vec![Prompt::Tokens(tokens(items, vocabulary_size)?)],
            Value::Array(items) => items.iter().map(|item| prompt(item, vocabulary_size)).collect::<Result<_, _>>()?,
            Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
                return Err(ApiError::invalid("1 validation error:\n  Input should be a valid string".to_owned(), "body.prompt"));
            }
        };
        match prompts.len() {
            0 => Err(ApiError::bad_request("You must pass at least one prompt".to_owned())),
            1..=MAX_PROMPTS => Ok(prompts),
            count => Err(ApiError::bad_request(format!("{count} prompts, at most {MAX_PROMPTS} are taken")).param("prompt")),
        }
    }
}

fn prompt(item: &Value, vocabulary_size: u32) -> Result<Prompt, ApiError> {
    match item {
        Value::String(text) => Ok(Prompt::Text(text.clone())),
        Value::Array(items) => Ok(Prompt::Tokens(tokens(items, vocabulary_size)?)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            Err(ApiError::invalid("1 validation error:\n  Input should be a valid string".to_owned(), "body.prompt"))
        }
    }
}

fn tokens(items: &[Value], vocabulary_size: u32) -> Result<Vec<u32>, ApiError> {
    if items.is_empty() {
        return Err(ApiError::bad_request("You must pass at least one prompt".to_owned()));
    }
    items
        .iter()
        .map(|item| match item.as_u64() {
            Some(id) if id < u64::from(vocabulary_size) => Ok(id as u32),
            Some(id) => Err(ApiError::bad_request(format!("Token id {id} is out of vocabulary"))),
            None => {
                let message = format!("1 validation error:\n  Input should be a token id of 0 or above, got {item}");
                Err(ApiError::invalid(message, "body.prompt"))
            }
        })
        .collect()
}

impl Chat {
    /// The messages and how the text of them ends.
    pub(super) fn read(&self) -> Result<(&[ChatMessage], Ending), ApiError> {
        let Some(messages) = &self.messages else {
            let message = "1 validation error:\n  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required'}";
            return Err(ApiError::invalid(message.to_owned(), "body.messages"));
        };
        let ending = match (self.continue_final_message.unwrap_or(false), self.add_generation_prompt) {
            (false, None | Some(true)) => Ending::Prompt,
            (false, Some(false)) => Ending::Closed,
            (true, Some(false)) => Ending::Open,
            (true, None | Some(true)) => {
                let message = "Cannot set both `continue_final_message` and `add_generation_prompt` to True.";
                return Err(ApiError::bad_request(message.to_owned()));
            }
        };
        Ok((messages, ending))
    }
}
