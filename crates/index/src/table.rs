//! A hash table from 64-bit keys to 32-bit values that wastes little, and of which most questions touch a small part: the
//! tags. A tag is a byte of the key; seven tags and a count fill a word, a group. So a search that finds nothing
//! reads, nearly always, one word of a table an eighth the size of the whole, and an insertion writes its entry without
//! having to wait for the memory it goes to.
//!
//! An entry lies in its key's home group or, where that is full, in the next with room; each group counts the entries
//! that passed it by, so a search knows where to end and a removal leaves no tombstone. Homes keep the order of the
//! hashes, so growing is one pass from left to right. A key is its own hash: who uses the table mixes it with the
//! process's secret, so that what others choose does not cluster.

use crate::near::approach;

/// Entries of a group.
const PLACES: usize = 7;
/// Above this share of its places, in percent, a table grows to [`REBUILT_PERCENT`]; below [`SPARSE_PERCENT`] it shrinks.
const FULL_PERCENT: usize = 87;
const REBUILT_PERCENT: usize = 50;
const SPARSE_PERCENT: usize = 30;

/// The lowest bit of each tag of a group, and the highest.
const LOW: u64 = 0x0001_0101_0101_0101;
const HIGH: u64 = LOW << 7;
/// One entry that passed a group by.
const PASSED_BY: u64 = 1 << (8 * PLACES);
/// A count that is this high is not counted any more: searches go on past the group until the table is laid out anew.
const UNCOUNTED: u64 = 0xff << (8 * PLACES);

/// A word: the tags of its places, 0 where there is no entry, and above them the count of those that passed by.
#[derive(Clone, Copy, Debug)]
struct Group(u64);

/// The low half of the key, its high half, and the value.
#[derive(Clone, Copy, Debug, Default)]
struct Entry([u32; 3]);

/// Where an entry of a key goes that has none, as long as the table is not changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening {
    key: u64,
    /// The key's home, and the first vacant place there, if any is.
    home: usize,
    place: Option<usize>,
}

/// The table. A key may have several values; who searches says which is meant.
#[derive(Debug, Default)]
pub(crate) struct Table {
    groups: Box<[Group]>,
    /// [`PLACES`] for each group.
    entries: Box<[Entry]>,
    len: usize,
}

impl Group {
    fn tag(self, place: usize) -> u64 {
        (self.0 >> (8 * place)) & 0xff
    }

    fn set(&mut self, place: usize, tag: u64) {
        self.0 = (self.0 & !(0xff << (8 * place))) | (tag << (8 * place));
    }

    /// Some bit of every byte that is zero, and of some that come after one: the lowest is right.
    fn zeros(word: u64) -> u64 {
        word.wrapping_sub(LOW) & !word & HIGH
    }

    /// Bits in the places of entries with this tag, and rarely in one with another.
    fn places_of(self, tag: u64) -> u64 {
        Self::zeros(self.0 ^ (tag * LOW))
    }

    /// The first place without an entry.
    fn vacancy(self) -> Option<usize> {
        let vacant = Self::zeros(self.0);
        (vacant != 0).then(|| place_of(vacant))
    }

    fn is_passed_by(self) -> bool {
        self.0 >= PASSED_BY
    }

    fn pass_by(&mut self) {
        if self.0 < UNCOUNTED {
            self.0 += PASSED_BY;
        }
    }

    fn unpass(&mut self) {
        if self.0 < UNCOUNTED {
            self.0 -= PASSED_BY;
        }
    }
}

/// Where the lowest of these bits is.
fn place_of(places: u64) -> usize {
    places.trailing_zeros() as usize / 8 % PLACES
}

impl Entry {
    fn new(key: u64, value: u32) -> Self {
        Self([key as u32, (key >> 32) as u32, value])
    }

    fn key(self) -> u64 {
        u64::from(self.0[0]) | u64::from(self.0[1]) << 32
    }

    fn value(self) -> u32 {
        self.0[2]
    }
}

impl Table {
    /// Entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Has the tags come near that a search for `key` looks at.
    #[inline]
    pub(crate) fn approach_tags(&self, key: u64) {
        if self.len > 0 {
            approach(&self.groups[self.home(key)]);
        }
    }

    /// Has the entry of `key` come near, or else the place where it would be inserted; best when its tags are.
    pub(crate) fn approach_entry(&self, key: u64) {
        if self.len > 0 {
            let home = self.home(key);
            let group = self.groups[home];
            let places = group.places_of(tag(key));
            let places = if places == 0 { Group::zeros(group.0) } else { places };
            approach(&self.entries[home * PLACES + place_of(places)]);
        }
    }

