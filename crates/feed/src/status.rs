//! What a feed shows to others: counters and trust, read at any time from any thread.

use std::sync::Arc;

use index::Target;
use parking_lot::Mutex;
use wire::{Carries, Naming};

use crate::{demand::Demand, trust::Trust};

/// Shared with readers; the feed writes it after each call, ranks before the stream: whoever reads the stream first sees
/// ranks that are not older. A rank's blocks, its digest and the number they belong to are of one moment. Stream counters are of the socket, rank counters of one target.
#[derive(Debug)]
pub struct Status {
    /// Held for one copy.
    stream: Mutex<StreamStatus>,
    /// In the order of the configured ranks; each held for one copy.
    ranks: Vec<Mutex<RankStatus>>,
}

impl Status {
    pub(crate) fn new(ranks: Vec<RankStatus>) -> Self {
        Self { stream: Mutex::default(), ranks: ranks.into_iter().map(Mutex::new).collect() }
    }

    /// The socket's counters.
    pub fn stream(&self) -> StreamStatus {
        self.stream.lock().clone()
    }

    /// Each rank's state, in rank order.
    pub fn ranks(&self) -> Vec<RankStatus> {
        self.ranks.iter().map(|rank| rank.lock().clone()).collect()
    }

    /// One rank's state.
    pub fn rank(&self, rank: u32) -> Option<RankStatus> {
        self.ranks.iter().map(Mutex::lock).find(|status| status.rank == rank).map(|status| status.clone())
    }

    pub(crate) fn publish(&self, stream: &StreamStatus) {
        self.stream.lock().clone_from(stream);
    }

    pub(crate) fn publish_rank(&self, position: usize, status: &RankStatus) {
        if let Some(shown) = self.ranks.get(position) {
            shown.lock().clone_from(status);
        }
    }
}

/// Counters of one publisher's socket. `gaps` is `replayed + rebuilt + degraded_gaps`, and one more while a gap is open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamStatus {
    /// Connected now.
    pub connected: bool,
    /// A replay was asked for and has not ended.
    pub replay_pending: bool,
    /// The last message folded in; `None` before the first of this engine life.
    pub last_seq: Option<u64>,
    /// Messages folded in, live or replayed.
    pub messages: u64,
    /// Stretches of the stream that were found missing.
    pub gaps: u64,
    /// Gaps that a replay filled.
    pub replayed: u64,
    /// Gaps that ended in a complete replay from the start of the engine's life.
    pub rebuilt: u64,
    /// Gaps that could not be filled.
    pub degraded_gaps: u64,
    /// Engine restarts seen.
    pub restarts: u64,
    /// Messages that came twice, byte for byte.
    pub duplicates: u64,
    /// ZMQ messages that were no numbered batch.
    pub malformed: u64,
    /// Batches that could not be decoded.
    pub undecodable: u64,
    /// Replays asked for.
    pub replay_requests: u64,
    /// Replays that had to wait for those of other streams before they were asked for.
    pub replay_waits: u64,
    /// Replays that stayed unanswered, broke off, or brought nothing of use.
    pub replay_failures: u64,
    /// Bytes of live messages held at the moment.
    pub held_bytes: usize,
    /// Live messages dropped for lack of room while a replay was pending.
    pub held_overflow: u64,
    /// Live messages the transport said it had dropped.
    pub dropped: u64,
    /// Complete states of more than no blocks that were taken over (event plane only).
    pub dumps: u64,
    /// Events of publishers that do not speak for the rank, or of one that a newer one has replaced (event plane only).
    pub strangers: u64,
}

/// State and counters of one target.
#[derive(Clone, Debug, PartialEq)]
pub struct RankStatus {
    /// The data-parallel rank.
    pub rank: u32,
    /// The target the rank fills.
    pub target: Target,
    /// How far to believe it.
    pub trust: Trust,
    /// Why it is not exact; for an exact target empty, or what its answers contradict.
    pub reason: Arc<str>,
    /// How often `trust` changed.
    pub trust_changes: u64,
    /// Tokens per block, once known.
    pub block_size: Option<u32>,
    /// The engine hashes each block with one token of the next, as SGLang's EAGLE trees do: prompts must be hashed so too.
    pub eagle: bool,
    /// What the form of its stores can say of blocks' keys: the most of any in this engine life, `None` before the first.
    pub carries: Option<Carries>,
    /// The stream's [`StreamStatus::last_seq`] when this was written: what it says of blocks is up to there.
    pub last_seq: Option<u64>,
    /// Blocks in the device lane.
    pub blocks: usize,
    /// [`index::digest_of`] the blocks in the device lane; `None` while a publisher's complete state is on its way into it, which is
    /// of no event.
    pub digest: Option<u64>,
    /// Blocks in the host lane.
    pub host_blocks: usize,
    /// Blocks in the disk lane.
    pub disk_blocks: usize,
    /// The engine's clock in its last batch, in seconds since the epoch; the lag is the reader's clock minus this.
    pub last_timestamp: Option<f64>,
    /// Store events applied.
    pub stores: u64,
    /// Removal events applied.
    pub removals: u64,
    /// `AllBlocksCleared` events.
    pub clears: u64,
    /// Cache resets that passed through us.
    pub resets: u64,
    /// How often the engine's cache was emptied as far as is known: restarts, clears and resets. What was predicted or
    /// confirmed before the last one is void, so whoever holds [`crate::Leases`] for the target clears them when this grows.
    pub emptied: u64,
    /// Stores waiting for their parents, all lanes.
    pub orphans_parked: usize,
    /// Blocks of those stores.
    pub orphan_blocks: usize,
    /// Stores that ever had to wait.
    pub orphans_total: u64,
    /// Events inside readable batches that could not be decoded.
    pub event_errors: u64,
    /// Stores the index refused.
    pub refused: u64,
    /// Hashes removed that were not held.
    pub unknown_removals: u64,
    /// Batches that named a rank outside of the configured range.
    pub rank_mismatches: u64,
    /// Events left out on purpose.
    pub ignored: IgnoredCounts,
    /// The self-check (rule 11).
    pub accuracy: Accuracy,
}

