//! Drives the index and the model side by side and compares every answer.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use index::{
    BlockSize, Blocks, Copies, Dump, DumpEvent, EngineHash, KvIndexer, Lane, Lanes, Levels, Limits, LocalHash, Parent, Seed, SequenceHash,
    Stored, Target, Targets, Window, Writer, digest_of, local_hashes, sequence_hashes,
};

use crate::model::{Block, Chain, Content, Expected, LaneModel, Model, ModelParent};

pub(crate) const SLOTS: usize = 4;
pub(crate) const LANES: [Lane; 3] = [Lane::Device, Lane::Host, Lane::Confirmed];
pub(crate) const BLOCK_SIZE: u32 = 2;

pub(crate) type Key = (usize, Lane);

/// How a store's parent is found.
#[derive(Clone, Debug)]
pub(crate) enum From {
    Root(u8),
    /// The name an engine would give the end of this chain, stored or not.
    Chain(Chain),
    /// One of the names the lane knows, held, parked or confirmed.
    Known(u8),
    Wild(u8),
}

/// How a store's blocks are named.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Naming {
    /// After parent and content, as engines do; other groups name the same block otherwise.
    Chained { group: u32 },
    /// After nothing: names repeat, contradict, lie.
    Wild(u8),
}

#[derive(Clone, Debug)]
pub(crate) struct StoreOp {
    pub(crate) key: Key,
    pub(crate) from: From,
    pub(crate) symbols: Vec<u8>,
    pub(crate) naming: Naming,
    /// Given as local hashes under this seed, and not as tokens.
    pub(crate) hashed: Option<u8>,
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Store(StoreOp),
    Remove {
        key: Key,
        picks: Vec<u8>,
    },
    Clear {
        key: Key,
    },
    Reopen {
        key: Key,
        copies: Copies,
    },
    /// A new writer of the lane while the old one lives on.
    TakeOver {
        key: Key,
        copies: Copies,
    },
    Reslot {
        slot: usize,
        old_lives: bool,
    },
    Retract {
        key: Key,
        chain: Chain,
        keep: usize,
    },
    Adopt {
        key: Key,
        chain: Chain,
        known: usize,
    },
    CountAsSet {
        key: Key,
    },
    /// A complete list of what the lane holds came, on which two of three are ([`is_listed`]).
    Keep {
        key: Key,
        salt: u8,
    },
}

impl Op {
    /// The same, done by another target.
    pub(crate) fn by(&self, slot: usize) -> Self {
        let mut op = self.clone();
        match &mut op {
            Self::Store(StoreOp { key, .. })
            | Self::Remove { key, .. }
            | Self::Clear { key }
            | Self::Reopen { key, .. }
            | Self::TakeOver { key, .. }
            | Self::Retract { key, .. }
            | Self::Adopt { key, .. }
            | Self::CountAsSet { key }
            | Self::Keep { key, .. } => key.0 = slot,
            Self::Reslot { slot: own, .. } => *own = slot,
        }
        op
    }

    pub(crate) fn slot(&self) -> usize {
        match self {
            Self::Store(StoreOp { key, .. })
            | Self::Remove { key, .. }
            | Self::Clear { key }
            | Self::Reopen { key, .. }
            | Self::TakeOver { key, .. }
            | Self::Retract { key, .. }
            | Self::Adopt { key, .. }
            | Self::CountAsSet { key }
            | Self::Keep { key, .. } => key.0,
            Self::Reslot { slot, .. } => *slot,
        }
    }
}

