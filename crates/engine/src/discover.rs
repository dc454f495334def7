//! Asks an engine what it is: its models, its event sockets, its block size, its tokens for a prompt.
//!
//! Every answer is read whole within a time and a size, and is either a typed value or an error that names the engine and
//! the question. Of all this only `/tokenize` may be on the path of a request, where no tokenizer is at hand.

mod events;
mod metrics;
mod models;
mod server_info;
mod tokenize;

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header, uri::PathAndQuery};
use serde::de::DeserializeOwned;

pub use events::{EventSource, EventSources, Side};
pub use metrics::{CacheUse, Metrics};
pub use models::Model;
pub use server_info::ServerInfo;
pub use tokenize::Tokenized;

use crate::{
    client::{Client, Connection, Fetch, Outgoing},
    error::SendError,
    url::BaseUrl,
};

/// The longest answer that is read. A `/metrics` page is some 100 KB, the tokens of a 128k prompt under 1 MB.
pub const ANSWER_LIMIT_BYTES: usize = 16 * 1024 * 1024;

/// Answers of `/tokenize` up to this size are read where they arrive, in a tenth of a millisecond; larger ones elsewhere.
const INLINE_TOKENS_BYTES: usize = 32 * 1024;

/// The most data-parallel ranks of one engine: a bound against mistakes, far above any engine.
pub const MAX_RANKS: u32 = 1024;

