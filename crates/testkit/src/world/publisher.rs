//! An engine that publishes: its true cache, its numbered stream, and its bounded replay buffer.
//!
//! The cache knows nothing of the index's hashes: a block is named by the path of made-up block numbers that leads to it,
//! and the engine's hash of a path is random per life.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use feed::Demand;
use index::{BlockSize, LocalHash, Seed, Window, local_hashes};
use rand::{Rng, rngs::SmallRng, seq::IteratorRandom};
use wire::{
    Adapter, Event, Group, Kind, Locality, Medium, Message, Removed, Stored, Tokens,
    encode::{Encoder, Generation},
};

/// Tokens per block.
pub(crate) const BLOCK_SIZE: u32 = 4;
/// The adapter that events name.
pub(crate) const ADAPTER: &str = "sql";
/// The cache salt of some prompts.
pub(crate) const SALT: &str = "tenant";

/// Distinct blocks at each position: few, so that prompts share prefixes.
const BREADTH: u8 = 3;
/// First of the block numbers that no ordinary prompt has.
const FRESH: u8 = 100;
/// Longest prompt in blocks.
const DEPTH: usize = 7;
/// Blocks a cache holds before it evicts.
const CAPACITY: usize = 60;

/// Which adapter and salt a prompt has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Root {
    Base,
    Adapter,
    Salted,
}

/// A block: the prompt's root and all blocks up to and including it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Path {
    pub(crate) root: Root,
    pub(crate) blocks: Vec<u8>,
}

impl Path {
    /// The tokens of its last `blocks` blocks.
    pub(crate) fn tokens(&self, blocks: usize) -> Vec<u32> {
        let from = self.blocks.len() - blocks;
        self.blocks[from..].iter().flat_map(|block| (0..BLOCK_SIZE).map(|at| u32::from(*block) * BLOCK_SIZE + at)).collect()
    }

    /// The seed of its root.
    pub(crate) fn seed(&self) -> Seed {
        match self.root {
            Root::Base => Seed::BASE,
            Root::Adapter => Seed::new(Some(ADAPTER), None),
            Root::Salted => Seed::new(None, Some(SALT)),
        }
    }

    /// What a router makes of a prompt with these blocks.
    pub(crate) fn chain(&self) -> Vec<LocalHash> {
        let mut locals = Vec::new();
        if let Some(size) = BlockSize::new(BLOCK_SIZE) {
            local_hashes(&self.tokens(self.blocks.len()), size, self.seed(), Window::Plain, &mut locals);
        }
        locals
    }

    /// Its first `blocks` blocks.
    pub(crate) fn prefix(&self, blocks: usize) -> Self {
        Self { root: self.root, blocks: self.blocks[..blocks].to_vec() }
    }
}

/// The true cache of one rank.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    /// Physical copies of each text block.
    pub(crate) copies: BTreeMap<Path, u32>,
    /// Engine hashes of blocks with media.
    pub(crate) media: Vec<u64>,
    /// It was emptied, and the next batch will say so.
    clear_pending: bool,
}

/// Takes one copy of some block out; mostly of one that nothing follows, sometimes from the middle of a chain. And how many are left.
pub(crate) fn evicted(copies: &mut BTreeMap<Path, u32>, rng: &mut SmallRng) -> Option<(Path, u32)> {
    let hole = rng.random_bool(0.2);
    let is_leaf = |path: &&Path| {
        let after = copies.range(*path..).nth(1);
        after.is_none_or(|(next, _)| next.root != path.root || !next.blocks.starts_with(&path.blocks))
    };
    let gone = copies.keys().filter(|path| hole || is_leaf(path)).choose(rng).cloned()?;
    let left = copies.remove(&gone)?.saturating_sub(1);
    if left > 0 {
        copies.insert(gone.clone(), left);
    }
    Some((gone, left))
}

/// One engine process after the other behind one pair of sockets.
#[derive(Debug)]
pub(crate) struct Publisher {
    pub(crate) ranks: Vec<Cache>,
    /// Distinguishes lives: part of every hash.
    life: u64,
    seq: u64,
    buffer: VecDeque<Message>,
    buffer_messages: usize,
    encoder: Encoder,
    late_parents: u8,
    /// A clear event was published since this was last taken.
    pub(crate) cleared: bool,
    /// Ever stored, so that a check can ask for them.
    pub(crate) seen: BTreeSet<Path>,
}

