//! What the index must answer, kept as plain sets: per target and lane a map of engine hash to (chain, copies), and an
//! overlap by definition. No hashing, no trie; slow on purpose.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use index::{Copies, Lane};

/// A block by what it is: (seed number, symbol). Equal blocks at other places are equal here.
pub(crate) type Block = (u8, u8);
pub(crate) type Chain = Vec<Block>;
type Key = (usize, Lane);

/// Every lane of every target.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) lanes: BTreeMap<Key, LaneModel>,
    /// Chains that somebody holds or that lead to one.
    alive: BTreeMap<Chain, Life>,
    births: u64,
}

#[derive(Clone, Copy, Debug)]
struct Life {
    /// A chain that went and came has another number.
    number: u64,
    /// How many held chains, counted once for each lane that holds them, are this one or go through it.
    needed_by: usize,
}

#[derive(Debug)]
pub(crate) struct LaneModel {
    copies: Copies,
    held: BTreeMap<u64, Held>,
    /// The chains of what is held, since [`Model::settle`].
    chains: BTreeSet<Chain>,
    parked: Vec<Orphan>,
    /// Parents whose place was confirmed: the place, and which life of it.
    anchors: BTreeMap<u64, Place>,
    pub(crate) parked_total: u64,
    pub(crate) dropped: u64,
}

#[derive(Clone, Debug)]
struct Held {
    chain: Chain,
    seed: u8,
    copies: u32,
}

#[derive(Clone, Debug)]
struct Orphan {
    parent: u64,
    content: Content,
    names: Vec<(u64, bool)>,
}

/// The blocks of a store; where tokens are given their seed is the parent's.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Tokens(Vec<u8>),
    Hashed(Vec<Block>),
}

#[derive(Clone, Debug)]
struct Place {
    chain: Chain,
    life: Option<u64>,
    seed: u8,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ModelParent {
    Root(u8),
    Block(u64),
}

/// What a store must answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Applied(usize),
    Parked,
    Refused,
}

impl Content {
    fn blocks(&self, seed: u8) -> Vec<Block> {
        match self {
            Self::Tokens(symbols) => symbols.iter().map(|symbol| (seed, *symbol)).collect(),
            Self::Hashed(blocks) => blocks.clone(),
        }
    }
}

impl LaneModel {
    pub(crate) fn new(copies: Copies) -> Self {
        let (held, chains, parked, anchors) = (BTreeMap::new(), BTreeSet::new(), Vec::new(), BTreeMap::new());
        Self { copies, held, chains, parked, anchors, parked_total: 0, dropped: 0 }
    }

    /// The blocks held.
    pub(crate) fn chains(&self) -> &BTreeSet<Chain> {
        &self.chains
    }

    /// (stores, blocks still there).
    pub(crate) fn parked(&self) -> (usize, usize) {
        let there = |orphan: &Orphan| orphan.names.iter().filter(|(_, there)| *there).count();
        (self.parked.len(), self.parked.iter().map(there).sum())
    }

    fn parked_names(&self, hash: u64) -> bool {
        self.parked.iter().any(|orphan| orphan.names.contains(&(hash, true)))
    }

    fn take_waiting(&mut self, parent: u64) -> Vec<Orphan> {
        let (waiting, others) = self.parked.drain(..).partition(|orphan| orphan.parent == parent);
        self.parked = others;
        waiting
    }

    fn remove_parked(&mut self, hash: u64) -> bool {
        let mut removed = false;
        for orphan in &mut self.parked {
            if removed && self.copies == Copies::Counted {
                break;
            }
            if let Some(name) = orphan.names.iter_mut().find(|name| **name == (hash, true)) {
                name.1 = false;
                removed = true;
            }
        }
        self.parked.retain(|orphan| orphan.names.iter().any(|(_, there)| *there));
        removed
    }

    fn remove(&mut self, hash: u64) -> bool {
        let parked = self.remove_parked(hash);
        if parked && self.copies == Copies::Counted {
            return true;
        }
        if let Some(held) = self.held.get_mut(&hash) {
            held.copies -= 1;
            if held.copies == 0 || self.copies == Copies::Set {
                self.held.remove(&hash);
            }
            return true;
        }
        self.anchors.remove(&hash).is_some() || parked
    }
}

impl Model {
    pub(crate) fn open(&mut self, key: Key, copies: Copies) {
        assert!(self.lanes.insert(key, LaneModel::new(copies)).is_none(), "closed before");
    }

    pub(crate) fn close(&mut self, key: Key) {
        self.clear(key);
        self.lanes.remove(&key);
    }

