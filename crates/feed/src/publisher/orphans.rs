//! Stores whose parents are not held: kept aside, told to nobody, until the parent comes (rule 6).
//!
//! So every store that is published follows a block that was published, and neither consumers nor dumps have to know
//! of these.

use std::collections::{BTreeMap, HashMap};

use super::call::CheckedStore;

/// Most stores kept aside, and most bytes of them; the oldest are given up first.
const MOST_STORES: usize = 4096;
const MOST_BYTES: usize = 16 << 20;

/// One store, and which of its blocks were removed since.
#[derive(Debug)]
pub(super) struct Orphan {
    pub(super) store: CheckedStore,
    pub(super) removed: Vec<bool>,
}

/// Later stores have larger ones.
type Age = u64;

#[derive(Debug, Default)]
pub(super) struct Orphans {
    stores: BTreeMap<Age, Orphan>,
    /// By the parent they wait for, the oldest first.
    waiting: HashMap<u64, Vec<Age>>,
    /// By the names of their blocks that are still there, the oldest first.
    naming: HashMap<u64, Vec<Age>>,
    next: Age,
    bytes: usize,
    dropped: u64,
}

impl Orphans {
    pub(super) fn len(&self) -> usize {
        self.stores.len()
    }

    /// Stores given up for want of room.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// One that was taken found no room.
    pub(super) fn lost(&mut self) {
        self.dropped += 1;
    }

    pub(super) fn clear(&mut self) {
        let (next, dropped) = (self.next, self.dropped);
        *self = Self { next, dropped, ..Self::default() };
    }

    /// Keeps a store that follows `parent`.
    pub(super) fn keep(&mut self, parent: u64, store: CheckedStore) {
        let age = self.next;
        self.next += 1;
        self.bytes += store.bytes();
        self.waiting.entry(parent).or_default().push(age);
        for hash in &store.call().block_hashes {
            self.naming.entry(*hash).or_default().push(age);
        }
        let removed = vec![false; store.call().block_hashes.len()];
        self.stores.insert(age, Orphan { store, removed });
        while self.stores.len() > MOST_STORES || self.bytes > MOST_BYTES {
            let Some((oldest, _)) = self.stores.first_key_value() else { break };
            self.take(*oldest);
            self.dropped += 1;
        }
    }

    /// Takes a copy of this block away from the oldest store that has one.
    pub(super) fn remove(&mut self, hash: u64) -> bool {
        let Some(age) = self.naming.get(&hash).and_then(|ages| ages.first().copied()) else { return false };
        forget(&mut self.naming, hash, age);
        let Some(orphan) = self.stores.get_mut(&age) else { return false };
        for (name, removed) in orphan.store.call().block_hashes.iter().zip(&mut orphan.removed) {
            *removed |= *name == hash;
        }
        if orphan.removed.iter().all(|removed| *removed) {
            self.take(age);
        }
        true
    }

    /// The stores that waited for this block, the oldest first.
    pub(super) fn take_waiting(&mut self, parent: u64) -> Vec<Orphan> {
        let ages = self.waiting.remove(&parent).unwrap_or_default();
        ages.into_iter().filter_map(|age| self.take(age)).collect()
    }

    fn take(&mut self, age: Age) -> Option<Orphan> {
        let orphan = self.stores.remove(&age)?;
        let call = orphan.store.call();
        self.bytes -= orphan.store.bytes();
        if let Some(parent) = call.parent_hash {
            forget(&mut self.waiting, parent, age);
        }
        for hash in &call.block_hashes {
            forget(&mut self.naming, *hash, age);
        }
        Some(orphan)
    }
}

fn forget(ages: &mut HashMap<u64, Vec<Age>>, key: u64, age: Age) {
    let Some(list) = ages.get_mut(&key) else { return };
    list.retain(|other| *other != age);
    if list.is_empty() {
        ages.remove(&key);
    }
}