impl Publisher {
    pub(crate) fn new(rng: &mut SmallRng, ranks: usize, buffer_messages: usize, encoder: Encoder) -> Self {
        let ranks = (0..ranks).map(|_| Cache::default()).collect();
        Self {
            ranks,
            life: rng.random(),
            seq: 0,
            buffer: VecDeque::new(),
            buffer_messages,
            encoder,
            late_parents: 0,
            cleared: false,
            seen: BTreeSet::new(),
        }
    }

    /// The process is replaced: empty caches, other hashes, numbers from 0.
    pub(crate) fn restart(&mut self, rng: &mut SmallRng) {
        self.life = rng.random();
        self.seq = 0;
        self.buffer.clear();
        self.ranks.iter_mut().for_each(|cache| *cache = Cache::default());
    }

    /// Every cache is emptied now; the events come with the next batches.
    pub(crate) fn reset(&mut self) {
        for cache in &mut self.ranks {
            *cache = Cache { clear_pending: true, ..Cache::default() };
        }
    }

    /// What the replay socket has from `from` on.
    pub(crate) fn replay(&self, from: u64) -> Vec<Message> {
        self.buffer.iter().filter(|message| message.seq >= from).cloned().collect()
    }

    /// Whether the replay socket still reaches back to the start.
    pub(crate) fn reaches_start(&self) -> bool {
        self.buffer.front().is_none_or(|first| first.seq == 0)
    }

    /// One step of the scheduler of a random rank, with the batch it publishes.
    pub(crate) fn step(&mut self, rng: &mut SmallRng) -> Message {
        let rank = rng.random_range(0..self.ranks.len());
        let mut events = Vec::new();
        self.say_clear(rank, &mut events);
        for _ in 0..rng.random_range(1..4) {
            match rng.random_range(0..20) {
                0..12 => self.prompt(rng, rank, &mut events),
                12..15 => self.evict(rng, rank, &mut events),
                15 => self.store_again(rng, rank, &mut events),
                16 if self.has_extra_keys() => self.store_media(rng, rank, &mut events),
                17 => events.push(self.noise(rng)),
                18 if rng.random_bool(0.3) => self.clear(rank, &mut events),
                _ => {}
            }
        }
        self.publish(rank, &events)
    }

    /// Two batches, of which the first names a parent that only the second announces.
    pub(crate) fn late_parent(&mut self, rng: &mut SmallRng) -> [Message; 2] {
        let rank = rng.random_range(0..self.ranks.len());
        let mut early = Vec::new();
        self.say_clear(rank, &mut early);
        self.late_parents += 1;
        let child = Path { root: Root::Base, blocks: vec![FRESH + self.late_parents, 0, 1] };
        let parent = child.prefix(1);
        early.push(self.store(rank, &child, 2));
        let late = self.store(rank, &parent, 1);
        [self.publish(rank, &early), self.publish(rank, &[late])]
    }

    /// A batch that no one can read, in which something may have happened.
    pub(crate) fn garbage(&mut self, rng: &mut SmallRng) -> Message {
        let rank = rng.random_range(0..self.ranks.len());
        let mut events = Vec::new();
        self.say_clear(rank, &mut events);
        self.prompt(rng, rank, &mut events);
        self.number(Bytes::from_static(b"\x93\xcb\x00"))
    }

    /// A step for a request that asks for what events may not tell: the rank, what was asked for, and the batch.
    pub(crate) fn demanding(&mut self, rng: &mut SmallRng) -> (usize, Demand, Message) {
        let rank = rng.random_range(0..self.ranks.len());
        let mut events = Vec::new();
        self.say_clear(rank, &mut events);
        let demand = if rng.random_bool(0.5) { Demand::FullReports } else { Demand::Salt };
        let path = match demand {
            Demand::Salt => random_path(rng, Root::Salted),
            Demand::FullReports | Demand::Adapter | Demand::NumberedAdapter => random_path(rng, Root::Base),
        };
        let cached = self.held(rank, &path);
        if demand == Demand::FullReports && cached > 0 {
            // What was hit, as if it were stored, and no copy more.
            events.push(Event::Stored(self.told(&path.prefix(cached), cached)));
        }
        if cached < path.blocks.len() {
            events.push(self.store(rank, &path, path.blocks.len() - cached));
        }
        self.seen.insert(path);
        (rank, demand, self.publish(rank, &events))
    }

