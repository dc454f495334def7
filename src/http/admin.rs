//! The admin routes: workers, and cache resets. Those that change something answer loopback peers only.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, Request, State, rejection::PathRejection},
    response::{IntoResponse, Response},
};
use feed::{RankStatus, StreamStatus};
use futures_util::future::join_all;
use http::{HeaderMap, StatusCode, header};
use serde_json::{Value, json};

use super::{ApiError, openai};
use crate::{
    app::App,
    config::worker_flag::WorkerSpec,
    fleet::{Publisher, Rank, Role, TokenWorker, Worker},
    server::Peer,
};

/// Longest body of an admin request.
const BODY_LIMIT: usize = 64 * 1024;

pub(super) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let view = app.fleet.view();
    let workers: Vec<Value> = view.workers.iter().map(|worker| show(&app, worker)).collect();
    Json(json!({"workers": workers, "planes": app.planes.show()}))
}

pub(super) async fn add(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, ApiError> {
    local(peer, &headers)?;
    let body = openai::read(request.into_body(), BODY_LIMIT, None).await?.bytes;
    let mut spec = WorkerSpec::from_json(&body).map_err(|error| ApiError::invalid(error, None))?;
    spec.block_size = spec.block_size.or(app.config.block_size);
    let worker = app.fleet.add(spec).map_err(|error| ApiError::conflict(error.to_string()))?;
    Ok((StatusCode::CREATED, Json(show(&app, &worker))).into_response())
}

pub(super) async fn remove(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    path: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    local(peer, &headers)?;
    let id = super::named(path, "id")?;
    if app.fleet.remove(&id) {
        Ok(Json(json!({"id": id, "state": "draining"})))
    } else {
        Err(ApiError::not_found(format!("there is no worker '{id}'; GET /workers lists them")))
    }
}

/// Empties the prefix cache of every worker, and what the router knows of it at once: an engine's own event leaves only
/// with its next step (rule 5).
pub(super) async fn reset(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
) -> Result<Json<Value>, ApiError> {
    local(peer, &headers)?;
    let view = app.fleet.view();
    // All at once: a worker that hangs must not keep the others from it.
    let resets = view.workers.iter().filter(|worker| !worker.is_draining()).map(async |worker| {
        let result = app.fleet.reset(worker).await;
        json!({"id": worker.id(), "reset": result.is_ok(), "error": result.err().map(|error| error.to_string())})
    });
    Ok(Json(json!({"workers": join_all(resets).await})))
}

/// A page in a browser on this host comes from loopback too; it cannot leave out `Origin`.
fn local(Peer(peer): Peer, headers: &HeaderMap) -> Result<(), ApiError> {
    if headers.contains_key(header::ORIGIN) {
        return Err(ApiError::forbidden("a web page may not change the fleet: requests with an Origin header are refused"));
    }
    if peer.ip().to_canonical().is_loopback() {
        Ok(())
    } else {
        Err(ApiError::forbidden(format!("{peer} may not change the fleet: admin changes are taken from this host alone")))
    }
}

fn show(app: &App, worker: &Worker) -> Value {
    let serving = worker.serving();
    let models: Vec<&str> = serving.iter().flat_map(|serving| &serving.identity.models).map(|card| card.name.as_str()).collect();
    let ranks: Vec<Value> = serving.iter().flat_map(|serving| &serving.ranks).map(|rank| show_rank(app, worker, rank)).collect();
    let (mismatches, last_mismatch) = worker.mismatches();
    let mut shown = json!({
        "id": worker.id(),
        "url": worker.server().map(|server| server.spec.url.to_string()),
        "model": models.first(),
        "models": models,
        "role": worker.tokens().map_or(Role::Aggregated, TokenWorker::role).to_string(),
        "state": worker.state(),
        "reason": worker.reason(),
        "origin": if worker.origin.discovered().is_some() { "discovery" } else { "list" },
        "endpoint": worker.origin.discovered().map(|discovered| discovered.endpoint.to_string()),
        "events": serving.as_ref().map(|serving| serving.identity.events.to_string()),
        "prompt_token_mismatches": mismatches,
        "last_prompt_token_mismatch": last_mismatch.map(|(ours, theirs)| json!({"router": ours, "engine": theirs})),
        "ranks": ranks,
    });
    if let Some(tokens) = worker.tokens() {
        shown["input"] = json!(if tokens.text().is_some() { "text" } else { "tokens" });
        shown["request_plane"] = json!(tokens.endpoint().transport);
        shown["card"] = show_card(tokens);
    }
    shown
}

/// What the card of a token-level worker says of its capacity, and how requests to it are prepared.
fn show_card(tokens: &TokenWorker) -> Value {
    let (card, model) = (tokens.card(), tokens.model());
    json!({
        "block_size": card.block_size(),
        "context_length": model.as_ref().and_then(|model| model.context_length),
        "migration_limit": model.as_ref().map(|model| model.migration_limit),
        "tool_call_parser": model.as_ref().and_then(|model| model.tool_parser.as_deref()),
        "reasoning_parser": model.as_ref().and_then(|model| model.reasoning_parser.as_deref()),
        "total_kv_blocks": card.total_blocks(),
        "max_num_seqs": card.max_num_seqs(),
        "max_num_batched_tokens": card.max_num_batched_tokens(),
    })
}

fn show_rank(app: &App, worker: &Worker, rank: &Rank) -> Value {
    let load = app.fleet.scheduler.load(std::time::Instant::now(), rank.target);
    let mut shown = json!({
        "dp_rank": rank.dp_rank,
        "trust": "none",
        "block_size": rank.block_size().map(|size| size.get()),
        "active_requests": load.active_requests,
        "prefill_tokens": load.active_prefill_tokens,
        "decode_blocks": load.active_blocks,
        "predicted_blocks": rank.leased_blocks(),
    });
    if let Some(discovered) = worker.origin.discovered() {
        let publisher = |publisher: &Publisher| {
            json!({
                "publisher_id": publisher.id.to_string(),
                "published": publisher.channel.is_some(),
                "recoverable": publisher.recovery.is_some(),
            })
        };
        shown["publishers"] = discovered.publishers(rank.dp_rank).iter().map(publisher).collect();
        // What the worker itself tells of its load, beside what is booked here.
        shown["reported_load"] = discovered.reported(rank.dp_rank).map_or(Value::Null, |load| {
            json!({
                "active_decode_blocks": load.active_decode_blocks,
                "active_prefill_tokens": load.active_prefill_tokens,
                "kv_used_blocks": load.kv_used_blocks,
            })
        });
    }
    if let Some((stream, status)) = rank.standing() {
        let heard = heard(rank, &stream, &status);
        if let (Value::Object(shown), Value::Object(heard)) = (&mut shown, heard) {
            shown.extend(heard);
        }
    }
    shown
}

fn heard(rank: &Rank, stream: &StreamStatus, status: &RankStatus) -> Value {
    let digest = status.digest.filter(|_| rank.block_size().is_some());
    json!({
        "trust": status.trust.as_str(),
        "trust_reason": &*status.reason,
        "carries_adapter": status.carries_adapter(),
        "carries_salt": status.carries_salt(),
        "connected": stream.connected,
        "blocks": status.blocks,
        "host_blocks": status.host_blocks,
        "disk_blocks": status.disk_blocks,
        "last_seq": status.last_seq,
        "lag_ms": status.last_timestamp.and_then(lag_ms),
        "messages": stream.messages,
        "gaps": stream.gaps,
        "replays": stream.replayed + stream.rebuilt,
        "degraded_gaps": stream.degraded_gaps,
        "restarts": stream.restarts,
        "resets": status.clears + status.resets,
        "duplicates": stream.duplicates,
        "orphans_parked": status.orphans_parked,
        "orphans_total": status.orphans_total,
        "decode_errors": status.event_errors + stream.undecodable + stream.malformed,
        "ignored": status.ignored.iter().filter(|(_, count)| *count > 0).map(|(why, count)| (why.as_str().to_owned(), json!(count))).collect::<serde_json::Map<_, _>>(),
        "digest": digest.map(|digest| format!("{digest:016x}")),
        "accuracy": {
            "observations": status.accuracy.observations,
            "equal": status.accuracy.equal,
            "over": status.accuracy.over,
            "under": status.accuracy.under,
        },
    })
}

/// Time since the engine's clock in its last batch; the two clocks need not agree, so it is never below zero.
fn lag_ms(timestamp: f64) -> Option<u64> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(((now.as_secs_f64() - timestamp).max(0.0) * 1000.0) as u64)
}
