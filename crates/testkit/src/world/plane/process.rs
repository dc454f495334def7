//! One engine process with its publisher: a true cache, kept as a plain set, and what is published of it.

use std::collections::{BTreeMap, BTreeSet};

use feed::publisher::{PublisherConfig, PublisherState, StoredCall};
use index::{BlockSize, digest_of};
use rand::{Rng, rngs::SmallRng, seq::IteratorRandom};
use wire::{
    recovery::{Item, Query},
    router::{RouterEvent, Tier},
};

use super::check::identity;
use crate::world::publisher::{ADAPTER, BLOCK_SIZE, Path, Root, SALT, evicted};

/// Distinct blocks at each position: few, so that prompts share prefixes.
const BREADTH: u8 = 3;
/// Longest prompt in blocks.
const DEPTH: usize = 6;
/// Blocks the cache holds before it evicts.
const CAPACITY: usize = 40;

/// Whose events they are.
pub(super) const WORKER: u64 = 0x77;
pub(super) const RANK: u32 = 3;

#[derive(Debug)]
pub(super) struct Process {
    pub(super) id: u64,
    pub(super) recoverable: bool,
    pub(super) is_alive: bool,
    pub(super) is_frozen: bool,
    publisher: PublisherState,
    /// Physical copies of each block.
    copies: BTreeMap<Path, u32>,
    /// How many blocks the cache held when an event was published, and their digest.
    pub(super) history: BTreeMap<u64, (usize, u64)>,
    digest: u64,
    /// Something was not published, or was made unreadable, since the last clear.
    pub(super) has_holes: bool,
    clear_pending: bool,
    pub(super) seen: BTreeSet<Path>,
}

impl Process {
    pub(super) fn new(rng: &mut SmallRng, recoverable: bool) -> Self {
        let size = BlockSize::new(BLOCK_SIZE).unwrap_or_else(|| unreachable!("a constant above zero"));
        let ring_events = [3, 8, 20, 1000][rng.random_range(0..4)];
        let config = PublisherConfig { ring_events, local_indexer: recoverable, ..PublisherConfig::new(WORKER, RANK, size) };
        Self {
            id: rng.random(),
            recoverable,
            is_alive: true,
            is_frozen: false,
            publisher: PublisherState::new(config),
            copies: BTreeMap::new(),
            history: BTreeMap::from([(0, (0, 0))]),
            digest: 0,
            has_holes: false,
            clear_pending: false,
            seen: BTreeSet::new(),
        }
    }

    /// What the cache holds.
    pub(super) fn held(&self) -> BTreeSet<Path> {
        self.copies.keys().cloned().collect()
    }

    /// Leading blocks of `path` in the cache.
    pub(super) fn overlap(&self, path: &Path) -> usize {
        (1..=path.blocks.len()).take_while(|blocks| self.copies.contains_key(&path.prefix(*blocks))).count()
    }

    /// What the engine does in one step, as published.
    pub(super) fn step(&mut self, rng: &mut SmallRng) -> Vec<RouterEvent> {
        let mut events = Vec::new();
        if std::mem::take(&mut self.clear_pending) {
            self.clear(&mut events);
        }
        for _ in 0..rng.random_range(1..4) {
            match rng.random_range(0..24) {
                0..13 => self.prompt(rng, &mut events),
                13..18 => self.evict(rng, &mut events),
                18..20 => self.store_again(rng, &mut events),
                20..22 => self.host(rng, &mut events),
                22 if rng.random_bool(0.2) => self.clear(&mut events),
                _ => {}
            }
        }
        events
    }

    /// The cache is emptied; the event comes with the next step.
    pub(super) fn reset(&mut self) {
        self.clear_pending = true;
    }

    /// Something never reached the publisher.
    pub(super) fn miss(&mut self) {
        self.publisher.missed();
        self.has_holes = true;
    }

    /// The publisher's own answer. It is small, so it has one page.
    pub(super) fn answer(&mut self, start_event_id: Option<u64>) -> Item {
        let query = Query { start_event_id, ..Query::everything(WORKER, RANK) };
        let mut items = self.publisher.reply(&query).into_items();
        match (items.next(), items.next()) {
            (Some(item), None) => item,
            (first, second) => unreachable!("one page, and not {first:?} and {second:?}"),
        }
    }