pub(crate) struct World {
    targets: Targets,
    live: Vec<Target>,
    pub(crate) indexer: Arc<KvIndexer>,
    writers: BTreeMap<Key, Writer>,
    /// Writers that were superseded, still in somebody's hands.
    graveyard: Vec<Writer>,
    pub(crate) model: Model,
    levels: Levels,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::of(SLOTS)
    }

    /// A world of so many targets.
    pub(crate) fn of(slots: usize) -> Self {
        let targets = Targets::new();
        let live: Vec<_> = (0..slots).map(|_| targets.allocate().unwrap()).collect();
        let indexer = KvIndexer::new(BlockSize::new(BLOCK_SIZE).unwrap(), Limits::default());
        let (writers, graveyard) = (BTreeMap::new(), Vec::new());
        let mut world = Self { targets, live, indexer, writers, graveyard, model: Model::default(), levels: Levels::new() };
        for slot in 0..slots {
            world.open_all(slot);
        }
        world
    }

    fn open_all(&mut self, slot: usize) {
        for lane in LANES {
            // Engines' own streams count copies, what others counted are sets.
            let copies = if lane == Lane::Confirmed { Copies::Set } else { Copies::Counted };
            self.open((slot, lane), copies);
        }
    }

    fn open(&mut self, key: Key, copies: Copies) {
        self.writers.insert(key, self.indexer.writer(self.live[key.0], key.1, copies));
        self.model.open(key, copies);
    }

    /// Does `op` and compares everything.
    pub(crate) fn apply(&mut self, op: &Op) {
        self.act(op);
        self.compare();
    }

    /// Does `op` and compares what it answers.
    pub(crate) fn act(&mut self, op: &Op) {
        match op {
            Op::Store(op) => self.store(op),
            Op::Remove { key, picks } => {
                let names = self.model.names(*key);
                let hashes: Vec<_> = picks.iter().map(|pick| pick_name(&names, *pick)).collect();
                let removed = self.writer(*key).remove(&engine(&hashes));
                assert_eq!((removed.removed, removed.unknown), self.model.remove(*key, &hashes));
            }
            Op::Clear { key } => {
                self.writer(*key).clear();
                self.model.clear(*key);
            }
            Op::Reopen { key, copies } => {
                self.writers.remove(key);
                self.model.close(*key);
                self.open(*key, *copies);
            }
            Op::TakeOver { key, copies } => {
                self.graveyard.extend(self.writers.remove(key));
                self.model.close(*key);
                self.open(*key, *copies);
                self.haunt();
            }
            Op::Reslot { slot, old_lives } => self.reslot(*slot, *old_lives),
            Op::Retract { key, chain, keep } => {
                let gone = self.writer(*key).retract(&locals(chain), *keep);
                assert_eq!(gone, self.model.retract(*key, chain, *keep));
            }
            Op::Adopt { key, chain, known } => {
                let seed = chain.first().map_or(0, |(seed, _)| *seed);
                let added = self.writer(*key).adopt(&locals(chain), *known, seed_of(seed));
                assert_eq!(added, self.model.adopt(*key, chain, *known, seed));
            }
            Op::CountAsSet { key } => {
                self.writer(*key).count_as_set();
                self.model.count_as_set(*key);
            }
            Op::Keep { key, salt } => {
                let gone = self.writer(*key).keep(|name, identity| is_listed(*salt, name.0, identity));
                assert_eq!(gone, self.model.keep(*key, |name, chain| is_listed(*salt, name, identity(chain))));
            }
        }
    }

    fn writer(&mut self, key: Key) -> &mut Writer {
        self.writers.get_mut(&key).unwrap()
    }

    fn store(&mut self, op: &StoreOp) {
        let StoreOp { key, from, symbols, naming, hashed } = op;
        let key = *key;
        let (parent, start) = match from {
            From::Root(seed) => (ModelParent::Root(*seed), root_name(*seed)),
            From::Chain(chain) => {
                let name =
                    chain.iter().fold(root_name(chain.first().map_or(0, |(seed, _)| *seed)), |name, (_, symbol)| next_name(name, *symbol));
                (ModelParent::Block(name), name)
            }
            From::Known(pick) => {
                let name = pick_name(&self.model.names(key), *pick);
                (ModelParent::Block(name), name)
            }
            From::Wild(name) => (ModelParent::Block(u64::from(*name)), u64::from(*name)),
        };
        let names: Vec<_> = match naming {
            Naming::Chained { group } => symbols
                .iter()
                .scan(start, |name, symbol| {
                    *name = next_name(*name, *symbol);
                    Some(EngineHash(*name).in_group(*group).0)
                })
                .collect(),
            Naming::Wild(first) => {
                symbols.iter().enumerate().map(|(at, symbol)| (u64::from(first / 2) + at as u64 * (u64::from(*symbol) + 1)) % 12).collect()
            }
        };
        let content = match hashed {
            None => Content::Tokens(symbols.clone()),
            Some(seed) => Content::Hashed(symbols.iter().map(|symbol| (*seed, *symbol)).collect()),
        };
        let stored = store(self.writer(key), parent, &content, &names);
        let expected = self.model.store(key, parent, content, &names);
        assert_eq!(outcome(stored), expected, "{stored:?}");
    }

    /// Another target in this slot, while the writers of the one before it are dropped or live on.
    fn reslot(&mut self, slot: usize, old_lives: bool) {
        for lane in LANES {
            let writer = self.writers.remove(&(slot, lane)).unwrap();
            self.model.close((slot, lane));
            if old_lives {
                self.graveyard.push(writer);
            }
        }
        assert!(self.targets.release(self.live[slot]));
        self.live[slot] = self.targets.allocate().unwrap();
        assert_eq!(self.live[slot].slot.index(), slot);
        // Its first writer, of whatever lane, leaves nothing of the slot's earlier target.
        drop(self.indexer.writer(self.live[slot], Lane::Disk, Copies::Set));
        LANES.iter().for_each(|lane| assert_eq!(self.indexer.blocks(self.live[slot], *lane), 0));
        self.open_all(slot);
        self.haunt();
    }

    /// What superseded writers try comes to nothing.
    fn haunt(&mut self) {
        for ghost in &mut self.graveyard {
            let stored = store(ghost, ModelParent::Root(0), &Content::Tokens(vec![0, 1]), &[1, 2]);
            assert_eq!(stored, Stored::Refused(index::Refusal::Superseded));
            assert_eq!(ghost.remove(&[EngineHash(1)]).removed, 0);
            ghost.clear();
        }
        self.graveyard.truncate(3);
    }

    pub(crate) fn compare(&mut self) {
        let queries: BTreeSet<Chain> = self.model.lanes.values().flat_map(LaneModel::chains).cloned().collect();
        for chain in queries.iter().rev().step_by(queries.len() / 8 + 1) {
            let mut longer = chain.clone();
            longer.push((chain[0].0, 0));
            self.compare_lookup(&longer);
        }
        assert_eq!(self.indexer.distinct_blocks(), self.model.distinct());
        let used = self.model.lanes.iter().filter(|(_, model)| !model.chains().is_empty());
        let used = used.fold(Lanes::NONE, |lanes, ((_, lane), _)| lanes | (*lane).into());
        assert_eq!(self.indexer.lanes_in_use(), used);
        for (key, lane) in &self.model.lanes {
            let (writer, target) = (&self.writers[key], self.live[key.0]);
            let mut expected: Vec<_> = lane.chains().iter().map(|chain| identity(chain)).collect();
            expected.sort_unstable();
            let mut held = self.indexer.held(target, key.1);
            held.sort_unstable();
            assert_eq!(held, expected);
            assert_eq!(writer.blocks(), expected.len());
            assert_eq!(self.indexer.blocks(target, key.1), expected.len());
            let parked = writer.parked();
            assert_eq!((parked.stores, parked.blocks), lane.parked());
            assert_eq!((parked.total, parked.dropped), (lane.parked_total, lane.dropped));
            if key.1 == Lane::Device {
                assert_eq!(self.indexer.digest(target), digest_of(expected));
            }
        }
    }

    pub(crate) fn compare_lookup(&mut self, chain: &[Block]) {
        let hashed = locals(chain);
        for lanes in [&LANES[..1], &LANES[1..2], &LANES[..2], &LANES[..]] {
            let asked = lanes.iter().fold(Lanes::NONE, |all, lane| all | (*lane).into());
            self.indexer.lookup(&hashed, asked, &mut self.levels);
            for slot in 0..self.live.len() {
                let expected = self.model.overlap(slot, lanes, chain);
                let depth = self.levels.depth(self.live[slot].slot);
                assert_eq!(depth as usize, expected, "slot {slot}, {lanes:?}, {chain:?}");
            }
            check_levels(&self.levels);
        }
    }

    /// An index rebuilt from the dump answers as this one does, and dumps the same.
    pub(crate) fn compare_rebuilt(&mut self, queries: &[Chain]) {
        let dump = self.indexer.dump();
        let rebuilt = KvIndexer::new(BlockSize::new(BLOCK_SIZE).unwrap(), Limits::default());
        let writers: Vec<_> = dump.lanes().map(|(target, lane)| rebuild(&rebuilt, &dump, target, lane)).collect();
        assert_eq!(rebuilt.distinct_blocks(), self.indexer.distinct_blocks());
        for (target, lane) in dump.lanes() {
            let mut held = [self.indexer.held(target, lane), rebuilt.held(target, lane)];
            held.iter_mut().for_each(|held| held.sort_unstable());
            assert_eq!(held[0], held[1]);
            assert_eq!(rebuilt.digest(target), self.indexer.digest(target));
        }
        let held: usize = LANES.iter().flat_map(|lane| self.live.iter().map(|target| self.indexer.blocks(*target, *lane))).sum();
        assert_eq!(writers.iter().map(Writer::blocks).sum::<usize>(), held);
        for query in queries {
            let mut levels = [Levels::new(), Levels::new()];
            self.indexer.lookup(&locals(query), Lanes::ALL, &mut levels[0]);
            rebuilt.lookup(&locals(query), Lanes::ALL, &mut levels[1]);
            assert!(levels[0].iter().eq(levels[1].iter()));
        }
    }

    /// Drops every writer; nothing may be left.
    pub(crate) fn end(mut self) {
        self.writers.clear();
        assert_eq!(self.indexer.distinct_blocks(), 0);
        assert_eq!(self.indexer.lanes_in_use(), Lanes::NONE);
        for target in &self.live {
            assert_eq!((self.indexer.digest(*target), self.indexer.blocks(*target, Lane::Device)), (0, 0));
        }
    }
}

