//! What publishers tell routers: [`RouterEvent`]s, and lists of them as the payload of the topic `kv-events`.
//!
//! Unlike an engine's raw events these are numbered one by one, name blocks by their local hash (`tokens_hash`) beside the engine's
//! own (`block_hash`), and are sets: copies have been counted by the publisher (rule 4). On the wire they are MessagePack maps.

mod decode;
mod encode;
mod fault;
mod json;

pub use decode::decode_events;
pub use encode::encode_events;
pub use fault::{RouterEventError, RouterFault};
pub use json::JsonError;

pub(crate) use decode::event as decode_event;
pub(crate) use encode::event as encode_event;

/// One change of one worker's cache, as a publisher tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterEvent {
    /// The instance whose cache it is.
    pub worker_id: u64,
    /// Where the blocks are.
    pub storage_tier: Tier,
    /// Whose they are.
    pub domain: Domain,
    /// What happened.
    pub event: KvCacheEvent,
    /// An agent that speaks for a shared cache; absent from workers' own events.
    pub state_source: Option<String>,
    /// The session the blocks were computed for, where the engine says it.
    pub session_id: Option<String>,
}

/// A tier of storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tier {
    /// The accelerator's memory.
    #[default]
    Device,
    /// The host's memory.
    HostPinned,
    /// Disks.
    Disk,
    /// Storage beyond the host.
    External,
}

impl Tier {
    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::HostPinned => "host_pinned",
            Self::Disk => "disk",
            Self::External => "external",
        }
    }

    fn of_name(name: &[u8]) -> Option<Self> {
        [Self::Device, Self::HostPinned, Self::Disk, Self::External].into_iter().find(|tier| tier.name().as_bytes() == name)
    }
}

/// Whose blocks an event speaks of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Domain {
    /// Not said, as by publishers before there were domains: the worker's. A `Cleared` then means all domains.
    #[default]
    Legacy,
    /// The worker's own.
    Worker,
    /// A cache that outlives workers.
    CacheOwner,
    /// A domain not known here: the event is to be counted and skipped. Empty for one that is not even a string.
    Unknown(String),
}

/// A numbered change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvCacheEvent {
    /// From 1 per publisher, one more for each event. In a dump the numbers mean nothing.
    pub event_id: u64,
    /// What changed.
    pub data: KvData,
    /// The data-parallel rank.
    pub dp_rank: u32,
}

/// What changed in a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvData {
    /// Blocks are held from now on.
    Stored(StoredBlocks),
    /// The blocks of these engine hashes no longer are.
    Removed(Vec<u64>),
    /// No block of the worker's rank is held any more, in any tier.
    Cleared,
}

/// A run of blocks that follow each other in one sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredBlocks {
    /// The engine's hash of the block before the first; `None` at the start of a sequence.
    pub parent_hash: Option<u64>,
    /// Where in its sequence the first block is, if the publisher says.
    pub start_position: Option<u32>,
    /// The blocks.
    pub blocks: Vec<StoredBlock>,
}

/// One block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBlock {
    /// The engine's own hash, opaque.
    pub block_hash: u64,
    /// The local hash (rule 1).
    pub tokens_hash: u64,
    /// Media in the block; the local hash covers them.
    pub media: Option<MediaInfo>,
}

/// The media of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MediaInfo {
    /// Each object in it.
    pub objects: Vec<MediaObject>,
}

/// One object, such as an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MediaObject {
    /// The hash of its content.
    pub hash: u64,
    /// Where its tokens are in the block, from inclusive to exclusive.
    pub offsets: Vec<(u64, u64)>,
}