    /// Computes a prompt: what is not cached from its start is stored.
    fn prompt(&mut self, rng: &mut SmallRng, events: &mut Vec<RouterEvent>) {
        let root = [Root::Base, Root::Base, Root::Adapter, Root::Salted][rng.random_range(0..4)];
        let path = Path { root, blocks: (0..rng.random_range(1..=DEPTH)).map(|_| rng.random_range(0..BREADTH)).collect() };
        let cached = self.overlap(&path);
        self.store(&path, path.blocks.len() - cached, events);
        while self.copies.len() > CAPACITY {
            self.evict(rng, events);
        }
        self.seen.insert(path);
    }

    /// A second copy of the end of a prompt that is cached.
    fn store_again(&mut self, rng: &mut SmallRng, events: &mut Vec<RouterEvent>) {
        let Some(path) = self.copies.keys().choose(rng).cloned() else { return };
        if self.overlap(&path) == path.blocks.len() {
            self.store(&path, rng.random_range(1..=path.blocks.len()), events);
        }
    }

    /// One more copy of the last `blocks` blocks of `path`.
    fn store(&mut self, path: &Path, blocks: usize, events: &mut Vec<RouterEvent>) {
        if blocks == 0 {
            return;
        }
        let from = path.blocks.len() - blocks;
        for depth in from + 1..=path.blocks.len() {
            let prefix = path.prefix(depth);
            let fresh = digest_of(identity(&prefix));
            let count = self.copies.entry(prefix).or_default();
            *count += 1;
            if *count == 1 {
                self.digest = self.digest.wrapping_add(fresh);
            }
        }
        let call = StoredCall {
            token_ids: path.tokens(blocks),
            num_block_tokens: vec![BLOCK_SIZE; blocks],
            block_hashes: (from + 1..=path.blocks.len()).map(|depth| self.hash(&path.prefix(depth))).collect(),
            parent_hash: (from > 0).then(|| self.hash(&path.prefix(from))),
            lora_name: (path.root == Root::Adapter).then(|| ADAPTER.to_owned()),
            cache_salt: (path.root == Root::Salted).then(|| SALT.to_owned()),
            ..StoredCall::default()
        };
        let published = self.publisher.stored(&call).unwrap_or_else(|refused| panic!("the publisher refused {call:?}: {refused}"));
        self.note(published, events);
    }

    fn evict(&mut self, rng: &mut SmallRng, events: &mut Vec<RouterEvent>) {
        let Some((gone, left)) = evicted(&mut self.copies, rng) else { return };
        if left == 0 {
            self.digest = self.digest.wrapping_sub(digest_of(identity(&gone)));
        }
        let published = self.publisher.removed(&[self.hash(&gone)], Tier::Device);
        self.note(published, events);
    }

    /// A block comes to or leaves the host's memory, which is no business of the device's.
    fn host(&mut self, rng: &mut SmallRng, events: &mut Vec<RouterEvent>) {
        let Some(path) = self.copies.keys().choose(rng).cloned() else { return };
        let published = if rng.random_bool(0.5) {
            let path = path.prefix(1);
            let call = StoredCall {
                token_ids: path.tokens(1),
                num_block_tokens: vec![BLOCK_SIZE],
                block_hashes: vec![self.hash(&path)],
                tier: Tier::HostPinned,
                ..StoredCall::default()
            };
            self.publisher.stored(&call).unwrap_or_default()
        } else {
            self.publisher.removed(&[self.hash(&path)], Tier::HostPinned)
        };
        self.note(published, events);
    }

    fn clear(&mut self, events: &mut Vec<RouterEvent>) {
        self.copies.clear();
        self.digest = 0;
        self.has_holes = false;
        let cleared = self.publisher.cleared();
        self.note(vec![cleared], events);
    }

    fn note(&mut self, published: Vec<RouterEvent>, events: &mut Vec<RouterEvent>) {
        if let Some(last) = published.last() {
            self.history.insert(last.event.event_id, (self.copies.len(), self.digest));
        }
        events.extend(published);
    }

    /// The engine's own name for a block: another in each process.
    fn hash(&self, path: &Path) -> u64 {
        let start = self.id ^ (path.root as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        path.blocks.iter().fold(start, |hash, block| {
            let mixed = (hash ^ (u64::from(*block) + 1)).wrapping_mul(0xff51_afd7_ed55_8ccd);
            mixed ^ (mixed >> 29)
        })
    }
}
