//! What a router asks an engine about itself.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Map, Value, json};
use transport::zmtp::Endpoint;

use super::App;
use crate::config::EventsConfig;
use crate::faults::Freeze;

/// Messages a publisher of a real engine queues at most; said where one would say it, though nothing here queues.
const HWM: u32 = 100_000;

/// `GET /health`. A frozen engine still answers, as real ones do.
pub(super) async fn health(State(app): State<Arc<App>>) -> StatusCode {
    tokio::time::sleep(app.switches.now().health_latency()).await;
    app.switches.until(|faults| faults.freeze != Freeze::Process).await;
    StatusCode::OK
}

/// `GET /ping`.
pub(super) async fn ping() -> StatusCode {
    StatusCode::OK
}

/// `GET /version`: of the engine release whose events are written.
pub(super) async fn version(State(app): State<Arc<App>>) -> Json<Value> {
    let name = app.config.generation.to_string();
    let number = name.split_once('-').map_or(name.as_str(), |(_, number)| number);
    let parts = number.split('.').count();
    Json(json!({"version": if parts < 3 { format!("{number}.0") } else { number.to_owned() }}))
}

/// `GET /v1/models`: a card for the base model and one for each adapter.
pub(super) async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let created = app.started.read().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let root = app.config.model_path.as_ref().map_or_else(|| app.config.model.clone(), |path| path.display().to_string());
    let card = |id: &str, root: String, parent: Option<&str>, max_model_len: Option<u32>| {
        json!({
            "id": id, "object": "model", "created": created, "owned_by": "mocker", "root": root, "parent": parent,
            "max_model_len": max_model_len,
            "permission": [{
                "id": format!("modelperm-{id}"), "object": "model_permission", "created": created, "allow_create_engine": false,
                "allow_sampling": true, "allow_logprobs": false, "allow_search_indices": false, "allow_view": true,
                "allow_fine_tuning": false, "organization": "*", "group": null, "is_blocking": false,
            }],
        })
    };
    let base = &app.config.model;
    let mut cards = vec![card(base, root.clone(), None, Some(app.config.max_model_len))];
    cards.extend(app.adapters.names().iter().map(|name| card(name, format!("{root}/loras/{name}"), Some(base), None)));
    Json(json!({"object": "list", "data": cards}))
}

/// `GET /kv_event_sources` (vLLM): one entry per rank.
pub(super) async fn kv_event_sources(State(app): State<Arc<App>>) -> Json<Value> {
    let Some(events) = &app.config.events else {
        let off = json!({
            "enable_kv_cache_events": false, "publisher": "null", "endpoint": null, "replay_endpoint": null, "buffer_steps": 0,
            "hwm": HWM, "max_queue_size": HWM, "topic": "",
        });
        return Json((0..app.ranks.len()).map(|rank| (rank.to_string(), off.clone())).collect::<Map<_, _>>().into());
    };
    let sources: Map<String, Value> = app
        .endpoints
        .iter()
        .enumerate()
        .map(|(rank, endpoints)| {
            let source = json!({
                "enable_kv_cache_events": true,
                "publisher": "zmq",
                "endpoint": told(&endpoints.events),
                "replay_endpoint": endpoints.replay.as_ref().map(told),
                "buffer_steps": buffer_steps(events),
                "hwm": HWM,
                "max_queue_size": HWM,
                "topic": events.topic,
            });
            (rank.to_string(), source)
        })
        .collect();
    Json(sources.into())
}

/// `GET /server_info` (SGLang): the part a router reads.
pub(super) async fn server_info(State(app): State<Arc<App>>) -> Json<Value> {
    let first = app.config.events.as_ref().zip(app.endpoints.first());
    let kv_events = first.map(|(events, endpoints)| {
        json!({
            "publisher": "zmq",
            "endpoint_host": "*",
            "endpoint_port_base": port(&endpoints.events),
            "topic": events.topic,
            "block_size": app.config.block_size,
            "dp_size": app.ranks.len(),
            "replay_endpoint_port_base": endpoints.replay.as_ref().map(port),
        })
    });
    Json(json!({
        "served_model_name": app.config.model,
        "page_size": app.config.block_size,
        "dp_size": app.ranks.len(),
        "context_length": app.config.max_model_len,
        "max_total_num_tokens": u64::from(app.config.blocks) * u64::from(app.config.block_size.get()),
        "version": app.config.generation.to_string().trim_start_matches("sglang-"),
        "kv_events": kv_events,
    }))
}

fn buffer_steps(events: &EventsConfig) -> usize {
    events.replay.map_or(0, |replay| replay.buffer_steps)
}

/// An endpoint as engines tell it: the star says that the engine listens, at whatever host its HTTP is reached by. (An
/// engine told one host connects to it instead.)
fn told(endpoint: &Endpoint) -> String {
    format!("tcp://*:{}", port(endpoint))
}

fn port(endpoint: &Endpoint) -> u16 {
    match endpoint {
        Endpoint::Tcp { port, .. } => *port,
        // Never bound here: events go over TCP only.
        Endpoint::Ipc(_) => 0,
    }
}
