//! Events that wait: for a query, or for their publisher's turn.

use std::collections::BTreeMap;

use wire::router::{KvData, RouterEvent, RouterEventError};

/// An event, or what is known of one that cannot be used.
pub(crate) type Entry = Result<RouterEvent, RouterEventError>;

/// Events by number, each once.
#[derive(Debug, Default)]
pub(crate) struct Held {
    events: BTreeMap<u64, Entry>,
    bytes: usize,
}

impl Held {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The lowest number held.
    pub(crate) fn first(&self) -> Option<u64> {
        self.events.keys().next().copied()
    }

    pub(crate) fn contains(&self, id: u64) -> bool {
        self.events.contains_key(&id)
    }

    /// Holds an event that is not held yet.
    pub(crate) fn push(&mut self, id: u64, entry: Entry) {
        self.bytes += cost(&entry);
        if let Some(before) = self.events.insert(id, entry) {
            self.bytes -= cost(&before);
        }
    }

    /// Takes the lowest one out.
    pub(crate) fn pop(&mut self) -> Option<(u64, Entry)> {
        let (id, entry) = self.events.pop_first()?;
        self.bytes -= cost(&entry);
        Some((id, entry))
    }

    /// Takes the lowest one out if it is this one.
    pub(crate) fn pop_if(&mut self, id: u64) -> Option<Entry> {
        if self.first() != Some(id) {
            return None;
        }
        self.pop().map(|(_, entry)| entry)
    }

    /// Drops all up to this one.
    pub(crate) fn drop_through(&mut self, id: u64) {
        while self.first().is_some_and(|first| first <= id) {
            self.pop();
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Bytes a held event takes, about.
pub(crate) fn cost(entry: &Entry) -> usize {
    /// A number and a place in a tree.
    const PLACE: usize = 32;
    let content = match entry {
        Ok(event) => match &event.event.data {
            KvData::Stored(stored) => {
                let objects = stored.blocks.iter().filter_map(|block| block.media.as_ref()).flat_map(|media| &media.objects);
                let media: usize = objects.map(|object| size_of_val(object) + size_of_val(&object.offsets[..])).sum();
                size_of_val(&stored.blocks[..]) + media
            }
            KvData::Removed(hashes) => size_of_val(&hashes[..]),
            KvData::Cleared => 0,
        },
        // Names in it are clipped by whoever read it.
        Err(_) => 128,
    };
    size_of::<Entry>() + PLACE + content
}

#[cfg(test)]
mod tests {
    use wire::router::{Domain, KvCacheEvent, Tier};

    use super::*;

    fn removed(id: u64, hashes: usize) -> Entry {
        Ok(RouterEvent {
            worker_id: 1,
            storage_tier: Tier::Device,
            domain: Domain::Worker,
            event: KvCacheEvent { event_id: id, data: KvData::Removed(vec![0; hashes]), dp_rank: 0 },
            state_source: None,
            session_id: None,
        })
    }

    #[test]
    fn events_come_out_by_number_and_give_their_bytes_back() {
        let mut held = Held::default();
        for id in [7, 5, 6, 9] {
            held.push(id, removed(id, 10));
        }
        assert_eq!((held.first(), held.bytes()), (Some(5), 4 * cost(&removed(0, 10))));
        assert!(held.pop_if(6).is_none());
        assert!(held.pop_if(5).is_some());
        held.push(7, removed(7, 1));
        held.drop_through(7);
        assert_eq!(held.first(), Some(9));
        held.pop();
        assert_eq!((held.bytes(), held.is_empty()), (0, true));
    }
}