    pub(crate) fn count_as_set(&mut self, key: Key) {
        self.lane(key).copies = Copies::Set;
    }

    /// Drops the names of which `is_listed` says no; how many blocks are not held any more.
    pub(crate) fn keep(&mut self, key: Key, is_listed: impl Fn(u64, &Chain) -> bool) -> usize {
        let lane = self.lane(key);
        lane.parked.clear();
        lane.anchors.clear();
        let before = lane.chains().len();
        lane.held.retain(|hash, held| is_listed(*hash, &held.chain));
        self.settle(key);
        before - self.lanes[&key].chains().len()
    }

    pub(crate) fn clear(&mut self, key: Key) {
        let lane = self.lane(key);
        lane.held.clear();
        lane.parked.clear();
        lane.anchors.clear();
        self.settle(key);
    }

    /// (known, unknown) hashes.
    pub(crate) fn remove(&mut self, key: Key, hashes: &[u64]) -> (usize, usize) {
        let lane = self.lane(key);
        let known = hashes.iter().filter(|hash| lane.remove(**hash)).count();
        self.settle(key);
        (known, hashes.len() - known)
    }

    pub(crate) fn store(&mut self, key: Key, parent: ModelParent, content: Content, hashes: &[u64]) -> Expected {
        let distinct: BTreeSet<_> = hashes.iter().collect();
        if distinct.len() < hashes.len() || matches!(parent, ModelParent::Block(parent) if hashes.contains(&parent)) {
            return Expected::Refused;
        }
        if hashes.is_empty() {
            return Expected::Applied(0);
        }
        let names: Vec<_> = hashes.iter().map(|hash| (*hash, true)).collect();
        if let Some(place) = self.place(key, parent)
            && let Some((added, places)) = self.attach(key, &place, &content.blocks(place.seed), &names)
        {
            let found = self.waiting_for(key, &names, places);
            return Expected::Applied(added + self.attach_all(key, found));
        }
        let ModelParent::Block(parent) = parent else { unreachable!("the root is always there") };
        let lane = self.lane(key);
        lane.anchors.remove(&parent);
        lane.parked.push(Orphan { parent, content, names });
        lane.parked_total += 1;
        Expected::Parked
    }

    pub(crate) fn retract(&mut self, key: Key, chain: &[Block], keep: usize) -> usize {
        let Some(top) = chain.get(..=keep) else { return 0 };
        if !self.alive.contains_key(top) {
            return 0;
        }
        let lane = self.lane(key);
        lane.anchors.clear();
        let before = lane.chains().len();
        lane.held.retain(|_, held| !held.chain.starts_with(top));
        self.settle(key);
        before - self.lanes[&key].chains().len()
    }

    pub(crate) fn adopt(&mut self, key: Key, chain: &[Block], known: usize, seed: u8) -> usize {
        let known = known.min(chain.len());
        if known == 0 {
            return 0;
        }
        let mut parents: Vec<(u64, usize)> = Vec::new();
        let lane = self.lane(key);
        for orphan in &lane.parked {
            if parents.iter().any(|(parent, _)| *parent == orphan.parent) || lane.parked_names(orphan.parent) {
                continue;
            }
            let blocks = orphan.content.blocks(seed);
            let fits = |at: &usize| *at < chain.len() && chain[*at..].iter().zip(&blocks).all(|(own, other)| own == other);
            let inside: Vec<_> = (1..known).filter(fits).collect();
            if fits(&known) {
                parents.push((orphan.parent, known));
            } else if let [only] = inside[..] {
                parents.push((orphan.parent, only));
            }
        }
        let mut found = VecDeque::new();
        for (parent, position) in parents {
            let Some(life) = self.life(&chain[..position]) else { continue };
            let place = Place { chain: chain[..position].to_vec(), life: Some(life), seed };
            let lane = self.lane(key);
            lane.anchors.insert(parent, place.clone());
            found.extend(lane.take_waiting(parent).into_iter().map(|orphan| (place.clone(), orphan)));
        }
        self.attach_all(key, found)
    }

    /// The longest run of leading blocks of `chain` that `slot` holds in any of `lanes`.
    pub(crate) fn overlap(&self, slot: usize, lanes: &[Lane], chain: &[Block]) -> usize {
        let held: Vec<_> = lanes.iter().filter_map(|lane| self.lanes.get(&(slot, *lane))).map(LaneModel::chains).collect();
        (1..=chain.len()).take_while(|depth| held.iter().any(|chains| chains.contains(&chain[..*depth]))).count()
    }

    /// Chains in memory.
    pub(crate) fn distinct(&self) -> usize {
        self.alive.len()
    }

