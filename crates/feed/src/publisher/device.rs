//! What the device tier holds: names with their copies, and the index of one target they stand for.

use std::collections::{HashMap, VecDeque};

use index::{
    BlockSize, Blocks, Copies, Dump, EngineHash, KvIndexer, Lane, Lanes, Levels, Limits, LocalHash, Parent, Refusal, Seed, SequenceHash,
    Stored, Target, Targets, Writer,
};
use wire::router::{KvData, StoredBlock, StoredBlocks};

use super::{
    call::{CheckedStore, StoredCall},
    hashing::hash_blocks,
    orphans::{Orphan, Orphans},
    shards::Shards,
};

/// A held name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    /// The block it names.
    pub(super) identity: u64,
    /// Stored so many times more than removed (rule 4).
    copies: u32,
}

#[derive(Debug)]
pub(super) struct Device {
    block_size: BlockSize,
    limits: Limits,
    names: Shards<Held>,
    /// Of names whose prompts have an adapter or a salt.
    seeds: HashMap<u64, Seed>,
    orphans: Orphans,
    index: Option<Index>,
    pub(super) unknown_removals: u64,
}

/// The published set as an index of one target.
#[derive(Debug)]
struct Index {
    target: Target,
    writer: Writer,
}

/// Where a store goes.
#[derive(Clone, Copy)]
struct Place {
    parent: Option<SequenceHash>,
    seed: Seed,
}

impl Device {
    pub(super) fn new(block_size: BlockSize, indexed: bool) -> Self {
        let limits = Limits::default();
        let index = indexed.then(|| Targets::new().allocate()).flatten().map(|target| {
            let indexer = KvIndexer::new(block_size, limits);
            Index { target, writer: indexer.writer(target, Lane::Device, Copies::Set) }
        });
        Self {
            block_size,
            limits,
            names: Shards::default(),
            seeds: HashMap::new(),
            orphans: Orphans::default(),
            index,
            unknown_removals: 0,
        }
    }

    pub(super) fn orphans(&self) -> &Orphans {
        &self.orphans
    }

    /// Names held.
    pub(super) fn names(&self) -> usize {
        self.names.len()
    }

    /// The seed of a held block.
    pub(super) fn seed_of(&self, name: u64) -> Option<Seed> {
        self.names.contains(name).then(|| self.seeds.get(&name).copied().unwrap_or(Seed::BASE))
    }

    /// One more copy of each block; what that changes of the set goes to `out`.
    pub(super) fn store(&mut self, store: &CheckedStore, out: &mut Vec<KvData>) -> Result<(), Refusal> {
        let Some(place) = self.place(store.call()) else {
            // Only a store that names a parent has no place.
            if let Some(parent) = store.call().parent_hash {
                self.orphans.keep(parent, store.clone());
            }
            return Ok(());
        };
        self.apply(store.call(), place, out)?;
        let (mut found, mut gone) = (self.waiting_for(store.call()), Vec::new());
        while let Some(Orphan { store, removed }) = found.pop_front() {
            let Some(place) = self.place(store.call()) else { continue };
            if self.apply(store.call(), place, out).is_err() {
                self.orphans.lost();
                continue;
            }
            found.extend(self.waiting_for(store.call()));
            let names = store.call().block_hashes.iter().zip(removed);
            gone.extend(names.filter(|(_, removed)| *removed).map(|(name, _)| *name));
        }
        // Last, as others may have been stored behind what was removed later.
        self.release(&gone, out);
        Ok(())
    }

    fn place(&self, call: &StoredCall) -> Option<Place> {
        match call.parent_hash {
            None => Some(Place { parent: None, seed: Seed::new(call.lora_name.as_deref(), call.cache_salt.as_deref()) }),
            Some(parent) => {
                let held = self.names.get(parent)?;
                Some(Place { parent: Some(SequenceHash(held.identity)), seed: self.seed_of(parent)? })
            }
        }
    }

    fn waiting_for(&mut self, call: &StoredCall) -> VecDeque<Orphan> {
        if self.orphans.len() == 0 {
            return VecDeque::new();
        }
        call.block_hashes.iter().flat_map(|hash| self.orphans.take_waiting(*hash)).collect()
    }

