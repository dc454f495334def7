//! The three groups of options in a request.

use serde_json::Value;

use super::{
    GenerateError,
    read::{Reader, nested},
    value,
};
use crate::{cursor::Cursor, out::Out};

/// When an engine stops.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopConditions {
    /// The most tokens of the answer.
    pub max_tokens: Option<u32>,
    /// Texts that end the answer; who detokenises looks for them.
    pub stop: Option<Vec<String>>,
    /// Ids that end the answer.
    pub stop_token_ids: Option<Vec<u32>>,
    /// Ids that end the answer and are shown in it.
    pub stop_token_ids_visible: Option<Vec<u32>>,
    /// Ids that end the answer and are not shown, such as the model's own ends of sequence.
    pub stop_token_ids_hidden: Option<Vec<u32>>,
    /// No id ends the answer before so many tokens.
    pub min_tokens: Option<u32>,
    /// Whether ends of sequence do not end the answer.
    pub ignore_eos: Option<bool>,
    /// The most tokens of reasoning.
    pub max_thinking_tokens: Option<u32>,
}

/// How an engine chooses tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingOptions {
    /// How many answers.
    pub n: Option<u32>,
    /// Out of how many.
    pub best_of: Option<u32>,
    /// Added once for each token that occurred.
    pub presence_penalty: Option<f32>,
    /// Added for each time a token occurred.
    pub frequency_penalty: Option<f32>,
    /// Multiplied in for each token that occurred.
    pub repetition_penalty: Option<f32>,
    /// 0: the likeliest token.
    pub temperature: Option<f32>,
    /// Only the likeliest tokens of this total probability.
    pub top_p: Option<f32>,
    /// Only the likeliest so many; below 1: all.
    pub top_k: Option<i32>,
    /// Only tokens at least this likely, relative to the likeliest.
    pub min_p: Option<f32>,
    /// Whether beams are searched.
    pub use_beam_search: Option<bool>,
    /// Of a beam's length.
    pub length_penalty: Option<f32>,
    /// The same for the same answer.
    pub seed: Option<i64>,
    /// Whether the text that ended the answer is in it.
    pub include_stop_str_in_output: Option<bool>,
    /// What the answer must look like: an object with one of `json`, `regex`, `choice`, `grammar`, `structural_tag`, and with what.
    pub guided_decoding: Option<Value>,
}

/// What an engine tells beside the tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputOptions {
    /// How many alternatives to each token.
    pub logprobs: Option<u32>,
    /// The same for the tokens of the prompt.
    pub prompt_logprobs: Option<u32>,
    /// Whether special tokens are left out of the text.
    pub skip_special_tokens: Option<bool>,
    /// Whether the prompt as text is wanted.
    pub formatted_prompt: Option<bool>,
    /// Whether tokens are written as `token_id:N`.
    pub return_tokens_as_token_ids: Option<bool>,
}

impl StopConditions {
    pub(super) fn write(&self, out: &mut Out) {
        out.map(8);
        out.field("max_tokens", self.max_tokens, |out, number| out.unsigned(number.into()));
        out.field("stop", self.stop.as_deref(), |out, texts| out.texts(texts));
        out.field("stop_token_ids", self.stop_token_ids.as_deref(), Out::ids);
        out.field("stop_token_ids_visible", self.stop_token_ids_visible.as_deref(), Out::ids);
        out.field("stop_token_ids_hidden", self.stop_token_ids_hidden.as_deref(), Out::ids);
        out.field("min_tokens", self.min_tokens, |out, number| out.unsigned(number.into()));
        out.field("ignore_eos", self.ignore_eos, Out::boolean);
        out.field("max_thinking_tokens", self.max_thinking_tokens, |out, number| out.unsigned(number.into()));
    }

    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Self, GenerateError> {
        let mut options = Self::default();
        nested(cursor, "stop_conditions", |key, value| {
            match key {
                b"max_tokens" => options.max_tokens = value.number("stop_conditions.max_tokens")?,
                b"stop" => options.stop = value.texts("stop_conditions.stop")?,
                b"stop_token_ids" => options.stop_token_ids = value.ids("stop_conditions.stop_token_ids")?,
                b"stop_token_ids_visible" => options.stop_token_ids_visible = value.ids("stop_conditions.stop_token_ids_visible")?,
                b"stop_token_ids_hidden" => options.stop_token_ids_hidden = value.ids("stop_conditions.stop_token_ids_hidden")?,
                b"min_tokens" => options.min_tokens = value.number("stop_conditions.min_tokens")?,
                b"ignore_eos" => options.ignore_eos = value.boolean("stop_conditions.ignore_eos")?,
                b"max_thinking_tokens" => options.max_thinking_tokens = value.number("stop_conditions.max_thinking_tokens")?,
                _ => value.skip()?,
            }
            Ok(())
        })?;
        Ok(options)
    }
}

