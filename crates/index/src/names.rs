//! A writer's own book: which block each of its engine's names means.
//!
//! It is the writer's alone, outside the index's lock: two writers at once do most of their work without meeting. A name
//! costs what its entry in a [`Table`] costs; what few names have (copies, a seed of their own, a block they share
//! with other names) is kept beside it.

mod tails;

use std::collections::VecDeque;

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

/// So many strips are kept without asking whether they are needed.
const FEW_STRIPS: usize = 64;

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

/// The strips in which the lane gained blocks, for when all are given up at once: a look at each name would cost more than
/// all the rest of that. Some are in it twice, and some from which the blocks have gone.
#[derive(Debug, Default)]
struct Strips {
    gained_in: Vec<StripId>,
    /// How many there were when those without names were left out for the last time.
    settled: usize,
}

/// Names whose place is known by confirmation alone, oldest first in `order`. A place does not keep its node alive: it
/// is worth something only while others do.
#[derive(Debug, Default)]
struct Anchors {
    places: KeyedMap<EngineHash, Place>,
    order: VecDeque<EngineHash>,
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
            None => self.anchors.places.get(&hash).map(|place| Known::Place(*place)),
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
        if !self.anchors.places.is_empty() {
            self.anchors.forget(hash);
        }
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
        if !self.anchors.places.is_empty() {
            self.anchors.forget(hash);
        }
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
        if !self.anchors.places.is_empty() {
            hashes.iter().for_each(|hash| {
                self.anchors.forget(*hash);
            });
        }
    }

    /// Notes that the lane gained blocks in a strip, after their names were stored.
    pub(crate) fn gained_in(&mut self, strip: StripId) {
        let Strips { gained_in, settled } = &mut self.strips;
        if gained_in.last() == Some(&strip) {
            return;
        }
        gained_in.push(strip);
        // So a look at each name is paid for by as many strips as it leaves.
        if gained_in.len() > 2 * *settled + FEW_STRIPS {
            *gained_in = strips_of(&self.held);
            *settled = gained_in.len();
        }
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
        self.anchors.forget(hash);
        self.anchors.places.insert(hash, place);
        self.anchors.order.push_back(hash);
        while self.anchors.order.len() > limit {
            if let Some(oldest) = self.anchors.order.pop_front() {
                self.anchors.places.remove(&oldest);
            }
        }
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
        std::mem::take(self).strips.gained_in
    }
}

/// The strips of the blocks that have names, once each.
fn strips_of(held: &Table) -> Vec<StripId> {
    let strips = held.values().map(|block| BlockId(block).strip().0 as usize);
    // A bit for each strip from the first to the last: cheaper than sorting them, and small beside the table.
    let (first, last) = strips.clone().fold((usize::MAX, 0), |(first, last), strip| (first.min(strip), last.max(strip)));
    let mut bits = vec![0_u64; last.saturating_sub(first.min(last)) / 64 + 1];
    for strip in strips {
        bits[(strip - first) / 64] |= 1 << ((strip - first) % 64);
    }
    let words = bits.iter().enumerate().filter(|(_, word)| **word != 0);
    let strips = words.flat_map(|(at, word)| (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + at * 64 + bit));
    strips.map(|strip| StripId(strip as u32)).collect()
}

impl Anchors {
    fn forget(&mut self, hash: EngineHash) -> bool {
        let known = !self.places.is_empty() && self.places.remove(&hash).is_some();
        if known {
            self.order.retain(|other| *other != hash);
        }
        known
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

    #[test]
    fn the_strips_of_all_names_are_known_and_not_many_more() {
        let mut names = Names::default();
        let mut mixed = Vec::new();
        let hashes: Vec<_> = (0..4000).map(EngineHash).collect();
        Names::mix(&hashes, &mut mixed);
        names.reserve(hashes.len());
        // Names for blocks in turn of 1,000 strips, of which half go again.
        for round in 0..5 {
            for at in (0..4000).filter(|at| round == 0 || at % 4 == 0) {
                let strip = StripId(at as u32 % 1000 * 3);
                names.store((hashes[at], mixed[at]), BlockId::new(strip, at / 1000), true, None);
                names.gained_in(strip);
            }
            assert!(names.strips.gained_in.len() <= 2 * 1000 + FEW_STRIPS);
            for at in (0..4000).filter(|at| at % 4 == 0) {
                assert!(names.forget(hashes[at]).is_some());
            }
        }
        let needed: std::collections::BTreeSet<_> = strips_of(&names.held).into_iter().collect();
        let known: std::collections::BTreeSet<_> = names.take_all().into_iter().collect();
        assert_eq!(needed.len(), 750);
        assert!(needed.is_subset(&known));
    }
}
