//! The asking end. A call goes out on a connection shared with other calls, is acknowledged there, and its answer comes back
//! on a connection the worker opens to our one listener. Every wait on the way has a bound and an error of its own.

mod home;
mod line;
mod ping;
mod pipe;
mod pool;
mod responses;
mod subject;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use wire::discovery::{Endpoint, Transport};
use wire::request::{Ack, Codec, ConnectionInfo, ControlHeader, RequestFrame, StreamType, TwoPart};

pub use responses::{Piece, Responses};

use super::error::{CallError, Cause, Refusal};
use super::options::ClientOptions;
use home::{Awaited, Home};
use pipe::PipeError;
use pool::{Pool, Wanted};
use subject::Subject;

/// Calls endpoints. Cheap to clone; the listener and the connections end with the last clone.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: Arc<ClientOptions>,
    home: Home,
    pool: Pool,
    /// One permit for each call.
    calls: Arc<Semaphore>,
    started: AtomicU64,
    failed: AtomicU64,
    pings: AtomicU64,
    pings_failed: AtomicU64,
    tasks: TaskTracker,
    stop: DropGuard,
}

/// What to ask of whom.
#[derive(Clone, Debug)]
pub struct Call {
    address: String,
    body: Bytes,
    codec: Codec,
    id: Option<String>,
    headers: Vec<(String, String)>,
    item_timeout: Option<Duration>,
}

impl Call {
    /// A call of the endpoint at `host:port/path`, with a body in MessagePack.
    pub fn new(address: impl Into<String>, body: Bytes) -> Self {
        Self { address: address.into(), body, codec: Codec::Msgpack, id: None, headers: Vec::new(), item_timeout: None }
    }

    /// A call of an instance, with a body in MessagePack; `None` where it is not reached over TCP.
    pub fn to(endpoint: &Endpoint, body: Bytes) -> Option<Self> {
        let (host, path) = endpoint.transport.tcp_parts()?;
        Some(Self::new(format!("{host}/{path}"), body))
    }

    /// How the body is encoded, and the answer is to be.
    pub fn codec(self, codec: Codec) -> Self {
        Self { codec, ..self }
    }

    /// The request's id; a random one where none is given.
    pub fn id(self, id: impl Into<String>) -> Self {
        Self { id: Some(id.into()), ..self }
    }

    /// A header beside `request-id`, `x-endpoint-path` and `x-frontend-send-ts-ns`.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Longest silence of the worker before its answer and within it, instead of the client's.
    pub fn item_timeout(self, patience: Duration) -> Self {
        Self { item_timeout: Some(patience), ..self }
    }

    fn frame(&self, path: &str, subject: Subject, home: &str) -> Option<Bytes> {
        let id = self.id.clone().unwrap_or_else(|| Subject::random().to_string());
        let connection = ConnectionInfo {
            address: home.to_owned(),
            subject: subject.to_string(),
            context: id.clone(),
            stream_type: StreamType::Response,
        };
        let sent_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let mut headers = self.headers.clone();
        headers.push(("request-id".to_owned(), id.clone()));
        headers.push(("x-endpoint-path".to_owned(), path.to_owned()));
        headers.push(("x-frontend-send-ts-ns".to_owned(), sent_ns.to_string()));
        let header = ControlHeader { id, codec: self.codec, connection }.encode();
        let payload = TwoPart { header, body: self.body.clone() }.encode();
        RequestFrame { path: path.to_owned(), headers, payload }.encode()
    }
}

/// A reading of a client's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounters {
    /// Calls begun.
    pub calls: u64,
    /// Calls that failed before their first item.
    pub failed: u64,
    /// Pings begun.
    pub pings: u64,
    /// Pings that were not answered.
    pub pings_failed: u64,
    /// Calls that run now, their answers not yet read or dropped.
    pub running: usize,
    /// Calls that wait for their worker to call back.
    pub awaited: usize,
    /// Connections to workers.
    pub connections: usize,
    /// Connections to the listener that have not yet named their call.
    pub newcomers: usize,
    /// Connections to the listener that named no call that is waited for.
    pub strangers: u64,
}