    fn apply(&mut self, call: &StoredCall, place: Place, out: &mut Vec<KvData>) -> Result<(), Refusal> {
        let locals = hash_blocks(call, self.block_size, place.seed);
        self.write(call, &locals, place.seed)?;
        let mut identity = place.parent;
        let (mut renamed, mut first_new) = (Vec::new(), None);
        for (position, (name, local)) in call.block_hashes.iter().zip(&locals).enumerate() {
            let own = SequenceHash::after(identity, *local);
            identity = Some(own);
            match self.names.get_mut(*name) {
                Some(held) if held.identity == own.0 => held.copies = held.copies.saturating_add(1),
                Some(held) => {
                    *held = Held { identity: own.0, copies: 1 };
                    renamed.push(*name);
                    first_new.get_or_insert(position);
                }
                None => {
                    self.names.insert(*name, Held { identity: own.0, copies: 1 });
                    first_new.get_or_insert(position);
                }
            }
            if place.seed == Seed::BASE {
                self.seeds.remove(name);
            } else {
                self.seeds.insert(*name, place.seed);
            }
        }
        let Some(first) = first_new else { return Ok(()) };
        if !renamed.is_empty() {
            out.push(KvData::Removed(renamed));
        }
        out.push(KvData::Stored(told(call, &locals, first)));
        Ok(())
    }

    /// Puts the blocks into the index, which changes nothing if it refuses them.
    fn write(&mut self, call: &StoredCall, locals: &[LocalHash], seed: Seed) -> Result<(), Refusal> {
        let Some(index) = &mut self.index else {
            let limit = self.limits.writer_blocks;
            let full = self.names.len() + call.block_hashes.len() > limit;
            return if full { Err(Refusal::WriterFull { limit }) } else { Ok(()) };
        };
        let parent = call.parent_hash.map_or(Parent::Root(seed), |parent| Parent::Block(EngineHash(parent)));
        let hashes: Vec<_> = call.block_hashes.iter().map(|hash| EngineHash(*hash)).collect();
        match index.writer.store(parent, Blocks::LocalHashes { locals, hashes: &hashes }) {
            Stored::Applied { .. } | Stored::Parked => Ok(()),
            Stored::Refused(refusal) => Err(refusal),
        }
    }

    /// One copy less of each block; those without any left go to `out`.
    pub(super) fn remove(&mut self, hashes: &[u64], out: &mut Vec<KvData>) {
        if self.orphans.len() == 0 {
            return self.release(hashes, out);
        }
        let held: Vec<_> = hashes.iter().copied().filter(|hash| !self.orphans.remove(*hash)).collect();
        self.release(&held, out);
    }

    fn release(&mut self, hashes: &[u64], out: &mut Vec<KvData>) {
        let mut gone = Vec::new();
        for hash in hashes {
            let Some(held) = self.names.get_mut(*hash) else {
                self.unknown_removals += 1;
                continue;
            };
            held.copies -= 1;
            if held.copies == 0 {
                self.names.remove(*hash);
                self.seeds.remove(hash);
                gone.push(*hash);
            }
        }
        if gone.is_empty() {
            return;
        }
        if let Some(index) = &mut self.index {
            let names: Vec<_> = gone.iter().map(|hash| EngineHash(*hash)).collect();
            index.writer.remove(&names);
        }
        out.push(KvData::Removed(gone));
    }

    pub(super) fn clear(&mut self) {
        self.names = Shards::default();
        self.seeds.clear();
        self.orphans.clear();
        if let Some(index) = &mut self.index {
            index.writer.clear();
        }
    }

    /// [`index::digest_of`] the blocks held; `None` without an index.
    pub(super) fn digest(&self) -> Option<u64> {
        self.index.as_ref().map(|index| index.writer.indexer().digest(index.target))
    }

    /// Distinct blocks held; `None` without an index.
    pub(super) fn blocks(&self) -> Option<usize> {
        self.index.as_ref().map(|index| index.writer.blocks())
    }

    /// Leading blocks of `chain` that are held; `None` without an index.
    pub(super) fn find_matches(&self, chain: &[LocalHash]) -> Option<u32> {
        let index = self.index.as_ref()?;
        let mut levels = Levels::new();
        index.writer.indexer().lookup(chain, Lanes::DEVICE, &mut levels);
        Some(levels.depth(index.target.slot))
    }

    /// A copy of everything held at this instant, made without copying it.
    pub(super) fn cut(&self) -> Option<(Target, Dump, Shards<Held>)> {
        let index = self.index.as_ref()?;
        Some((index.target, index.writer.indexer().dump(), self.names.clone()))
    }
}

/// What is published of a store: its blocks from the first one on that was not held.
pub(super) fn told(call: &StoredCall, locals: &[LocalHash], first: usize) -> StoredBlocks {
    let parent_hash = match first.checked_sub(1) {
        Some(before) => Some(call.block_hashes[before]),
        None => call.parent_hash,
    };
    let media = |position: usize| call.block_mm_infos.get(position).cloned().flatten();
    let blocks = call.block_hashes.iter().zip(locals).enumerate().skip(first);
    let blocks = blocks.map(|(position, (hash, local))| StoredBlock { block_hash: *hash, tokens_hash: local.0, media: media(position) });
    StoredBlocks { parent_hash, start_position: None, blocks: blocks.collect() }
}
