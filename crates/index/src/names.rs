//! A writer's own book: which block each of its engine's names means.
//!
//! It is the writer's alone, outside the index's lock: two writers at once do most of their work without meeting. A name
//! costs what its entry in a [`Table`] costs; what few names have (copies, a seed of their own, a block they share
//! with other names) is kept beside it.

mod anchors;
mod strips;
mod tails;

use anchors::Anchors;
use strips::Strips;
pub(crate) use tails::Tail;
use tails::Tails;

use crate::{
    hash::{EngineHash, Seed, SequenceHash},
    keyed::{Key, KeyedMap},
    lane::Copies,
    node::{BlockId, BlockRef, StripId},
    table::{Opening, Table},
};

/// A map is given memory back when it is below a quarter of what it has and above this.
const SMALLEST_SHRUNK: usize = 1024;

/// How many names ahead the memory is asked for: first the tags, with which the place of the entry is known.
const TAGS_AHEAD: usize = 24;
const ENTRIES_AHEAD: usize = 12;

/// A block that others can follow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// `None`: before the first block.
    pub(crate) block: Option<BlockRef>,
    pub(crate) sequence: Option<SequenceHash>,
    pub(crate) seed: Seed,
}

/// The names of the blocks a writer holds, and those it knows the place of without holding them.
#[derive(Debug, Default)]
pub(crate) struct Names {
    held: Table,
    /// Copies beyond the first, for the few names that have them.
    more_copies: KeyedMap<EngineHash, u32>,
    /// How many names a block has beyond its first, for the few that have.
    more_names: KeyedMap<BlockId, u32>,
    /// Seeds of names that were stored under another than their strip was.
    odd_seeds: KeyedMap<EngineHash, Seed>,
    /// Blocks held.
    blocks: usize,
    strips: Strips,
    anchors: Anchors,
    tails: Tails,
}

/// Where the block a name means can be found.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Known {
    Place(Place),
    /// Held, with the seed of the name where that is not its strip's.
    Held(BlockId, Option<Seed>),
}

impl Names {
    /// Blocks held.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Names of blocks that are held.
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// Fills `mixed` with what the table knows `hashes` by.
    pub(crate) fn mix(hashes: &[EngineHash], mixed: &mut Vec<u64>) {
        let key = Key::of_process();
        mixed.clear();
        mixed.extend(hashes.iter().map(|hash| key.mix(hash.0)));
    }

    /// The held block of a mixed name.
    #[inline]
    pub(crate) fn held(&self, mixed: u64) -> Option<BlockId> {
        self.held.find(mixed, |_| true).map(BlockId)
    }

    /// What is known of where blocks go that follow the block `hash` names.
    pub(crate) fn known(&self, hash: EngineHash) -> Option<Known> {
        match self.held(Key::of_process().mix(hash.0)) {
            Some(block) => Some(Known::Held(block, self.odd_seeds.get(&hash).copied())),
            None => self.anchors.get(hash).map(Known::Place),
        }
    }

    /// Names are asked for in the order of `mixed`, and `at` comes next: has the memory of some after it come near.
    #[inline]
    pub(crate) fn approach(&self, mixed: &[u64], at: usize) {
        if at == 0 {
            mixed.iter().take(TAGS_AHEAD).for_each(|name| self.held.approach_tags(*name));
            mixed.iter().take(ENTRIES_AHEAD).for_each(|name| self.held.approach_entry(*name));
        }
        if let Some(name) = mixed.get(at + TAGS_AHEAD) {
            self.held.approach_tags(*name);
        }
        if let Some(name) = mixed.get(at + ENTRIES_AHEAD) {
            self.held.approach_entry(*name);
        }
    }

    /// Remembers that blocks that follow `hash`, which is held, go after `block`, with that identity and of a store with that
    /// seed; while it is held and as long as there is room.
    pub(crate) fn end_at(&mut self, hash: EngineHash, block: BlockId, of: (SequenceHash, Seed)) {
        // Once only: whoever forgets the name forgets it all.
        self.tails.forget(hash);
        self.tails.put(hash, block, of);
    }

    /// Notes one more copy of a block whose name is held.
    pub(crate) fn store_again(&mut self, hash: EngineHash, copies: Copies) {
        match copies {
            Copies::Counted => {
                let more = self.more_copies.entry(hash).or_default();
                *more = more.saturating_add(1);
            }
            Copies::Set => {}
        }
    }

    /// A name as the table has it, whose tags come near.
    #[inline]
    pub(crate) fn approach_one(&self, hash: EngineHash) -> u64 {
        let mixed = Key::of_process().mix(hash.0);
        self.held.approach_tags(mixed);
        mixed
    }

    /// Where a mixed name goes that is not held. `None`: it is.
    #[inline]
    pub(crate) fn opening(&mut self, mixed: u64) -> Option<Opening> {
        self.held.reserve(1);
        self.held.opening(mixed)
    }

    /// Notes a name that is not held for a block that the lane did not hold, where there is an opening for it.
    #[inline(always)]
    pub(crate) fn store_at(&mut self, opening: Opening, hash: EngineHash, block: BlockId, odd_seed: Option<Seed>) {
        self.held.fill(opening, block.0);
        self.blocks += 1;
        self.anchors.forget(hash);
        if let Some(seed) = odd_seed {
            self.odd_seed(hash, seed);
        }
    }

    #[cold]
    fn odd_seed(&mut self, hash: EngineHash, seed: Seed) {
        self.odd_seeds.insert(hash, seed);
    }

    /// The block `hash` names, its identity and its seed, if a store ended there.
    #[inline]
    pub(crate) fn end(&self, hash: EngineHash) -> Option<Tail> {
        self.tails.find(hash)
    }

