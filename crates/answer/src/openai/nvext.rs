//! `nvext`: what Dynamo's clients may ask to be told beside OpenAI's fields.

use bytes::BytesMut;
use prompt::ExtraFields;
use serde_json::Value;
use wire::generate::{EngineOutput, StopReason};

use super::json::{self, Fields};
use crate::{
    leg::Leg,
    shape::{Timing, Workers},
};

/// What an engine told beside its tokens, as its last word.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) prompt_logprobs: Option<Value>,
    pub(crate) routed_experts: Option<Value>,
    pub(crate) engine_data: Option<Value>,
}

impl Told {
    /// Notes what `output` tells of these.
    pub(crate) fn hear(&mut self, output: &EngineOutput) {
        let sources = [&output.engine_data, &output.extra_args, &output.disaggregated_params];
        let find = |name: &str| sources.into_iter().flatten().find_map(|source| source.get(name)).filter(|value| !value.is_null());
        for (known, name) in [(&mut self.prompt_logprobs, "prompt_logprobs"), (&mut self.routed_experts, "routed_experts")] {
            if let Some(value) = find(name) {
                *known = Some(value.clone());
            }
        }
        if let Some(data) = &output.engine_data {
            self.engine_data = Some(data.clone());
        }
    }
}

/// `worker_id`.
pub(crate) fn workers(out: &mut BytesMut, workers: &Workers) {
    let mut fields = Fields::new(out, "{");
    fields.optional("prefill_worker_id", workers.prefill_worker_id);
    fields.optional("prefill_dp_rank", workers.prefill_dp_rank);
    fields.optional("decode_worker_id", workers.decode_worker_id);
    fields.optional("decode_dp_rank", workers.decode_dp_rank);
    fields.end_or("{}");
}

/// `timing`.
pub(crate) fn timing(out: &mut BytesMut, timing: &Timing) {
    let mut fields = Fields::new(out, "{");
    fields.optional("request_received_ms", timing.request_received_ms);
    fields.optional("prefill_wait_time_ms", timing.prefill_wait_time_ms);
    fields.optional("prefill_time_ms", timing.prefill_time_ms);
    fields.optional("ttft_ms", timing.ttft_ms);
    fields.optional("total_time_ms", timing.total_time_ms);
    fields.optional("kv_hit_rate", timing.kv_hit_rate);
    fields.optional("router_queue_depth", timing.router_queue_depth);
    fields.end_or("{}");
}

/// What is told once choices have ended: in the last chunk of one, or in a whole body for all.
pub(crate) fn last(fields: &mut Fields<'_>, wanted: ExtraFields, legs: &[Leg]) {
    if wanted.stop_reason {
        each(fields.field("stop_reason"), legs, |out, leg| stop_reason(out, leg.choice.end().and_then(|end| end.stop.as_ref())));
    }
    if wanted.detailed_finish_reason {
        each(fields.field("detailed_finish_reason"), legs, |out, leg| json::value(out, &leg.choice.end().map(|end| end.detail)));
    }
    let mut hand_on = |wanted: bool, name: &str, of: fn(&Told) -> &Option<Value>| {
        if wanted && legs.iter().any(|leg| of(&leg.told).is_some()) {
            each(fields.field(name), legs, |out, leg| json::value(out, of(&leg.told)));
        }
    };
    hand_on(wanted.prompt_logprobs, "prompt_logprobs", |told| &told.prompt_logprobs);
    hand_on(wanted.routed_experts, "routed_experts", |told| &told.routed_experts);
    hand_on(wanted.engine_data, "engine_data", |told| &told.engine_data);
}

/// `stop_reason`: the text or token that ended a choice.
fn stop_reason(out: &mut BytesMut, reason: Option<&StopReason>) {
    match reason {
        Some(StopReason::Text(text)) => json::text(out, text),
        Some(StopReason::Token(token)) => json::integer(out, *token),
        None => out.extend_from_slice(b"null"),
    }
}

/// One value where there is one, else a list of them.
pub(crate) fn each<T>(out: &mut BytesMut, items: &[T], mut write: impl FnMut(&mut BytesMut, &T)) {
    match items {
        [only] => write(out, only),
        several => json::array(out, several, write),
    }
}

/// Token ids.
pub(crate) fn ids(out: &mut BytesMut, ids: &[u32]) {
    json::array(out, ids, |out, id| json::integer(out, *id));
}
