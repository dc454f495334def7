//! The asking end. A call goes out on a connection shared with other calls, or over NATS, is acknowledged there, and its answer
//! comes back on a connection the worker opens to our one listener. Every wait on the way has a bound and an error of its own.

mod call;
mod counters;
mod expected;
mod home;
mod line;
mod ping;
mod pipe;
mod pool;
mod post;
mod responses;
mod subject;

use std::fmt;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use wire::discovery::{Endpoint, Transport};

pub use call::Call;
pub use counters::ClientCounters;
pub use responses::{Piece, Responses};

use super::alarm::Alarm;
use super::error::{CallError, Cause};
use super::options::ClientOptions;
use crate::nats::Nats;
use call::Way;
use counters::Counters;
use expected::{Awaited, Patience};
use home::Home;
use line::Line;
use pipe::Frame;
use pool::{Pool, Wanted};
use post::Post;
use responses::Running;

/// Calls endpoints. Cheap to clone; the listener and the connections end with the last clone.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    options: Arc<ClientOptions>,
    home: Home,
    pool: Pool,
    /// Made for the first endpoint that is reached over NATS.
    post: Option<LazyLock<Post, Box<dyn FnOnce() -> Post + Send>>>,
    /// One permit for each call.
    calls: Arc<Semaphore>,
    counters: Arc<Counters>,
    tasks: TaskTracker,
    stop: DropGuard,
}

impl Client {
    /// Binds the listener for answers, and lives on the current runtime. All interfaces need an advertised host. Endpoints that are
    /// reached over NATS are not reached.
    pub async fn new(options: ClientOptions) -> io::Result<Self> {
        Self::open(options, None).await
    }

    /// The same, and reaches endpoints over NATS too: the connection is asked for when the first of them is called.
    pub async fn with_nats(options: ClientOptions, connect: impl FnOnce() -> Nats + Send + 'static) -> io::Result<Self> {
        Self::open(options, Some(Box::new(connect))).await
    }

