//! Parts of an output: alternatives, reasons for an end, usage.

use super::{
    GenerateError,
    read::{Reader, nested, utf8, wrong},
};
use crate::{cursor::Item, out::Out};

/// Bytes of a `TopLogprob` at least: its map, and the names of what it must have.
pub(super) const LEAST_LOGPROB_BYTES: usize = 24;

/// Longest text of an unknown finish reason that is kept, in bytes.
const MAX_REASON_BYTES: usize = 64;

/// One alternative.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopLogprob {
    /// 1: the likeliest.
    pub rank: u32,
    /// The token.
    pub token_id: u32,
    /// Its text.
    pub token: Option<String>,
    /// Its log-probability.
    pub logprob: f64,
    /// The bytes of its text.
    pub bytes: Option<Vec<u8>>,
}

/// Why an answer is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end of sequence.
    Eos,
    /// As many tokens as were asked for, or as there is room for.
    Length,
    /// A stop string or token.
    Stop,
    /// The engine failed.
    Error(String),
    /// The asker gave up.
    Cancelled,
    /// A filter.
    ContentFilter,
}

/// What an answer stopped at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// A token.
    Token(i64),
    /// A text.
    Text(String),
}

/// Tokens of a request so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineUsage {
    /// Of the prompt.
    pub prompt_tokens: u32,
    /// Of the answer.
    pub completion_tokens: u32,
    /// Both.
    pub total_tokens: u32,
    /// Of the prompt, those that were cached, if the engine tells.
    pub cached_tokens: Option<u32>,
}

impl StopReason {
    pub(super) fn write(&self, out: &mut Out) {
        match self {
            Self::Token(token) => out.integer(*token),
            Self::Text(text) => out.text(text),
        }
    }

    pub(super) fn read(value: &mut Reader<'_, '_>) -> Result<Option<Self>, GenerateError> {
        const FIELD: &str = "stop_reason";
        match value.cursor.item()? {
            Item::Nil => Ok(None),
            Item::Text(text) => Ok(Some(Self::Text(utf8(text, FIELD)?.to_owned()))),
            Item::Negative(token) => Ok(Some(Self::Token(token))),
            Item::Unsigned(token) => {
                let out_of_range = |_| GenerateError::Field { field: FIELD, found: "an integer out of range" };
                Ok(Some(Self::Token(i64::try_from(token).map_err(out_of_range)?)))
            }
            other => wrong(FIELD, other),
        }
    }
}

impl TopLogprob {
    pub(super) fn write(&self, out: &mut Out) {
        out.map(4 + u16::from(self.bytes.is_some()));
        out.text("rank");
        out.unsigned(self.rank.into());
        out.text("token_id");
        out.unsigned(self.token_id.into());
        out.field("token", self.token.as_deref(), Out::text);
        out.text("logprob");
        out.float(self.logprob);
        out.present("bytes", self.bytes.as_deref(), |out, bytes| {
            out.array(bytes.len());
            bytes.iter().for_each(|byte| out.unsigned((*byte).into()));
        });
    }

    pub(super) fn read(value: &mut Reader<'_, '_>) -> Result<Self, GenerateError> {
        let (mut entry, mut token_id, mut logprob) = (Self::default(), None, None);
        nested(value.cursor, "top_logprobs", |key, value| {
            match key {
                b"rank" => entry.rank = value.number("top_logprobs.rank")?.unwrap_or_default(),
                b"token_id" => token_id = value.number("top_logprobs.token_id")?,
                b"token" => entry.token = value.text("top_logprobs.token")?,
                b"logprob" => logprob = value.float("top_logprobs.logprob")?,
                b"bytes" => entry.bytes = bytes_of(value)?,
                _ => value.skip()?,
            }
            Ok(())
        })?;
        entry.token_id = token_id.ok_or(GenerateError::Missing("top_logprobs.token_id"))?;
        entry.logprob = logprob.ok_or(GenerateError::Missing("top_logprobs.logprob"))?;
        Ok(entry)
    }
}