/// Writes one lane of a dump into another index.
pub(crate) fn rebuild(into: &Arc<KvIndexer>, dump: &Dump, target: Target, lane: Lane) -> Writer {
    let mut writer = into.writer(target, lane, Copies::Set);
    for event in dump.events(target, lane) {
        match event {
            DumpEvent::Stored { parent, locals, hashes } => {
                let stored = writer.store(parent, Blocks::LocalHashes { locals: &locals, hashes: &hashes });
                assert!(matches!(stored, Stored::Applied { .. }), "{stored:?}");
            }
            DumpEvent::Removed { hashes } => assert_eq!(writer.remove(&hashes).unknown, 0),
        }
    }
    writer
}

/// Deepest first, no depth twice, sets disjoint and not empty.
pub(crate) fn check_levels(levels: &Levels) {
    let mut seen = index::SlotSet::new();
    let mut last = u32::MAX;
    for (depth, slots) in levels.iter() {
        assert!(depth > 0 && depth < last, "{depth} after {last}");
        assert!(!slots.is_empty());
        let mut both = seen.clone();
        both.and(slots);
        assert!(both.is_empty(), "{both:?} twice");
        seen.or(slots);
        last = depth;
    }
    assert_eq!(levels.is_empty(), last == u32::MAX);
}

