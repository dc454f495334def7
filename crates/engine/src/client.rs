//! The HTTP client of all workers: one pool, one set of time-outs.
//!
//! Leaves out: which worker gets a request and whether a failed one is sent again elsewhere. A send is one worker's.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version, uri::PathAndQuery};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client as HyperClient, Error as ClientError},
    rt::{TokioExecutor, TokioTimer},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    cause,
    dial::{Answers, Authorities, Dial},
    error::{Failure, SendError},
    headers,
    probe::Turns,
    pulse::Pulse,
    reply::{self, Reply},
    upstream,
    url::BaseUrl,
};

/// The client's time-outs and bounds.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name lookup, TCP and TLS together. Default 2 s.
    pub connect: Duration,
    /// From the send to the first event of a stream, or the first byte of a plain answer's body. Default 600 s.
    pub first_byte: Duration,
    /// Between two pieces of an answer. Default 60 s.
    pub between_tokens: Duration,
    /// How long a connection waits in the pool. Default 4 s: uvicorn closes its side after 5 s.
    pub pool_idle: Duration,
    /// Connections that may wait for one worker. Default 1024.
    pub pool_max_idle: usize,
    /// Whose certificates https workers may show. Default the system's.
    pub authorities: Authorities,
    /// Cancelled when the process must end: what still runs is then broken off in good form.
    pub stop: CancellationToken,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            first_byte: Duration::from_secs(600),
            between_tokens: Duration::from_secs(60),
            pool_idle: Duration::from_secs(4),
            pool_max_idle: 1024,
            authorities: Authorities::System,
            stop: CancellationToken::new(),
        }
    }
}

/// Why a client cannot be made of its options.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OptionsError {
    /// The PEM text is not usable.
    #[error("the certificate authorities cannot be read: {0}")]
    Authorities(String),
    /// The TLS library refuses its own settings.
    #[error("tls cannot be set up: {0}")]
    Tls(String),
}

/// The longest head of an answer that is read; also the most that is read ahead of a slow client, per connection.
const READ_BUFFER_BYTES: usize = 128 * 1024;

/// A used connection that breaks within this time of being used again was most likely closed while it lay idle.
const STALE_CONNECTION: Duration = Duration::from_secs(1);

type Pool = HyperClient<Dial, Full<Bytes>>;

/// Sends requests to workers. Cheap to clone; clones share the pool.
#[derive(Clone)]
pub struct Client {
    pooled: Pool,
    /// Never reuses a connection.
    fresh: Pool,
    options: Arc<Options>,
    probes: Turns,
}

/// One request on its way to a worker.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// The client's method.
    pub method: Method,
    /// What is asked, relative to the worker's root.
    pub path_and_query: PathAndQuery,
    /// The client's headers; what must not cross the proxy is left out by the client.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
    /// The data-parallel rank it is meant for, for workers that have ranks.
    pub rank: Option<u32>,
    /// The worker's pulse: it learns of this request's bytes and end, and ends the request when the worker dies.
    pub pulse: Option<Pulse>,
}

/// A small question to a worker, answered whole.
pub(crate) struct Fetch {
    pub(crate) question: Outgoing,
    pub(crate) connection: Connection,
    pub(crate) limit_bytes: usize,
    pub(crate) within: Duration,
}

