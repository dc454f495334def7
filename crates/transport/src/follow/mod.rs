//! One (worker, rank) on the event plane, live: a task that owns the rank's [`PlaneFeed`], a subscription for each of its
//! publishers, and the recovery queries. It moves events, answers and time into the feed and carries out what the feed asks for;
//! every decision is the feed's.
//!
//! The same outer shape as [`crate::stream`], which does this for an engine's own sockets. One task per rank, on the runtime it is
//! given; between a subscription and the feed there is only the subscription's own bounded queue. Index work goes in steps of at most
//! 512 blocks, so that a dump of millions delays nobody else.

mod driver;
mod query;
mod sources;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use feed::plane::{PlaneConfig, PlaneFeed};
use feed::{Demand, Observation, RankRange, Status};
use index::Catalog;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use wire::discovery::{Endpoint, EventChannel};

use crate::plane::Subscriptions;
use crate::request::Client;
use crate::stream::Turns;
use crate::stream::demands::Demands;

/// Observations that wait for the task; further ones are dropped and counted.
const MAX_OBSERVATIONS: usize = 1024;
/// Resets that wait for the task; whoever asks for another waits too.
const MAX_RESETS: usize = 4;

/// What all followers of a process share.
#[derive(Clone, Debug)]
pub struct PlaneClient {
    /// Of the event plane.
    pub subscriptions: Subscriptions,
    /// Asks recovery endpoints.
    pub requests: Client,
    /// Whose turn it is to be recovered. What an answer brings waits in memory until it is in the index, so this bounds what all
    /// of them hold together.
    pub turns: Turns,
}

/// One rank.
#[derive(Clone, Debug)]
pub struct FollowSpec {
    /// Whose events count, and where they go.
    pub feed: PlaneConfig,
    /// What its queries may spend.
    pub options: FollowOptions,
}

/// What one rank's queries may spend beyond its feed's limits.
#[derive(Clone, Debug)]
pub struct FollowOptions {
    /// Most bytes of one answer, over all its pages (1 GiB).
    pub max_answer_bytes: u64,
    /// How long an answer that has begun is kept waiting for its turn (10 s); after that it is given up and asked for again when
    /// its turn has come.
    pub wait_with_answer: Duration,
}

impl Default for FollowOptions {
    fn default() -> Self {
        Self { max_answer_bytes: 1 << 30, wait_with_answer: Duration::from_secs(10) }
    }
}

/// One publisher of the rank, as discovery has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceSpec {
    /// One incarnation: a restarted publisher has another.
    pub publisher_id: u64,
    /// Where it publishes; `None` while that is not known.
    pub channel: Option<EventChannel>,
    /// Who answers for what was missed; `None` for a publisher that is live only.
    pub recovery: Option<Endpoint>,
}

/// The state of the rank's subscriptions, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// Nothing has happened yet.
    Starting,
    /// At least one publisher is subscribed to.
    Up,
    /// None is; every one that is known is being tried.
    Down {
        /// Why.
        reason: String,
    },
}

/// A rank that is followed. Dropping it stops its task soon and retracts the rank's blocks; [`stop`](Self::stop) waits.
#[derive(Debug)]
pub struct Follower {
    status: Arc<Status>,
    shared: Arc<Shared>,
    sources: watch::Sender<Vec<SourceSpec>>,
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
    malformed: AtomicU64,
    demands: Demands,
}

/// Answered when a reset is done.
type Reset = oneshot::Sender<()>;

/// What a follower's task is told from outside.
#[derive(Debug)]
struct Commands {
    sources: watch::Receiver<Vec<SourceSpec>>,
    observations: mpsc::Receiver<Observation>,
    resets: mpsc::Receiver<Reset>,
}

/// Starts to follow a rank on `runtime`; its publishers are told by [`Follower::set_sources`]. Its blocks go to the index of its
/// model in `catalog`.
pub fn spawn(runtime: &Handle, spec: FollowSpec, plane: Arc<PlaneClient>, catalog: Arc<Catalog>) -> Follower {
    let feed = PlaneFeed::new(spec.feed.clone(), catalog);
    let status = feed.status();
    let demands = Demands::new(RankRange { start: spec.feed.dp_rank, size: 1 });
    let shared = Arc::new(Shared {
        link: Mutex::new(Link::Starting),
        observations_dropped: AtomicU64::new(0),
        malformed: AtomicU64::new(0),
        demands,
    });
    let (sources, named) = watch::channel(Vec::new());
    let (observations, observed) = mpsc::channel(MAX_OBSERVATIONS);
    let (resets, asked) = mpsc::channel(MAX_RESETS);
    let commands = Commands { sources: named, observations: observed, resets: asked };
    let stop = CancellationToken::new();
    let run = Box::pin(driver::run(spec, feed, plane, (commands, shared.clone())));
    let over = CancellationToken::new();
    let (until, ended) = (stop.clone(), over.clone().drop_guard());
    runtime.spawn(async move {
        until.run_until_cancelled_owned(run).await;
        drop(ended);
    });
    Follower { status, shared, sources, observations, resets, stop: stop.drop_guard(), over }
}

impl Follower {
    /// All publishers that speak for the rank now, the oldest first. Those that were known keep their subscriptions. Never blocks.
    pub fn set_sources(&self, sources: Vec<SourceSpec>) {
        self.sources.send_if_modified(|known| {
            let news = *known != sources;
            *known = sources;
            news
        });
    }

    /// Trust and counters, readable at any time.
    pub fn status(&self) -> Arc<Status> {
        self.status.clone()
    }

    /// The state of the subscriptions.
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

    /// Messages on the rank's channels that were none of its publishers', or unreadable.
    pub fn malformed(&self) -> u64 {
        self.shared.malformed.load(Ordering::Relaxed)
    }

    /// A request with this demand is about to be sent to the rank (rules 4 and 13). Never blocks and is never lost; the feed is
    /// told before any event that comes later.
    pub fn demand(&self, rank: u32, demand: Demand) {
        self.shared.demands.make(rank, demand);
    }

    /// A cache reset passed through us and succeeded (rule 5). Once this returns, none of the rank's blocks of before it is in the
    /// index.
    pub async fn reset(&self) {
        let (done, reset) = oneshot::channel();
        // Either fails only where the task is over, and then it has no blocks.
        if self.resets.send(done).await.is_ok() {
            let _ = reset.await;
        }
    }

    /// Ends the task; once this returns its subscriptions are closed and the rank's blocks are retracted.
    pub async fn stop(&self) {
        self.stop.token().cancel();
        self.over.cancelled().await;
    }
}
