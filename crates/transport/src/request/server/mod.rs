//! The worker's end: one listener for many endpoints, and for each a subject of NATS where there is one. A request is acknowledged
//! the way it came; its answer
//! goes out on a connection of its own, opened to the address the caller names.
//!
//! Nobody is believed early: a caller's address is dialled only for an endpoint that is here, a body is kept only for one,
//! and what all bodies together may hold is bounded.

mod connection;
mod handler;
mod head;
mod running;
mod subject;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use wire::discovery::{EndpointId, Transport};

pub use handler::{Answer, Handler, Items, Request, one};

use crate::nats::Nats;

use super::net;
use super::newcomers::Newcomers;
use super::options::ServerOptions;

/// Pause after a failed accept: the usual cause is a lack of file descriptors, which a busy loop does not cure.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Callers that are told at once over their own connections that there is no room.
const MAX_REFUSING: usize = 64;

/// A bound request plane. Dropping it stops everything at once; [`drain`](Self::drain) lets calls finish.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    bound: SocketAddr,
    advertised: String,
    /// The accept task and the connections.
    connections: TaskTracker,
    /// The tasks that read subjects of NATS.
    subjects: TaskTracker,
    nats: Option<Nats>,
    runtime: Handle,
    stop: DropGuard,
}

/// What the tasks of a server share.
#[derive(Debug)]
struct Shared {
    options: ServerOptions,
    /// By path; held for a look-up or a change.
    endpoints: RwLock<HashMap<String, Endpoint>>,
    newcomers: Arc<Newcomers>,
    /// One permit for each connection that has shown a path that is here.
    proven: Arc<Semaphore>,
    /// One permit for each KiB of large bodies.
    body_kib: Arc<Semaphore>,
    /// One permit for each call.
    running: Arc<Semaphore>,
    /// One permit for each caller that is told over its own connection that there is no room.
    refusing: Arc<Semaphore>,
    calls: TaskTracker,
    /// No further connection or call.
    draining: CancellationToken,
    /// Everything ends.
    stopped: CancellationToken,
    counters: Counters,
}

#[derive(Clone)]
struct Endpoint {
    handler: Arc<dyn Handler>,
    registration: u64,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Endpoint({})", self.registration)
    }
}

/// An endpoint that is served. Dropping it withdraws it: later requests are told that it is unknown, running ones finish.
#[derive(Debug)]
pub struct Handled {
    shared: Arc<Shared>,
    path: String,
    registration: u64,
    /// Where it is served over NATS.
    reachable: Option<watch::Receiver<bool>>,
    _withdraw: DropGuard,
}

/// What came and what became of it, since the start.
#[derive(Debug, Default)]
struct Counters {
    registrations: AtomicU64,
    calls: AtomicU64,
    cancelled: AtomicU64,
    refused_full: AtomicU64,
    refused_unknown: AtomicU64,
    refused_malformed: AtomicU64,
    pings: AtomicU64,
    unreachable_callers: AtomicU64,
    stalled_callers: AtomicU64,
    closed_malformed: AtomicU64,
    closed_silent: AtomicU64,
    closed_full: AtomicU64,
}

/// A reading of a server's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Calls that were acknowledged.
    pub calls: u64,
    /// Calls that run now.
    pub running: usize,
    /// Calls ended by their caller: stopped, killed or left.
    pub cancelled: u64,
    /// Requests refused because as many calls ran, or bodies were held, as are allowed.
    pub refused_full: u64,
    /// Requests for endpoints that are not here, or came during a drain.
    pub refused_unknown: u64,
    /// Requests that are too large or whose control header cannot be read.
    pub refused_malformed: u64,
    /// Questions whether this server is there.
    pub pings: u64,
    /// Calls whose caller could not be reached at the address it named.
    pub unreachable_callers: u64,
    /// Calls whose caller took nothing for too long.
    pub stalled_callers: u64,
    /// Connections open now, on trial or proven.
    pub connections: usize,
    /// Connections closed because they sent something other than a request.
    pub closed_malformed: u64,
    /// Connections closed because they did not show a request, or finish one, in time.
    pub closed_silent: u64,
    /// Connections closed because as many were open as are allowed.
    pub closed_full: u64,
}

/// Another handler has this path.
#[derive(Debug, thiserror::Error)]
#[error("the endpoint {0} is already served here")]
pub struct PathTaken(String);

impl Server {
    /// Listens at `host:port` (port 0: any free one) on the current runtime. All interfaces need an advertised host.
    pub async fn bind(address: &str, options: ServerOptions) -> io::Result<Self> {
        let listener = net::listen(address).await?;
        let bound = listener.local_addr()?;
        let advertised = net::advertised(bound, options.advertised_host.as_deref())?;
        let stopped = CancellationToken::new();
        let shared = Arc::new(Shared {
            endpoints: RwLock::default(),
            newcomers: Newcomers::new(options.max_newcomers),
            proven: Arc::new(Semaphore::new(options.max_connections.min(Semaphore::MAX_PERMITS))),
            body_kib: Arc::new(Semaphore::new((options.max_body_bytes >> 10).min(Semaphore::MAX_PERMITS))),
            running: Arc::new(Semaphore::new(options.max_running.min(Semaphore::MAX_PERMITS))),
            refusing: Arc::new(Semaphore::new(MAX_REFUSING)),
            calls: TaskTracker::new(),
            draining: CancellationToken::new(),
            stopped: stopped.clone(),
            counters: Counters::default(),
            options,
        });
        let connections = TaskTracker::new();
        let accept = accept(listener, shared.clone(), connections.clone());
        let until = stopped.clone();
        connections.spawn(async move { until.run_until_cancelled_owned(accept).await });
        let (subjects, runtime) = (TaskTracker::new(), Handle::current());
        Ok(Self { shared, bound, advertised, connections, subjects, nats: None, runtime, stop: stopped.drop_guard() })
    }