impl Client {
    /// Binds the listener for answers, and lives on the current runtime. All interfaces need an advertised host.
    pub async fn new(options: ClientOptions) -> io::Result<Self> {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let options = Arc::new(options);
        let home = Home::open(&options, &tasks, &stop).await?;
        let pool = Pool::new(options.clone(), tasks.clone(), stop.clone());
        let calls = Arc::new(Semaphore::new(options.max_calls.min(Semaphore::MAX_PERMITS)));
        let (started, failed, pings, pings_failed) = Default::default();
        let shared = Shared { options, home, pool, calls, started, failed, pings, pings_failed, tasks, stop: stop.drop_guard() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// `host:port` workers are told to call back to.
    pub fn address(&self) -> &str {
        self.shared.home.address()
    }

    /// Sends the request and waits until the worker says that there will be an answer. Dropping the future abandons the call.
    pub async fn call(&self, call: Call) -> Result<Responses, CallError> {
        self.shared.started.fetch_add(1, Ordering::Relaxed);
        let peer: Arc<str> = call.address.as_str().into();
        let result = self.begin(&call, &peer).await;
        let failed = match result {
            Ok(mut responses) => match responses.prologue().await {
                Ok(()) => return Ok(responses),
                Err(error) => error,
            },
            Err(cause) => CallError::new(&peer, cause),
        };
        self.shared.failed.fetch_add(1, Ordering::Relaxed);
        Err(failed)
    }

    /// Asks whether the worker's request plane answers, without starting work there, on a connection of its own and bounded by
    /// [`ClientOptions::ping_timeout`]. Dropping the future abandons it.
    pub async fn ping(&self, endpoint: &Endpoint) -> Result<(), CallError> {
        let Shared { options, pings, pings_failed, calls, .. } = &*self.shared;
        pings.fetch_add(1, Ordering::Relaxed);
        let peer: Arc<str> = peer(endpoint).into();
        let answered = match endpoint.transport.tcp_parts() {
            _ if calls.is_closed() => Err(Cause::Stopped),
            Some((host, _)) => ping::over_tcp(host, options.ping_timeout).await,
            None => Err(Cause::Way("its record names no address for TCP".into())),
        };
        answered.map_err(|cause| {
            pings_failed.fetch_add(1, Ordering::Relaxed);
            CallError::new(&peer, cause)
        })
    }

    /// What came so far and what is under way.
    pub fn counters(&self) -> ClientCounters {
        let shared = &self.shared;
        let (awaited, newcomers) = shared.home.pending();
        ClientCounters {
            calls: shared.started.load(Ordering::Relaxed),
            failed: shared.failed.load(Ordering::Relaxed),
            pings: shared.pings.load(Ordering::Relaxed),
            pings_failed: shared.pings_failed.load(Ordering::Relaxed),
            running: shared.options.max_calls.saturating_sub(shared.calls.available_permits()),
            awaited,
            connections: shared.pool.connections(),
            newcomers,
            strangers: shared.home.strangers(),
        }
    }

    /// Ends the listener and the connections to workers, for every clone, and waits for that. Answers that are being read go
    /// on; further calls fail.
    pub async fn stop(&self) {
        self.shared.calls.close();
        self.shared.stop.token().cancel();
        self.shared.home.close();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }

    /// Up to the worker's connection.
    async fn begin(&self, call: &Call, peer: &Arc<str>) -> Result<Responses, Cause> {
        let Shared { options, home, calls, .. } = &*self.shared;
        let (host, path) = call.address.split_once('/').ok_or(Cause::Address)?;
        if call.body.len() > options.max_body_bytes {
            return Err(Cause::TooLarge { bytes: call.body.len() as u64, limit: options.max_body_bytes });
        }
        let permit = match calls.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) if calls.is_closed() => return Err(Cause::Stopped),
            Err(_) => return Err(Cause::Busy(options.max_calls)),
        };
        let mut awaited = home.expect();
        let frame = call.frame(path, awaited.subject, home.address());
        let frame = frame.ok_or_else(|| Cause::Request("path, headers or body are too long for a frame".into()))?;
        match self.acknowledged(&host.into(), frame).await? {
            Ack::Accepted => {}
            Ack::Refused(text) => return Err(Cause::Refused { kind: Refusal::of(&text), text: text.into() }),
        }
        let line = called_home(&mut awaited, options.call_home_timeout, home.address()).await?;
        let mut responses = Responses::new(peer.clone(), line, call.codec, options, permit);
        if let Some(patience) = call.item_timeout {
            responses.set_patience(patience);
        }
        Ok(responses)
    }

    /// Sends a frame. A connection that breaks under it was most likely closed by a worker that restarted: once, another is
    /// tried. Should both frames arrive, the second answer finds its subject used and is stopped.
    async fn acknowledged(&self, host: &Arc<str>, frame: Bytes) -> Result<Ack, Cause> {
        let mut wanted = Wanted::Any;
        loop {
            let pipe = self.shared.pool.choose(host, wanted).map_err(|full| Cause::Busy(full.0))?;
            match pipe.send(frame.clone()).await {
                Ok(ack) => return Ok(ack),
                Err(PipeError::Broken(_)) if self.shared.calls.is_closed() => return Err(Cause::Stopped),
                Err(PipeError::Broken(_)) if wanted == Wanted::Any => wanted = Wanted::New,
                Err(PipeError::Broken(reason)) => return Err(Cause::Broken(reason)),
                Err(PipeError::Unreachable(reason)) => return Err(Cause::Unreachable(reason)),
                Err(PipeError::Unacknowledged) => return Err(Cause::Unacknowledged(self.shared.options.ack_timeout)),
                Err(PipeError::Malformed(what)) => return Err(Cause::Malformed(what)),
            }
        }
    }
}

/// What errors call an endpoint.
fn peer(endpoint: &Endpoint) -> String {
    match &endpoint.transport {
        Transport::Tcp(address) | Transport::NatsTcp(address) => address.clone(),
        Transport::Other(_) => format!("{}/{:x}", endpoint.id, endpoint.instance_id),
    }
}

async fn called_home(awaited: &mut Awaited, after: Duration, address: &Arc<str>) -> Result<line::Line, Cause> {
    match timeout(after, awaited.line()).await {
        Ok(Some(line)) => Ok(line),
        Ok(None) => Err(Cause::Stopped),
        Err(_) => Err(Cause::NoCallHome { after, address: address.clone() }),
    }
}
