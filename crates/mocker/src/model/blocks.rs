//! The pool of physical blocks, and which of them hold what.
//!
//! A block is in use while a request refers to it. When the last one leaves, it goes to the free list with its content:
//! it stays a hit until someone needs the space. Blocks with content go to the back and are given out oldest first;
//! a request returns its blocks last one first, so a chain loses its leaves before its head. Blocks without content go
//! to the front.

use std::collections::{BTreeMap, HashMap};

use super::{KvEvent, Style};

/// Index of a physical block.
pub(super) type Block = u32;

#[derive(Clone, Debug, Default)]
struct Slot {
    /// What the block holds; `None` while it is partial or empty.
    hash: Option<u64>,
    /// Requests that refer to it.
    users: u32,
    /// Its place in the free list, while `users` is 0.
    free_at: i64,
}

/// The pool.
#[derive(Debug)]
pub(super) struct Pool {
    style: Style,
    slots: Vec<Slot>,
    /// Unused blocks by place; the first is given out next.
    free: BTreeMap<i64, Block>,
    /// Places to give at the front (counting down) and at the back (counting up).
    front: i64,
    back: i64,
    /// Every block that holds a hash, oldest copy first.
    cached: HashMap<u64, Vec<Block>>,
    /// Cache changes since the last [`Pool::take_events`].
    events: Vec<KvEvent>,
}

impl Pool {
    pub(super) fn new(style: Style, blocks: u32) -> Self {
        let mut pool = Self {
            style,
            slots: vec![Slot::default(); blocks as usize],
            free: BTreeMap::new(),
            front: -1,
            back: 0,
            cached: HashMap::new(),
            events: Vec::new(),
        };
        for block in 0..blocks {
            pool.push_back(block);
        }
        if style == Style::Sglang {
            pool.events.push(KvEvent::Cleared);
        }
        pool
    }

    /// The blocks that hold the longest cached run at the start of `hashes`.
    pub(super) fn lookup(&self, hashes: &[u64]) -> Vec<Block> {
        hashes.iter().map_while(|hash| self.cached.get(hash).map(|copies| copies[0])).collect()
    }

    /// Whether `fresh` new blocks could be had after `hits` are taken.
    pub(super) fn has_room(&self, hits: &[Block], fresh: usize) -> bool {
        let idle_hits = hits.iter().filter(|&&block| self.slots[block as usize].users == 0).count();
        fresh <= self.free.len() - idle_hits
    }

    /// Takes a cached block for one more user.
    pub(super) fn take(&mut self, block: Block) {
        let slot = &mut self.slots[block as usize];
        if slot.users == 0 {
            self.free.remove(&slot.free_at);
        }
        slot.users += 1;
    }

    /// A new empty block for one user, evicting what the block held. `None` if all are in use.
    pub(super) fn allocate(&mut self) -> Option<Block> {
        let (_, block) = self.free.pop_first()?;
        self.forget(block);
        self.slots[block as usize].users = 1;
        Some(block)
    }

    /// Declares a block full of `hash`. `Some(other)` if the style keeps one copy and `other` already is it: the
    /// caller's reference is moved there.
    pub(super) fn fill(&mut self, block: Block, hash: u64) -> Filled {
        if self.style == Style::Sglang
            && let Some(&other) = self.cached.get(&hash).and_then(|copies| copies.first())
        {
            self.take(other);
            self.release(&[block]);
            return Filled::Merged(other);
        }
        self.slots[block as usize].hash = Some(hash);
        self.cached.entry(hash).or_default().push(block);
        Filled::Stored
    }

    /// Announces a run of stored blocks.
    pub(super) fn announce(&mut self, event: KvEvent) {
        self.events.push(event);
    }

    /// Gives up one reference to each of a request's blocks, in sequence order.
    pub(super) fn release(&mut self, blocks: &[Block]) {
        for &block in blocks.iter().rev() {
            let slot = &mut self.slots[block as usize];
            slot.users -= 1;
            if slot.users > 0 {
                continue;
            }
            if slot.hash.is_some() {
                self.push_back(block);
            } else {
                self.push_front(block);
            }
        }
    }

    /// Forgets all content. Does nothing and says false while any block is in use.
    pub(super) fn reset(&mut self) -> bool {
        if self.used() > 0 {
            return false;
        }
        self.cached.clear();
        for slot in &mut self.slots {
            slot.hash = None;
        }
        self.events.push(KvEvent::Cleared);
        true
    }

    pub(super) fn take_events(&mut self) -> Vec<KvEvent> {
        std::mem::take(&mut self.events)
    }

    /// Blocks some request refers to.
    pub(super) fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Blocks no request refers to, with or without content.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// Every cached hash with its number of copies.
    pub(super) fn contents(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        self.cached.iter().map(|(&hash, copies)| (hash, copies.len()))
    }

    fn forget(&mut self, block: Block) {
        let Some(hash) = self.slots[block as usize].hash.take() else { return };
        if let Some(copies) = self.cached.get_mut(&hash) {
            copies.retain(|&copy| copy != block);
            if copies.is_empty() {
                self.cached.remove(&hash);
            }
        }
        self.events.push(KvEvent::Removed { hash });
    }

    fn push_back(&mut self, block: Block) {
        let at = self.back;
        self.back += 1;
        self.insert_free(block, at);
    }

    fn push_front(&mut self, block: Block) {
        let at = self.front;
        self.front -= 1;
        self.insert_free(block, at);
    }

    fn insert_free(&mut self, block: Block, at: i64) {
        self.slots[block as usize].free_at = at;
        self.free.insert(at, block);
    }
}

/// What [`Pool::fill`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filled {
    /// The block itself holds the content now.
    Stored,
    /// Another block held it already and stands in.
    Merged(Block),
}