pub(crate) fn store(writer: &mut Writer, parent: ModelParent, content: &Content, names: &[u64]) -> Stored {
    let parent = match parent {
        ModelParent::Root(seed) => Parent::Root(seed_of(seed)),
        ModelParent::Block(hash) => Parent::Block(EngineHash(hash)),
    };
    let hashes = engine(names);
    match content {
        Content::Tokens(symbols) => {
            let tokens: Vec<_> = symbols.iter().flat_map(|symbol| tokens(*symbol)).collect();
            writer.store(parent, Blocks::Tokens { tokens: &tokens, window: Window::Plain, hashes: &hashes })
        }
        Content::Hashed(blocks) => writer.store(parent, Blocks::LocalHashes { locals: &locals(blocks), hashes: &hashes }),
    }
}

pub(crate) fn outcome(stored: Stored) -> Expected {
    match stored {
        Stored::Applied { added } => Expected::Applied(added),
        Stored::Parked => Expected::Parked,
        Stored::Refused(_) => Expected::Refused,
    }
}

pub(crate) fn engine(names: &[u64]) -> Vec<EngineHash> {
    names.iter().map(|name| EngineHash(*name)).collect()
}

fn tokens(symbol: u8) -> [u32; BLOCK_SIZE as usize] {
    [u32::from(symbol), 100 + u32::from(symbol)]
}

pub(crate) fn seed_of(seed: u8) -> Seed {
    match seed {
        0 => Seed::BASE,
        _ => Seed::new(Some("adapter"), None),
    }
}

pub(crate) fn locals(chain: &[Block]) -> Vec<LocalHash> {
    let mut one = Vec::new();
    let size = BlockSize::new(BLOCK_SIZE).unwrap();
    let hash = |(seed, symbol): &Block| {
        local_hashes(&tokens(*symbol), size, seed_of(*seed), Window::Plain, &mut one);
        one[0]
    };
    chain.iter().map(hash).collect()
}

fn identity(chain: &[Block]) -> SequenceHash {
    let mut sequences = Vec::new();
    sequence_hashes(&locals(chain), &mut sequences);
    sequences[chain.len() - 1]
}

fn is_listed(salt: u8, name: u64, identity: SequenceHash) -> bool {
    !(name ^ identity.0).wrapping_add(u64::from(salt)).is_multiple_of(3)
}

fn root_name(seed: u8) -> u64 {
    0x1000 + u64::from(seed)
}

pub(crate) fn next_name(name: u64, symbol: u8) -> u64 {
    (name ^ (u64::from(symbol) + 1)).wrapping_mul(0x0100_0000_01b3).rotate_left(17) | 1 << 40
}

fn pick_name(names: &[u64], pick: u8) -> u64 {
    if names.is_empty() { 0xdead } else { names[pick as usize % names.len()] }
}