    /// The end at `tail` is one block further on, which `hash` names, that was not held before.
    #[inline(always)]
    pub(crate) fn end_moves(&mut self, tail: Tail, hash: EngineHash, identity: SequenceHash) {
        match tail.at {
            Some(at) => self.tails.forget_at(at),
            None => self.tails.missed(),
        }
        self.tails.put(hash, tail.block.plus(1), (identity, tail.seed));
    }

    /// Something follows `hash` now.
    pub(crate) fn is_no_end(&mut self, hash: EngineHash) {
        self.tails.forget(hash);
    }

    /// Makes room for names.
    pub(crate) fn reserve(&mut self, more: usize) {
        self.held.reserve(more);
    }

    /// Notes a name that is not held for a block; `gained`: the lane did not hold it before. `odd_seed`: where it is not
    /// the strip's. There is room, and `mixed` is `hash`.
    #[inline]
    pub(crate) fn store(&mut self, (hash, mixed): (EngineHash, u64), block: BlockId, gained: bool, odd_seed: Option<Seed>) {
        self.held.insert_reserved(mixed, block.0);
        self.blocks += usize::from(gained);
        self.anchors.forget(hash);
        if !gained {
            *self.more_names.entry(block).or_default() += 1;
        }
        if let Some(seed) = odd_seed {
            self.odd_seeds.insert(hash, seed);
        }
    }

    /// As [`Names::store`] for consecutive blocks from `first` on, all of which the lane gained under their strip's seed.
    pub(crate) fn store_run(&mut self, hashes: &[EngineHash], mixed: &[u64], first: BlockId) {
        for (at, name) in mixed.iter().enumerate() {
            self.held.insert_reserved(*name, first.plus(at).0);
        }
        self.blocks += mixed.len();
        if !self.anchors.is_empty() {
            hashes.iter().for_each(|hash| {
                self.anchors.forget(*hash);
            });
        }
    }

    /// Notes that the lane gained blocks in a strip, after their names were stored.
    pub(crate) fn gained_in(&mut self, strip: StripId) {
        self.strips.add(strip, &self.held);
    }

    /// Takes one copy away, or with [`Copies::Set`] all. `None`: the name is not known. The block is given if it is not
    /// held any more. `mixed` is `hash`.
    pub(crate) fn remove(&mut self, (hash, mixed): (EngineHash, u64), copies: Copies) -> Option<Option<BlockId>> {
        if !self.more_copies.is_empty()
            && copies == Copies::Counted
            && let Some(more) = self.more_copies.get_mut(&hash)
        {
            *more -= 1;
            if *more == 0 {
                self.more_copies.remove(&hash);
                shrink(&mut self.more_copies);
            }
            return Some(None);
        }
        self.take(hash, mixed).or_else(|| self.anchors.forget(hash).then_some(None))
    }

    /// Drops a name with all its copies; the block if it is not held any more.
    pub(crate) fn forget(&mut self, hash: EngineHash) -> Option<BlockId> {
        self.take(hash, Key::of_process().mix(hash.0)).flatten()
    }

    fn take(&mut self, hash: EngineHash, mixed: u64) -> Option<Option<BlockId>> {
        let block = BlockId(self.held.remove(mixed, |_| true)?);
        self.tails.forget(hash);
        if !self.odd_seeds.is_empty() && self.odd_seeds.remove(&hash).is_some() {
            shrink(&mut self.odd_seeds);
        }
        if !self.more_copies.is_empty() && self.more_copies.remove(&hash).is_some() {
            shrink(&mut self.more_copies);
        }
        if !self.more_names.is_empty()
            && let Some(more) = self.more_names.get_mut(&block)
        {
            *more -= 1;
            if *more == 0 {
                self.more_names.remove(&block);
                shrink(&mut self.more_names);
            }
            return Some(None);
        }
        self.blocks -= 1;
        Some(Some(block))
    }

    /// Remembers where the block `hash` names is, without holding it: at most `limit` such, the oldest go first.
    pub(crate) fn anchor(&mut self, hash: EngineHash, place: Place, limit: usize) {
        self.anchors.add(hash, place, limit);
    }

    /// Drops an anchor.
    pub(crate) fn unanchor(&mut self, hash: EngineHash) {
        self.anchors.forget(hash);
    }

    /// Drops all anchors.
    pub(crate) fn unanchor_all(&mut self) {
        self.anchors = Anchors::default();
    }

    /// Each held name and its block; a block comes once for each of its names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (EngineHash, BlockId)> {
        let key = Key::of_process();
        self.held.iter().map(move |(mixed, block)| (EngineHash(key.unmix(mixed)), BlockId(block)))
    }

    /// Forgets everything; the strips in which blocks were held, and perhaps others.
    pub(crate) fn take_all(&mut self) -> Vec<StripId> {
        std::mem::take(self).strips.into_list()
    }
}

fn shrink<K: Eq + std::hash::Hash, V>(map: &mut KeyedMap<K, V>) {
    if map.capacity() > SMALLEST_SHRUNK && map.len() < map.capacity() / 4 {
        map.shrink_to(map.len() * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_was_told_twice_is_forgotten_with_its_block() {
        let mut names = Names::default();
        let (hash, mut mixed) = (EngineHash(7), Vec::new());
        Names::mix(&[hash], &mut mixed);
        names.reserve(1);
        names.store((hash, mixed[0]), BlockId(300), true, None);
        for _ in 0..2 {
            names.end_at(hash, BlockId(300), (SequenceHash(1), Seed::BASE));
        }
        assert_eq!(names.forget(hash), Some(BlockId(300)));
        assert!(names.known(hash).is_none() && names.end(hash).is_none());
    }
}