    /// Names known in a lane, so that operations can aim.
    pub(crate) fn names(&self, key: Key) -> Vec<u64> {
        let lane = &self.lanes[&key];
        let parked = lane.parked.iter().flat_map(|orphan| orphan.names.iter().map(|(hash, _)| *hash));
        lane.held.keys().copied().chain(parked).chain(lane.anchors.keys().copied()).collect()
    }

    fn lane(&mut self, key: Key) -> &mut LaneModel {
        self.lanes.get_mut(&key).unwrap()
    }

    fn place(&self, key: Key, parent: ModelParent) -> Option<Place> {
        match parent {
            ModelParent::Root(seed) => Some(Place { chain: Chain::new(), life: None, seed }),
            ModelParent::Block(hash) => {
                let lane = &self.lanes[&key];
                match lane.held.get(&hash) {
                    Some(held) => Some(Place { chain: held.chain.clone(), life: self.life(&held.chain), seed: held.seed }),
                    None => lane.anchors.get(&hash).cloned(),
                }
            }
        }
    }

    /// Whether the place is the one it was.
    fn is_there(&self, place: &Place) -> bool {
        place.chain.is_empty() || self.life(&place.chain) == place.life
    }

    /// (blocks gained, the place of each block), or nothing if the place is gone.
    fn attach(&mut self, key: Key, place: &Place, blocks: &[Block], names: &[(u64, bool)]) -> Option<(usize, Vec<Place>)> {
        let reach = names.iter().rposition(|(_, there)| *there).map_or(0, |last| last + 1);
        let mut chain = place.chain.clone();
        let mut chains = Vec::new();
        for block in &blocks[..reach] {
            chain.push(*block);
            chains.push(chain.clone());
        }
        if !self.is_there(place) {
            return None;
        }
        let lane = self.lane(key);
        for ((hash, there), chain) in names.iter().zip(&chains) {
            if *there && lane.held.get(hash).is_some_and(|held| held.chain != *chain) {
                lane.held.remove(hash);
            }
        }
        self.settle(key);
        if !self.is_there(place) {
            return None;
        }
        let lane = self.lane(key);
        let before = lane.chains().len();
        for ((hash, there), chain) in names.iter().zip(&chains) {
            if *there {
                lane.anchors.remove(hash);
                let held = lane.held.entry(*hash).or_insert(Held { chain: chain.clone(), seed: place.seed, copies: 0 });
                held.copies = if lane.copies == Copies::Counted { held.copies + 1 } else { 1 };
            }
        }
        self.settle(key);
        let added = self.lanes[&key].chains().len() - before;
        let places = chains.into_iter().map(|chain| Place { life: self.life(&chain), chain, seed: place.seed });
        Some((added, places.collect()))
    }

    fn waiting_for(&mut self, key: Key, names: &[(u64, bool)], places: Vec<Place>) -> VecDeque<(Place, Orphan)> {
        let lane = self.lane(key);
        let reached = names.iter().zip(places);
        reached.flat_map(|((hash, _), place)| lane.take_waiting(*hash).into_iter().map(move |orphan| (place.clone(), orphan))).collect()
    }

    fn attach_all(&mut self, key: Key, mut found: VecDeque<(Place, Orphan)>) -> usize {
        let mut added = 0;
        while let Some((place, orphan)) = found.pop_front() {
            match self.attach(key, &place, &orphan.content.blocks(place.seed), &orphan.names) {
                Some((more, places)) => {
                    added += more;
                    found.extend(self.waiting_for(key, &orphan.names, places));
                }
                None => self.lane(key).dropped += 1,
            }
        }
        added
    }

    /// Lets go of chains nobody needs any more since `key` changed, and counts in new ones.
    fn settle(&mut self, key: Key) {
        let lane = self.lane(key);
        let now: BTreeSet<Chain> = lane.held.values().map(|held| held.chain.clone()).collect();
        let before = std::mem::replace(&mut lane.chains, now.clone());
        for chain in now.difference(&before) {
            for depth in 1..=chain.len() {
                let births = &mut self.births;
                let life = self.alive.entry(chain[..depth].to_vec()).or_insert_with(|| {
                    *births += 1;
                    Life { number: *births, needed_by: 0 }
                });
                life.needed_by += 1;
            }
        }
        for chain in before.difference(&now) {
            for depth in 1..=chain.len() {
                let life = self.alive.get_mut(&chain[..depth]).unwrap();
                life.needed_by -= 1;
                if life.needed_by == 0 {
                    self.alive.remove(&chain[..depth]);
                }
            }
        }
    }

    fn life(&self, chain: &[Block]) -> Option<u64> {
        self.alive.get(chain).map(|life| life.number)
    }
}
