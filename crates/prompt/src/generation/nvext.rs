//! `nvext`: what a Dynamo frontend lets a request say beyond OpenAI's fields.

use std::sync::Arc;

use crate::request::Json;

/// All of `nvext`; empty where the body has none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Nvext {
    /// `greed_sampling`: the likeliest token each time.
    pub greed_sampling: bool,
    /// `use_raw_prompt`: the prompt goes to the tokenizer as it is, without a template.
    pub use_raw_prompt: bool,
    /// `annotations`: what a stream is to tell beside its chunks (`token_ids`, `formatted_prompt`), and requests that are
    /// none (`query_instance_id:`).
    pub annotations: Vec<String>,
    /// `token_data`: the prompt's token ids, made elsewhere.
    pub token_data: Option<Arc<[u32]>>,
    /// `max_thinking_tokens`.
    pub max_thinking_tokens: Option<u32>,
    /// `cache_salt`.
    pub cache_salt: Option<String>,
    /// `extra_fields`: what the answer's `nvext` is to hold.
    pub extra_fields: ExtraFields,
    /// `metadata_upload`: where an engine puts what it is asked to record; handed on as it came.
    pub metadata_upload: Option<Json>,
    /// Which workers and ranks are named.
    pub targets: Targets,
    /// `agent_hints`.
    pub hints: AgentHints,
    /// `request_timestamp_ms`, milliseconds.
    pub request_timestamp_ms: Option<f64>,
    /// `routing_constraints`.
    pub taints: Taints,
    /// `router.ttft_target`.
    pub ttft_target: Option<f64>,
    /// `router.itl_target`.
    pub itl_target: Option<f64>,
    /// The object as it stands in the body, where there is one: workers get it in `extra_args`.
    pub raw: Option<Json>,
}

/// The workers and ranks that `nvext` names; worker ids as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// `backend_instance_id`, or `decode_worker_id`: who generates.
    pub worker: Option<String>,
    /// `dp_rank`: its rank.
    pub dp_rank: Option<u32>,
    /// `prefill_worker_id`: who reads the prompt.
    pub prefill_worker: Option<String>,
    /// `prefill_dp_rank`: its rank.
    pub prefill_dp_rank: Option<u32>,
}

/// `nvext.extra_fields`; names nobody knows are ignored, as Dynamo does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtraFields {
    /// `worker_id`: who prefilled and who decoded, on every chunk.
    pub worker_id: bool,
    /// `timing`, on the last chunk.
    pub timing: bool,
    /// `completion_token_ids`.
    pub completion_token_ids: bool,
    /// `prompt_token_ids`.
    pub prompt_token_ids: bool,
    /// `prompt_logprobs`.
    pub prompt_logprobs: bool,
    /// `stop_reason`.
    pub stop_reason: bool,
    /// `detailed_finish_reason`.
    pub detailed_finish_reason: bool,
    /// `routed_experts`.
    pub routed_experts: bool,
    /// `engine_data`.
    pub engine_data: bool,
}

/// `nvext.agent_hints`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentHints {
    /// `priority`: higher is more important.
    pub priority: Option<i32>,
    /// `strict_priority`: served before every lower one.
    pub strict_priority: Option<u32>,
    /// `osl`: tokens the answer is expected to have.
    pub osl: Option<u32>,
    /// `speculative_prefill`: the next turn's prompt may be prefilled ahead.
    pub speculative_prefill: bool,
    /// `latency_sensitivity`, the older form of `priority`.
    pub latency_sensitivity: Option<f64>,
}

/// `nvext.routing_constraints`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Taints {
    /// `required_taints`: a worker without one of them is not chosen.
    pub required: Vec<String>,
    /// `preferred_taints` and the weight of each.
    pub preferred: Vec<(String, f32)>,
}

impl Nvext {
    /// The value of the annotation `query_instance_id:`: the request only asks where it would go (a dry run).
    pub fn dry_run(&self) -> Option<&str> {
        self.annotations.iter().find_map(|annotation| annotation.strip_prefix("query_instance_id:"))
    }

    /// Whether the stream is to carry the annotation `name`.
    pub fn annotates(&self, name: &str) -> bool {
        self.annotations.iter().any(|annotation| annotation == name)
    }
}
