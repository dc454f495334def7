//! One publisher's stream, live: a task that owns the SUB socket, the [`Feed`] and its replays. It moves messages and
//! time into the feed and carries out what the feed asks for; every decision is the feed's.
//!
//! One task per publisher, on the runtime it is given: index work never runs where requests are served. Between the
//! socket and the feed there is only the socket's own bounded queue.

mod driver;
mod replay;
pub(crate) mod steps;
pub(crate) mod turns;

use std::sync::Arc;
use std::time::Duration;

use feed::{Feed, FeedConfig, Relayed, ReplayMode};
use index::Catalog;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::reins::{self, Reins};
use crate::zmtp::{self, Endpoint};

pub use turns::Turns;

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

impl StreamSpec {
    fn replay_mode(&self) -> ReplayMode {
        if self.replay.is_some() { ReplayMode::Available } else { ReplayMode::Unavailable }
    }
}

/// Starts to follow a publisher on `runtime`. Its blocks go to the index of its model in `catalog`.
pub fn spawn(runtime: &Handle, mut spec: StreamSpec, catalog: Arc<Catalog>) -> Reins {
    spec.feed.replay = spec.replay_mode();
    let feed = Feed::new(spec.feed.clone(), catalog);
    start(runtime, spec, feed, None)
}

/// Starts to follow a publisher on `runtime` and to pass on what it says, with its rank, instead of indexing it. While nobody takes it the
/// stream reads no further, and its socket's queue drops what does not fit, which is an ordinary gap.
pub fn relay(runtime: &Handle, mut spec: StreamSpec, to: mpsc::Sender<(u32, Relayed)>) -> Reins {
    spec.feed.replay = spec.replay_mode();
    let feed = Feed::new(spec.feed.clone(), Arc::default()).relaying();
    start(runtime, spec, feed, Some(to))
}

fn start(runtime: &Handle, spec: StreamSpec, feed: Feed, relay: Option<mpsc::Sender<(u32, Relayed)>>) -> Reins {
    reins::start(runtime, feed.status(), spec.feed.ranks, |told| driver::run(spec, feed, told, relay))
}
