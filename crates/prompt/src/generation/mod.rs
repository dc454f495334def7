//! What a token-level worker has to be told beside the token ids of a prompt: when to stop, how to sample, what to report;
//! and what whoever turns tokens back into text has to know. Reading it is in `read`.
//!
//! Such a worker sees no OpenAI body, so that what is not understood here is lost: unlike [`crate::parse`], which leaves a
//! body to the server it is forwarded to, this refuses each field it does not know, by name. Ranges are OpenAI's and those of
//! Dynamo 1.6.1. In one place both are wider than 1.6.1: several choices at temperature 0 are served (OpenAI does), equal as
//! they will be.

mod guided;
mod nvext;
mod read;
mod tools;

use serde_json::{Map, Value};

pub use nvext::{AgentHints, ExtraFields, Nvext, Taints, Targets};
pub use tools::{Tool, ToolChoice, ToolUse};

/// Everything a completions or chat body asks of generation. What shapes the prompt is in [`crate::Request`].
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// `n`: choices for each prompt, 1 to 128.
    pub n: u32,
    /// `stream`.
    pub stream: bool,
    /// `max_completion_tokens`, else `max_tokens`, at least 1; 16 for completions without one, as OpenAI and engines have it.
    /// A chat without one may use what its prompt leaves of the context.
    pub max_tokens: Option<u32>,
    /// `min_tokens`, at most `max_tokens`.
    pub min_tokens: Option<u32>,
    /// `ignore_eos`.
    pub ignore_eos: bool,
    /// `stop`: texts that end an answer, at most 32 of at most 1024 bytes, none of them empty.
    pub stop: Vec<String>,
    /// `stop_token_ids`, and `stop` where it is a list of token ids; at most 128. They end an answer and stay out of its text.
    pub stop_token_ids: Vec<u32>,
    /// `include_stop_str_in_output`, or `no_stop_trim` of completions: the stop text stays in the answer.
    pub include_stop: bool,
    /// `skip_special_tokens`; true where absent. A parser of tool calls may need special tokens all the same.
    pub skip_special_tokens: bool,
    /// How the next token is chosen.
    pub sampling: Sampling,
    /// How many alternatives are reported for each token of the answer: `logprobs` of completions, at most 5, `top_logprobs` of
    /// chats, at most 20. `None` where no logprobs are wanted.
    pub logprobs: Option<u32>,
    /// `prompt_logprobs`: the same for each token of the prompt, at most 20.
    pub prompt_logprobs: Option<u32>,
    /// `return_tokens_as_token_ids`: logprobs name tokens as `token_id:N`.
    pub return_tokens_as_ids: bool,
    /// `echo`: completions repeat the prompt in front of the answer.
    pub echo: bool,
    /// When usage is told in a stream.
    pub usage: UsageWanted,
    /// What the answer is bound to, as the value of `guided_decoding` in a worker's sampling options: an object with one of
    /// `json`, `regex`, `choice`, `grammar`, `structural_tag`, and perhaps `backend` and `whitespace_pattern`.
    pub guided: Option<Value>,
    /// The tools a chat offers.
    pub tools: ToolUse,
    /// `thinking_token_budget`, else `nvext.max_thinking_tokens`.
    pub max_thinking_tokens: Option<u32>,
    /// Dynamo's own fields.
    pub nvext: Nvext,
    /// Fields that only some engines know, by their name in the body, for a worker's `extra_args`: `logit_bias`,
    /// `allowed_token_ids`, `bad_words_token_ids`, `detokenize`, `media_io_kwargs`, `mm_processor_kwargs`.
    pub extra: Map<String, Value>,
}

/// How the next token is chosen; absent fields are left to the engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampling {
    /// `temperature`, 0 to 2; 0 where `nvext.greed_sampling` is set.
    pub temperature: Option<f32>,
    /// `top_p`, 0 to 1.
    pub top_p: Option<f32>,
    /// `top_k`, at least -1; -1 and 0 are all tokens.
    pub top_k: Option<i32>,
    /// `min_p`, 0 to 1.
    pub min_p: Option<f32>,
    /// `presence_penalty`, -2 to 2.
    pub presence_penalty: Option<f32>,
    /// `frequency_penalty`, -2 to 2.
    pub frequency_penalty: Option<f32>,
    /// `repetition_penalty`, above 0, at most 2.
    pub repetition_penalty: Option<f32>,
    /// `seed`.
    pub seed: Option<i64>,
}

/// `stream_options`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageWanted {
    /// `include_usage`: a last chunk of a stream carries it.
    pub in_stream: bool,
    /// `continuous_usage_stats`: so does each chunk.
    pub each_chunk: bool,
}
