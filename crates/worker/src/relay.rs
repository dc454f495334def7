//! [`Relay`]: reads an engine's raw event stream and feeds it to [`KvEventPublisher`]s.
//!
//! What each message is, what is missing and what an engine's restart means is [`feed::Feed`]'s to decide; what a publisher says of it is
//! [`KvEventPublisher`]'s. Nothing is decided here: changes are handed on, no faster than the publishers take them, so that a replay of
//! millions of blocks waits and nothing is dropped.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use feed::{FeedConfig, Limits, RankRange, Relayed, ReplayMode, Status};
use index::{BlockSize, Targets};
use parking_lot::Mutex;
use tokio::{sync::mpsc, task::JoinHandle};
use transport::{
    reins::{Link, Reins},
    stream::{self, EventSource, StreamOptions, StreamSpec},
    zmtp,
};

use crate::{intake::Taken, options::PublishError, publisher::KvEventPublisher};

/// Changes on their way from the stream to its publishers. A change is at most one event of an engine's message.
const CHANGES: usize = 256;
/// The relay waits for the publisher once 1/`AHEAD` of its queue is filled; the margin is there because `bytes` only estimates.
const AHEAD: usize = 4;

/// An engine's event socket.
#[derive(Clone, Debug)]
pub struct RelaySource {
    /// Names it in the log.
    pub label: String,
    /// Its live messages.
    pub events: EventSource,
    /// Its replay socket. Without one, what is missed stays missed.
    pub replay: Option<zmtp::Endpoint>,
    /// Prefix of the topics wanted; empty for all.
    pub topic: String,
    /// Tokens per block; events of others are left out.
    pub block_size: BlockSize,
    /// The ranks it may speak for.
    pub ranks: RankRange,
    /// The rank of batches that name none.
    pub socket_rank: u32,
    /// Adapter names by the engine's load number, for engines that tell only that.
    pub adapters: BTreeMap<i64, String>,
    /// What its sockets and replays may spend.
    pub options: StreamOptions,
}

impl RelaySource {
    /// One rank's socket, with all topics and no replay.
    pub fn new(label: impl Into<String>, events: EventSource, block_size: BlockSize, dp_rank: u32) -> Self {
        Self {
            label: label.into(),
            events,
            replay: None,
            topic: String::new(),
            block_size,
            ranks: RankRange { start: dp_rank, size: 1 },
            socket_rank: dp_rank,
            adapters: BTreeMap::new(),
            options: StreamOptions::default(),
        }
    }
}

/// What a relay could not pass on as it came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayCounters {
    /// Stores whose lists do not fit each other; each is a gap to consumers.
    pub refused: u64,
    /// Changes that a publisher's full queue dropped; each is a gap to consumers.
    pub dropped: u64,
}

/// A running relay. Dropping it ends it; what its publishers were told is published.
#[derive(Debug)]
pub struct Relay {
    stream: Reins,
    counters: Arc<Counters>,
    /// Taken by the stop.
    task: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Counters {
    refused: AtomicU64,
    dropped: AtomicU64,
}

impl Relay {
    /// Follows the engine on the current Tokio runtime and tells the publisher of each rank. Ranks without one are left out.
    pub fn start(source: RelaySource, publishers: BTreeMap<u32, Arc<KvEventPublisher>>) -> Self {
        let (to, changes) = mpsc::channel(CHANGES);
        let targets = Targets::new();
        let spec = StreamSpec {
            events: source.events,
            replay: source.replay,
            topic: source.topic,
            feed: FeedConfig {
                label: source.label.clone(),
                model: source.label.clone(),
                block_size: Some(source.block_size),
                ranks: source.ranks,
                socket_rank: source.socket_rank,
                // Nothing is indexed: they only count the ranks.
                targets: (0..source.ranks.size).map_while(|_| targets.allocate()).collect(),
                adapters: source.adapters,
                replay: ReplayMode::Unavailable,
                limits: Limits::default(),
            },
            options: source.options,
        };
        let counters = Arc::new(Counters::default());
        let stream = stream::relay(&tokio::runtime::Handle::current(), spec, to);
        let desk = Desk { label: source.label, publishers, counters: counters.clone(), ahead: BTreeMap::new() };
        let task = Mutex::new(Some(tokio::spawn(desk.run(changes))));
        Self { stream, counters, task }
    }

    /// Trust and counters of the engine's stream, by rank.
    pub fn status(&self) -> Arc<Status> {
        self.stream.status()
    }

    /// The state of the connection to the engine.
    pub fn link(&self) -> Link {
        self.stream.link()
    }

    /// What could not be passed on as it came.
    pub fn counters(&self) -> RelayCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RelayCounters { refused: read(&self.counters.refused), dropped: read(&self.counters.dropped) }
    }

    /// Ends it. Once this returns, the engine's socket is closed and the publishers are told all that was read.
    pub async fn stop(&self) {
        self.stream.stop().await;
        let task = self.task.lock().take();
        if let Some(task) = task {
            // It ends by itself, as nothing more comes; a panic has been told already.
            let _ = task.await;
        }
    }
}

struct Desk {
    label: String,
    publishers: BTreeMap<u32, Arc<KvEventPublisher>>,
    counters: Arc<Counters>,
    /// Bytes each publisher was given since it was last waited for.
    ahead: BTreeMap<u32, usize>,
}

impl Desk {
    async fn run(mut self, mut changes: mpsc::Receiver<(u32, Relayed)>) {
        while let Some((rank, change)) = changes.recv().await {
            let Some(publisher) = self.publishers.get(&rank) else { continue };
            let ahead = self.ahead.entry(rank).or_default();
            *ahead += bytes(&change);
            if *ahead > publisher.queue_bytes() / AHEAD {
                *ahead = bytes(&change);
                if publisher.flush().await.is_err() {
                    return;
                }
            }
            match tell(publisher, change) {
                Ok(Taken::Queued) => {}
                Ok(Taken::Dropped) => drop(self.counters.dropped.fetch_add(1, Ordering::Relaxed)),
                Err(PublishError::Call(error)) => {
                    if self.counters.refused.fetch_add(1, Ordering::Relaxed) == 0 {
                        tracing::warn!(stream = %self.label, rank, %error, "a store of the engine cannot be published; further ones are counted");
                    }
                    if publisher.publish_missed().is_err() {
                        return;
                    }
                }
                Err(PublishError::Closed) => return,
            }
        }
    }
}

fn tell(publisher: &KvEventPublisher, change: Relayed) -> Result<Taken, PublishError> {
    match change {
        Relayed::Stored(call) => publisher.publish_stored(call),
        Relayed::Removed { hashes, tier } => publisher.publish_removed_from(&hashes, tier),
        Relayed::Cleared => publisher.publish_cleared(),
        Relayed::Missed => publisher.publish_missed().map(|()| Taken::Queued),
    }
}

/// What a change takes in a publisher's queue, about.
fn bytes(change: &Relayed) -> usize {
    const ENTRY: usize = 256;
    match change {
        Relayed::Stored(call) => ENTRY + 4 * (call.token_ids.len() + call.num_block_tokens.len()) + 64 * call.block_hashes.len(),
        Relayed::Removed { hashes, .. } => ENTRY + 8 * hashes.len(),
        Relayed::Cleared | Relayed::Missed => ENTRY,
    }
}
