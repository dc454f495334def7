//! A hash table from 64-bit keys to 32-bit values that wastes little and meets the memory once: five entries fill a
//! bucket of one cache line, and a table is between 60 and 87 % full.
//!
//! An entry lies in its key's home bucket or, where that is full, in the next with room; each bucket counts the entries
//! that passed it by, so a search knows where to end and a removal leaves no tombstone. Homes keep the order of the
//! hashes, so growing is one pass from left to right and can be done in small factors. The hash is keyed with the
//! process's secret: keys chosen by others do not cluster.

use crate::keyed::Key;

/// Never a value: marks a place without an entry.
const VACANT: u32 = u32::MAX;
/// Entries of a bucket.
const PLACES: usize = 5;
/// Above this share of its places, in percent, a table grows to [`REBUILT_PERCENT`]; below [`SPARSE_PERCENT`] it shrinks.
const FULL_PERCENT: usize = 87;
const REBUILT_PERCENT: usize = 60;
const SPARSE_PERCENT: usize = 35;

/// Per entry the low half of the key, its high half and the value; last, how many entries passed by.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Bucket([u32; 3 * PLACES + 1]);

/// The table. A key may have several values; who searches says which is meant.
#[derive(Debug)]
pub(crate) struct Table {
    buckets: Box<[Bucket]>,
    len: usize,
    key: Key,
}

impl Bucket {
    const EMPTY: Self = {
        let mut words = [VACANT; 3 * PLACES + 1];
        words[3 * PLACES] = 0;
        Self(words)
    };

    fn key(&self, place: usize) -> u64 {
        u64::from(self.0[3 * place]) | u64::from(self.0[3 * place + 1]) << 32
    }

    fn value(&self, place: usize) -> u32 {
        self.0[3 * place + 2]
    }

    fn set(&mut self, place: usize, key: u64, value: u32) {
        self.0[3 * place] = key as u32;
        self.0[3 * place + 1] = (key >> 32) as u32;
        self.0[3 * place + 2] = value;
    }

    fn passed_by(&mut self) -> &mut u32 {
        &mut self.0[3 * PLACES]
    }

    /// The first place without an entry. Which it is cannot be predicted, so nothing branches on it; likewise below.
    fn vacancy(&self) -> Option<usize> {
        let vacant = (0..PLACES).fold(0_u32, |bits, place| bits | u32::from(self.value(place) == VACANT) << place);
        (vacant != 0).then_some(vacant.trailing_zeros() as usize)
    }

    /// The places of entries with this key, as bits. A vacant place has the key 2^64 - 1 or 0, too.
    fn places_of(&self, key: u64) -> u32 {
        (0..PLACES).fold(0, |bits, place| bits | u32::from(self.key(place) == key) << place)
    }
}

impl Default for Table {
    fn default() -> Self {
        Self { buckets: Box::default(), len: 0, key: Key::of_process() }
    }
}

impl Table {
    /// Entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Has the memory of these keys come near, all at once and not one after the other: for searches that follow.
    pub(crate) fn approach(&self, keys: impl Iterator<Item = u64>) {
        if self.len > 0 {
            let near = keys.fold(0, |all, key| all | self.buckets[self.home(key)].0[3 * PLACES]);
            std::hint::black_box(near);
        }
    }

    /// The first value of `key` that is accepted.
    pub(crate) fn find(&self, key: u64, accept: impl Fn(u32) -> bool) -> Option<u32> {
        self.position(key, accept).map(|(bucket, place)| self.buckets[bucket].value(place))
    }

    /// Adds an entry; `value` is not `u32::MAX`.
    pub(crate) fn insert(&mut self, key: u64, value: u32) {
        if (self.len + 1) * 100 > self.buckets.len() * PLACES * FULL_PERCENT {
            self.rebuild(self.len + 1);
        }
        self.len += 1;
        self.put(key, value);
    }

    /// Puts `value` in the place of the accepted value of `key`; whether there was one.
    pub(crate) fn replace(&mut self, key: u64, value: u32, accept: impl Fn(u32) -> bool) -> bool {
        let Some((bucket, place)) = self.position(key, accept) else { return false };
        self.buckets[bucket].set(place, key, value);
        true
    }

