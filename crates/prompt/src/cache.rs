//! Token ids of texts seen before, bounded in bytes. Entries keep the text and compare it, so an unlucky or a crafted
//! hash is a miss and never another text's ids.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;

/// Bytes charged per entry beyond its text and ids.
const ENTRY_BYTES: usize = 128;
/// An entry larger than this share of the budget is not kept: one giant prompt must not empty the cache.
const LARGEST_SHARE: usize = 8;

/// A map from text (and a flag) to token ids, least recently used out first.
pub(crate) struct TextCache {
    budget: usize,
    hasher: RandomState,
    /// Guards the entries and their total; held for one map operation and a comparison of two texts.
    entries: Mutex<Entries>,
}

struct Entries {
    map: LruCache<u64, Entry>,
    bytes: usize,
}

struct Entry {
    text: Arc<str>,
    flag: bool,
    ids: Arc<[u32]>,
}

impl Entry {
    fn bytes(&self) -> usize {
        self.text.len() + self.ids.len() * size_of::<u32>() + ENTRY_BYTES
    }
}

impl TextCache {
    /// `budget` bytes; 0 keeps nothing.
    pub(crate) fn new(budget: usize) -> Self {
        Self { budget, hasher: RandomState::new(), entries: Mutex::new(Entries { map: LruCache::unbounded(), bytes: 0 }) }
    }

    pub(crate) fn get(&self, text: &str, flag: bool) -> Option<Arc<[u32]>> {
        if self.budget == 0 {
            return None;
        }
        let key = self.hasher.hash_one((text, flag));
        let mut entries = self.entries.lock();
        let entry = entries.map.get(&key)?;
        (entry.flag == flag && *entry.text == *text).then(|| entry.ids.clone())
    }

    pub(crate) fn put(&self, text: &str, flag: bool, ids: &Arc<[u32]>) {
        let entry = Entry { text: text.into(), flag, ids: ids.clone() };
        let bytes = entry.bytes();
        if bytes > self.budget / LARGEST_SHARE {
            return;
        }
        let key = self.hasher.hash_one((text, flag));
        let mut entries = self.entries.lock();
        entries.bytes += bytes;
        if let Some(replaced) = entries.map.put(key, entry) {
            entries.bytes -= replaced.bytes();
        }
        while entries.bytes > self.budget {
            let Some((_, oldest)) = entries.map.pop_lru() else { break };
            entries.bytes -= oldest.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_newest_within_its_budget() {
        let cache = TextCache::new(100 * (ENTRY_BYTES + 8));
        for number in 0..10_000_u32 {
            let text = format!("{number:04}");
            cache.put(&text, number % 2 == 0, &vec![number].into());
            assert_eq!(cache.get(&text, number % 2 == 0).as_deref(), Some(&[number][..]));
            assert_eq!(cache.get(&text, number % 2 == 1), None);
            assert!(cache.entries.lock().bytes <= cache.budget);
        }
        assert_eq!(cache.entries.lock().map.len(), 100);
        assert!(cache.get("9999", false).is_some());
        assert!(cache.get("0001", false).is_none());
    }

    #[test]
    fn large_entries_and_no_budget() {
        let cache = TextCache::new(8 * 1024);
        cache.put(&"x".repeat(1024), false, &vec![1].into());
        assert_eq!(cache.entries.lock().map.len(), 0);
        let off = TextCache::new(0);
        off.put("x", false, &vec![1].into());
        assert_eq!(off.get("x", false), None);
    }
}
