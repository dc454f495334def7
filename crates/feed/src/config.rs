//! What a feed is told once: whose stream it is, and the bounds it keeps.

use std::{collections::BTreeMap, time::Duration};

use index::{BlockSize, Target};

/// One publisher's stream.
#[derive(Clone, Debug)]
pub struct FeedConfig {
    /// Names the stream in the log: the worker and its socket.
    pub label: String,
    /// The model whose index the stream fills.
    pub model: String,
    /// Tokens per block if the operator or the engine said so; else it is adopted from the first event that tells.
    pub block_size: Option<BlockSize>,
    /// The ranks this socket may speak for.
    pub ranks: RankRange,
    /// The rank of batches that name none, or one outside of `ranks`.
    pub socket_rank: u32,
    /// The targets of `ranks`, in their order; a rank without one is treated as outside of the range.
    pub targets: Vec<Target>,
    /// Adapter names by the engine's load number, for engines whose events have only the number (rule 13).
    pub adapters: BTreeMap<i64, String>,
    /// Whether the publisher answers replay requests.
    pub replay: ReplayMode,
    /// Bounds in bytes, time and number.
    pub limits: Limits,
}

/// Consecutive data-parallel ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankRange {
    /// The first rank.
    pub start: u32,
    /// How many.
    pub size: u32,
}

impl RankRange {
    /// Where `rank` stands in the range, from 0; `None` outside of it.
    pub fn position(self, rank: u32) -> Option<usize> {
        let position = rank.checked_sub(self.start)?;
        (position < self.size).then_some(position as usize)
    }
}

/// Whether the publisher has a replay socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayMode {
    /// None is known: what is missed stays missed until a clear or a restart.
    Unavailable,
    /// A [`crate::Replay`] that the feed returns can be carried out.
    Available,
}

/// The bounds of one feed (rule 16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of live messages held while a replay is pending; those beyond are dropped, counted and asked for again.
    pub held_bytes: usize,
    /// A replay that brings nothing for so long is [`crate::ReplayEnd::Silent`]. The caller, who reads the socket, keeps
    /// this time.
    pub replay_silence: Duration,
    /// The longest a single replay may take, however steadily it comes; the wait for its turn is not part of it.
    pub replay_total: Duration,
    /// Wait after the first replay that failed; doubled after each further one.
    pub retry_first: Duration,
    /// The longest wait between two tries.
    pub retry_longest: Duration,
    /// Tries by time alone after a failure. A reconnect begins anew.
    pub retries: u32,
    /// Requests more within one recovery when a replay has holes or stops short.
    pub requests: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            held_bytes: 64 << 20,
            replay_silence: Duration::from_millis(500),
            replay_total: Duration::from_secs(60),
            retry_first: Duration::from_secs(1),
            retry_longest: Duration::from_secs(30),
            retries: 8,
            // A publisher's replay socket drops beyond 1,000 queued messages, and buffers hold 10,000: one request for
            // each thousand and some spare.
            requests: 16,
        }
    }
}
