//! Everything a publisher holds at one instant, told page by page off the publishing thread.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use index::{Dump, DumpEvent, EngineHash, Lane, LocalHash, Parent, Target};
use wire::router::{Domain, KvCacheEvent, KvData, RouterEvent, StoredBlock, StoredBlocks, Tier};

use super::{
    PAGE_BLOCKS,
    device::Held,
    lower::{self, Link},
    shards::Shards,
};

/// What a dump is told from. It shares memory with the publisher, which copies what it changes meanwhile.
#[derive(Debug)]
pub struct Snapshot {
    pub(super) worker_id: u64,
    pub(super) dp_rank: u32,
    pub(super) last_event_id: u64,
    /// A clear or a skipped id since then makes a new one necessary.
    pub(super) epoch: u64,
    /// Something that is not in it was missed; in its epoch that does not change.
    pub(super) lacking: bool,
    pub(super) target: Target,
    pub(super) device: Dump,
    pub(super) names: Shards<Held>,
    pub(super) lower: Vec<(Tier, Shards<Link>)>,
    /// Made by the first who tells it.
    pub(super) told: OnceLock<Told>,
}

/// A snapshot, ready to be told.
#[derive(Debug)]
pub(super) struct Told {
    device: Vec<DumpEvent>,
    /// Block to name, where they differ.
    names: HashMap<u64, u64>,
    /// Further names of a block.
    more_names: HashMap<u64, Vec<u64>>,
    lower: Vec<(Tier, StoredBlocks)>,
}

impl Snapshot {
    /// The last event that is in it.
    pub fn last_event_id(&self) -> u64 {
        self.last_event_id
    }

    /// Names it tells, over all tiers.
    pub fn names(&self) -> usize {
        self.names.len() + self.lower.iter().map(|(_, names)| names.len()).sum::<usize>()
    }

    /// The events that rebuild it, numbered from 0, in pages of about [`PAGE_BLOCKS`] blocks. Parents come before their
    /// children; blocks that are not held but have children are stored and, at the end, removed.
    pub fn pages(self: Arc<Self>) -> Pages {
        Pages { snapshot: self, device: 0, lower: 0, next_id: 0 }
    }

    fn told(&self) -> &Told {
        self.told.get_or_init(|| {
            let (mut names, mut more_names) = (HashMap::new(), HashMap::<u64, Vec<u64>>::new());
            let own = |identity| self.names.get(identity).is_some_and(|held| held.identity == identity);
            for (name, held) in self.names.iter().filter(|(name, held)| *name != held.identity) {
                if own(held.identity) || *names.entry(held.identity).or_insert(name) != name {
                    more_names.entry(held.identity).or_default().push(name);
                }
            }
            let lower = self.lower.iter();
            let lower = lower.flat_map(|(tier, names)| lower::runs(names, PAGE_BLOCKS).into_iter().map(|run| (*tier, run)));
            Told { device: self.device.events(self.target, Lane::Device), names, more_names, lower: lower.collect() }
        })
    }

    fn event(&self, event_id: u64, tier: Tier, data: KvData) -> RouterEvent {
        RouterEvent {
            worker_id: self.worker_id,
            storage_tier: tier,
            domain: Domain::Worker,
            event: KvCacheEvent { event_id, data, dp_rank: self.dp_rank },
            state_source: None,
            session_id: None,
        }
    }
}

impl Told {
    /// The name a block is told by. One that is not held has none of its own: its identity serves, or the next number that
    /// names nothing.
    fn name(&self, identity: u64, held: &Shards<Held>) -> u64 {
        if let Some(name) = self.names.get(&identity) {
            return *name;
        }
        let mut name = identity;
        while held.get(name).is_some_and(|held| held.identity != identity) {
            name = name.wrapping_add(1);
        }
        name
    }

    fn stored(&self, parent: &Parent, locals: &[LocalHash], hashes: &[EngineHash], held: &Shards<Held>) -> Vec<StoredBlocks> {
        let parent_hash = match parent {
            Parent::Root(_) => None,
            Parent::Block(identity) => Some(self.name(identity.0, held)),
        };
        let block = |name, local: &LocalHash| StoredBlock { block_hash: name, tokens_hash: local.0, media: None };
        let blocks: Vec<_> = hashes.iter().zip(locals).map(|(hash, local)| block(self.name(hash.0, held), local)).collect();
        let mut more = Vec::new();
        if !self.more_names.is_empty() {
            for (position, (identity, local)) in hashes.iter().zip(locals).enumerate() {
                let parent_hash = position.checked_sub(1).map_or(parent_hash, |before| Some(blocks[before].block_hash));
                let names = self.more_names.get(&identity.0).into_iter().flatten();
                more.extend(names.map(|name| StoredBlocks { parent_hash, start_position: None, blocks: vec![block(*name, local)] }));
            }
        }
        let mut stored = vec![StoredBlocks { parent_hash, start_position: None, blocks }];
        stored.append(&mut more);
        stored
    }
}

/// The pages of one [`Snapshot`]. The first takes longest: it makes what the others are told from.
#[derive(Debug)]
pub struct Pages {
    snapshot: Arc<Snapshot>,
    device: usize,
    lower: usize,
    next_id: u64,
}

impl Iterator for Pages {
    type Item = Vec<RouterEvent>;

    /// `None` after the last page; an empty snapshot has none.
    fn next(&mut self) -> Option<Vec<RouterEvent>> {
        let snapshot = self.snapshot.clone();
        let told = snapshot.told();
        let (mut page, mut blocks) = (Vec::new(), 0);
        while blocks < PAGE_BLOCKS {
            if let Some(event) = told.device.get(self.device) {
                self.device += 1;
                for data in device_data(told, event, &snapshot.names) {
                    blocks += data_blocks(&data);
                    self.push(&mut page, Tier::Device, data);
                }
            } else if let Some((tier, run)) = told.lower.get(self.lower) {
                self.lower += 1;
                blocks += run.blocks.len();
                self.push(&mut page, *tier, KvData::Stored(run.clone()));
            } else {
                break;
            }
        }
        (!page.is_empty()).then_some(page)
    }
}

impl Pages {
    fn push(&mut self, page: &mut Vec<RouterEvent>, tier: Tier, data: KvData) {
        page.push(self.snapshot.event(self.next_id, tier, data));
        self.next_id += 1;
    }
}

fn device_data(told: &Told, event: &DumpEvent, held: &Shards<Held>) -> Vec<KvData> {
    match event {
        DumpEvent::Stored { parent, locals, hashes } => told.stored(parent, locals, hashes, held).into_iter().map(KvData::Stored).collect(),
        DumpEvent::Removed { hashes } => {
            let names: Vec<_> = hashes.iter().map(|hash| told.name(hash.0, held)).collect();
            names.chunks(PAGE_BLOCKS).map(|names| KvData::Removed(names.to_vec())).collect()
        }
    }
}

/// Blocks that data speaks of.
pub(super) fn data_blocks(data: &KvData) -> usize {
    match data {
        KvData::Stored(stored) => stored.blocks.len(),
        KvData::Removed(hashes) => hashes.len(),
        KvData::Cleared => 0,
    }
}