    /// Whether the events tell what comes of the demand.
    pub(crate) fn tells(&self, demand: Demand) -> bool {
        match demand {
            Demand::FullReports => false,
            Demand::Salt => self.has_extra_keys(),
            Demand::Adapter | Demand::NumberedAdapter => true,
        }
    }

    /// Whether the form of the events has room for salts, media and groups.
    fn has_extra_keys(&self) -> bool {
        self.encoder.generation != Generation::Vllm016
    }

    fn publish(&mut self, rank: usize, events: &[Event]) -> Message {
        let payload = self.encoder.batch(1.7e9 + self.seq as f64 + (self.life % 1000) as f64, rank as u32, events);
        self.number(payload)
    }

    fn number(&mut self, payload: Bytes) -> Message {
        let message = Message { seq: self.seq, payload };
        self.seq += 1;
        self.buffer.push_back(message.clone());
        if self.buffer.len() > self.buffer_messages {
            self.buffer.pop_front();
        }
        message
    }

    /// Computes a prompt: what is not cached from its start is stored.
    fn prompt(&mut self, rng: &mut SmallRng, rank: usize, events: &mut Vec<Event>) {
        // Where events do not carry a salt, those prompts come with a demand.
        let roots = if self.has_extra_keys() { 4 } else { 3 };
        let root = [Root::Base, Root::Base, Root::Adapter, Root::Salted][rng.random_range(0..roots)];
        let path = random_path(rng, root);
        let cached = self.held(rank, &path);
        let missing = path.blocks.len() - cached;
        if missing > 1 && rng.random_bool(0.3) {
            // Chunked prefill.
            events.push(self.store(rank, &path.prefix(cached + 1), 1));
            events.push(self.store(rank, &path, missing - 1));
        } else if missing > 0 {
            events.push(self.store(rank, &path, missing));
        }
        while self.ranks[rank].copies.len() > CAPACITY {
            self.evict(rng, rank, events);
        }
        self.seen.insert(path);
    }

    /// How many leading blocks of `path` the rank holds.
    pub(crate) fn held(&self, rank: usize, path: &Path) -> usize {
        let copies = &self.ranks[rank].copies;
        (1..=path.blocks.len()).take_while(|blocks| copies.contains_key(&path.prefix(*blocks))).count()
    }

    fn evict(&mut self, rng: &mut SmallRng, rank: usize, events: &mut Vec<Event>) {
        let Some((gone, _)) = evicted(&mut self.ranks[rank].copies, rng) else { return };
        let block_hashes = vec![self.hash(&gone)];
        events.push(Event::Removed(Removed { block_hashes, ..Removed::default() }));
    }

    /// A second physical copy of the end of a prompt, as when two requests compute it at once.
    fn store_again(&mut self, rng: &mut SmallRng, rank: usize, events: &mut Vec<Event>) {
        let Some(path) = self.ranks[rank].copies.keys().choose(rng).cloned() else { return };
        if self.held(rank, &path) == path.blocks.len() {
            let blocks = rng.random_range(1..=path.blocks.len());
            events.push(self.store(rank, &path, blocks));
        }
    }

    /// A block with an image after a cached prefix or at the start of a prompt, mostly with text in front in the same event: it
    /// takes room, and no text can reach it.
    fn store_media(&mut self, rng: &mut SmallRng, rank: usize, events: &mut Vec<Event>) {
        let before = self.ranks[rank].copies.keys().choose(rng).filter(|_| rng.random_bool(0.7)).cloned();
        let mut path = before.unwrap_or(Path { root: Root::Base, blocks: Vec::new() });
        let text = rng.random_range(usize::from(path.blocks.is_empty())..3);
        path.blocks.extend((0..text).map(|_| rng.random_range(0..BREADTH)));
        let mut stored = self.stored(rank, &path, text);
        let hash = rng.random();
        self.ranks[rank].media.push(hash);
        stored.media_from = Some(text);
        stored.block_hashes.push(hash);
        if let Tokens::Plain(tokens) = &mut stored.tokens {
            tokens.extend([0; BLOCK_SIZE as usize]);
        }
        events.push(Event::Stored(stored));
    }