    async fn open(options: ClientOptions, connect: Option<Box<dyn FnOnce() -> Nats + Send>>) -> io::Result<Self> {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let options = Arc::new(options);
        let home = Home::open(&options, &tasks, &stop).await?;
        let pool = Pool::new(options.clone(), home.expected().clone(), tasks.clone(), stop.clone());
        let calls = Arc::new(Semaphore::new(options.max_calls.min(Semaphore::MAX_PERMITS)));
        let post = connect.map(|connect| {
            let (options, expected, tasks, stop) = (options.clone(), home.expected().clone(), tasks.clone(), stop.clone());
            let runtime = Handle::current();
            LazyLock::new(Box::new(move || {
                let _on = runtime.enter();
                Post::open(connect(), options, expected, &tasks, stop)
            }) as Box<dyn FnOnce() -> Post + Send>)
        });
        let shared = Shared { options, home, pool, post, calls, counters: Arc::default(), tasks, stop: stop.drop_guard() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// `host:port` workers are told to call back to.
    pub fn address(&self) -> &str {
        self.shared.home.address()
    }

    /// Sends the request and waits until the worker says that there will be an answer. Dropping the future abandons the call.
    pub async fn call(&self, call: Call) -> Result<Responses, CallError> {
        self.shared.counters.calls.fetch_add(1, Ordering::Relaxed);
        let peer: Arc<str> = call.peer().into();
        let failed = match self.begin(&call, &peer).await {
            Ok(mut responses) => match responses.prologue().await {
                Ok(()) => return Ok(responses),
                Err(cause) => cause,
            },
            Err(cause) => cause,
        };
        self.shared.counters.failed(&failed);
        Err(CallError::new(&peer, failed))
    }

    /// Asks whether the worker's request plane answers, without starting work there, and not on a connection that is there
    /// already: that would hide a closed port. Bounded by [`ClientOptions::ping_timeout`]; dropping the future abandons it.
    pub async fn ping(&self, endpoint: &Endpoint) -> Result<(), CallError> {
        let Shared { options, counters, calls, .. } = &*self.shared;
        counters.pings.fetch_add(1, Ordering::Relaxed);
        let answered = match &endpoint.transport {
            _ if calls.is_closed() => Err(Cause::Stopped),
            Transport::Tcp(address) => match address.split_once('/') {
                Some((host, _)) => ping::over_tcp(host, options.ping_timeout).await,
                None => Err(Cause::Address),
            },
            Transport::NatsTcp(subject) => match self.post() {
                Ok(post) => Box::pin(post.ping(subject)).await,
                Err(cause) => Err(cause),
            },
            Transport::Other(_) => Err(Cause::Way("its record names neither an address nor a subject".into())),
        };
        answered.map_err(|cause| {
            counters.pings_failed.fetch_add(1, Ordering::Relaxed);
            CallError::new(&peer(endpoint), cause)
        })
    }

    /// What came so far and what is under way.
    pub fn counters(&self) -> ClientCounters {
        let Shared { options, home, pool, calls, counters, .. } = &*self.shared;
        ClientCounters {
            running: options.max_calls.saturating_sub(calls.available_permits()),
            awaited: home.expected().len(),
            connections: pool.connections(),
            newcomers: home.newcomers().waiting(),
            strangers: home.expected().strangers(),
            ..counters.read()
        }
    }

    /// Ends the listener and the connections to workers, for every clone, and waits for that. Answers that are being read go
    /// on; further calls fail.
    pub async fn stop(&self) {
        self.shared.calls.close();
        self.shared.stop.token().cancel();
        self.shared.home.expected().close();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }

    /// Up to the worker's connection.
    async fn begin(&self, call: &Call, peer: &Arc<str>) -> Result<Responses, Cause> {
        let Shared { options, home, calls, counters, .. } = &*self.shared;
        if call.body.len() > options.max_body_bytes {
            return Err(Cause::TooLarge { bytes: call.body.len() as u64, limit: options.max_body_bytes });
        }
        let permit = match calls.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) if calls.is_closed() => return Err(Cause::Stopped),
            Err(_) => return Err(Cause::Busy(options.max_calls)),
        };
        let (mut awaited, mut alarm) = (home.expected().add(), Alarm::default());
        let answered = match &call.way {
            Way::Tcp(address) => {
                let (host, path) = address.split_once('/').ok_or(Cause::Address)?;
                let frame = call.frame(path, awaited.subject, home.address());
                let frame = frame.ok_or_else(|| Cause::Request("path or headers are too long for a frame".into()))?;
                self.over_tcp(host, frame, &mut awaited, &mut alarm).await
            }
            Way::Nats(subject) => {
                let request = call.message(subject, awaited.subject, home.address());
                // Boxed, so that a call over TCP does not carry the room for this.
                Box::pin(self.post()?.call(request, &mut awaited, &mut alarm, home.address())).await
            }
        };
        let line = match answered {
            Ok(line) => line,
            Err(_) if calls.is_closed() => return Err(Cause::Stopped),
            Err(cause) => return Err(cause),
        };
        let running = Running { counters: counters.clone(), _place: permit };
        Ok(Responses::new(peer.clone(), line, call, options, (running, alarm)))
    }

    /// Sends a frame. A connection that breaks under it was most likely closed by a worker that restarted: once, another is
    /// tried. Should both frames arrive, the second answer finds its subject used and is stopped.
    async fn over_tcp(&self, host: &str, frame: Frame, awaited: &mut Awaited, alarm: &mut Alarm) -> Result<Line, Cause> {
        let Shared { options, home, pool, counters, calls, .. } = &*self.shared;
        let patience = Patience { acknowledgement: None, call: options.call_home_timeout };
        let mut wanted = Wanted::Any;
        loop {
            let pipe = pool.choose(host, wanted).map_err(|full| Cause::Busy(full.0))?;
            pipe.submit(frame.clone(), awaited.subject, home.expected()).await;
            match awaited.word(patience, alarm, home.address()).await {
                Err(Cause::Broken(_)) if wanted == Wanted::Any && !calls.is_closed() => {
                    counters.resent.fetch_add(1, Ordering::Relaxed);
                    wanted = Wanted::New;
                    awaited.renew();
                }
                word => return word,
            }
        }
    }

    fn post(&self) -> Result<&Post, Cause> {
        match &self.shared.post {
            Some(post) => Ok(LazyLock::force(post)),
            None => Err(Cause::Way("it is reached over NATS, and no NATS server is configured".into())),
        }
    }
}

/// What errors call an endpoint.
fn peer(endpoint: &Endpoint) -> Arc<str> {
    match &endpoint.transport {
        Transport::Tcp(peer) | Transport::NatsTcp(peer) => peer.as_str().into(),
        Transport::Other(_) => format!("{}/{:x}", endpoint.id, endpoint.instance_id).into(),
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("home", &self.home).finish_non_exhaustive()
    }
}