fn bytes_of(value: &mut Reader<'_, '_>) -> Result<Option<Vec<u8>>, GenerateError> {
    const FIELD: &str = "top_logprobs.bytes";
    let mut ahead = *value.cursor;
    if let Item::Binary(bytes) = ahead.item()? {
        *value.cursor = ahead;
        return Ok(Some(bytes.to_vec()));
    }
    value.list(FIELD, 1, |byte| byte.number(FIELD)?.ok_or(GenerateError::Field { field: FIELD, found: "a list with nil in it" }))
}

impl FinishReason {
    pub(super) fn write(&self, out: &mut Out) {
        let text = match self {
            Self::Eos => "eos",
            Self::Length => "length",
            Self::Stop => "stop",
            Self::Cancelled => "cancelled",
            Self::ContentFilter => "content_filter",
            Self::Error(message) => {
                out.map(1);
                out.text("error");
                message
            }
        };
        out.text(text);
    }

    /// Engines behind 1.6.1's Python workers also say `error` and `error: why`.
    pub(super) fn read(value: &mut Reader<'_, '_>) -> Result<Option<Self>, GenerateError> {
        const FIELD: &str = "finish_reason";
        let text = match value.cursor.item()? {
            Item::Nil => return Ok(None),
            Item::Text(text) => utf8(text, FIELD)?,
            Item::Map(1) => {
                let key = value.cursor.key()?;
                let message = value.text(FIELD)?.unwrap_or_default();
                return match key {
                    Some(b"error") => Ok(Some(Self::Error(message))),
                    Some(_) | None => Err(GenerateError::Field { field: FIELD, found: "a map without an error" }),
                };
            }
            other => return wrong(FIELD, other),
        };
        Ok(Some(match text {
            "eos" => Self::Eos,
            "length" => Self::Length,
            "stop" => Self::Stop,
            "cancelled" | "abort" => Self::Cancelled,
            "content_filter" => Self::ContentFilter,
            other => match other.strip_prefix("error") {
                Some(message) => Self::Error(message.trim_start_matches([':', ' ']).to_owned()),
                None => return Err(GenerateError::FinishReason(crate::clip(other, MAX_REASON_BYTES))),
            },
        }))
    }
}

impl EngineUsage {
    pub(super) fn write(self, out: &mut Out) {
        out.map(3 + u16::from(self.cached_tokens.is_some()));
        out.text("prompt_tokens");
        out.unsigned(self.prompt_tokens.into());
        out.text("completion_tokens");
        out.unsigned(self.completion_tokens.into());
        out.text("total_tokens");
        out.unsigned(self.total_tokens.into());
        out.present("prompt_tokens_details", self.cached_tokens, write_cached_tokens);
    }

    pub(super) fn read(value: &mut Reader<'_, '_>) -> Result<Option<Self>, GenerateError> {
        let mut ahead = *value.cursor;
        if ahead.item()? == Item::Nil {
            *value.cursor = ahead;
            return Ok(None);
        }
        let mut usage = Self::default();
        nested(value.cursor, "completion_usage", |key, value| {
            match key {
                b"prompt_tokens" => usage.prompt_tokens = value.number("completion_usage.prompt_tokens")?.unwrap_or_default(),
                b"completion_tokens" => {
                    usage.completion_tokens = value.number("completion_usage.completion_tokens")?.unwrap_or_default();
                }
                b"total_tokens" => usage.total_tokens = value.number("completion_usage.total_tokens")?.unwrap_or_default(),
                b"prompt_tokens_details" => {
                    usage.cached_tokens = read_cached_tokens(value, "completion_usage.prompt_tokens_details")?;
                }
                _ => value.skip()?,
            }
            Ok(())
        })?;
        Ok(Some(usage))
    }
}

/// Details of a prompt's tokens, of which only one is told.
pub(super) fn write_cached_tokens(out: &mut Out, cached: u32) {
    out.map(2);
    out.text("audio_tokens");
    out.nil();
    out.text("cached_tokens");
    out.unsigned(cached.into());
}

pub(super) fn read_cached_tokens(value: &mut Reader<'_, '_>, field: &'static str) -> Result<Option<u32>, GenerateError> {
    let mut cached = None;
    nested(value.cursor, field, |key, value| {
        match key {
            b"cached_tokens" => cached = value.number(field)?,
            _ => value.skip()?,
        }
        Ok(())
    })?;
    Ok(cached)
}