    fn clear(&mut self, rank: usize, events: &mut Vec<Event>) {
        self.ranks[rank] = Cache::default();
        self.cleared = true;
        events.push(Event::Cleared);
    }

    fn say_clear(&mut self, rank: usize, events: &mut Vec<Event>) {
        if std::mem::take(&mut self.ranks[rank].clear_pending) {
            self.cleared = true;
            events.push(Event::Cleared);
        }
    }

    /// One more copy of the last `blocks` blocks of `path`.
    fn store(&mut self, rank: usize, path: &Path, blocks: usize) -> Event {
        Event::Stored(self.stored(rank, path, blocks))
    }

    fn stored(&mut self, rank: usize, path: &Path, blocks: usize) -> Stored {
        for depth in path.blocks.len() - blocks + 1..=path.blocks.len() {
            *self.ranks[rank].copies.entry(path.prefix(depth)).or_default() += 1;
        }
        self.seen.insert(path.clone());
        self.told(path, blocks)
    }

    /// What is said of the last `blocks` blocks of `path` when they are stored.
    fn told(&self, path: &Path, blocks: usize) -> Stored {
        let from = path.blocks.len() - blocks;
        Stored {
            block_hashes: (from + 1..=path.blocks.len()).map(|depth| self.hash(&path.prefix(depth))).collect(),
            parent: (from > 0).then(|| self.hash(&path.prefix(from))),
            tokens: Tokens::Plain(path.tokens(blocks)),
            block_size: BLOCK_SIZE,
            adapter: if path.root == Root::Adapter { Adapter::Named(ADAPTER.to_owned()) } else { Adapter::Base },
            salt: (path.root == Root::Salted && from == 0).then(|| SALT.to_owned()),
            group: Group { idx: Some(0), kind: Some(Kind::FullAttention) },
            ..Stored::default()
        }
    }

    /// The engine's own name for a block.
    fn hash(&self, path: &Path) -> u64 {
        let start = self.life ^ (path.root as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        path.blocks.iter().fold(start, |hash, block| {
            let mixed = (hash ^ (u64::from(*block) + 1)).wrapping_mul(0xff51_afd7_ed55_8ccd);
            mixed ^ (mixed >> 29)
        })
    }

    /// An event that has no place in the device lane.
    fn noise(&self, rng: &mut SmallRng) -> Event {
        let block_hashes = vec![rng.random()];
        let tokens = Tokens::Plain(vec![7; BLOCK_SIZE as usize]);
        let window = Group { idx: Some(1), kind: Some(Kind::Other("sliding_window".to_owned())) };
        let stored = Stored { block_hashes: block_hashes.clone(), tokens, block_size: BLOCK_SIZE, ..Stored::default() };
        let says_locality = matches!(self.encoder.generation, Generation::Vllm026 | Generation::Vllm033);
        match rng.random_range(0..6) {
            0 if self.has_extra_keys() => Event::Stored(Stored { group: window, block_size: 9, ..stored }),
            1 => Event::Stored(Stored { medium: Medium::Host, ..stored }),
            2 if says_locality => Event::Stored(Stored { locality: Locality::Remote, ..stored }),
            3 => Event::Stored(Stored { block_size: 0, tokens: Tokens::default(), medium: Medium::Host, ..stored }),
            4 => Event::Removed(Removed { block_hashes, ..Removed::default() }),
            _ => Event::Unknown("BlockWarmed".to_owned()),
        }
    }
}

fn random_path(rng: &mut SmallRng, root: Root) -> Path {
    Path { root, blocks: (0..rng.random_range(1..=DEPTH)).map(|_| rng.random_range(0..BREADTH)).collect() }
}
