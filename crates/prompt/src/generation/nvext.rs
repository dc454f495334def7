//! `nvext`: what a Dynamo frontend lets a request say beyond OpenAI's fields.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::body::{one_worker, worker_id};
use crate::error::BadRequest;
use crate::fields::{Fields, Raw, number};
use crate::request::Json;

/// All of `nvext`; empty where the body has none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Nvext {
    /// `greed_sampling`: the likeliest token each time.
    pub greed_sampling: bool,
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

/// Every field of `nvext`, in the order of Dynamo's message.
const NAMES: [&str; 17] = [
    "greed_sampling",
    "use_raw_prompt",
    "annotations",
    "backend_instance_id",
    "token_data",
    "max_thinking_tokens",
    "cache_salt",
    "extra_fields",
    "metadata_upload",
    "prefill_worker_id",
    "decode_worker_id",
    "dp_rank",
    "prefill_dp_rank",
    "agent_hints",
    "request_timestamp_ms",
    "routing_constraints",
    "router",
];
const HINTS: [&str; 5] = ["priority", "strict_priority", "osl", "speculative_prefill", "latency_sensitivity"];
/// Annotations, extra fields or taints in one list.
const MAX_LIST: usize = 256;

impl Nvext {
    /// `raw` is a piece of `body`.
    pub(super) fn read(raw: Option<Raw<'_>>, body: &Bytes) -> Result<Self, BadRequest> {
        let Some(raw) = raw else { return Ok(Self::default()) };
        let fields = Fields::nested("nvext", Some(raw), &NAMES)?;
        fields.known_only()?;
        let texts = |name| -> Result<Vec<String>, BadRequest> {
            let texts = fields.texts(name)?.unwrap_or_default();
            bounded(&fields.named(name), texts.len())?;
            Ok(texts.into_iter().map(Cow::into_owned).collect())
        };
        let router = Fields::nested("nvext.router", fields.get("router"), &["ttft_target", "itl_target"])?;
        // Of no effect, as in 1.6.1: the prompt of a completion is never put into a template, and a chat has no other form.
        fields.flag("use_raw_prompt")?;
        let token_data = fields.ids("token_data")?;
        if token_data.as_ref().is_some_and(|ids| ids.is_empty()) {
            return Err(BadRequest::new("nvext.token_data", "empty_array", "'nvext.token_data' must not be empty"));
        }
        Ok(Self {
            greed_sampling: fields.flag("greed_sampling")?.unwrap_or(false),
            annotations: texts("annotations")?,
            token_data,
            max_thinking_tokens: fields.count("max_thinking_tokens", 0)?,
            cache_salt: fields.text("cache_salt")?.map(Cow::into_owned),
            extra_fields: ExtraFields::of(&texts("extra_fields")?),
            metadata_upload: metadata_upload(fields.get("metadata_upload"), body)?,
            targets: Targets::read(&fields)?,
            hints: AgentHints::read(fields.get("agent_hints"))?,
            request_timestamp_ms: fields.number("request_timestamp_ms", 0.0, f64::MAX)?,
            taints: Taints::read(fields.get("routing_constraints"))?,
            ttft_target: router.number("ttft_target", 0.0, f64::MAX)?,
            itl_target: router.number("itl_target", 0.0, f64::MAX)?,
            raw: Some(Json::of(body, raw)),
        })
    }
}

fn bounded(param: &str, length: usize) -> Result<(), BadRequest> {
    if length <= MAX_LIST {
        return Ok(());
    }
    Err(BadRequest::new(param, "array_above_max_length", format!("'{param}' must have at most {MAX_LIST} entries, not {length}")))
}

fn metadata_upload(raw: Option<Raw<'_>>, body: &Bytes) -> Result<Option<Json>, BadRequest> {
    let Some(raw) = raw else { return Ok(None) };
    let upload = Fields::nested("nvext.metadata_upload", Some(raw), &["url"])?;
    match upload.text("url")? {
        Some(url) if !url.is_empty() => Ok(Some(Json::of(body, raw))),
        Some(_) | None => {
            Err(BadRequest::new("nvext.metadata_upload.url", "invalid_value", "'nvext.metadata_upload.url' must not be empty"))
        }
    }
}

impl Targets {
    fn read(fields: &Fields<'_>) -> Result<Self, BadRequest> {
        let worker = |name: &str| fields.get(name).map(|raw| worker_id(&fields.named(name), raw)).transpose();
        // A rank without a worker is judged by whoever knows the headers, which may name it.
        Ok(Self {
            worker: one_worker(worker("backend_instance_id")?, worker("decode_worker_id")?)?,
            dp_rank: fields.count("dp_rank", 0)?,
            prefill_worker: worker("prefill_worker_id")?,
            prefill_dp_rank: fields.count("prefill_dp_rank", 0)?,
        })
    }
}

impl ExtraFields {
    fn of(names: &[String]) -> Self {
        let has = |name: &str| names.iter().any(|known| known == name);
        Self {
            worker_id: has("worker_id"),
            timing: has("timing"),
            completion_token_ids: has("completion_token_ids"),
            prompt_token_ids: has("prompt_token_ids"),
            prompt_logprobs: has("prompt_logprobs"),
            stop_reason: has("stop_reason"),
            detailed_finish_reason: has("detailed_finish_reason"),
            routed_experts: has("routed_experts"),
            engine_data: has("engine_data"),
        }
    }
}

impl AgentHints {
    fn read(raw: Option<Raw<'_>>) -> Result<Self, BadRequest> {
        let hints = Fields::nested("nvext.agent_hints", raw, &HINTS)?;
        let priority = hints.integer("priority")?.map(|priority| i32::try_from(priority).map_err(|_| priority)).transpose();
        let priority = priority.map_err(|priority| {
            let message = format!("'nvext.agent_hints.priority' must be between {} and {}, not {priority}", i32::MIN, i32::MAX);
            BadRequest::new("nvext.agent_hints.priority", "invalid_value", message)
        })?;
        Ok(Self {
            priority,
            strict_priority: hints.count("strict_priority", 0)?,
            osl: hints.count("osl", 0)?,
            speculative_prefill: hints.flag("speculative_prefill")?.unwrap_or(false),
            latency_sensitivity: hints.number("latency_sensitivity", f64::MIN, f64::MAX)?,
        })
    }
}

impl Taints {
    fn read(raw: Option<Raw<'_>>) -> Result<Self, BadRequest> {
        const PATH: &str = "nvext.routing_constraints";
        let fields = Fields::nested(PATH, raw, &["required_taints", "preferred_taints"])?;
        fields.known_only()?;
        let required = fields.texts("required_taints")?.unwrap_or_default();
        let param = fields.named("preferred_taints");
        let preferred: BTreeMap<String, Raw<'_>> = match fields.get("preferred_taints") {
            Some(raw) => {
                serde_json::from_str(raw.get()).map_err(|_| BadRequest::wrong_type(&param, "an object of taints and their weights"))?
            }
            None => BTreeMap::new(),
        };
        bounded(&param, required.len().max(preferred.len()))?;
        let weight = |(taint, raw): (String, Raw<'_>)| {
            let weight = number(&param, raw, f64::from(f32::MIN), f64::from(f32::MAX))?;
            Ok((taint, weight as f32))
        };
        Ok(Self {
            required: required.into_iter().map(Cow::into_owned).collect(),
            preferred: preferred.into_iter().map(weight).collect::<Result<_, BadRequest>>()?,
        })
    }
}