    /// Serves endpoints over NATS too, from the next [`handle`](Self::handle) on, and says so in what is advertised.
    pub fn with_nats(self, nats: Nats) -> Self {
        Self { nats: Some(nats), ..self }
    }

    /// Where this listens, with the real port.
    pub fn address(&self) -> SocketAddr {
        self.bound
    }

    /// `host:port` callers are told.
    pub fn advertised_address(&self) -> String {
        self.advertised.clone()
    }

    /// What the discovery record of an endpoint says about how it is reached.
    pub fn advertised(&self, id: &EndpointId, instance_id: u64) -> Transport {
        match self.nats {
            Some(_) => Transport::nats_tcp(id, instance_id),
            None => Transport::tcp(&self.advertised, id, instance_id),
        }
    }

    /// Serves an endpoint from now on. The path is [`EndpointId::request_path`]; any other is not served over NATS.
    pub fn handle(&self, path: &str, handler: Arc<dyn Handler>) -> Result<Handled, PathTaken> {
        let registration = self.shared.counters.registrations.fetch_add(1, Ordering::Relaxed);
        let mut endpoints = self.shared.endpoints.write();
        if endpoints.contains_key(path) {
            return Err(PathTaken(path.to_owned()));
        }
        let endpoint = Endpoint { handler, registration };
        endpoints.insert(path.to_owned(), endpoint.clone());
        drop(endpoints);
        let withdrawn = CancellationToken::new();
        let reachable = self.over_nats(path, endpoint, withdrawn.clone());
        let path = path.to_owned();
        Ok(Handled { shared: self.shared.clone(), path, registration, reachable, _withdraw: withdrawn.drop_guard() })
    }

    fn over_nats(&self, path: &str, endpoint: Endpoint, withdrawn: CancellationToken) -> Option<watch::Receiver<bool>> {
        let (nats, (id, instance_id)) = (self.nats.clone()?, EndpointId::of_request_path(path)?);
        let (announce, reachable) = watch::channel(false);
        let subject = id.request_subject(instance_id).into();
        let (shared, until) = (self.shared.clone(), self.shared.stopped.clone());
        let reader = subject::Reader { shared, nats, subject, endpoint, reachable: announce, withdrawn };
        self.subjects.spawn_on(async move { until.run_until_cancelled_owned(reader.run()).await }, &self.runtime);
        Some(reachable)
    }

    /// What came so far and what became of it.
    pub fn counters(&self) -> ServerCounters {
        let (counters, shared) = (&self.shared.counters, &self.shared);
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ServerCounters {
            calls: read(&counters.calls),
            running: shared.calls.len(),
            cancelled: read(&counters.cancelled),
            refused_full: read(&counters.refused_full),
            refused_unknown: read(&counters.refused_unknown),
            refused_malformed: read(&counters.refused_malformed),
            pings: read(&counters.pings),
            unreachable_callers: read(&counters.unreachable_callers),
            stalled_callers: read(&counters.stalled_callers),
            // The accept task is one of them.
            connections: self.connections.len().saturating_sub(1),
            closed_malformed: read(&counters.closed_malformed),
            closed_silent: read(&counters.closed_silent),
            closed_full: read(&counters.closed_full) + shared.newcomers.displaced(),
        }
    }

    /// Accepts no further connection, refuses further requests, waits for running calls, and ends. Calls that run longer
    /// than `within` are cut; how many is returned.
    pub async fn drain(self, within: Duration) -> usize {
        let Self { shared, connections, subjects, stop, .. } = self;
        shared.draining.cancel();
        subjects.close();
        shared.calls.close();
        let finished = async {
            // What NATS still had for us is taken first.
            subjects.wait().await;
            shared.calls.wait().await;
        };
        let cut = match timeout(within, finished).await {
            Ok(()) => 0,
            Err(_) => shared.calls.len(),
        };
        drop(stop);
        connections.close();
        subjects.wait().await;
        shared.calls.wait().await;
        connections.wait().await;
        cut
    }
}

impl Handled {
    /// The path served.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Until requests reach it: at once over TCP; over NATS as soon as there is a server that has confirmed it. Discovery is to
    /// be told after it.
    pub async fn reachable(&self) {
        if let Some(mut reachable) = self.reachable.clone() {
            // Its sender is the task that reads, which ends with the server.
            let _ = reachable.wait_for(|reachable| *reachable).await;
        }
    }
}

impl Drop for Handled {
    fn drop(&mut self) {
        let mut endpoints = self.shared.endpoints.write();
        if endpoints.get(&self.path).is_some_and(|endpoint| endpoint.registration == self.registration) {
            endpoints.remove(&self.path);
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, connections: TaskTracker) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shared.draining.cancelled() => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                let (until, serve) = (shared.stopped.clone(), connection::serve(shared.clone(), stream, peer));
                connections.spawn(async move { until.run_until_cancelled_owned(serve).await });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a request connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
