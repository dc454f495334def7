//! Who a request is counted for, and that each request is counted once, whatever becomes of it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use http::StatusCode;
use prompt::{Endpoint, Request};

use crate::{
    app::App,
    metrics::{Metrics, ModelLabel, Outcome, RequestLabels, Shape, Surface},
};

/// The model of requests that name none that is served: what clients write must not become label values without bound.
const UNKNOWN_MODEL: &str = "unknown";

/// Who a request is counted for.
#[derive(Clone)]
pub(crate) struct Labels {
    pub(crate) model: Arc<str>,
    surface: Surface,
    shape: Shape,
}

impl Labels {
    /// Of a request whose body was not read yet.
    pub(crate) fn of(endpoint: Endpoint) -> Self {
        let surface = match endpoint {
            Endpoint::Completions => Surface::completions,
            Endpoint::Chat => Surface::chat_completions,
        };
        Self { model: Arc::from(UNKNOWN_MODEL), surface, shape: Shape::unary }
    }

    /// The body was read.
    pub(super) fn reads(&mut self, request: &Request) {
        self.shape = if request.stream { Shape::stream } else { Shape::unary };
    }

    /// The model it names is served.
    pub(super) fn serves(&mut self, model: &str) {
        self.model = Arc::from(model);
    }

    pub(super) fn model(&self) -> ModelLabel {
        ModelLabel { model: self.model.clone() }
    }

    pub(super) fn count(&self, metrics: &Metrics, status: Outcome, took: Duration) {
        let labels = RequestLabels { model: self.model.clone(), endpoint: self.surface, request_type: self.shape, status };
        metrics.requests.get_or_create(&labels).inc();
        metrics.duration.get_or_create(&self.model()).observe(took.as_secs_f64());
    }
}

/// A request whose answer has not begun. Dropped before it has, it is counted as a client that left.
pub(crate) struct Waiting {
    app: Arc<App>,
    pub(super) labels: Labels,
    pub(super) started: Instant,
    /// `None` once the answer has begun: whoever watches it counts its end.
    outcome: Option<Outcome>,
}

impl Waiting {
    pub(crate) fn new(app: &Arc<App>, endpoint: Endpoint) -> Self {
        Self { app: app.clone(), labels: Labels::of(endpoint), started: Instant::now(), outcome: Some(Outcome::client_left) }
    }

    /// A worker's answer has begun.
    pub(super) fn begun(&mut self) {
        self.outcome = None;
    }

    /// The client gets this status; says nothing new where a worker's answer has begun.
    pub(crate) fn answered(mut self, status: StatusCode) {
        if self.outcome.is_some() {
            self.outcome = Some(if status.is_client_error() { Outcome::client_error } else { Outcome::error });
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(outcome) = self.outcome else { return };
        if outcome == Outcome::client_left {
            self.app.metrics.client_left.inc();
        }
        self.labels.count(&self.app.metrics, outcome, self.started.elapsed());
    }
}

/// Counts a request as being answered until it is dropped.
pub(crate) struct Inflight {
    app: Arc<App>,
    model: ModelLabel,
}

impl Inflight {
    pub(super) fn new(app: &Arc<App>, labels: &Labels) -> Self {
        let model = labels.model();
        app.metrics.inflight.get_or_create(&model).inc();
        Self { app: app.clone(), model }
    }
}

impl Drop for Inflight {
    fn drop(&mut self) {
        self.app.metrics.inflight.get_or_create(&self.model).dec();
    }
}