    /// The first value of `key` that is accepted.
    pub(crate) fn find(&self, key: u64, accept: impl Fn(u32) -> bool) -> Option<u32> {
        self.position(key, accept).map(|(group, place)| self.entries[group * PLACES + place].value())
    }

    /// Adds an entry.
    pub(crate) fn insert(&mut self, key: u64, value: u32) {
        self.reserve(1);
        self.insert_reserved(key, value);
    }

    /// Makes room for `more` entries.
    #[inline]
    pub(crate) fn reserve(&mut self, more: usize) {
        if (self.len + more) * 100 > self.entries.len() * FULL_PERCENT {
            self.rebuild(self.len + more);
        }
    }

    /// Adds an entry for which there is room.
    #[inline]
    pub(crate) fn insert_reserved(&mut self, key: u64, value: u32) {
        self.len += 1;
        self.put(key, value);
    }

    /// Where an entry of `key` goes, for which there is room: asked for at once, since it lies far off. `None`: there is one.
    #[inline]
    pub(crate) fn opening(&self, key: u64) -> Option<Opening> {
        let home = self.home(key);
        let group = self.groups[home];
        let place = group.vacancy();
        if let Some(place) = place {
            approach(&self.entries[home * PLACES + place]);
        }
        let is_there = (group.is_passed_by() || group.places_of(tag(key)) != 0) && self.position(key, |_| true).is_some();
        (!is_there).then_some(Opening { key, home, place })
    }

    /// Adds the entry for which there is an opening.
    #[inline(always)]
    pub(crate) fn fill(&mut self, opening: Opening, value: u32) {
        let Opening { key, home, place } = opening;
        self.len += 1;
        match place {
            Some(place) => {
                self.groups[home].set(place, tag(key));
                self.entries[home * PLACES + place] = Entry::new(key, value);
            }
            None => self.fill_elsewhere(key, value),
        }
    }

    #[cold]
    fn fill_elsewhere(&mut self, key: u64, value: u32) {
        self.put(key, value);
    }

    /// Puts `value` in the place of the accepted value of `key`; whether there was one.
    pub(crate) fn replace(&mut self, key: u64, value: u32, accept: impl Fn(u32) -> bool) -> bool {
        let Some((group, place)) = self.position(key, accept) else { return false };
        self.entries[group * PLACES + place] = Entry::new(key, value);
        true
    }

    /// Takes the accepted value of `key` out.
    pub(crate) fn remove(&mut self, key: u64, accept: impl Fn(u32) -> bool) -> Option<u32> {
        let (found, place) = self.position(key, accept)?;
        let mut at = self.home(key);
        while at != found {
            self.groups[at].unpass();
            at = self.after(at);
        }
        self.groups[found].set(place, 0);
        self.len -= 1;
        let value = self.entries[found * PLACES + place].value();
        if self.len * 100 < self.entries.len() * SPARSE_PERCENT {
            self.rebuild(self.len);
        }
        Some(value)
    }

