//! One (worker, rank) on the event plane, live: a task that owns the rank's [`PlaneFeed`], a subscription for each of its
//! publishers, and the recovery queries. It moves events, answers and time into the feed and carries out what the feed asks for;
//! every decision is the feed's.
//!
//! [`crate::stream`] does this for an engine's own sockets, and is held by the same [`Reins`]. One task per rank, on the runtime it is
//! given; between a subscription and the feed there is only the subscription's own bounded queue. Index work goes in steps: live events
//! in steps of some 2,048 blocks. A step of a dump is larger, 4,096 blocks or the comparison of all it names, and on a runtime of
//! several threads the other tasks of its thread go on elsewhere meanwhile.

mod driver;
mod query;
mod sources;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use feed::RankRange;
use feed::plane::{PlaneConfig, PlaneFeed};
use index::Catalog;
use tokio::runtime::Handle;
use tokio::sync::watch;
use wire::discovery::{Endpoint, EventChannel};

use crate::plane::Subscriptions;
use crate::reins::{self, Reins, Told};
use crate::request::Client;
use crate::stream::Turns;

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
    /// Queries that come of a new connection are spread over so long (100 ms): a server that is back connects everybody at once.
    pub spread: Duration,
}

impl Default for FollowOptions {
    fn default() -> Self {
        Self { max_answer_bytes: 1 << 30, wait_with_answer: Duration::from_secs(10), spread: Duration::from_millis(100) }
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

/// A rank that is followed. Dropping it stops its task soon and retracts the rank's blocks.
#[derive(Debug)]
pub struct Follower {
    reins: Reins,
    sources: watch::Sender<Vec<SourceSpec>>,
    malformed: Arc<AtomicU64>,
}

/// What a follower's task is told from outside, and whom it tells.
#[derive(Debug)]
struct Outside {
    told: Told,
    sources: watch::Receiver<Vec<SourceSpec>>,
    malformed: Arc<AtomicU64>,
}

/// Starts to follow a rank on `runtime`; its publishers are told by [`Follower::set_sources`]. Its blocks go to the index of its
/// model in `catalog`.
pub fn spawn(runtime: &Handle, spec: FollowSpec, plane: Arc<PlaneClient>, catalog: Arc<Catalog>) -> Follower {
    let feed = PlaneFeed::new(spec.feed.clone(), catalog);
    let (sources, named) = watch::channel(Vec::new());
    let malformed = Arc::new(AtomicU64::new(0));
    let ranks = RankRange { start: spec.feed.dp_rank, size: 1 };
    let reins = reins::start(runtime, feed.status(), ranks, |told| {
        let outside = Outside { told, sources: named, malformed: malformed.clone() };
        driver::run(spec, feed, plane, outside)
    });
    Follower { reins, sources, malformed }
}

impl Follower {
    /// Its status, and what it is told beside its publishers.
    pub fn reins(&self) -> &Reins {
        &self.reins
    }

    /// All publishers that speak for the rank now, the oldest first. Those that were known keep their subscriptions. Never blocks.
    pub fn set_sources(&self, sources: Vec<SourceSpec>) {
        self.sources.send_if_modified(|known| {
            let news = *known != sources;
            *known = sources;
            news
        });
    }

    /// Messages on the rank's channels that were none of its publishers', or unreadable.
    pub fn malformed(&self) -> u64 {
        self.malformed.load(Ordering::Relaxed)
    }
}
