//! The HTTP side: routes, and what all of them share.

mod admin;
mod body;
mod error;
mod generate;
mod info;
mod metrics;
mod stream;
mod tokens;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::SystemTime;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use parking_lot::RwLock;

use self::error::ApiError;
use crate::adapters::Adapters;
use crate::config::Config;
use crate::events::{Endpoints, ReplayCounts};
use crate::faults::{Freeze, Switches};
use crate::model::Style;
use crate::rank::Rank;
use crate::text::Text;

/// Largest request body, in bytes.
const MAX_BODY_BYTES: usize = 192 << 20;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");

/// What the routes share.
pub(crate) struct App {
    pub(crate) config: Arc<Config>,
    pub(crate) text: Arc<Text>,
    pub(crate) ranks: Vec<Arc<Rank>>,
    pub(crate) adapters: Arc<Adapters>,
    pub(crate) endpoints: Vec<Endpoints>,
    pub(crate) replays: Vec<Arc<ReplayCounts>>,
    pub(crate) switches: Switches,
    /// When this life of the server began; a restart begins another.
    pub(crate) started: RwLock<SystemTime>,
    pub(crate) requests: AtomicU64,
    next_rank: AtomicUsize,
    next_id: AtomicU64,
}

impl App {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { config, text, ranks, adapters, endpoints, replays, switches } = parts;
        Self {
            config,
            text,
            ranks,
            adapters,
            endpoints,
            replays,
            switches,
            started: RwLock::new(SystemTime::now()),
            requests: AtomicU64::new(0),
            next_rank: AtomicUsize::new(0),
            next_id: AtomicU64::new(rand::random()),
        }
    }

    /// The rank a request names, else the next one in turn.
    fn rank(&self, headers: &HeaderMap) -> Result<&Arc<Rank>, ApiError> {
        let named = headers.get(RANK).and_then(|value| value.to_str().ok()?.trim().parse::<i64>().ok());
        let Some(named) = named else {
            let turn = self.next_rank.fetch_add(1, Ordering::Relaxed);
            return Ok(&self.ranks[turn % self.ranks.len()]);
        };
        usize::try_from(named)
            .ok()
            .and_then(|named| self.ranks.get(named))
            .ok_or_else(|| ApiError::bad_request(format!("data_parallel_rank {named} is out of range [0, {}).", self.ranks.len())))
    }

    /// The adapter a body's model names; `None` is the base model.
    fn adapter(&self, model: Option<&str>) -> Result<Option<Arc<str>>, ApiError> {
        match model {
            None | Some("") => Ok(None),
            Some(name) if name == self.config.model => Ok(None),
            Some(name) if self.adapters.names().iter().any(|adapter| adapter == name) => Ok(Some(name.into())),
            Some(name) => {
                Err(ApiError::not_found(format!("The model `{name}` does not exist. Valid aliases: {}.", self.config.model), Some("model")))
            }
        }
    }

    /// The id of a request: its own, else a new one.
    fn request_id(&self, headers: &HeaderMap) -> String {
        let own = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()).filter(|value| !value.is_empty());
        own.map_or_else(|| format!("{:016x}", self.next_id.fetch_add(1, Ordering::Relaxed)), str::to_owned)
    }
}

/// What an [`App`] is made of.
pub(crate) struct Parts {
    pub(crate) config: Arc<Config>,
    pub(crate) text: Arc<Text>,
    pub(crate) ranks: Vec<Arc<Rank>>,
    pub(crate) adapters: Arc<Adapters>,
    pub(crate) endpoints: Vec<Endpoints>,
    pub(crate) replays: Vec<Arc<ReplayCounts>>,
    pub(crate) switches: Switches,
}

/// All routes of the server.
pub(crate) fn router(app: Arc<App>) -> Router {
    let family = match app.config.style() {
        Style::Vllm => Router::new()
            .route("/kv_event_sources", get(info::kv_event_sources))
            .route("/reset_prefix_cache", post(admin::reset_prefix_cache)),
        Style::Sglang => Router::new()
            .route("/server_info", get(info::server_info))
            .route("/get_server_info", get(info::server_info))
            .route("/flush_cache", get(admin::flush_cache).post(admin::flush_cache)),
    };
    let engine = family
        .route("/v1/completions", post(generate::completions))
        .route("/v1/chat/completions", post(generate::chat_completions))
        .route("/v1/models", get(info::models))
        .route("/v1/load_lora_adapter", post(admin::load_lora_adapter))
        .route("/v1/unload_lora_adapter", post(admin::unload_lora_adapter))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/health", get(info::health))
        .route("/ping", get(info::ping).post(info::ping))
        .route("/version", get(info::version))
        .route("/metrics", get(metrics::metrics))
        .layer(middleware::from_fn_with_state(app.clone(), frozen));
    engine
        .route("/mocker/faults", get(admin::faults).put(admin::set_faults))
        .fallback(async || error::detail(axum::http::StatusCode::NOT_FOUND, "Not Found"))
        .method_not_allowed_fallback(async || error::detail(axum::http::StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed"))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(middleware::from_fn_with_state(app.clone(), identified))
        .with_state(app)
}

/// Holds everything while the whole process is frozen.
async fn frozen(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    app.switches.until(|faults| faults.freeze != Freeze::Process).await;
    next.run(request).await
}

/// Gives every answer the id of its request.
async fn identified(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let id = app.request_id(request.headers());
    // An id that came in a header, or hexadecimal digits: both are header text.
    let Ok(value) = HeaderValue::from_str(&id) else { return ApiError::bad_request("X-Request-Id is not text".to_owned()).into_response() };
    request.headers_mut().insert(REQUEST_ID, value.clone());
    let mut response = next.run(request).await;
    response.headers_mut().insert(REQUEST_ID, value);
    response
}
