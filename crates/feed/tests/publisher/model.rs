//! Plain models: what an engine's calls leave held, and what a consumer of events ends with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use feed::publisher::{PublisherConfig, PublisherState, StoredCall};
use index::{BlockSize, Blocks, Copies, EngineHash, KvIndexer, Lane, Limits, LocalHash, Parent, Seed, Stored, Target, Targets, Writer};
use wire::router::{KvData, RouterEvent, Tier};

/// Tokens per block in these tests.
pub(crate) const SIZE: u32 = 2;

pub(crate) fn block_size() -> BlockSize {
    BlockSize::new(SIZE).unwrap()
}

pub(crate) fn state() -> PublisherState {
    PublisherState::new(PublisherConfig::new(7, 1, block_size()))
}

/// A call for blocks of two tokens; a block's tokens follow from `tokens`, one number a block.
pub(crate) fn call(parent_hash: Option<u64>, blocks: &[(u64, u32)]) -> StoredCall {
    StoredCall {
        token_ids: blocks.iter().flat_map(|(_, token)| [*token, token + 1]).collect(),
        num_block_tokens: vec![SIZE; blocks.len()],
        block_hashes: blocks.iter().map(|(hash, _)| *hash).collect(),
        parent_hash,
        ..StoredCall::default()
    }
}

/// What an engine holds, by name: counts, and stores whose parents are not there yet.
#[derive(Default)]
pub(crate) struct Engine {
    counts: BTreeMap<u64, u32>,
    pending: Vec<(u64, Vec<(u64, bool)>)>,
}

impl Engine {
    pub(crate) fn store(&mut self, parent: Option<u64>, names: &[u64]) {
        match parent {
            Some(parent) if !self.counts.contains_key(&parent) => {
                self.pending.push((parent, names.iter().map(|name| (*name, true)).collect()));
            }
            Some(_) | None => self.add(names),
        }
        let mut gone = Vec::new();
        while let Some(at) = self.pending.iter().position(|(parent, _)| self.counts.contains_key(parent)) {
            let (_, names) = self.pending.remove(at);
            self.add(&names.iter().map(|(name, _)| *name).collect::<Vec<_>>());
            gone.extend(names.iter().filter(|(_, there)| !there).map(|(name, _)| *name));
        }
        gone.into_iter().for_each(|name| self.take(name));
    }

    pub(crate) fn remove(&mut self, name: u64) {
        let there = |(_, names): &(u64, Vec<(u64, bool)>)| names.contains(&(name, true));
        let Some(at) = self.pending.iter().position(there) else { return self.take(name) };
        let names = &mut self.pending[at].1;
        names.iter_mut().filter(|(other, _)| *other == name).for_each(|(_, there)| *there = false);
        if names.iter().all(|(_, there)| !there) {
            self.pending.remove(at);
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn held(&self) -> BTreeSet<u64> {
        self.counts.keys().copied().collect()
    }

    fn add(&mut self, names: &[u64]) {
        names.iter().for_each(|name| *self.counts.entry(*name).or_default() += 1);
    }

    fn take(&mut self, name: u64) {
        if let Some(count) = self.counts.get_mut(&name) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&name);
            }
        }
    }
}

/// A consumer: a set of names, and an index of one target.
pub(crate) struct Consumer {
    pub(crate) names: BTreeSet<u64>,
    target: Target,
    writer: Writer,
    /// The next id of a live stream.
    next: u64,
}

impl Consumer {
    pub(crate) fn new() -> Self {
        let target = Targets::new().allocate().unwrap();
        let indexer = KvIndexer::new(block_size(), Limits::default());
        Self { names: BTreeSet::new(), target, writer: indexer.writer(target, Lane::Device, Copies::Set), next: 1 }
    }

    pub(crate) fn indexer(&self) -> &Arc<KvIndexer> {
        self.writer.indexer()
    }

    pub(crate) fn digest(&self) -> u64 {
        self.indexer().digest(self.target)
    }

    /// The next event of a live stream: numbered without a hole, and saying something new of a set whose parents are held.
    pub(crate) fn live(&mut self, event: &RouterEvent) {
        assert_eq!(event.event.event_id, self.next, "ids follow one another");
        self.next += 1;
        assert_eq!((event.worker_id, event.event.dp_rank, event.storage_tier), (7, 1, Tier::Device));
        match &event.event.data {
            KvData::Stored(stored) => {
                assert!(stored.parent_hash.is_none_or(|parent| self.names.contains(&parent)), "the parent is held: {event:?}");
                assert!(stored.blocks.iter().any(|block| !self.names.contains(&block.block_hash)), "something is new: {event:?}");
            }
            KvData::Removed(names) => assert!(names.iter().all(|name| self.names.contains(name)), "all were held: {event:?}"),
            KvData::Cleared => {}
        }
        self.fold(event);
    }

    /// An event as sets mean it, from a dump or a range too.
    pub(crate) fn fold(&mut self, event: &RouterEvent) {
        match &event.event.data {
            KvData::Stored(stored) => {
                let hashes: Vec<_> = stored.blocks.iter().map(|block| EngineHash(block.block_hash)).collect();
                let locals: Vec<_> = stored.blocks.iter().map(|block| LocalHash(block.tokens_hash)).collect();
                let parent = stored.parent_hash.map_or(Parent::Root(Seed::BASE), |hash| Parent::Block(EngineHash(hash)));
                let outcome = self.writer.store(parent, Blocks::LocalHashes { locals: &locals, hashes: &hashes });
                assert!(matches!(outcome, Stored::Applied { .. }), "{outcome:?}: {event:?}");
                self.names.extend(stored.blocks.iter().map(|block| block.block_hash));
            }
            KvData::Removed(names) => {
                names.iter().for_each(|name| {
                    self.names.remove(name);
                });
                self.writer.remove(&names.iter().map(|name| EngineHash(*name)).collect::<Vec<_>>());
            }
            KvData::Cleared => {
                self.names.clear();
                self.writer.clear();
            }
        }
    }
}
