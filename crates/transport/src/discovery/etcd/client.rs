//! Calls of etcd: bounded in time and size, authenticated where that is asked for.

use std::{
    fmt,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client as HyperClient, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    api::{self, Done, KeyValue, Line, Range, Token},
    config::EtcdConfig,
    error::{CallError, Refusal},
    lines::Lines,
};
use crate::discovery::{
    OpenError, Options,
    view::{MAX_BYTES, MAX_KEYS},
};

/// 1.6.1's lease, and the shortest etcd itself keeps to.
const LEASE: Duration = Duration::from_secs(30);
const SHORTEST_LEASE: Duration = Duration::from_secs(2);

/// Records asked for at once, and the most bytes such an answer may have; fewer are asked for where they have more.
const PAGE: u32 = 256;
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Connecting, of the time a call has.
const CONNECT: Duration = Duration::from_secs(2);

/// TCP keepalive of a watch's connection, which may be silent for hours: a host that vanished is noticed within 30 s, and by
/// probes before.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// How long an idle connection is kept for the next call.
const POOL_IDLE: Duration = Duration::from_secs(60);

/// Which of the addresses.
pub(super) type Member = usize;

/// etcd, by all its addresses.
pub(in crate::discovery) struct Client {
    http: HyperClient<HttpsConnector<HttpConnector>, Full<Bytes>>,
    bases: Vec<String>,
    current: AtomicUsize,
    credentials: Option<(String, String)>,
    /// Guards reads and writes of the token.
    token: Mutex<Option<String>>,
    call: Duration,
    lease: Duration,
    pub(super) max_answer_bytes: usize,
}

impl fmt::Debug for Client {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Client").field(&self.bases).finish()
    }
}

