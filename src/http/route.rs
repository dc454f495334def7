//! `POST /route`: what would be chosen for a body, and why. Nothing is booked or predicted, and the body is sent nowhere;
//! without a model folder an engine may be asked for its tokens, as for a request.

use std::{sync::Arc, time::Instant};

use axum::{
    Json,
    extract::{Request, State},
};
use bytes::Bytes;
use prompt::Endpoint;
use serde_json::{Value, json};

use super::{ApiError, openai};
use crate::{app::App, walk};

pub(super) async fn route(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let (head, body) = request.into_parts();
    let held = openai::read_prompt(&app, body).await?;
    let body = &held.bytes;
    let endpoint = endpoint(&app, body).await?;
    let prepared = walk::prepare(&app, endpoint, &head.headers, body, &mut walk::Labels::of(endpoint)).await?;
    let preview = app.fleet.scheduler.preview(Instant::now(), &prepared.ask(), &prepared.candidates(&[]), &mut rand::rng());
    let candidates: Vec<Value> = prepared
        .members
        .iter()
        .zip(&prepared.held)
        .zip(&preview.candidates)
        .map(|((member, held), costed)| {
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
        })
        .collect();
    let chosen = preview.chosen.as_ref().ok().and_then(|target| prepared.members.iter().find(|member| member.target() == *target));
    Ok(Json(json!({
        "model": prepared.request.model,
        "prompt_tokens": prepared.plan.tokens(),
        "tokenized": prepared.plan.is_hashed(),
        "chosen": chosen.map(|member| json!({"worker_id": member.worker.id(), "dp_rank": member.rank.dp_rank})),
        "refused": preview.chosen.as_ref().err().map(ToString::to_string),
        "candidates": candidates,
    })))
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
