//! A hash table from 64-bit keys to 32-bit values that wastes little: 12 bytes an entry, between 68 and 85 % full.
//!
//! Linear probing in which the entries lie in the order of their hashes (Robin Hood hashing carried to its end): growing
//! is one pass from left to right, so it can be done in small factors, and a search for what is not there ends early.
//! The hash is keyed with the process's secret, so keys chosen by others do not cluster.

use crate::keyed::scramble;

/// Never a value: marks a place without an entry.
const VACANT: u32 = u32::MAX;
/// Above this share of its places, in percent, a table grows to [`REBUILT_PERCENT`]; below [`SPARSE_PERCENT`] it shrinks.
const FULL_PERCENT: usize = 85;
const REBUILT_PERCENT: usize = 68;
const SPARSE_PERCENT: usize = 34;
/// Places behind the last home, for the entries pushed over the edge; the last one always stays vacant.
const OVERHANG: usize = 24;

/// Key (low half, high half) and value.
#[derive(Clone, Copy, Debug)]
struct Entry([u32; 3]);

/// The table. A key may have several values; who searches says which is meant.
#[derive(Debug, Default)]
pub(crate) struct Table {
    entries: Vec<Entry>,
    /// Places entries are hashed to; 0 while nothing is allocated.
    homes: usize,
    len: usize,
}

impl Entry {
    const VACANT: Self = Self([0, 0, VACANT]);

    fn new(key: u64, value: u32) -> Self {
        Self([key as u32, (key >> 32) as u32, value])
    }

    fn is_vacant(self) -> bool {
        self.0[2] == VACANT
    }

    fn key(self) -> u64 {
        u64::from(self.0[0]) | u64::from(self.0[1]) << 32
    }

    fn value(self) -> u32 {
        self.0[2]
    }
}

impl Table {
    pub(crate) const fn new() -> Self {
        Self { entries: Vec::new(), homes: 0, len: 0 }
    }

    /// Entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first value of `key` that is accepted.
    pub(crate) fn find(&self, key: u64, accept: impl Fn(u32) -> bool) -> Option<u32> {
        self.position(key, accept).map(|at| self.entries[at].value())
    }

    /// Adds an entry; `value` is not `u32::MAX`.
    pub(crate) fn insert(&mut self, key: u64, value: u32) {
        if (self.len + 1) * 100 > self.homes * FULL_PERCENT {
            self.rebuild(self.len + 1);
        }
        let hash = scramble(key);
        loop {
            let home = self.home(hash);
            let run = &self.entries[home..];
            let before = run.iter().take_while(|entry| !entry.is_vacant() && scramble(entry.key()) <= hash).count();
            let moved = run[before..].iter().take_while(|entry| !entry.is_vacant()).count();
            let (at, end) = (home + before, home + before + moved);
            if end + 1 < self.entries.len() {
                self.entries.copy_within(at..end, at + 1);
                self.entries[at] = Entry::new(key, value);
                self.len += 1;
                return;
            }
            // The overhang is full: a little more room pulls the homes of its entries apart.
            self.rebuild(self.len + self.len / 8 + OVERHANG);
        }
    }

    /// Puts `value` in the place of the accepted value of `key`; whether there was one.
    pub(crate) fn replace(&mut self, key: u64, value: u32, accept: impl Fn(u32) -> bool) -> bool {
        let Some(at) = self.position(key, accept) else { return false };
        self.entries[at] = Entry::new(key, value);
        true
    }

    /// Takes the accepted value of `key` out.
    pub(crate) fn remove(&mut self, key: u64, accept: impl Fn(u32) -> bool) -> Option<u32> {
        let at = self.position(key, accept)?;
        let value = self.entries[at].value();
        let follow = self.entries[at + 1..].iter().enumerate();
        let displaced = follow.take_while(|(offset, entry)| {
            !entry.is_vacant() && self.home(scramble(entry.key())) < at + 1 + offset
        });
        let end = at + 1 + displaced.count();
        self.entries.copy_within(at + 1..end, at);
        self.entries[end - 1] = Entry::VACANT;
        self.len -= 1;
        if self.len * 100 < self.homes * SPARSE_PERCENT {
            self.rebuild(self.len);
        }
        Some(value)
    }

    /// Every (key, value), in the order of the hashes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u32)> {
        self.entries.iter().filter(|entry| !entry.is_vacant()).map(|entry| (entry.key(), entry.value()))
    }

    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.homes as u128) >> 64) as usize
    }

    fn position(&self, key: u64, accept: impl Fn(u32) -> bool) -> Option<usize> {
        if self.len == 0 {
            return None;
        }
        let hash = scramble(key);
        let home = self.home(hash);
        for (offset, entry) in self.entries[home..].iter().enumerate() {
            if entry.is_vacant() {
                return None;
            }
            let other = entry.key();
            if other == key {
                if accept(entry.value()) {
                    return Some(home + offset);
                }
            } else if scramble(other) > hash {
                return None;
            }
        }
        None
    }

    /// Lays the entries out anew for `len` of them.
    fn rebuild(&mut self, len: usize) {
        if len == 0 {
            *self = Self::new();
            return;
        }
        let old = std::mem::take(&mut self.entries);
        self.homes = (len * 100).div_ceil(REBUILT_PERCENT).max(8);
        let mut entries = Vec::with_capacity(self.homes + OVERHANG);
        for entry in old.into_iter().filter(|entry| !entry.is_vacant()) {
            let home = self.home(scramble(entry.key()));
            if entries.len() < home {
                entries.resize(home, Entry::VACANT);
            }
            entries.push(entry);
        }
        let places = (self.homes + OVERHANG).max(entries.len() + 2);
        entries.resize(places, Entry::VACANT);
        self.entries = entries;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::{collection::vec, prelude::*};

    use super::*;

    proptest! {
        #[test]
        fn a_table_is_a_map_to_sets(ops in vec((0..5_u8, 0..400_u64, 0..3_u32), 0..3000)) {
            let (mut table, mut model) = (Table::new(), BTreeMap::<u64, BTreeSet<u32>>::new());
            for (op, key, value) in ops {
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
    fn it_stays_dense_while_it_grows_and_gives_memory_back() {
        let mut table = Table::new();
        for key in 0..20_000 {
            table.insert(key, key as u32);
            assert!(key < 500 || table.entries.len() * 66 <= (key as usize + 1) * 100, "{} places for {key}", table.entries.len());
        }
        for key in (0..20_000).rev() {
            assert_eq!(table.remove(key, |_| true), Some(key as u32));
            assert!(table.entries.capacity() * 25 <= (key as usize + 40) * 100);
        }
        assert_eq!(table.entries.capacity(), 0);
    }
}
