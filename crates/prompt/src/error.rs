//! What can go wrong, by who has to act: the client ([`BadRequest`]), the operator ([`LoadError`]), or nobody, because
//! the request is then routed by load ([`TokenError`]).

use std::path::PathBuf;

/// A body the client must change; an HTTP layer answers 400 with these three fields of OpenAI's error object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BadRequest {
    /// What is wrong and what is allowed.
    pub message: String,
    /// The field it is about, as OpenAI names it: `model`, `prompt`, `prompt[3]`.
    pub param: Option<String>,
    /// OpenAI's code for it: `missing_required_parameter`, `invalid_type`, `integer_below_min_value`.
    pub code: Option<&'static str>,
}

impl BadRequest {
    pub(crate) fn new(param: impl Into<String>, code: &'static str, message: impl Into<String>) -> Self {
        Self { message: message.into(), param: Some(param.into()), code: Some(code) }
    }

    pub(crate) fn missing(param: &str) -> Self {
        Self::new(param, "missing_required_parameter", format!("missing required parameter: '{param}'"))
    }

    pub(crate) fn wrong_type(param: impl Into<String>, expected: &str) -> Self {
        let param = param.into();
        let message = format!("invalid type for '{param}': expected {expected}");
        Self::new(param, "invalid_type", message)
    }

    /// The body as a whole is not a JSON object; the message carries line and column.
    pub(crate) fn json(error: &serde_json::Error) -> Self {
        let message = format!("could not parse the body as a JSON object: {error}");
        Self { message, param: None, code: None }
    }
}

/// Why a request has no token ids. It is then routed by load, counted under [`TokenError::kind`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The folder cannot render chats.
    #[error("no chat template: {0}")]
    NoTemplate(String),
    /// The body brings a chat template of its own. Engines refuse it unless told to trust it; it is never rendered here.
    #[error("the request brings its own chat template")]
    OwnTemplate,
    /// The template refused the conversation (`raise_exception`), as it will at the engine.
    #[error("the chat template refused the conversation: {0}")]
    Refused(String),
    /// The template failed, or used more than its fuel or its output bound.
    #[error("the chat template failed: {0}")]
    Render(String),
    /// Messages, tools or parts of a shape engines refuse or that says nothing about tokens.
    #[error("{0}")]
    Unsupported(String),
    /// The prompt is not text or token ids (`prompt_embeds`).
    #[error("the prompt is not text or token ids")]
    Opaque,
    /// The tokenizer refused the text.
    #[error("the tokenizer failed: {0}")]
    Encode(String),
    /// The text is longer than any context and would only hold up other prompts.
    #[error("a prompt of {bytes} bytes is longer than the {limit} bytes that are tokenised")]
    TooLong {
        /// Bytes of the text.
        bytes: usize,
        /// Bytes that are tokenised at most.
        limit: usize,
    },
    /// The pool's queue is full.
    #[error("{queued} prompts wait for the tokenizer pool already")]
    Busy {
        /// Jobs in the queue.
        queued: usize,
    },
    /// The job panicked, or the pool is shutting down.
    #[error("the tokenizer pool gave no answer")]
    Failed,
}

impl TokenError {
    /// A short stable name for a metric label.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NoTemplate(_) => "no_template",
            Self::OwnTemplate => "own_template",
            Self::Refused(_) => "refused",
            Self::Render(_) => "render",
            Self::Unsupported(_) => "unsupported",
            Self::Opaque => "opaque",
            Self::Encode(_) => "encode",
            Self::TooLong { .. } => "too_long",
            Self::Busy { .. } => "busy",
            Self::Failed => "failed",
        }
    }
}

/// Why a model folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file that is there cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file that is there is not the JSON it should be.
    #[error("{path} is not valid: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Line, column and reason.
        source: serde_json::Error,
    },
    /// A file is not the one that was vouched for.
    #[error("{path} has the BLAKE3 sum {found}, and {expected} was announced: another file, or another version of it")]
    Checksum {
        /// The file.
        path: PathBuf,
        /// The sum it should have, in hex.
        expected: String,
        /// The sum it has.
        found: String,
    },
    /// Neither tokenizer takes `tokenizer.json`.
    #[error("{path} cannot be used as a tokenizer: {reason}")]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What each tokenizer said.
        reason: String,
    },
}