impl Client {
    pub(in crate::discovery) fn new(config: &EtcdConfig, options: &Options) -> Result<Self, OpenError> {
        let bases = config.bases()?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT));
        tcp.set_keepalive(Some(KEEPALIVE_IDLE));
        tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
        tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
        let tls = HttpsConnectorBuilder::new().with_tls_config(config.tls()?).https_or_http().enable_http1();
        let http = HyperClient::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE)
            .build(tls.wrap_connector(tcp));
        let lease = options.ttl.unwrap_or(LEASE).max(SHORTEST_LEASE);
        let (credentials, call) = (config.credentials.clone(), options.call);
        let (current, token, max_answer_bytes) = (AtomicUsize::new(0), Mutex::new(None), MAX_ANSWER_BYTES);
        Ok(Self { http, bases, current, credentials, token, call, lease, max_answer_bytes })
    }

    /// For people: the addresses, which hold no password.
    pub(in crate::discovery) fn addresses(&self) -> String {
        self.bases.join(", ")
    }

    pub(super) fn lease(&self) -> Duration {
        self.lease
    }

    /// How long a call may take.
    pub(super) fn call_time(&self) -> Duration {
        self.call
    }

    /// The member to use now.
    pub(super) fn member(&self) -> Member {
        self.current.load(Ordering::Relaxed) % self.bases.len()
    }

    /// That member failed: the next is used, unless somebody else has moved on already.
    pub(super) fn failed(&self, member: Member) {
        let next = (member + 1) % self.bases.len();
        let _ = self.current.compare_exchange(member, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// All records of a range at one revision, and that revision. More than a view holds are not asked for: it would leave them
    /// out.
    pub(super) async fn list(&self, member: Member, from: &[u8], end: &[u8]) -> Result<(i64, Vec<KeyValue>), CallError> {
        let mut all = Vec::new();
        let mut from = from.to_vec();
        let (mut revision, mut bytes, mut limit) = (0, 0, PAGE);
        loop {
            let page: Range = match self.call(member, "kv/range", &api::range(&from, end, limit, revision)).await {
                Err(CallError::TooLarge(_)) if limit > 1 => {
                    limit /= 2;
                    continue;
                }
                page => page?,
            };
            if revision == 0 {
                revision = page.revision();
            }
            let Some(last) = page.kvs.last() else { return Ok((revision, all)) };
            from = [&last.key[..], &[0]].concat();
            let more = page.more;
            bytes += page.kvs.iter().map(|one| one.value.len()).sum::<usize>();
            all.extend(page.kvs);
            if !more || all.len() > MAX_KEYS || bytes > MAX_BYTES {
                return Ok((revision, all));
            }
        }
    }

    /// One question, one answer.
    pub(super) async fn call<T: DeserializeOwned>(&self, member: Member, path: &str, body: &Value) -> Result<T, CallError> {
        let answer = self.within(member, path, self.whole(member, path, body)).await?;
        serde_json::from_slice(&answer).map_err(|error| self.strange(member, path, &error))
    }

    /// One question whose answer is a line of a stream.
    pub(super) async fn call_line<T: DeserializeOwned>(&self, member: Member, path: &str, body: &Value) -> Result<T, CallError> {
        let answer: Line<T> = self.call(member, path, body).await?;
        match (answer.result, answer.error) {
            (Some(result), _) => Ok(result),
            (None, Some(refusal)) => Err(refusal.into()),
            (None, None) => Err(CallError::Away(format!("{} sent an empty answer to {path}", self.bases[member]))),
        }
    }

    /// A question whose answer does not end.
    pub(super) async fn stream(&self, member: Member, path: &str, body: &Value) -> Result<Lines, CallError> {
        let response = self.within(member, path, self.post(member, path, body)).await?;
        Ok(Lines::new(&self.bases[member], response.into_body()))
    }

    async fn within<T>(&self, member: Member, path: &str, call: impl Future<Output = Result<T, CallError>>) -> Result<T, CallError> {
        match tokio::time::timeout(self.call, call).await {
            Ok(answer) => answer,
            Err(_) => Err(CallError::Away(format!("{} did not answer {path} within {:?}", self.bases[member], self.call))),
        }
    }

    fn strange(&self, member: Member, path: &str, error: &serde_json::Error) -> CallError {
        CallError::Away(format!("{} answers {path} as no etcd does: {error}", self.bases[member]))
    }

    async fn whole(&self, member: Member, path: &str, body: &Value) -> Result<Bytes, CallError> {
        let response = self.post(member, path, body).await?;
        self.collect(member, response).await
    }

    async fn collect(&self, member: Member, response: Response<Incoming>) -> Result<Bytes, CallError> {
        let body = Limited::new(response.into_body(), self.max_answer_bytes).collect().await;
        let base = &self.bases[member];
        body.map(|body| body.to_bytes()).map_err(|error| match error.downcast_ref::<LengthLimitError>() {
            Some(_) => CallError::TooLarge(format!("{base} answers with more than {} bytes", self.max_answer_bytes)),
            None => CallError::Away(format!("the answer of {base} broke: {error}")),
        })
    }

    /// Posts, with a token where users have one; a token that is not valid any more is replaced once.
    async fn post(&self, member: Member, path: &str, body: &Value) -> Result<Response<Incoming>, CallError> {
        if self.credentials.is_some() && self.token.lock().is_none() {
            self.authenticate(member).await?;
        }
        match self.send(member, path, body).await {
            Err(error) if self.credentials.is_some() && error.is_unauthenticated() => {
                self.authenticate(member).await?;
                self.send(member, path, body).await
            }
            answer => answer,
        }
    }

    async fn authenticate(&self, member: Member) -> Result<(), CallError> {
        let Some((user, password)) = &self.credentials else { return Ok(()) };
        *self.token.lock() = None;
        let response = self.send(member, "auth/authenticate", &api::authenticate(user, password)).await?;
        let answer = self.collect(member, response).await?;
        let token: Token = serde_json::from_slice(&answer).map_err(|error| self.strange(member, "auth/authenticate", &error))?;
        *self.token.lock() = Some(token.token);
        Ok(())
    }

    async fn send(&self, member: Member, path: &str, body: &Value) -> Result<Response<Incoming>, CallError> {
        let base = &self.bases[member];
        let mut request = Request::builder().method(Method::POST).uri(format!("{base}/v3/{path}"));
        request = request.header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = &*self.token.lock() {
            request = request.header(header::AUTHORIZATION, token);
        }
        let away = |error: &dyn fmt::Display| CallError::Away(format!("{base} cannot be reached: {error}"));
        let request = request.body(Full::new(Bytes::from(body.to_string()))).map_err(|error| away(&error))?;
        let response = self.http.request(request).await.map_err(|error| away(&causes(&error)))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let answer = self.collect(member, response).await?;
        Err(match serde_json::from_slice::<Refusal>(&answer) {
            Ok(refusal) => refusal.into(),
            Err(_) => CallError::Away(format!("{base} answers /v3/{path} with {status}: is that etcd 3.4 or later?")),
        })
    }

    /// Asks whether the member can read this range, that is whether it has a leader.
    pub(super) async fn probe(&self, member: Member, from: &[u8], end: &[u8]) -> Result<(), CallError> {
        let Done {} = self.call(member, "kv/range", &api::count(from, end)).await?;
        Ok(())
    }
}

/// An error with its causes: the outermost alone says only that connecting failed.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