impl RankStatus {
    pub(crate) fn new(rank: u32, target: Target) -> Self {
        Self {
            rank,
            target,
            trust: Trust::default(),
            reason: Arc::from("nothing heard yet"),
            trust_changes: 0,
            block_size: None,
            eagle: false,
            carries: None,
            last_seq: None,
            blocks: 0,
            digest: Some(0),
            host_blocks: 0,
            disk_blocks: 0,
            last_timestamp: None,
            stores: 0,
            removals: 0,
            clears: 0,
            resets: 0,
            emptied: 0,
            orphans_parked: 0,
            orphan_blocks: 0,
            orphans_total: 0,
            event_errors: 0,
            refused: 0,
            unknown_removals: 0,
            rank_mismatches: 0,
            ignored: IgnoredCounts::default(),
            accuracy: Accuracy::default(),
        }
    }
}

impl RankStatus {
    /// Whether its events can name the adapter of blocks; `None` until a store was seen.
    pub fn carries_adapter(&self) -> Option<bool> {
        self.carries.map(|carries| carries.adapter == Naming::Names)
    }

    /// Whether its events can name the cache salt of blocks; `None` until a store was seen.
    pub fn carries_salt(&self) -> Option<bool> {
        self.carries.map(|carries| carries.salt)
    }

    /// Whether its events do not tell the blocks of such a request from others (rule 13), so that its trust is no more than
    /// [`Trust::Degraded`] to that request. Full reports change nothing about what is held.
    pub fn hides(&self, demand: Demand) -> bool {
        demand != Demand::FullReports && demand.untold_by(self.carries).is_some()
    }

    /// Takes over what the form of a store can say.
    pub(crate) fn learn(&mut self, seen: Carries) {
        let known = self.carries.get_or_insert(seen);
        known.adapter = known.adapter.max(seen.adapter);
        known.salt |= seen.salt;
    }
}

/// How what was predicted compares with what the engine's answers reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accuracy {
    /// Answers compared.
    pub observations: u64,
    /// As predicted.
    pub equal: u64,
    /// Predicted more than the engine had.
    pub over: u64,
    /// Predicted less.
    pub under: u64,
    /// Blocks retracted because the engine did not have them.
    pub retracted_blocks: u64,
    /// Blocks of waiting stores that a confirmation attached.
    pub adopted_blocks: u64,
}

/// Why an event is left out of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Ignored {
    /// In somebody else's memory.
    RemoteLocality,
    /// In a store outside of the worker.
    ExternalMedium,
    /// In a medium we have no lane for.
    UnknownMedium,
    /// Of a group that does not attend to every earlier token.
    OtherAttention,
    /// Of a group whose kind no store has named.
    UnlearnedGroup,
    /// Without tokens or hashes, as offloading connectors send.
    Placeholder,
    /// A partly filled block; its full form follows under another hash.
    PartialBlock,
    /// Of another block size than the stream's.
    BlockSize,
    /// Of a type we do not know.
    UnknownType,
    /// In a cache that is not the worker's own.
    OtherDomain,
}

impl Ignored {
    /// Every reason, in the order of the enum.
    pub const ALL: [Self; 10] = [
        Self::RemoteLocality,
        Self::ExternalMedium,
        Self::UnknownMedium,
        Self::OtherAttention,
        Self::UnlearnedGroup,
        Self::Placeholder,
        Self::PartialBlock,
        Self::BlockSize,
        Self::UnknownType,
        Self::OtherDomain,
    ];

    /// The word for it in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RemoteLocality => "remote_locality",
            Self::ExternalMedium => "external_medium",
            Self::UnknownMedium => "unknown_medium",
            Self::OtherAttention => "other_attention",
            Self::UnlearnedGroup => "unlearned_group",
            Self::Placeholder => "placeholder",
            Self::PartialBlock => "partial_block",
            Self::BlockSize => "block_size",
            Self::UnknownType => "unknown_type",
            Self::OtherDomain => "other_domain",
        }
    }
}

/// Events left out, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IgnoredCounts([u64; Ignored::ALL.len()]);

impl IgnoredCounts {
    /// How many for this reason.
    pub fn get(&self, reason: Ignored) -> u64 {
        self.0[reason as usize]
    }

    /// Each reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (Ignored, u64)> {
        Ignored::ALL.into_iter().zip(self.0)
    }

    /// For every reason together.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(crate) fn count(&mut self, reason: Ignored) {
        self.0[reason as usize] += 1;
    }
}
