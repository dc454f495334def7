//! `/health`, `/live`, `/ready`, `/metrics`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

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

/// A frontend that has just started is not ready until it knows what its workers hold, but for no longer than this: one whose
/// events cannot be made up for must not keep the others' requests away (rule 14).
const AWAITED_FOR: Duration = Duration::from_secs(10);

/// Whether a frontend that has just started knows enough. Once it does, that is not asked again: it is no worse than others.
pub(crate) struct Readiness {
    started: Instant,
    was_ready: AtomicBool,
}

impl Readiness {
    pub(crate) fn new(started: Instant) -> Self {
        Self { started, was_ready: AtomicBool::new(false) }
    }

    /// Whether it is worth waiting for workers of which it is not known yet what they hold.
    fn is_reached(&self, now: Instant, awaited: usize) -> bool {
        if awaited == 0 || now.saturating_duration_since(self.started) >= AWAITED_FOR {
            self.was_ready.store(true, Ordering::Release);
        }
        self.was_ready.load(Ordering::Acquire)
    }
}

/// The process runs.
pub(super) async fn live() -> Json<Value> {
    Json(json!({"status": "live"}))
}

/// Ready means routable: a request for some model would be sent to a worker, and, at the start, to the one that holds its prefix.
pub(super) async fn ready(State(app): State<Arc<App>>) -> Response {
    let view = app.fleet.view();
    let models: Vec<&str> = view.models().filter(|served| served.is_routable()).map(|served| served.name.as_str()).collect();
    let (mut status, word) = verdict(&view);
    let mut word = word.to_owned();
    if status == StatusCode::OK && app.config.listens_to_events() {
        let awaited = view.workers.iter().filter(|worker| worker.is_arriving()).count();
        if !app.readiness.is_reached(Instant::now(), awaited) {
            status = StatusCode::SERVICE_UNAVAILABLE;
            word = format!("starting: what {awaited} of {} workers hold is not known yet", view.workers.len());
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_workers_hold_is_awaited_at_the_start_for_a_while_and_never_again() {
        let (start, moment) = (Instant::now(), Duration::from_millis(1));
        let ready = Readiness::new(start);
        assert!(!ready.is_reached(start, 2) && !ready.is_reached(start + AWAITED_FOR - moment, 1));
        assert!(ready.is_reached(start + moment, 0) && ready.is_reached(start + moment, 2));
        let late = Readiness::new(start);
        assert!(late.is_reached(start + AWAITED_FOR, 1) && late.is_reached(start, 1));
    }
}