impl SamplingOptions {
    pub(super) fn write(&self, out: &mut Out) {
        out.map(14);
        out.field("n", self.n, |out, number| out.unsigned(number.into()));
        out.field("best_of", self.best_of, |out, number| out.unsigned(number.into()));
        out.field("presence_penalty", self.presence_penalty, Out::single);
        out.field("frequency_penalty", self.frequency_penalty, Out::single);
        out.field("repetition_penalty", self.repetition_penalty, Out::single);
        out.field("temperature", self.temperature, Out::single);
        out.field("top_p", self.top_p, Out::single);
        out.field("top_k", self.top_k, |out, number| out.integer(number.into()));
        out.field("min_p", self.min_p, Out::single);
        out.field("use_beam_search", self.use_beam_search, Out::boolean);
        out.field("length_penalty", self.length_penalty, Out::single);
        out.field("seed", self.seed, Out::integer);
        out.field("include_stop_str_in_output", self.include_stop_str_in_output, Out::boolean);
        out.field("guided_decoding", self.guided_decoding.as_ref(), value::write);
    }

    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Self, GenerateError> {
        let mut options = Self::default();
        nested(cursor, "sampling_options", |key, value| {
            match key {
                b"n" => options.n = value.number("sampling_options.n")?,
                b"best_of" => options.best_of = value.number("sampling_options.best_of")?,
                b"presence_penalty" => options.presence_penalty = value.single("sampling_options.presence_penalty")?,
                b"frequency_penalty" => options.frequency_penalty = value.single("sampling_options.frequency_penalty")?,
                b"repetition_penalty" => options.repetition_penalty = value.single("sampling_options.repetition_penalty")?,
                b"temperature" => options.temperature = value.single("sampling_options.temperature")?,
                b"top_p" => options.top_p = value.single("sampling_options.top_p")?,
                b"top_k" => options.top_k = value.integer("sampling_options.top_k")?,
                b"min_p" => options.min_p = value.single("sampling_options.min_p")?,
                b"use_beam_search" => options.use_beam_search = value.boolean("sampling_options.use_beam_search")?,
                b"length_penalty" => options.length_penalty = value.single("sampling_options.length_penalty")?,
                b"seed" => options.seed = value.integer("sampling_options.seed")?,
                b"include_stop_str_in_output" => {
                    options.include_stop_str_in_output = value.boolean("sampling_options.include_stop_str_in_output")?;
                }
                b"guided_decoding" => options.guided_decoding = value.json("sampling_options.guided_decoding")?,
                _ => value.skip()?,
            }
            Ok(())
        })?;
        Ok(options)
    }
}

impl OutputOptions {
    pub(super) fn write(&self, out: &mut Out) {
        out.map(5);
        out.field("logprobs", self.logprobs, |out, number| out.unsigned(number.into()));
        out.field("prompt_logprobs", self.prompt_logprobs, |out, number| out.unsigned(number.into()));
        out.field("skip_special_tokens", self.skip_special_tokens, Out::boolean);
        out.field("formatted_prompt", self.formatted_prompt, Out::boolean);
        out.field("return_tokens_as_token_ids", self.return_tokens_as_token_ids, Out::boolean);
    }

    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Self, GenerateError> {
        let mut options = Self::default();
        nested(cursor, "output_options", |key, value: &mut Reader<'_, '_>| {
            match key {
                b"logprobs" => options.logprobs = value.number("output_options.logprobs")?,
                b"prompt_logprobs" => options.prompt_logprobs = value.number("output_options.prompt_logprobs")?,
                b"skip_special_tokens" => options.skip_special_tokens = value.boolean("output_options.skip_special_tokens")?,
                b"formatted_prompt" => options.formatted_prompt = value.boolean("output_options.formatted_prompt")?,
                b"return_tokens_as_token_ids" => {
                    options.return_tokens_as_token_ids = value.boolean("output_options.return_tokens_as_token_ids")?;
                }
                _ => value.skip()?,
            }
            Ok(())
        })?;
        Ok(options)
    }
}