    /// Takes the accepted value of `key` out.
    pub(crate) fn remove(&mut self, key: u64, accept: impl Fn(u32) -> bool) -> Option<u32> {
        let (found, place) = self.position(key, accept)?;
        let mut at = self.home(key);
        while at != found {
            *self.buckets[at].passed_by() -= 1;
            at = self.after(at);
        }
        let value = self.buckets[found].value(place);
        self.buckets[found].set(place, 0, VACANT);
        self.len -= 1;
        if self.len * 100 < self.buckets.len() * PLACES * SPARSE_PERCENT {
            self.rebuild(self.len);
        }
        Some(value)
    }

    /// Every (key, value), about in the order of the hashes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u32)> {
        let places = self.buckets.iter().flat_map(|bucket| (0..PLACES).map(move |place| (bucket.key(place), bucket.value(place))));
        places.filter(|(_, value)| *value != VACANT)
    }

    /// Every value, in the same order.
    pub(crate) fn values(&self) -> impl Iterator<Item = u32> + Clone {
        self.buckets.iter().flat_map(|bucket| (0..PLACES).map(|place| bucket.value(place))).filter(|value| *value != VACANT)
    }

    fn home(&self, key: u64) -> usize {
        ((u128::from(self.key.scramble(key)) * self.buckets.len() as u128) >> 64) as usize
    }

    fn after(&self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets.len() { 0 } else { bucket + 1 }
    }

    fn position(&self, key: u64, accept: impl Fn(u32) -> bool) -> Option<(usize, usize)> {
        if self.len == 0 {
            return None;
        }
        let mut at = self.home(key);
        // Nearly always a bucket nobody passed by ends this; a small table may have none.
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            let mut places = bucket.places_of(key);
            while places != 0 {
                let place = places.trailing_zeros() as usize % PLACES;
                if bucket.value(place) != VACANT && accept(bucket.value(place)) {
                    return Some((at, place));
                }
                places &= places - 1;
            }
            if bucket.0[3 * PLACES] == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    /// Adds an entry where there is room.
    fn put(&mut self, key: u64, value: u32) {
        let mut at = self.home(key);
        loop {
            let bucket = &mut self.buckets[at];
            if let Some(place) = bucket.vacancy() {
                bucket.set(place, key, value);
                return;
            }
            *bucket.passed_by() += 1;
            at = self.after(at);
        }
    }

    /// Lays the entries out anew for `len` of them: read and written from left to right.
    fn rebuild(&mut self, len: usize) {
        let buckets = (len * 100).div_ceil(PLACES * REBUILT_PERCENT);
        let old = std::mem::replace(&mut self.buckets, vec![Bucket::EMPTY; buckets].into());
        for bucket in old {
            for place in (0..PLACES).filter(|place| bucket.value(*place) != VACANT) {
                self.put(bucket.key(place), bucket.value(place));
            }
        }
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
            let (mut table, mut model) = (Table::default(), BTreeMap::<u64, BTreeSet<u32>>::new());
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
    fn a_search_ends_where_every_bucket_was_passed_by() {
        // With few buckets and as many entries as they take, all are passed by sooner or later.
        let random = |n: u64| crate::indexer::mixed(crate::hash::SequenceHash(n));
        let (mut table, mut live, mut all_passed_by) = (Table::default(), Vec::new(), 0);
        for n in 0..20_000 {
            table.insert(random(n), 0);
            live.push(random(n));
            if live.len() == 8 {
                let key = live.swap_remove(random(n + 1) as usize % live.len());
                assert_eq!(table.remove(key, |_| true), Some(0));
            }
            all_passed_by += usize::from(table.buckets.iter().all(|bucket| bucket.0[3 * PLACES] > 0));
            assert_eq!(table.find(u64::MAX, |_| true), None);
        }
        assert!(all_passed_by > 0);
    }

    #[test]
    fn it_stays_dense_while_it_grows_and_gives_memory_back() {
        let mut table = Table::default();
        for key in 0..20_000 {
            table.insert(key, key as u32);
            let places = table.buckets.len() * PLACES;
            assert!(key < 100 || places * 59 <= (key as usize + 1) * 100, "{places} places for {key}");
            let passed_by: u32 = table.buckets.iter().map(|bucket| bucket.0[3 * PLACES]).sum();
            assert!(passed_by as usize <= 3 * key as usize + 100, "entries lie {passed_by} buckets from home at {key}");
        }
        for key in (0..20_000).rev() {
            assert_eq!(table.remove(key, |_| true), Some(key as u32));
            assert!(table.buckets.len() * PLACES * 30 <= (key as usize + 20) * 100);
        }
        assert!(table.buckets.is_empty());
        assert_eq!(table.find(1, |_| true), None);
    }
}
