//! `/health`, `/live`, `/ready`, `/metrics`.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use http::{StatusCode, header};
use serde_json::{Value, json};

use super::ApiError;
use crate::{app::App, fleet::View};

/// The text format that `prometheus-client` writes.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The process runs.
pub(super) async fn live() -> Json<Value> {
    Json(json!({"status": "live"}))
}

/// Ready means routable: a request for some model would be sent to a worker.
pub(super) async fn ready(State(app): State<Arc<App>>) -> Response {
    let view = app.fleet.view();
    let models: Vec<&str> = view.models().filter(|served| served.is_routable()).map(|served| served.name.as_str()).collect();
    let (status, word) = verdict(&view);
    (status, Json(json!({"status": word, "models": models}))).into_response()
}

/// 200 with at least one routable worker, else 503; the state of everything a request depends on.
pub(super) async fn health(State(app): State<Arc<App>>) -> Response {
    let view = app.fleet.view();
    let (status, word) = verdict(&view);
    let workers: Vec<Value> =
        view.workers.iter().map(|worker| json!({"id": worker.id(), "state": worker.state(), "reason": worker.reason()})).collect();
    let streams: Vec<Value> = view
        .workers
        .iter()
        .flat_map(|worker| worker.serving().map(|serving| (worker.clone(), serving)))
        .flat_map(|(worker, serving)| {
            serving
                .ranks
                .iter()
                .filter_map(|rank| {
                    let source = rank.source.as_ref()?;
                    let connected = source.reins().status().stream().connected;
                    let reason = source.silence().filter(|_| !connected);
                    Some(json!({"worker_id": worker.id(), "dp_rank": rank.dp_rank, "connected": connected, "reason": reason}))
                })
                .collect::<Vec<_>>()
        })
        .collect();
    let mut planes = app.planes.show();
    planes["events"] = json!(streams);
    (status, Json(json!({"status": word, "workers": workers, "planes": planes}))).into_response()
}

fn verdict(view: &View) -> (StatusCode, &'static str) {
    match (view.is_routable(), view.workers.is_empty()) {
        (true, _) => (StatusCode::OK, "ready"),
        (false, true) => {
            (StatusCode::SERVICE_UNAVAILABLE, "no worker: add one with --worker URL, POST /workers, or dynamo-worker beside it")
        }
        (false, false) => (StatusCode::SERVICE_UNAVAILABLE, "no worker can take requests"),
    }
}

pub(super) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let page = app.metrics.page().map_err(|error| ApiError::unavailable(format!("metrics cannot be written: {error}")))?;
    Ok(([(header::CONTENT_TYPE, METRICS_TYPE)], page).into_response())
}
