//! The publishing side of one (worker, rank): from an engine's calls to numbered events, and what answers those who missed some.
//!
//! [`PublisherState`] counts copies, so that what it publishes is a set (rule 4); numbers events from 1; keeps the last ones in
//! a ring; and holds the published set itself, for dumps, overlap queries and the digest that consumers are compared by.
//! Everything a consumer can learn from it is one fold of one stream: a ring answer, a dump with its tail and the live events
//! all end in the same set.
//!
//! Pure: no clock, no thread, no socket. Calls come from one owner; dumps are told from a [`Snapshot`] elsewhere.

mod answer;
mod call;
mod device;
mod hashing;
mod lower;
mod orphans;
mod partition;
mod ring;
mod shards;
mod snapshot;

use std::sync::{Arc, OnceLock, Weak};

use index::{BlockSize, LocalHash, Refusal, Seed};
use wire::router::{Domain, KvCacheEvent, KvData, RouterEvent, StoredBlocks, Tier};

pub use answer::{Items, Reply};
pub use call::{Call, CallError, CheckedStore, StoredCall};
use device::Device;
use lower::Lower;
pub use partition::partition;
use ring::Ring;
pub use snapshot::{Pages, Snapshot};

/// Events in one message, at most.
pub const MESSAGE_EVENTS: usize = 128;
/// Blocks in one message, and in one event, at most.
pub const MESSAGE_BLOCKS: usize = 8192;
/// Blocks of one event that was made of several calls, at most.
pub const COALESCED_BLOCKS: usize = 128;
/// Blocks of one page of a dump, about.
pub const PAGE_BLOCKS: usize = 8192;

/// Whose events they are, and the bounds of what is remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublisherConfig {
    /// The worker.
    pub worker_id: u64,
    /// Its data-parallel rank.
    pub dp_rank: u32,
    /// Tokens per block.
    pub block_size: BlockSize,
    /// Events kept for those who missed some.
    pub ring_events: usize,
    /// Bytes of those events, whichever bound is met first.
    pub ring_bytes: usize,
    /// Whether there is a ring and an index to answer from. Without them the publisher is live only.
    pub local_indexer: bool,
}

impl PublisherConfig {
    /// With the default bounds: 100,000 events, 64 MiB.
    pub fn new(worker_id: u64, dp_rank: u32, block_size: BlockSize) -> Self {
        Self { worker_id, dp_rank, block_size, ring_events: 100_000, ring_bytes: 64 << 20, local_indexer: true }
    }
}

/// What happened that nobody was told of as an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublisherCounters {
    /// Event ids skipped on purpose.
    pub missed: u64,
    /// Removals of blocks that were not held.
    pub unknown_removals: u64,
    /// Stores kept aside now because their parents are not held.
    pub orphans: usize,
    /// Such stores given up, oldest first, because there was no room.
    pub orphans_dropped: u64,
}

/// The publishing side of one (worker, rank).
#[derive(Debug)]
pub struct PublisherState {
    config: PublisherConfig,
    device: Device,
    /// Of the host's memory, disks, and beyond.
    lower: [Lower; 3],
    ring: Ring,
    /// The id of the next event.
    next_id: u64,
    /// The id of the last event that was published; 0 before the first.
    last_id: u64,
    missed: u64,
    /// Something was missed since the last clear.
    lacking: bool,
    /// Counts what makes older snapshots useless.
    epoch: u64,
    /// The last snapshot, while anyone tells it.
    snapshot: Weak<Snapshot>,
}

impl PublisherState {
    /// Nothing is held, and the first event will be number 1.
    pub fn new(config: PublisherConfig) -> Self {
        Self {
            device: Device::new(config.block_size, config.local_indexer),
            lower: Default::default(),
            ring: Ring::new(config.ring_events, config.ring_bytes),
            next_id: 1,
            last_id: 0,
            missed: 0,
            lacking: false,
            epoch: 0,
            snapshot: Weak::new(),
            config,
        }
    }