/// Which connection a question may use.
pub(crate) enum Connection {
    Pooled,
    /// Never one that is open already: it would hide that the port refuses.
    New,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Client {
    /// Makes a client.
    ///
    /// # Errors
    /// [`OptionsError`] where the trusted certificates cannot be used.
    pub fn new(options: Options) -> Result<Self, OptionsError> {
        let dial = Dial::new(&options)?;
        let pool = |max_idle| {
            let mut builder = HyperClient::builder(TokioExecutor::new());
            builder.pool_timer(TokioTimer::new());
            builder.pool_idle_timeout(options.pool_idle);
            builder.pool_max_idle_per_host(max_idle);
            builder.http1_max_buf_size(READ_BUFFER_BYTES);
            builder.build(dial.clone())
        };
        Ok(Self { pooled: pool(options.pool_max_idle), fresh: pool(0), options: Arc::new(options), probes: Turns::default() })
    }

    /// Sends a request and waits until its answer has begun: for a stream until its first event, so that an engine that
    /// answers 200 and then an error has still failed; for other answers until the first byte of the body.
    ///
    /// Dropping the future, or the reply, closes the connection and so ends the engine's work.
    ///
    /// # Errors
    /// [`SendError`] where nothing is there to relay: no connection, a 5xx, an error as first event, a time-out, the worker's
    /// death. A 4xx is an answer.
    pub async fn send(&self, url: &BaseUrl, outgoing: Outgoing) -> Result<Reply, SendError> {
        let pulse = outgoing.pulse.clone();
        let tried = Tried(outgoing.method.clone(), outgoing.path_and_query.clone());
        self.attempt(url, outgoing).await.map_err(|failure| {
            let error = SendError { pulse, ..tried.failed(url, failure) };
            if let (Some(pulse), Some(fault)) = (&error.pulse, error.fault()) {
                pulse.failed(fault, &error.failure.to_string());
            }
            error
        })
    }

    /// The turns of probes, shared by all workers.
    pub(crate) fn probes(&self) -> &Turns {
        &self.probes
    }

    async fn attempt(&self, url: &BaseUrl, mut outgoing: Outgoing) -> Result<Reply, Failure> {
        let uri = url.join(&outgoing.path_and_query).map_err(|error| Failure::Unsendable(error.to_string()))?;
        headers::to_worker(&mut outgoing.headers, outgoing.rank);
        let deadline = Instant::now() + self.options.first_byte;
        let interruption = upstream::interruption(self.options.stop.clone(), outgoing.pulse.clone());
        // Each branch may be dropped at any time: that closes the connection, which is what is meant.
        let response = tokio::select! {
            biased;
            interruption = interruption => Err(reply::failure_of(interruption)),
            response = self.exchange(uri, &outgoing) => response,
            () = tokio::time::sleep_until(deadline) => Err(Failure::NoFirstByte(self.options.first_byte)),
        }?;
        let Options { first_byte, between_tokens, stop, .. } = &*self.options;
        let waits = reply::Waits { first_byte: *first_byte, deadline, between_tokens: *between_tokens, stop: stop.clone() };
        reply::begin(response, outgoing.pulse, waits).await
    }

    /// One request and the head of its answer, on a pooled connection where there is one.
    ///
    /// The client below repeats by itself a request of which nothing was written yet. One that was written to a connection
    /// which the worker closed at that moment, after it had lain idle, is repeated here once, on a new connection.
    async fn exchange(&self, uri: Uri, outgoing: &Outgoing) -> Result<Response<Incoming>, Failure> {
        let sent = Instant::now();
        let error = match request(&self.pooled, uri.clone(), outgoing).await {
            Ok(response) => return Ok(response),
            Err(error) => error,
        };
        let failure = cause::failure_of(&error);
        let went_stale = matches!(failure, Failure::Closed(_)) && was_reused(&error) && sent.elapsed() < STALE_CONNECTION;
        if !went_stale {
            return Err(failure);
        }
        request(&self.fresh, uri, outgoing).await.map_err(|error| cause::failure_of(&error))
    }

    /// Asks a small question and reads the whole answer, whatever its status.
    pub(crate) async fn fetch(&self, url: &BaseUrl, fetch: Fetch) -> Result<(StatusCode, Bytes), SendError> {
        let tried = Tried(fetch.question.method.clone(), fetch.question.path_and_query.clone());
        let within = fetch.within;
        let answer = tokio::time::timeout(within, self.fetch_untimed(url, fetch)).await;
        answer.unwrap_or(Err(Failure::NoFirstByte(within))).map_err(|failure| tried.failed(url, failure))
    }

    async fn fetch_untimed(&self, url: &BaseUrl, fetch: Fetch) -> Result<(StatusCode, Bytes), Failure> {
        let uri = url.join(&fetch.question.path_and_query).map_err(|error| Failure::Unsendable(error.to_string()))?;
        let response = match fetch.connection {
            Connection::Pooled => self.exchange(uri, &fetch.question).await?,
            Connection::New => request(&self.fresh, uri, &fetch.question).await.map_err(|error| cause::failure_of(&error))?,
        };
        let (head, body) = response.into_parts();
        match Limited::new(body, fetch.limit_bytes).collect().await {
            Ok(body) => Ok((head.status, body.to_bytes())),
            Err(error) => Err(Failure::Malformed(cause::text_of(&*error))),
        }
    }
}

/// What was tried, for the text of an error.
struct Tried(Method, PathAndQuery);

impl Tried {
    fn failed(&self, url: &BaseUrl, failure: Failure) -> SendError {
        SendError { peer: url.to_string(), tried: format!("{} {}", self.0, self.1.path()), failure, pulse: None }
    }
}

async fn request(pool: &Pool, uri: Uri, outgoing: &Outgoing) -> Result<Response<Incoming>, ClientError> {
    let mut request = Request::new(Full::new(outgoing.body.clone()));
    *request.method_mut() = outgoing.method.clone();
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_11;
    *request.headers_mut() = outgoing.headers.clone();
    let response = pool.request(request).await?;
    if let Some(answers) = response.extensions().get::<Answers>() {
        answers.count_one();
    }
    Ok(response)
}

fn was_reused(error: &ClientError) -> bool {
    let mut extensions = http::Extensions::new();
    if let Some(connected) = error.connect_info() {
        connected.get_extras(&mut extensions);
    }
    extensions.get::<Answers>().is_some_and(Answers::any)
}
