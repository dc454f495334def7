//! The data of an answer's items.

use bytes::Bytes;
use serde_json::Value;

use super::{
    EngineUsage, FinishReason, GenerateError, StopReason, TopLogprob, json,
    parts::LEAST_LOGPROB_BYTES,
    read::{Reader, wrong},
    value,
};
use crate::{
    cursor::{Cursor, Item},
    out::Out,
    request::Codec,
};

/// What one item tells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineOutput {
    /// What was generated since the last item.
    pub token_ids: Vec<u32>,
    /// The text of each, from an engine that detokenises.
    pub tokens: Option<Vec<Option<String>>>,
    /// The text of all, likewise.
    pub text: Option<String>,
    /// Sum of the log-probabilities of all tokens so far.
    pub cum_log_probs: Option<f64>,
    /// Log-probability of each token.
    pub log_probs: Option<Vec<f64>>,
    /// Alternatives to each token, the likeliest first.
    pub top_logprobs: Option<Vec<Vec<TopLogprob>>>,
    /// Why it is over; the item is then the last.
    pub finish_reason: Option<FinishReason>,
    /// What it stopped at.
    pub stop_reason: Option<StopReason>,
    /// Which of several choices.
    pub index: Option<u32>,
    /// What a prefill worker hands over to a decode worker.
    pub disaggregated_params: Option<Value>,
    /// What an engine adds, such as `prompt_logprobs`.
    pub extra_args: Option<Value>,
    /// Tokens so far.
    pub completion_usage: Option<EngineUsage>,
    /// What an engine tells clients as it is, such as `prompt_logprobs`.
    pub engine_data: Option<Value>,
}

/// An item's data. A typed error, `{"event": "error", "error": {..}}`, is the request plane's, see
/// [`TypedError`](crate::request::TypedError).
#[derive(Clone, Debug, PartialEq)]
pub enum Annotated {
    /// Tokens, or the end.
    Output(Box<EngineOutput>),
    /// Something beside.
    Event {
        /// What it is about.
        name: String,
        /// What it says.
        comment: Option<Vec<String>>,
    },
}

impl Annotated {
    /// The data.
    pub fn encode(&self, codec: Codec) -> Bytes {
        match self {
            Self::Output(output) => output.encode_item(codec),
            Self::Event { name, comment } => {
                let mut out = Out::default();
                out.map(1 + u16::from(comment.is_some()));
                out.text("event");
                out.text(name);
                out.present("comment", comment.as_deref(), Out::texts);
                in_codec(out, codec)
            }
        }
    }

    /// Reads an item's data. One with both is an output.
    pub fn decode(data: &[u8], codec: Codec) -> Result<Self, GenerateError> {
        match codec {
            Codec::Msgpack => Self::read(data),
            Codec::Json => Self::read(&json::to_msgpack(data)?),
        }
    }

    fn read(data: &[u8]) -> Result<Self, GenerateError> {
        let mut cursor = Cursor::new(data);
        let (mut output, mut name, mut comment) = (None, None, None);
        let Item::Map(pairs) = cursor.item()? else {
            return Err(GenerateError::Field { field: "the item", found: "no map" });
        };
        for _ in 0..pairs {
            match cursor.key()? {
                Some(b"data") => output = EngineOutput::read(&mut cursor)?,
                Some(b"event") => name = Reader { cursor: &mut cursor }.text("event")?,
                Some(b"comment") => comment = Reader { cursor: &mut cursor }.texts("comment")?,
                _ => cursor.skip(1)?,
            }
        }
        if cursor.remaining() > 0 {
            return Err(GenerateError::Broken);
        }
        match (output, name) {
            (Some(output), _) => Ok(Self::Output(output)),
            (None, Some(name)) => Ok(Self::Event { name, comment }),
            (None, None) => Err(GenerateError::Missing("data")),
        }
    }
}

impl EngineOutput {
    /// An item's data with this as its output.
    pub fn encode_item(&self, codec: Codec) -> Bytes {
        let mut out = Out::with_capacity(256);
        out.map(1);
        out.text("data");
        self.write(&mut out);
        in_codec(out, codec)
    }

