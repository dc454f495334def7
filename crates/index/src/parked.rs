//! Stores whose parents are unknown on their target (rule 6): kept aside within bounds, credited to nobody.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use crate::{
    hash::{BlockSize, EngineHash, LocalHash, Seed, SequenceHash, Window, local_hashes},
    keyed::KeyedMap,
    lane::Copies,
    limits::Limits,
    steps::Steps,
    store::{Blocks, Refusal},
};

/// What a parked store and each of its blocks count for, besides tokens: about what they and their index entries take.
const STORE_BYTES: usize = 256;
const BLOCK_BYTES: usize = 80;
/// A store whose first block is at more places than these in a confirmed prompt tells nothing.
const MOST_STARTS: usize = 16;

/// The stores whose parents are unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parked {
    /// Stores parked now.
    pub stores: usize,
    /// Blocks of those stores, without the ones removed since.
    pub blocks: usize,
    /// Stores ever parked.
    pub total: u64,
    /// Stores dropped, the oldest first, because a bound was reached, or because they could not be attached when
    /// their parents came.
    pub dropped: u64,
}

/// Ages a store: later stores have larger ones.
type Age = u64;

#[derive(Debug, Default)]
pub(crate) struct ParkedStores {
    stores: BTreeMap<Age, Orphan>,
    /// By the parent they wait for; oldest first.
    waiting: KeyedMap<EngineHash, SmallVec<[Age; 1]>>,
    /// By the names of their blocks, without those removed since: the store and which of its blocks; oldest first.
    naming: KeyedMap<EngineHash, SmallVec<[(Age, u32); 1]>>,
    bytes: usize,
    report: Parked,
}

/// One parked store.
#[derive(Debug)]
pub(crate) struct Orphan {
    parent: EngineHash,
    content: Content,
    /// Each block's name, and whether it is still there.
    names: Vec<(EngineHash, bool)>,
    /// How many are still there.
    left: usize,
    bytes: usize,
}

/// Tokens wait unhashed: their seed comes with the parent.
#[derive(Debug)]
enum Content {
    Tokens { tokens: Box<[u32]>, window: Window },
    LocalHashes(Box<[LocalHash]>),
}

impl ParkedStores {
    pub(crate) fn report(&self) -> Parked {
        self.report
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.stores.is_empty()
    }

    /// Parks a store; the oldest ones go if a bound is passed.
    pub(crate) fn park(&mut self, parent: EngineHash, blocks: Blocks<'_>, limits: &Limits) -> Result<(), Refusal> {
        let orphan = Orphan::new(parent, blocks);
        if orphan.bytes > limits.parked_bytes || limits.parked_stores == 0 {
            return Err(Refusal::TooLargeToPark { limit: limits.parked_bytes });
        }
        while self.stores.len() >= limits.parked_stores || self.bytes + orphan.bytes > limits.parked_bytes {
            let Some(oldest) = self.stores.first_key_value().map(|(age, _)| *age) else { break };
            self.take(oldest);
            self.report.dropped += 1;
        }
        self.report.total += 1;
        self.report.stores += 1;
        self.report.blocks += orphan.names.len();
        self.bytes += orphan.bytes;
        let age = self.report.total;
        self.waiting.entry(parent).or_default().push(age);
        for (block, (hash, _)) in orphan.names.iter().enumerate() {
            self.naming.entry(*hash).or_default().push((age, block as u32));
        }
        self.stores.insert(age, orphan);
        Ok(())
    }

    /// Takes one copy of a parked block away, the oldest, or with [`Copies::Set`] all; whether there was one.
    pub(crate) fn remove(&mut self, hash: EngineHash, copies: Copies) -> bool {
        let mut removed = false;
        while let Some((oldest, block)) = self.naming.get(&hash).and_then(|places| places.first().copied()) {
            self.remove_from(oldest, block, hash);
            removed = true;
            match copies {
                Copies::Counted => break,
                Copies::Set => {}
            }
        }
        removed
    }

    fn remove_from(&mut self, age: Age, block: u32, hash: EngineHash) {
        forget(&mut self.naming, hash, |place| place.0 == age);
        let Some(orphan) = self.stores.get_mut(&age) else { return };
        orphan.names[block as usize].1 = false;
        orphan.left -= 1;
        self.report.blocks -= 1;
        if orphan.left == 0 {
            self.take(age);
        }
    }

    /// Takes out the stores that wait for `parent`, oldest first.
    pub(crate) fn take_waiting(&mut self, parent: EngineHash) -> Vec<Orphan> {
        let ages = self.waiting.get(&parent).cloned().unwrap_or_default();
        ages.into_iter().filter_map(|age| self.take(age)).collect()
    }

    /// Counts a store that was taken out and could not be attached.
    pub(crate) fn lost(&mut self) {
        self.report.dropped += 1;
    }

    /// Drops everything; the counters of what ever happened go on.
    pub(crate) fn clear(&mut self) {
        let Parked { total, dropped, .. } = self.report;
        *self = Self { report: Parked { total, dropped, ..Parked::default() }, ..Self::default() };
    }