    /// Every (key, value), about in the order of the hashes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u32)> + Clone {
        let groups = self.groups.iter().zip(self.entries.chunks_exact(PLACES));
        let places = groups.flat_map(|(group, entries)| entries.iter().enumerate().filter(|(place, _)| group.tag(*place) != 0));
        places.map(|(_, entry)| (entry.key(), entry.value()))
    }

    /// Every value, in the same order.
    pub(crate) fn values(&self) -> impl Iterator<Item = u32> + Clone {
        self.iter().map(|(_, value)| value)
    }

    fn home(&self, key: u64) -> usize {
        ((u128::from(key) * self.groups.len() as u128) >> 64) as usize
    }

    fn after(&self, group: usize) -> usize {
        if group + 1 == self.groups.len() { 0 } else { group + 1 }
    }

    fn position(&self, key: u64, accept: impl Fn(u32) -> bool) -> Option<(usize, usize)> {
        if self.len == 0 {
            return None;
        }
        let (mut at, tag) = (self.home(key), tag(key));
        // Nearly always a group nobody passed by ends this; a small table may have none.
        for _ in 0..self.groups.len() {
            let group = self.groups[at];
            let mut places = group.places_of(tag);
            while places != 0 {
                let place = place_of(places);
                let entry = self.entries[at * PLACES + place];
                if entry.key() == key && group.tag(place) == tag && accept(entry.value()) {
                    return Some((at, place));
                }
                places &= places - 1;
            }
            if !group.is_passed_by() {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    /// Adds an entry where there is room.
    #[inline]
    fn put(&mut self, key: u64, value: u32) {
        let mut at = self.home(key);
        loop {
            let group = &mut self.groups[at];
            if let Some(place) = group.vacancy() {
                group.set(place, tag(key));
                self.entries[at * PLACES + place] = Entry::new(key, value);
                return;
            }
            group.pass_by();
            at = self.after(at);
        }
    }

    /// Lays the entries out anew for `len` of them: read and written from left to right.
    #[cold]
    fn rebuild(&mut self, len: usize) {
        let groups = (len * 100).div_ceil(PLACES * REBUILT_PERCENT);
        let entries = vec![Entry::default(); groups * PLACES].into();
        let old = std::mem::replace(self, Self { groups: vec![Group(0); groups].into(), entries, len: self.len });
        for (group, entries) in old.groups.iter().zip(old.entries.chunks_exact(PLACES)) {
            for place in (0..PLACES).filter(|place| group.tag(*place) != 0) {
                self.put(entries[place].key(), entries[place].value());
            }
        }
    }
}

/// A byte of a key that says least about its home; never zero. The lowest is left to who keeps a table in parts.
fn tag(key: u64) -> u64 {
    (key >> 8 & 0xff).max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::keyed::Key;

    proptest! {
        #[test]
        fn a_table_is_a_map_to_sets(ops in vec((0..5_u8, 0..400_u64, 0..3_u32), 0..3000), clustered: bool) {
            let (mut table, mut model) = (Table::default(), BTreeMap::<u64, BTreeSet<u32>>::new());
            for (op, key, value) in ops {
                let key = if clustered { key } else { Key::of_process().mix(key) };
                let values = model.entry(key).or_default();
                match op {
                    0 => prop_assert_eq!(table.remove(key, |other| other == value).is_some(), values.remove(&value)),
                    1 => {
                        let had = values.remove(&value);
                        prop_assert_eq!(table.replace(key, value + 10, |other| other == value), had);
                        if had && !values.insert(value + 10) {
                            table.remove(key, |other| other == value + 10);
                        }
                    }
                    2 => {
                        table.reserve(1);
                        let opening = table.opening(key);
                        prop_assert_eq!(opening.is_none(), !values.is_empty());
                        if let Some(opening) = opening {
                            table.fill(opening, value);
                            values.insert(value);
                        }
                    }
                    _ => if values.insert(value) {
                        table.insert(key, value);
                    },
                }
                prop_assert_eq!(table.find(key, |other| other == value).is_some(), model[&key].contains(&value));
            }
            let mut found: Vec<_> = table.iter().collect();
            found.sort_unstable();
            let expected: Vec<_> = model.iter().flat_map(|(key, values)| values.iter().map(|value| (*key, *value))).collect();
            prop_assert_eq!(table.len(), expected.len());
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_search_ends_where_every_group_was_passed_by() {
        // With few buckets and as many entries as they take, all are passed by sooner or later.
        let random = |n: u64| crate::indexer::mixed(crate::hash::SequenceHash(n));
        let (mut table, mut live, mut all_passed_by) = (Table::default(), Vec::new(), 0);
        for n in 0..20_000 {
            table.insert(random(n), 0);
            live.push(random(n));
            if live.len() == 12 {
                let key = live.swap_remove(random(n + 1) as usize % live.len());
                assert_eq!(table.remove(key, |_| true), Some(0));
            }
            all_passed_by += usize::from(table.groups.iter().all(|group| group.is_passed_by()));
            assert_eq!(table.find(u64::MAX, |_| true), None);
        }
        assert!(all_passed_by > 0);
    }

    #[test]
    fn it_stays_dense_while_it_grows_and_gives_memory_back() {
        let mut table = Table::default();
        let mixed = |key: u64| Key::of_process().mix(key);
        for key in 0..20_000 {
            table.insert(mixed(key), key as u32);
            let places = table.entries.len();
            assert!(key < 100 || places * 49 <= (key as usize + 1) * 100, "{places} places for {key}");
            let passed_by: u64 = table.groups.iter().map(|group| group.0 / PASSED_BY).sum();
            assert!(passed_by as usize <= 3 * key as usize + 100, "entries lie {passed_by} buckets from home at {key}");
        }
        for key in (0..20_000).rev() {
            assert_eq!(table.remove(mixed(key), |_| true), Some(key as u32));
            assert!(table.entries.len() * 25 <= (key as usize + 20) * 100);
        }
        assert!(table.groups.is_empty());
        assert_eq!(table.find(1, |_| true), None);
    }
}