    fn write(&self, out: &mut Out) {
        let optional = [
            self.stop_reason.is_some(),
            self.disaggregated_params.is_some(),
            self.extra_args.is_some(),
            self.completion_usage.is_some(),
            self.engine_data.is_some(),
        ];
        out.map(9 + optional.into_iter().map(u16::from).sum::<u16>());
        out.text("token_ids");
        out.ids(&self.token_ids);
        out.field("tokens", self.tokens.as_deref(), |out, tokens| {
            out.array(tokens.len());
            tokens.iter().for_each(|token| out.optional(token.as_deref(), Out::text));
        });
        out.field("text", self.text.as_deref(), Out::text);
        out.text("output_type");
        out.text("text");
        out.field("cum_log_probs", self.cum_log_probs, Out::float);
        out.field("log_probs", self.log_probs.as_deref(), |out, numbers| {
            out.array(numbers.len());
            numbers.iter().for_each(|number| out.float(*number));
        });
        out.field("top_logprobs", self.top_logprobs.as_deref(), |out, lists| {
            out.array(lists.len());
            for list in lists {
                out.array(list.len());
                list.iter().for_each(|entry| entry.write(out));
            }
        });
        out.field("finish_reason", self.finish_reason.as_ref(), |out, reason| reason.write(out));
        out.present("stop_reason", self.stop_reason.as_ref(), |out, reason| reason.write(out));
        out.field("index", self.index, |out, index| out.unsigned(index.into()));
        out.present("disaggregated_params", self.disaggregated_params.as_ref(), value::write);
        out.present("extra_args", self.extra_args.as_ref(), value::write);
        out.present("completion_usage", self.completion_usage, |out, usage| usage.write(out));
        out.present("engine_data", self.engine_data.as_ref(), value::write);
    }

    /// `None` for nil.
    fn read(cursor: &mut Cursor<'_>) -> Result<Option<Box<Self>>, GenerateError> {
        let pairs = match cursor.item()? {
            Item::Nil => return Ok(None),
            Item::Map(pairs) => pairs,
            other => return wrong("data", other),
        };
        let mut output = Box::<Self>::default();
        for _ in 0..pairs {
            match cursor.key()? {
                Some(key) => output.read_field(key, &mut Reader { cursor })?,
                None => cursor.skip(1)?,
            }
        }
        Ok(Some(output))
    }

    fn read_field(&mut self, key: &[u8], value: &mut Reader<'_, '_>) -> Result<(), GenerateError> {
        match key {
            b"token_ids" => self.token_ids = value.ids("token_ids")?.unwrap_or_default(),
            b"tokens" => self.tokens = value.list("tokens", 1, |token| token.text("tokens"))?,
            b"text" => self.text = value.text("text")?,
            b"cum_log_probs" => self.cum_log_probs = value.float("cum_log_probs")?,
            b"log_probs" => self.log_probs = log_probs(value)?,
            b"top_logprobs" => {
                self.top_logprobs = value.list("top_logprobs", 1, |list| {
                    Ok(list.list("top_logprobs", LEAST_LOGPROB_BYTES, TopLogprob::read)?.unwrap_or_default())
                })?;
            }
            b"finish_reason" => self.finish_reason = FinishReason::read(value)?,
            b"stop_reason" => self.stop_reason = StopReason::read(value)?,
            b"index" => self.index = value.number("index")?,
            b"disaggregated_params" => self.disaggregated_params = value.json("disaggregated_params")?,
            b"extra_args" => self.extra_args = value.json("extra_args")?,
            b"completion_usage" => self.completion_usage = EngineUsage::read(value)?,
            b"engine_data" => self.engine_data = value.json("engine_data")?,
            _ => value.skip()?,
        }
        Ok(())
    }
}

/// A token that could not be had has none: nil there is the lowest there is.
fn log_probs(value: &mut Reader<'_, '_>) -> Result<Option<Vec<f64>>, GenerateError> {
    value.list("log_probs", 1, |number| Ok(number.float("log_probs")?.unwrap_or(f64::NEG_INFINITY)))
}

fn in_codec(out: Out, codec: Codec) -> Bytes {
    match codec {
        Codec::Msgpack => out.finish(),
        Codec::Json => json::of_msgpack(&out.finish()),
    }
}
