//! What a token-level worker has to be told beside the token ids of a prompt: when to stop, how to sample, what to report;
//! and what whoever turns tokens back into text has to know. Values only: reading a body is in `read`.

mod nvext;

use serde_json::{Map, Value};

pub use nvext::{AgentHints, ExtraFields, Nvext, Targets, Taints};

use crate::request::Json;

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
    /// `stop`: texts that end an answer, at most 32, none of them empty.
    pub stop: Vec<String>,
    /// `stop_token_ids`, and `stop` where it is a list of token ids. They end an answer and stay out of its text.
    pub stop_token_ids: Vec<u32>,
    /// `include_stop_str_in_output`: the stop text stays in the answer (`no_stop_trim` is the same).
    pub include_stop: bool,
    /// `skip_special_tokens`; true where absent. A parser of tool calls may need special tokens all the same.
    pub skip_special_tokens: bool,
    /// How the next token is chosen.
    pub sampling: Sampling,
    /// How many alternatives are reported for each token of the answer, at most 20; `None` where no logprobs are wanted.
    pub logprobs: Option<u32>,
    /// `prompt_logprobs`: the same for each token of the prompt.
    pub prompt_logprobs: Option<u32>,
    /// `return_tokens_as_token_ids`: logprobs name tokens as `token_id:N`.
    pub return_tokens_as_ids: bool,
    /// `echo`: completions repeat the prompt in front of the answer; chats the final message.
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
    /// Fields that only some engines know, by their name in the body; for a worker's `extra_args`.
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
    /// `length_penalty`, -2 to 2.
    pub length_penalty: Option<f32>,
    /// `seed`.
    pub seed: Option<i64>,
    /// `best_of`, at least `n`, at most 20.
    pub best_of: Option<u32>,
    /// `use_beam_search`.
    pub use_beam_search: Option<bool>,
}

/// `stream_options`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageWanted {
    /// `include_usage`: a last chunk of a stream carries it.
    pub in_stream: bool,
    /// `continuous_usage_stats`: so does each chunk.
    pub each_chunk: bool,
}

/// The tools of a chat, and whether they may be called.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolUse {
    /// `tools`, in their order.
    pub tools: Vec<Tool>,
    /// `tool_choice`.
    pub choice: ToolChoice,
    /// `parallel_tool_calls`: more than one call in one answer; true where absent.
    pub parallel: bool,
}

impl ToolUse {
    /// Whether an answer may call a tool, so that its text has to be searched for calls.
    pub fn offered(&self) -> bool {
        !self.tools.is_empty() && self.choice != ToolChoice::None
    }
}

/// One function a model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// `function.name`.
    pub name: String,
    /// `function.parameters`: a JSON schema.
    pub parameters: Option<Json>,
    /// `function.strict`.
    pub strict: bool,
}

/// `tool_choice`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides; the calls stand in its text in the form of its family. The default where there are tools.
    #[default]
    Auto,
    /// No tool is called.
    None,
    /// At least one is called. [`Generation::guided`] then binds the answer to a JSON array of `{"name", "parameters"}`.
    Required,
    /// This one is called. [`Generation::guided`] then binds the answer to its arguments, a JSON object.
    Named(String),
}