/// One engine, to be asked.
#[derive(Debug, Clone)]
pub struct Engine {
    client: Client,
    url: BaseUrl,
    headers: HeaderMap,
    within: Duration,
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The engine could not be asked.
    #[error(transparent)]
    Send(#[from] SendError),
    /// It answered something other than 200.
    #[error("{asked} answered {status}: {message}")]
    Status {
        /// Path and engine.
        asked: String,
        /// Its status.
        status: StatusCode,
        /// The beginning of its body.
        message: String,
    },
    /// Its answer is not what the question is about.
    #[error("{asked} answered something unreadable: {reason}")]
    Shape {
        /// Path and engine.
        asked: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl AskError {
    /// Whether the engine does not have this endpoint, so that another question may be tried.
    pub fn is_absent(&self) -> bool {
        match self {
            AskError::Status { status, .. } => {
                matches!(*status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED)
            }
            AskError::Send(_) | AskError::Shape { .. } => false,
        }
    }

    /// Whether, where models were asked for, somebody answered who is no engine that could serve us: with another page, a redirect,
    /// a refusal. One that fails or is too busy may be an engine.
    pub fn is_no_engines(&self) -> bool {
        let passing = |status| matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS);
        match self {
            AskError::Status { status, .. } => !status.is_server_error() && !passing(*status),
            AskError::Shape { .. } => true,
            AskError::Send(_) => false,
        }
    }
}

impl Engine {
    /// An engine to be asked, each question within the time given; the headers may carry a key.
    pub fn new(client: Client, url: BaseUrl, headers: HeaderMap, within: Duration) -> Self {
        Self { client, url, headers, within }
    }

    /// `GET /v1/models`: the base model and its adapters.
    pub async fn models(&self) -> Result<Vec<Model>, AskError> {
        const PATH: &str = "/v1/models";
        models::read(self.get_json(PATH).await?).map_err(|reason| self.shape(PATH, reason))
    }

    /// The same of a server whose model is known: none where it has no such page and `/health` says that all is well.
    pub async fn models_if_listed(&self) -> Result<Vec<Model>, AskError> {
        match self.models().await {
            Err(AskError::Status { status: StatusCode::NOT_FOUND, .. }) if self.is_healthy().await? => Ok(Vec::new()),
            answer => answer,
        }
    }

    async fn is_healthy(&self) -> Result<bool, SendError> {
        let (status, _) = self.fetch(Method::GET, "/health", Bytes::new()).await?;
        Ok(status.is_success())
    }

    /// `GET /kv_event_sources` (vLLM): where its ranks publish their events.
    pub async fn kv_event_sources(&self) -> Result<EventSources, AskError> {
        const PATH: &str = "/kv_event_sources";
        events::read(&self.get_json(PATH).await?, self.url.host()).map_err(|reason| self.shape(PATH, reason))
    }

    /// `GET /server_info` (SGLang): the same, with page size and ranks.
    pub async fn server_info(&self) -> Result<ServerInfo, AskError> {
        const PATH: &str = "/server_info";
        server_info::read(self.get_json(PATH).await?, self.url.host()).map_err(|reason| self.shape(PATH, reason))
    }

    /// `GET /metrics` (vLLM's and SGLang's names): block size, start of the process, how full the cache is.
    pub async fn metrics(&self) -> Result<Metrics, AskError> {
        let page = self.ask(Method::GET, "/metrics", Bytes::new()).await?;
        Ok(metrics::read(&String::from_utf8_lossy(&page)))
    }

    /// `POST /tokenize`: the engine's own tokens for a body made by the caller.
    pub async fn tokenize(&self, body: Bytes) -> Result<Tokenized, AskError> {
        const PATH: &str = "/tokenize";
        let answer = self.ask(Method::POST, PATH, body).await?;
        let read = if answer.len() <= INLINE_TOKENS_BYTES {
            tokenize::read(&answer)
        } else {
            // Whoever asks has a request to serve, and others beside it.
            let read = tokio::task::spawn_blocking(move || tokenize::read(&answer)).await;
            read.unwrap_or_else(|error| Err(error.to_string()))
        };
        read.map_err(|reason| self.shape(PATH, reason))
    }

    /// Empties the prefix cache: `POST /reset_prefix_cache` (vLLM, in its development mode), else `POST /flush_cache`
    /// (SGLang).
    ///
    /// # Errors
    /// [`AskError`]; also where the engine says that it could not, as vLLM does while blocks are in use.
    pub async fn reset_prefix_cache(&self) -> Result<(), AskError> {
        const PATH: &str = "/reset_prefix_cache";
        match self.ask(Method::POST, PATH, Bytes::new()).await {
            Ok(answer) if memchr::memmem::find(&answer, b"false").is_some() => {
                Err(self.shape(PATH, "the cache was not emptied: blocks are in use".to_owned()))
            }
            Ok(_) => Ok(()),
            Err(error) if error.is_absent() => self.ask(Method::POST, "/flush_cache", Bytes::new()).await.map(drop),
            Err(error) => Err(error),
        }
    }

    async fn get_json<T: DeserializeOwned>(&self, path: &'static str) -> Result<T, AskError> {
        let body = self.ask(Method::GET, path, Bytes::new()).await?;
        self.parse(path, &body)
    }

    fn parse<T: DeserializeOwned>(&self, path: &str, body: &[u8]) -> Result<T, AskError> {
        serde_json::from_slice(body).map_err(|error| self.shape(path, error.to_string()))
    }

    async fn ask(&self, method: Method, path: &'static str, body: Bytes) -> Result<Bytes, AskError> {
        let (status, body) = self.fetch(method, path, body).await?;
        if status == StatusCode::OK {
            return Ok(body);
        }
        let message = String::from_utf8_lossy(&body).chars().take(300).collect();
        Err(AskError::Status { asked: self.asked(path), status, message })
    }

    async fn fetch(&self, method: Method, path: &'static str, body: Bytes) -> Result<(StatusCode, Bytes), SendError> {
        let mut headers = self.headers.clone();
        if !body.is_empty() {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let path_and_query = PathAndQuery::from_static(path);
        let question = Outgoing { method, path_and_query, headers, body, rank: None, pulse: None };
        let fetch = Fetch { question, connection: Connection::Pooled, limit_bytes: ANSWER_LIMIT_BYTES, within: self.within };
        self.client.fetch(&self.url, fetch).await
    }

    fn shape(&self, path: &str, reason: String) -> AskError {
        AskError::Shape { asked: self.asked(path), reason }
    }

    fn asked(&self, path: &str) -> String {
        format!("{path} of worker {}", self.url)
    }
}
