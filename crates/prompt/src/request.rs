//! What a parsed request is. Values only: reading a body is in `body`, rendering in `render`.

use std::sync::Arc;

use bytes::Bytes;

use crate::error::TokenError;
use crate::fields::Raw;
use crate::layout::Source;

/// Which OpenAI endpoint a body came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `/v1/completions`
    Completions,
    /// `/v1/chat/completions`
    Chat,
}

/// What routing reads of a body. The body itself is forwarded as it came.
#[derive(Clone, Debug)]
pub struct Request {
    /// The endpoint it came to.
    pub endpoint: Endpoint,
    /// `model`: a model or an adapter.
    pub model: String,
    /// `stream`.
    pub stream: bool,
    /// `n`, at least 1.
    pub n: u32,
    /// `best_of`, where given.
    pub best_of: Option<u32>,
    /// `max_completion_tokens`, else `max_tokens`, else 16 for completions (the default of OpenAI and of engines).
    pub max_tokens: Option<u32>,
    /// `cache_salt`, of the body or of `nvext`: part of a block's key.
    pub salt: Option<String>,
    /// The engine will not read its prefix cache for this request: it has to return logprobs of the prompt.
    pub skips_cache: bool,
    /// `vllm_xargs.kv_cache_report_mode` is `full`: the engine then reports blocks as a set (rule 4).
    pub full_reports: bool,
    /// `add_special_tokens`; true by default for completions, false for chats.
    pub add_special_tokens: bool,
    /// `truncate_prompt_tokens` and `truncation_side`.
    pub truncation: Option<Truncation>,
    /// Where `nvext` pins the request to.
    pub pin: Pin,
    /// The prompt or prompts.
    pub inputs: Inputs,
    /// The body, for who reads more of it.
    pub(crate) source: Source,
}

impl Request {
    /// Length of its body, in bytes.
    pub fn body_bytes(&self) -> usize {
        self.source.body().len()
    }
}

/// `nvext` fields that name a target; empty where the body names none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pin {
    /// `nvext.backend_instance_id`, else `nvext.decode_worker_id`, as text.
    pub worker: Option<String>,
    /// Which of them that is.
    pub worker_param: &'static str,
    /// `nvext.dp_rank`.
    pub dp_rank: Option<u32>,
}

/// A request to cut the prompt to a number of tokens before it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// Tokens to keep; -1 is "what the context holds".
    pub keep_tokens: i64,
    /// Which side is cut, where the body says so; else the engine's tokenizer decides.
    pub side: Option<Side>,
}

/// A side of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The start.
    Left,
    /// The end.
    Right,
}

/// What the model is asked to continue.
#[derive(Clone, Debug)]
pub enum Inputs {
    /// One or more prompts of a completions body; never empty.
    Prompts(Vec<Prompt>),
    /// A conversation.
    Chat(Box<Chat>),
    /// `prompt_embeds`: nothing a text index could match.
    Opaque,
}

impl Inputs {
    /// How many prompts there are.
    pub fn count(&self) -> usize {
        match self {
            Self::Prompts(prompts) => prompts.len(),
            Self::Chat(_) | Self::Opaque => 1,
        }
    }

    /// Whether there is nothing to tokenise: every prompt is token ids.
    pub fn are_ids(&self) -> bool {
        match self {
            Self::Prompts(prompts) => prompts.iter().all(|prompt| matches!(prompt, Prompt::Ids(_))),
            Self::Chat(_) | Self::Opaque => false,
        }
    }
}

/// One prompt of a completions body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Text to tokenise.
    Text(Arc<str>),
    /// Token ids, used as they are; never empty.
    Ids(Arc<[u32]>),
}

/// The parts of a chat body that shape its prompt.
#[derive(Clone, Debug, Default)]
pub struct Chat {
    /// `messages`: a non-empty array.
    pub messages: Json,
    /// `tools`: an array, absent when empty or null.
    pub tools: Option<Json>,
    /// `documents`.
    pub documents: Option<Json>,
    /// `chat_template_kwargs`: an object.
    pub template_kwargs: Option<Json>,
    /// `chat_template_args`, Dynamo's name for the same. Servers do not know it; it counts where chats are rendered here.
    pub template_args: Option<Json>,
    /// `thinking`, likewise: true or false, or an object with `type`: `enabled`, `disabled` or `adaptive`.
    pub thinking: Option<Json>,
    /// `reasoning_effort`.
    pub reasoning_effort: Option<String>,
    /// `add_generation_prompt`; by default true, false where the final message is continued.
    pub add_generation_prompt: bool,
    /// `continue_final_message`.
    pub continue_final_message: bool,
    /// The body brings a `chat_template`.
    pub own_template: bool,
}

/// A piece of the body that is valid JSON, sharing its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Json(Bytes);

impl Default for Json {
    fn default() -> Self {
        Self(Bytes::from_static(b"null"))
    }
}

impl Json {
    /// `raw` must borrow from `body`.
    pub(crate) fn of(body: &Bytes, raw: Raw<'_>) -> Self {
        Self(body.slice_ref(raw.get().as_bytes()))
    }

    /// The text as it stands in the body.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The piece as a value.
    ///
    /// # Errors
    /// Where text holds half a surrogate pair or nesting is beyond serde_json's limit: valid JSON all the same.
    pub fn value(&self) -> Result<serde_json::Value, TokenError> {
        serde_json::from_slice(&self.0).map_err(|error| TokenError::Unsupported(error.to_string()))
    }
}

/// The token ids of one prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// All of them, as the engine will see them before it expands media.
    pub ids: Arc<[u32]>,
    /// How many leading ids may be matched; `None` is all of them. Set where a prompt holds media (rule 9) or where the
    /// engine may cut it.
    pub text_only_prefix: Option<usize>,
}

impl Tokens {
    pub(crate) fn all(ids: Arc<[u32]>) -> Self {
        Self { ids, text_only_prefix: None }
    }

    /// The leading ids that may be matched against cached blocks.
    pub fn matchable(&self) -> &[u32] {
        let end = self.text_only_prefix.unwrap_or(self.ids.len()).min(self.ids.len());
        &self.ids[..end]
    }
}