    /// The parents whose place in `chain` is given away by a store that waits for them, each with the number of blocks
    /// of `chain` up to and including it; see [`crate::Writer::adopt`].
    pub(crate) fn parents_on(&self, chain: &Confirmed<'_>) -> Vec<(EngineHash, usize)> {
        let starts = chain.starts();
        let (mut found, mut parents) = (Vec::new(), BTreeSet::new());
        for orphan in self.stores.values() {
            // A parent that is parked itself gets its place from its own store.
            if !parents.contains(&orphan.parent)
                && !self.naming.contains_key(&orphan.parent)
                && let Some(position) = orphan.position(chain, &starts)
            {
                parents.insert(orphan.parent);
                found.push((orphan.parent, position));
            }
        }
        found
    }

    fn take(&mut self, age: Age) -> Option<Orphan> {
        let orphan = self.stores.remove(&age)?;
        forget(&mut self.waiting, orphan.parent, |other| *other == age);
        for (hash, there) in &orphan.names {
            if *there {
                forget(&mut self.naming, *hash, |place| place.0 == age);
                self.report.blocks -= 1;
            }
        }
        self.report.stores -= 1;
        self.bytes -= orphan.bytes;
        if self.stores.is_empty() {
            self.waiting = KeyedMap::default();
            self.naming = KeyedMap::default();
        }
        Some(orphan)
    }
}

fn forget<V>(map: &mut KeyedMap<EngineHash, SmallVec<[V; 1]>>, key: EngineHash, which: impl Fn(&V) -> bool) {
    if let Some(entries) = map.get_mut(&key) {
        entries.retain(|entry| !which(entry));
        if entries.is_empty() {
            map.remove(&key);
        }
    }
}

impl Orphan {
    fn new(parent: EngineHash, blocks: Blocks<'_>) -> Self {
        let (content, content_bytes) = match blocks {
            Blocks::Tokens { tokens, window, .. } => (Content::Tokens { tokens: tokens.into(), window }, size_of_val(tokens)),
            Blocks::LocalHashes { locals, .. } => (Content::LocalHashes(locals.into()), size_of_val(locals)),
        };
        let names: Vec<_> = blocks.hashes().iter().map(|hash| (*hash, true)).collect();
        let bytes = STORE_BYTES + names.len() * BLOCK_BYTES + content_bytes;
        Self { parent, content, left: names.len(), names, bytes }
    }

    /// The names of its blocks, removed ones included.
    pub(crate) fn hashes(&self) -> impl Iterator<Item = EngineHash> {
        self.names.iter().map(|(hash, _)| *hash)
    }

    /// Its blocks after `parent`, up to the last that is still there.
    pub(crate) fn steps(&self, parent: Option<SequenceHash>, seed: Seed, block_size: BlockSize, steps: &mut Steps) {
        let locals = self.content.locals(seed, block_size);
        let there = self.names.iter().rposition(|(_, there)| *there).map_or(0, |last| last + 1);
        steps.fill(parent, &locals[..there.min(locals.len())]);
        steps.leave_out(self.names[..there].iter().map(|(_, there)| !there));
    }

    /// The one place in the chain where this store can begin.
    fn position(&self, chain: &Confirmed<'_>, starts: &[(LocalHash, usize)]) -> Option<usize> {
        let first = self.content.first(chain.seed, chain.block_size)?;
        let continues = chain.locals.get(chain.known) == Some(&first);
        let from = starts.partition_point(|(local, _)| *local < first);
        let to = starts.partition_point(|(local, _)| *local <= first);
        let inside = if to - from <= MOST_STARTS { &starts[from..to] } else { &[] };
        if !continues && inside.is_empty() {
            return None;
        }
        let locals = self.content.locals(chain.seed, chain.block_size);
        if continues && chain.agrees(chain.known, &locals) {
            return Some(chain.known);
        }
        let mut fitting = inside.iter().map(|(_, at)| *at).filter(|at| chain.agrees(*at, &locals));
        fitting.next().filter(|_| fitting.next().is_none())
    }
}

impl Content {
    fn locals(&self, seed: Seed, block_size: BlockSize) -> Vec<LocalHash> {
        match self {
            Self::Tokens { tokens, window } => {
                let mut locals = Vec::new();
                local_hashes(tokens, block_size, seed, *window, &mut locals);
                locals
            }
            Self::LocalHashes(locals) => locals.to_vec(),
        }
    }

    fn first(&self, seed: Seed, block_size: BlockSize) -> Option<LocalHash> {
        match self {
            Self::Tokens { tokens, window } => {
                let mut first = Vec::new();
                local_hashes(tokens.get(..window.tokens(block_size))?, block_size, seed, *window, &mut first);
                first.first().copied()
            }
            Self::LocalHashes(locals) => locals.first().copied(),
        }
    }
}

/// A prompt of which the engine confirmed the first `known` blocks; `known` is above zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Confirmed<'a> {
    pub(crate) locals: &'a [LocalHash],
    pub(crate) known: usize,
    pub(crate) seed: Seed,
    pub(crate) block_size: BlockSize,
}

impl Confirmed<'_> {
    /// The confirmed blocks after the first, with their places, sorted.
    fn starts(&self) -> Vec<(LocalHash, usize)> {
        let mut starts: Vec<_> = (1..self.known).map(|at| (self.locals[at], at)).collect();
        starts.sort_unstable();
        starts
    }

    /// Whether `blocks` are what the chain holds from `at` on, for as long as both last.
    fn agrees(&self, at: usize, blocks: &[LocalHash]) -> bool {
        self.locals[at..].iter().zip(blocks).all(|(own, other)| own == other)
    }
}
