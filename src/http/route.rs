//! `POST /route`: what would be chosen for a body, and why. Nothing is booked or predicted, and the body is sent nowhere;
//! without a model folder an engine may be asked for its tokens, as for a request.

use std::{sync::Arc, time::Instant};

use axum::{
    Json,
    extract::{Request, State},
};
use bytes::Bytes;
use prompt::Endpoint;
use sched::Costed;
use serde_json::{Value, json};

use super::{ApiError, openai};
use crate::{
    app::App,
    fleet::Member,
    walk::{self, Held, Prepared},
};

pub(super) async fn route(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let (head, body) = request.into_parts();
    let held = openai::read_prompt(&app, body).await?;
    let body = &held.bytes;
    let endpoint = endpoint(&app, body).await?;
    let prepared = walk::prepare(&app, endpoint, &head.headers, body, &mut walk::Labels::of(endpoint)).await?;
    let unfit = prepared.unfit().map(str::to_owned);
    let (prefill, prepared) = prepared.split(&app).await;
    let mut shown = json!({
        "model": prepared.request.model,
        "prompt_tokens": prepared.prompt_tokens(),
        "tokenized": prepared.is_tokenized(),
    });
    let choice = choice(&app, &prepared);
    for (key, value) in choice {
        shown[key] = value;
    }
    // What is the same for all workers of a kind is said once, and only where it matters.
    if let Some(prefill) = prefill {
        shown["prefill"] = self::choice(&app, &prefill).into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    }
    if let Some(unfit) = unfit {
        shown["not_for_token_level_workers"] = json!(unfit);
    }
    Ok(Json(shown))
}

/// Who would be chosen, and why.
fn choice(app: &App, prepared: &Prepared) -> [(&'static str, Value); 3] {
    let preview = app.fleet.scheduler.preview(Instant::now(), &prepared.ask(), &prepared.candidates(&[]), &mut rand::rng());
    let shown = prepared.members.iter().zip(&prepared.held).zip(&preview.candidates);
    let candidates: Vec<Value> = shown.map(|((member, held), costed)| candidate(prepared, member, (held, costed))).collect();
    let chosen = preview.chosen.as_ref().ok().and_then(|target| prepared.members.iter().find(|member| member.target() == *target));
    [
        ("chosen", json!(chosen.map(|member| json!({"worker_id": member.worker.id(), "dp_rank": member.rank.dp_rank})))),
        ("refused", json!(preview.chosen.as_ref().err().map(ToString::to_string))),
        ("candidates", Value::Array(candidates)),
    ]
}

fn candidate(prepared: &Prepared, member: &Member, (held, costed): (&Held, &Costed)) -> Value {
    json!({
        "worker_id": member.worker.id(),
        "dp_rank": member.rank.dp_rank,
        "block_size": costed.block_size.get(),
        "prompt_blocks": costed.prompt_blocks,
        "overlap_blocks": held.overlap.device_blocks(),
        "predicted_blocks": held.predicted_blocks,
        "host_blocks": held.overlap.host_blocks(),
        "disk_blocks": held.overlap.disk_blocks(),
        "cached_tokens": costed.cached_tokens,
        "new_prefill_tokens": costed.new_prefill_tokens,
        "active_prefill_tokens": costed.active_prefill_tokens,
        "decode_blocks": costed.decode_blocks,
        "active_requests": costed.active_requests,
        "cost": costed.cost,
        "trust": member.trust_for(prepared.demands(member)),
        "excluded": costed.excluded.map(|rule| member.worker.explain(rule)),
    })
}

/// A body with `messages` is a chat. Looking through a large one takes its time, so that is done elsewhere.
async fn endpoint(app: &App, body: &Bytes) -> Result<Endpoint, ApiError> {
    let body = body.clone();
    app.pool.run_brief(move || shape(&body)).await.map_err(|error| ApiError::unavailable(error.to_string()))
}

fn shape(body: &[u8]) -> Endpoint {
    #[derive(serde::Deserialize)]
    struct Probe<'a> {
        #[serde(borrow)]
        messages: Option<&'a serde_json::value::RawValue>,
    }
    match serde_json::from_slice::<Probe<'_>>(body) {
        Ok(Probe { messages: Some(_) }) => Endpoint::Chat,
        // What is no JSON is refused by the parser, with line and column.
        Ok(Probe { messages: None }) | Err(_) => Endpoint::Completions,
    }
}
