//! What a request asks of its answer, and what the caller learns while it comes.

use std::sync::Arc;

use prompt::{Endpoint, ExtraFields, UsageWanted};

use crate::tools::Plan;

/// Everything that shapes the answer to one request. Choices are numbered through all prompts: choice `p * n + k` is the
/// `k`-th of prompt `p`.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Where the request came in.
    pub endpoint: Endpoint,
    /// SSE chunks, or one JSON body.
    pub stream: bool,
    /// The whole `id`, as `chatcmpl-…` or `cmpl-…`.
    pub id: String,
    /// The model's name as the client wrote it.
    pub model: String,
    /// Seconds since 1970.
    pub created: u64,
    /// One for a chat, any number for completions.
    pub prompts: Vec<Prompt>,
    /// Choices for each prompt, at least 1.
    pub n: u32,
    /// What ends a choice.
    pub stops: Stops,
    /// Special tokens stay out of the text, but for those that a parser looks for.
    pub skip_special_tokens: bool,
    /// How many alternatives are told for each token; `None` where no logprobs are wanted.
    pub logprobs: Option<u32>,
    /// Logprobs name tokens as `token_id:N`.
    pub tokens_as_ids: bool,
    /// When usage is told in a stream; a whole body always has it.
    pub usage: UsageWanted,
    /// What takes thoughts and calls of tools out of the text; for chats.
    pub parse: Plan,
    /// What the ids of calls are drawn from: a random number of the request's own.
    pub seed: u64,
    /// Fields of `nvext` that the client asked for.
    pub fields: ExtraFields,
}

/// One prompt, as it was before any migration.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// Its token ids.
    pub ids: Arc<[u32]>,
    /// Whether and as what it is repeated in front of each of its choices.
    pub echo: Option<Echo>,
}

/// What stands in front of an echoed choice.
#[derive(Debug, Clone)]
pub enum Echo {
    /// The text that the client sent.
    Text(String),
    /// The prompt's token ids as text, where it sent none.
    Ids,
}

/// What ends a choice, beside what the engine says.
#[derive(Debug, Clone, Default)]
pub struct Stops {
    /// Texts; the first to be complete ends the choice, the longest of those that are complete at once. Empty ones count for
    /// nothing. The caller bounds their number and length: they cost 24 bytes of memory for each of theirs.
    pub strings: Vec<String>,
    /// The text that ended the choice stays in it, and so does the text of a hidden token.
    pub include: bool,
    /// Tokens of the client's that end a choice and stay out of its text.
    pub hidden_ids: Vec<u32>,
    /// Tokens that end a choice and stay in its text.
    pub visible_ids: Vec<u32>,
    /// The model's end-of-sequence tokens: as hidden ones, and always out of the text.
    pub eos_ids: Vec<u32>,
    /// End-of-sequence tokens end nothing.
    pub ignore_eos: bool,
    /// Tokens that a choice has before any of the above counts.
    pub min_tokens: u32,
    /// Tokens that a choice has at most. What an engine sends beyond it is dropped.
    pub max_tokens: Option<u32>,
}

/// How a choice stands after a push.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Progress {
    /// More is to come.
    Going,
    /// It is complete. Where the engine has not said so itself, it was cut: the caller stops the engine's work.
    ChoiceDone,
    /// The engine gave up. The choice is still open: the caller lets another worker go on, or tells an error.
    Failed(Fault),
}

/// Why an engine gave up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// In its words.
    #[error("the engine ended with an error: {0}")]
    Engine(String),
    /// Nobody here cancelled it.
    #[error("the engine cancelled the request")]
    Cancelled,
    /// Output for a choice nobody asked for: each leg is asked for one.
    #[error("the engine sent choice {0} of a request for one")]
    WrongChoice(u32),
}

/// Who works for a choice, as `nvext.worker_id` tells it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Workers {
    /// The worker that read the prompt.
    pub prefill_worker_id: Option<u64>,
    /// Its rank.
    pub prefill_dp_rank: Option<u32>,
    /// The worker that generates.
    pub decode_worker_id: Option<u64>,
    /// Its rank.
    pub decode_dp_rank: Option<u32>,
}

/// What only the caller knows at the end of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ResponseNvext {
    /// Told where the client asked for `timing`.
    pub timing: Timing,
}

/// `nvext.timing`; what is not known is left out.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Timing {
    /// Milliseconds since 1970.
    pub request_received_ms: Option<u64>,
    /// Milliseconds from there to the dispatch.
    pub prefill_wait_time_ms: Option<f64>,
    /// Milliseconds from the dispatch to the first token.
    pub prefill_time_ms: Option<f64>,
    /// Milliseconds to the first token.
    pub ttft_ms: Option<f64>,
    /// Milliseconds to the last one.
    pub total_time_ms: Option<f64>,
    /// The part of the prompt's blocks that the chosen worker held, 0 to 1.
    pub kv_hit_rate: Option<f64>,
    /// Requests that waited in the router when this one came.
    pub router_queue_depth: Option<u64>,
}

/// An error as OpenAI tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenAiError<'a> {
    /// For people.
    pub message: &'a str,
    /// `server_error`, `invalid_request_error`, …
    pub kind: &'a str,
    /// The field at fault.
    pub param: Option<&'a str>,
    /// For programs.
    pub code: Option<&'a str>,
}

/// What an answer cost, each token counted once, whatever number of workers it took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of all prompts, without what migration appended to them; a prompt with several choices counts once.
    pub prompt_tokens: u64,
    /// Tokens of all choices, those that ended them included, those that were dropped behind an end not.
    pub completion_tokens: u64,
    /// Prompt tokens that were cached, as the first engines asked for each prompt reported; `None` where none did.
    pub cached_tokens: Option<u64>,
}

impl Shape {
    /// What is searched for in the text; `None` where nothing is.
    pub(crate) fn plan(&self) -> Option<&Plan> {
        Some(&self.parse).filter(|plan| self.endpoint == Endpoint::Chat && !plan.is_plain())
    }

    /// Choices of the whole answer.
    pub(crate) fn choices(&self) -> usize {
        self.prompts.len().saturating_mul(self.n.max(1) as usize)
    }

    /// The prompt of a choice.
    pub(crate) fn prompt_of(&self, choice: usize) -> Option<&Prompt> {
        self.prompts.get(choice / self.n.max(1) as usize)
    }
}
