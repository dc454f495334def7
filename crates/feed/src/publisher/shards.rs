//! A map from block names that can be copied at once: parts of it are shared with the copy until they change.

use std::{collections::HashMap, sync::Arc};

/// Parts. A part that changes while a copy is about is copied whole: at a million names 4,096 of them.
const PARTS: usize = 256;
/// Names that follow one another fall into different parts.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Names of blocks and what is known of each. Cloning costs one count for each part.
#[derive(Clone, Debug)]
pub(super) struct Shards<V> {
    parts: Vec<Arc<HashMap<u64, V>>>,
    len: usize,
}

impl<V> Default for Shards<V> {
    fn default() -> Self {
        let empty = Arc::new(HashMap::new());
        Self { parts: vec![empty; PARTS], len: 0 }
    }
}

fn part_of(name: u64) -> usize {
    (name.wrapping_mul(SPREAD) >> 56) as usize % PARTS
}

impl<V: Clone> Shards<V> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, name: u64) -> Option<&V> {
        self.parts[part_of(name)].get(&name)
    }

    pub(super) fn contains(&self, name: u64) -> bool {
        self.get(name).is_some()
    }

    /// The value is about to change.
    pub(super) fn get_mut(&mut self, name: u64) -> Option<&mut V> {
        let part = &mut self.parts[part_of(name)];
        if !part.contains_key(&name) {
            return None;
        }
        Arc::make_mut(part).get_mut(&name)
    }

    pub(super) fn insert(&mut self, name: u64, value: V) -> Option<V> {
        let before = Arc::make_mut(&mut self.parts[part_of(name)]).insert(name, value);
        self.len += usize::from(before.is_none());
        before
    }

    pub(super) fn remove(&mut self, name: u64) -> Option<V> {
        let part = &mut self.parts[part_of(name)];
        if !part.contains_key(&name) {
            return None;
        }
        self.len -= 1;
        Arc::make_mut(part).remove(&name)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &V)> {
        self.parts.iter().flat_map(|part| part.iter().map(|(name, value)| (*name, value)))
    }
}