    /// Whose events they are, and the bounds.
    pub fn config(&self) -> &PublisherConfig {
        &self.config
    }

    /// Blocks were stored: checks the call and returns the events to publish, none if the set is as before.
    ///
    /// A store whose parent is not held is kept aside and comes out behind its parent.
    pub fn stored(&mut self, call: &StoredCall) -> Result<Vec<RouterEvent>, CallError> {
        let checked = call.clone().checked(self.config.block_size)?;
        self.apply(&Call::Stored(checked))
    }

    /// One copy of each block is gone; returns the event to publish if any of them was the last one.
    pub fn removed(&mut self, hashes: &[u64], tier: Tier) -> Vec<RouterEvent> {
        // Removals are never refused.
        self.apply(&Call::Removed { hashes: hashes.to_vec(), tier }).unwrap_or_default()
    }

    /// Every block of every tier is gone.
    pub fn cleared(&mut self) -> RouterEvent {
        self.device.clear();
        self.lower.iter_mut().for_each(Lower::clear);
        self.lacking = false;
        self.epoch += 1;
        self.publish(Tier::Device, KvData::Cleared)
    }

    /// A checked call. Refused only for want of room, and nothing is changed then.
    pub fn apply(&mut self, call: &Call) -> Result<Vec<RouterEvent>, CallError> {
        let mut changes = Vec::new();
        let tier = match call {
            Call::Stored(store) => {
                self.store(store, &mut changes).map_err(CallError::Full)?;
                store.call().tier
            }
            Call::Removed { hashes, tier } => {
                match lower(*tier) {
                    None => self.device.remove(hashes, &mut changes),
                    Some(at) => self.lower[at].remove(hashes, &mut changes),
                }
                *tier
            }
            Call::Cleared => return Ok(vec![self.cleared()]),
        };
        let parts = changes.into_iter().flat_map(split);
        Ok(parts.map(|data| self.publish(tier, data)).collect())
    }

    fn store(&mut self, store: &CheckedStore, out: &mut Vec<KvData>) -> Result<(), Refusal> {
        let call = store.call();
        let Some(at) = lower(call.tier) else { return self.device.store(store, out) };
        let named = || Seed::new(call.lora_name.as_deref(), call.cache_salt.as_deref());
        let of_parent = |parent| self.lower[at].seed_of(parent).or_else(|| self.device.seed_of(parent));
        let seed = call.parent_hash.and_then(of_parent).unwrap_or_else(named);
        self.lower[at].store(call, self.config.block_size, seed, out);
        Ok(())
    }

    /// Something was lost before it came here: skips an id, so that consumers see that something is missing. Those who ask for
    /// everything are told so until the next clear.
    pub fn missed(&mut self) {
        self.lacking = true;
        self.next_id += 1;
        self.missed += 1;
        self.epoch += 1;
    }

    /// An event that changes nothing: whoever missed the last ones sees by its id that something is missing.
    pub fn beacon(&mut self) -> RouterEvent {
        self.publish(Tier::Device, KvData::Removed(Vec::new()))
    }

    fn publish(&mut self, tier: Tier, data: KvData) -> RouterEvent {
        let event = RouterEvent {
            worker_id: self.config.worker_id,
            storage_tier: tier,
            domain: Domain::Worker,
            event: KvCacheEvent { event_id: self.next_id, data, dp_rank: self.config.dp_rank },
            state_source: None,
            session_id: None,
        };
        self.last_id = self.next_id;
        self.next_id += 1;
        if self.config.local_indexer {
            self.ring.push(Arc::new(event.clone()));
        }
        event
    }

    /// The id of the last event published; 0 before the first.
    pub fn last_event_id(&self) -> u64 {
        self.last_id
    }

    /// [`index::digest_of`] the blocks held in the device tier; `None` when live only.
    pub fn digest(&self) -> Option<u64> {
        self.device.digest()
    }

