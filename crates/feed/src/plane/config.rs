//! What the feed of one rank on the event plane is told once, and what it asks for.

use std::time::Duration;

use index::{BlockSize, Target};

/// One rank, whoever publishes for it.
#[derive(Clone, Debug)]
pub struct PlaneConfig {
    /// Names the rank's stream in the log.
    pub label: String,
    /// The model whose index the stream fills.
    pub model: String,
    /// Tokens per block, from the model's card: the events do not tell. Without it the target stays blind.
    pub block_size: Option<BlockSize>,
    /// Whose events count.
    pub worker_id: u64,
    /// Likewise.
    pub dp_rank: u32,
    /// The target they fill.
    pub target: Target,
    /// Bounds in bytes, time and number.
    pub limits: PlaneLimits,
}

/// The bounds of one rank's feed (rule 16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaneLimits {
    /// Bytes of events held back, over all publishers of the rank. Those beyond are dropped, counted and asked for again.
    pub held_bytes: usize,
    /// Publishers of one rank that are followed at once; of more the oldest are left out.
    pub publishers: usize,
    /// Blocks of a dump; a larger one is refused.
    pub dump_blocks: usize,
    /// A query that brings nothing for so long has failed.
    pub query_silence: Duration,
    /// The longest one query may take, however steadily its answer comes; the wait for its turn is not part of it.
    pub query_total: Duration,
    /// Wait after a query, doubled with each further one.
    pub pause_first: Duration,
    /// The longest wait after a query that was answered: a stream that loses all the time is asked for that often.
    pub pause_longest: Duration,
    /// After so long without a query the next one is asked at once, and waits begin anew.
    pub pause_reset: Duration,
    /// The longest wait after a query that failed. Tries never end.
    pub retry_longest: Duration,
    /// A stream that stood still for so long is asked whether there is more: the end of what was published may be lost.
    pub idle: Duration,
    /// The shortest time between two such questions.
    pub idle_again: Duration,
    /// How long the blocks of a publisher that is gone are kept for the next one to take over.
    pub linger: Duration,
}

impl Default for PlaneLimits {
    fn default() -> Self {
        Self {
            held_bytes: 64 << 20,
            publishers: 8,
            dump_blocks: 1 << 23,
            query_silence: Duration::from_secs(30),
            query_total: Duration::from_secs(300),
            pause_first: Duration::from_millis(200),
            pause_longest: Duration::from_secs(1),
            pause_reset: Duration::from_secs(5),
            retry_longest: Duration::from_secs(30),
            idle: Duration::from_secs(2),
            idle_again: Duration::from_secs(10),
            linger: Duration::from_secs(30),
        }
    }
}

/// A publisher that speaks for the rank, as discovery names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// One incarnation: a restarted publisher has another.
    pub publisher_id: u64,
    /// Whether it answers recovery queries.
    pub recoverable: bool,
}

/// Names one query; those of one feed are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueryId(pub u64);

/// Ask this publisher for everything from an event on, and feed the answer back with [`super::PlaneFeed::answered`] or
/// [`super::PlaneFeed::query_failed`]. One is pending per publisher; what comes of an abandoned one is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaneQuery {
    /// Names it.
    pub id: QueryId,
    /// Whom to ask.
    pub publisher_id: u64,
    /// The first event wanted; `None`: everything, as a dump.
    pub start_event_id: Option<u64>,
}
