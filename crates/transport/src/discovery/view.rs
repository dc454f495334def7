//! What one watch has told its consumer, and when a missing key is really gone. Pure: no socket, no clock.
//!
//! While the plane is heard, a key that goes is removed at once: its owner withdrew it, or its lease ended. After a loss (the
//! watch broke, the store was wiped, the directory vanished) a missing key proves nothing: its owner may be about to register
//! again, having noticed the same loss. So for a grace after the plane is back, keys that are missing are kept, and those that
//! have not come back by its end are removed. A loss within the grace starts it anew.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use bytes::Bytes;
use wire::discovery::Key;

use super::Change;

/// The most keys one watch holds.
pub(super) const MAX_KEYS: usize = 200_000;

/// The most bytes of values one watch holds.
pub(super) const MAX_BYTES: usize = 256 << 20;

/// One record as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) key: Key,
    pub(super) value: Bytes,
    /// The lease it hangs on; 0 where the store knows no owners.
    pub(super) owner: u64,
}

#[derive(Debug)]
struct Entry {
    value: Bytes,
    owner: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plane {
    /// Not listed yet, or lost since: what the next list lacks proves nothing.
    Unheard,
    /// Heard, but only since a short time.
    Grace {
        until: Instant,
    },
    Heard,
}

#[derive(Debug)]
pub(super) struct View {
    grace: Duration,
    plane: Plane,
    /// What the consumer was told.
    entries: BTreeMap<Key, Entry>,
    /// Those of them that the store lacks.
    missing: BTreeSet<Key>,
    bytes: usize,
    left_out: u64,
}

impl View {
    pub(super) fn new(grace: Duration) -> Self {
        Self { grace, plane: Plane::Unheard, entries: BTreeMap::new(), missing: BTreeSet::new(), bytes: 0, left_out: 0 }
    }

    /// The watch broke: until the next list nothing is removed. Says whether it was heard before.
    pub(super) fn lost(&mut self) -> bool {
        std::mem::replace(&mut self.plane, Plane::Unheard) != Plane::Unheard
    }

    /// Everything the store holds now.
    pub(super) fn listed(&mut self, now: Instant, list: Vec<Listed>) -> Vec<Change> {
        let present: BTreeSet<&Key> = list.iter().map(|one| &one.key).collect();
        let gone: Vec<Key> = self.entries.keys().filter(|key| !present.contains(key)).cloned().collect();
        if self.plane != Plane::Unheard {
            // First what is there: a key that has come back must not be missed when the grace ends now.
            let mut changes: Vec<Change> = list.into_iter().filter_map(|one| self.put(one)).collect();
            changes.extend(self.gone(now, gone));
            return changes;
        }
        // The first list of all has nothing to be missed.
        self.plane = if self.entries.is_empty() { Plane::Heard } else { Plane::Grace { until: now + self.grace } };
        self.missing.extend(gone);
        list.into_iter().for_each(|one| drop(self.put(one)));
        let all = self.entries.iter().map(|(key, entry)| (key.clone(), entry.value.clone()));
        vec![Change::Reset(all.collect())]
    }

    /// A record was written. A value that is known already is no change.
    pub(super) fn put(&mut self, one: Listed) -> Option<Change> {
        let Listed { key, value, owner } = one;
        let known = self.entries.get(&key).map(|entry| entry.value.len());
        let bytes = self.bytes - known.unwrap_or(0) + value.len();
        if bytes > MAX_BYTES || (known.is_none() && self.entries.len() == MAX_KEYS) {
            self.left_out += 1;
            return None;
        }
        self.missing.remove(&key);
        self.bytes = bytes;
        let entry = Entry { value: value.clone(), owner };
        match self.entries.insert(key.clone(), entry) {
            Some(before) if before.value == value => None,
            _ => Some(Change::Add(key, value)),
        }
    }

    /// Keys went in one step of the store. When they had several owners it was no owner who did it (they withdraw, and their
    /// leases end, one by one): the store was wiped by hand, which is a loss.
    pub(super) fn deleted(&mut self, now: Instant, keys: Vec<Key>) -> Vec<Change> {
        let owners = keys.iter().filter_map(|key| self.entries.get(key)).map(|entry| entry.owner);
        let owners: BTreeSet<u64> = owners.filter(|owner| *owner != 0).collect();
        if owners.len() > 1 && self.plane == Plane::Heard {
            self.plane = Plane::Grace { until: now + self.grace };
        }
        self.gone(now, keys)
    }

    /// Ends the grace when its time is over.
    pub(super) fn tick(&mut self, now: Instant) -> Vec<Change> {
        match self.plane {
            Plane::Grace { until } if until <= now => self.plane = Plane::Heard,
            Plane::Grace { .. } | Plane::Heard | Plane::Unheard => return Vec::new(),
        }
        let missing = std::mem::take(&mut self.missing);
        missing.into_iter().filter_map(|key| self.remove(key)).collect()
    }

    /// When [`tick`](Self::tick) has something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.plane {
            Plane::Grace { until } => Some(until),
            Plane::Heard | Plane::Unheard => None,
        }
    }

    /// Records that did not fit the bounds.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }

    fn gone(&mut self, now: Instant, keys: Vec<Key>) -> Vec<Change> {
        let mut removed = self.tick(now);
        match self.plane {
            Plane::Heard => removed.extend(keys.into_iter().filter_map(|key| self.remove(key))),
            Plane::Grace { .. } | Plane::Unheard => {
                let known = keys.into_iter().filter(|key| self.entries.contains_key(key));
                self.missing.extend(known);
            }
        }
        removed
    }

    fn remove(&mut self, key: Key) -> Option<Change> {
        let entry = self.entries.remove(&key)?;
        self.bytes -= entry.value.len();
        Some(Change::Remove(key))
    }
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