    /// Distinct blocks held in the device tier; `None` when live only.
    pub fn blocks(&self) -> Option<usize> {
        self.device.blocks()
    }

    /// Names held, over all tiers.
    pub fn names(&self) -> usize {
        self.device.names() + self.lower.iter().map(Lower::names).sum::<usize>()
    }

    /// Leading blocks of `chain` held in the device tier; `None` when live only.
    pub fn find_matches(&self, chain: &[LocalHash]) -> Option<u32> {
        self.device.find_matches(chain)
    }

    /// Events kept for those who missed some, and about how many bytes they take.
    pub fn ring_size(&self) -> (usize, usize) {
        (self.ring.len(), self.ring.bytes())
    }

    /// What happened that nobody was told of as an event.
    pub fn counters(&self) -> PublisherCounters {
        let orphans = self.device.orphans();
        PublisherCounters {
            missed: self.missed,
            unknown_removals: self.device.unknown_removals + self.lower.iter().map(|lower| lower.unknown_removals).sum::<u64>(),
            orphans: orphans.len(),
            orphans_dropped: orphans.dropped(),
        }
    }

    /// A copy of everything held now. Those who ask while one is being told share it, with the events since then as its tail,
    /// unless that is too long.
    fn snapshot(&mut self) -> Option<(Arc<Snapshot>, Vec<Arc<RouterEvent>>)> {
        if let Some(snapshot) = self.snapshot.upgrade()
            && snapshot.epoch == self.epoch
        {
            let next = snapshot.last_event_id + 1;
            let whole = snapshot.last_event_id == self.last_id || self.ring.oldest().is_some_and(|oldest| oldest <= next);
            if whole && self.ring.count_from(next) <= TAIL_EVENTS {
                return Some((snapshot, self.ring.from(next)));
            }
        }
        let (target, device, names) = self.device.cut()?;
        let tiers = [Tier::HostPinned, Tier::Disk, Tier::External];
        let snapshot = Arc::new(Snapshot {
            worker_id: self.config.worker_id,
            dp_rank: self.config.dp_rank,
            last_event_id: self.last_id,
            epoch: self.epoch,
            lacking: self.lacking,
            target,
            device,
            names,
            lower: tiers.into_iter().zip(self.lower.iter().map(Lower::cut)).filter(|(_, names)| names.len() > 0).collect(),
            told: OnceLock::new(),
        });
        self.snapshot = Arc::downgrade(&snapshot);
        Some((snapshot, Vec::new()))
    }
}

/// Events behind a shared snapshot; with more of them a new one is made.
const TAIL_EVENTS: usize = 4096;

/// Which of the lower tiers it is, if it is one.
fn lower(tier: Tier) -> Option<usize> {
    match tier {
        Tier::Device => None,
        Tier::HostPinned => Some(0),
        Tier::Disk => Some(1),
        Tier::External => Some(2),
    }
}

/// No event is larger than a message may be.
fn split(data: KvData) -> Vec<KvData> {
    match data {
        KvData::Stored(stored) if stored.blocks.len() > MESSAGE_BLOCKS => {
            let mut parent_hash = stored.parent_hash;
            let parts = stored.blocks.chunks(MESSAGE_BLOCKS).map(|blocks| {
                let parent_hash = std::mem::replace(&mut parent_hash, blocks.last().map(|block| block.block_hash));
                KvData::Stored(StoredBlocks { parent_hash, start_position: None, blocks: blocks.to_vec() })
            });
            parts.collect()
        }
        KvData::Removed(hashes) if hashes.len() > MESSAGE_BLOCKS => {
            hashes.chunks(MESSAGE_BLOCKS).map(|hashes| KvData::Removed(hashes.to_vec())).collect()
        }
        data @ (KvData::Stored(_) | KvData::Removed(_) | KvData::Cleared) => vec![data],
    }
}
