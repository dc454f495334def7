//! One publisher's stream, live: a task that owns the SUB socket, the [`Feed`] and its replays. It moves messages and
//! time into the feed and carries out what the feed asks for; every decision is the feed's.
//!
//! One task per publisher, on the runtime it is given: index work never runs where requests are served. Between the
//! socket and the feed there is only the socket's own bounded queue.

pub(crate) mod demands;
mod driver;
mod replay;
pub(crate) mod steps;
pub(crate) mod turns;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use feed::{Demand, Feed, FeedConfig, Observation, Relayed, ReplayMode, Status};
use index::Catalog;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::zmtp::{self, Endpoint};

use demands::Demands;
pub use turns::Turns;

/// Observations that wait for the stream's task; further ones are dropped and counted.
const MAX_OBSERVATIONS: usize = 1024;
/// Resets that wait for the stream's task; whoever asks for another waits too.
const MAX_RESETS: usize = 4;

/// Where a publisher's live messages come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventSource {
    /// The publisher listens there.
    Connect(Endpoint),
    /// The publisher connects to us there.
    Bind(Endpoint),
}

/// One publisher.
#[derive(Clone, Debug)]
pub struct StreamSpec {
    /// Its live messages.
    pub events: EventSource,
    /// Its replay socket, if it has one. Decides the feed's [`ReplayMode`].
    pub replay: Option<Endpoint>,
    /// Prefix of the topics wanted; empty for all.
    pub topic: String,
    /// Whose events they are.
    pub feed: FeedConfig,
    /// What its sockets and replays may spend.
    pub options: StreamOptions,
}

/// What one stream may spend beyond its feed's limits.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// Of both sockets.
    pub sockets: zmtp::Options,
    /// Most bytes of one replay (1 GiB).
    pub max_replay_bytes: usize,
    /// Most messages of one replay (1 million).
    pub max_replay_messages: usize,
    /// Whose turn it is to be replayed (four at once in the process).
    pub turns: Turns,
    /// A publisher that cannot be pinged (ZMTP 3.0) is asked for its last message again when it published nothing
    /// for this long (30 s).
    pub poll_after: Duration,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            sockets: zmtp::Options::default(),
            max_replay_bytes: 1 << 30,
            max_replay_messages: 1_000_000,
            turns: Turns::default(),
            poll_after: Duration::from_secs(30),
        }
    }
}

/// The state of the live connection, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// Nothing has happened yet.
    Starting,
    /// Connected.
    Up {
        /// Minor version of ZMTP 3 the publisher greets with.
        zmtp_minor: u8,
    },
    /// Not connected; another attempt is always under way.
    Down {
        /// Why.
        reason: String,
    },
}

/// A running stream. Dropping it stops its task soon and retracts the publisher's blocks; [`stop`](Self::stop) waits.
#[derive(Debug)]
pub struct Stream {
    status: Arc<Status>,
    shared: Arc<Shared>,
    observations: mpsc::Sender<Observation>,
    resets: mpsc::Sender<Reset>,
    stop: DropGuard,
    /// Cancelled once the task is over and what it held is dropped.
    over: CancellationToken,
}

#[derive(Debug)]
struct Shared {
    /// Written by the task; held for one copy.
    link: Mutex<Link>,
    observations_dropped: AtomicU64,
    demands: Demands,
}

/// Answered when a reset is done.
type Reset = oneshot::Sender<()>;

/// What a stream's task is told from outside, and whom it tells.
#[derive(Debug)]
struct Commands {
    observations: mpsc::Receiver<Observation>,
    resets: mpsc::Receiver<Reset>,
    relay: Option<mpsc::Sender<(u32, Relayed)>>,
}

impl StreamSpec {
    fn replay_mode(&self) -> ReplayMode {
        if self.replay.is_some() { ReplayMode::Available } else { ReplayMode::Unavailable }
    }
}

/// Starts to follow a publisher on `runtime`. Its blocks go to the index of its model in `catalog`.
pub fn spawn(runtime: &Handle, mut spec: StreamSpec, catalog: Arc<Catalog>) -> Stream {
    spec.feed.replay = spec.replay_mode();
    let feed = Feed::new(spec.feed.clone(), catalog);
    start(runtime, spec, feed, None)
}

/// Starts to follow a publisher on `runtime` and to pass on what it says, with its rank, instead of indexing it. While nobody takes it the
/// stream reads no further, and its socket's queue drops what does not fit, which is an ordinary gap.
pub fn relay(runtime: &Handle, mut spec: StreamSpec, to: mpsc::Sender<(u32, Relayed)>) -> Stream {
    spec.feed.replay = spec.replay_mode();
    let feed = Feed::new(spec.feed.clone(), Arc::default()).relaying();
    start(runtime, spec, feed, Some(to))
}

fn start(runtime: &Handle, spec: StreamSpec, feed: Feed, relay: Option<mpsc::Sender<(u32, Relayed)>>) -> Stream {
    let status = feed.status();
    let demands = Demands::new(spec.feed.ranks);
    let shared = Arc::new(Shared { link: Mutex::new(Link::Starting), observations_dropped: AtomicU64::new(0), demands });
    let (observations, observed) = mpsc::channel(MAX_OBSERVATIONS);
    let (resets, asked) = mpsc::channel(MAX_RESETS);
    let stop = CancellationToken::new();
    let run = driver::run(spec, feed, Commands { observations: observed, resets: asked, relay }, shared.clone());
    let over = CancellationToken::new();
    let (until, ended) = (stop.clone(), over.clone().drop_guard());
    runtime.spawn(async move {
        until.run_until_cancelled_owned(run).await;
        drop(ended);
    });
    Stream { status, shared, observations, resets, stop: stop.drop_guard(), over }
}

impl Stream {
    /// Trust and counters, readable at any time.
    pub fn status(&self) -> Arc<Status> {
        self.status.clone()
    }

    /// The state of the live connection.
    pub fn link(&self) -> Link {
        self.shared.link.lock().clone()
    }

    /// An answer told how much of its prompt was cached (rule 11). Never blocks; dropped and counted when the task is
    /// too far behind.
    pub fn observe(&self, observation: Observation) {
        if self.observations.try_send(observation).is_err() {
            self.shared.observations_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Observations dropped because the task was too far behind.
    pub fn observations_dropped(&self) -> u64 {
        self.shared.observations_dropped.load(Ordering::Relaxed)
    }

    /// A request with this demand is about to be sent to a rank (rules 4 and 13). Never blocks and is never lost; the feed is
    /// told before any message that comes later.
    pub fn demand(&self, rank: u32, demand: Demand) {
        self.shared.demands.make(rank, demand);
    }

    /// A cache reset passed through us and succeeded (rule 5). Once this returns, none of the publisher's blocks of before
    /// it is in the index.
    pub async fn reset(&self) {
        let (done, reset) = oneshot::channel();
        // Either fails only where the task is over, and then it has no blocks.
        if self.resets.send(done).await.is_ok() {
            let _ = reset.await;
        }
    }

    /// Ends the task; once this returns its connections are closed and the publisher's blocks are retracted.
    pub async fn stop(&self) {
        self.stop.token().cancel();
        self.over.cancelled().await;
    }
}
