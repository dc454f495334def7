//! The last events published: what answers a gap without a dump.

use std::{collections::VecDeque, sync::Arc};

use wire::router::{KvData, RouterEvent, StoredBlock};

use super::call::media_bytes;

/// Events in the order of their ids, the oldest given up first. Ids may be missing, never repeated.
#[derive(Debug)]
pub(super) struct Ring {
    most_events: usize,
    most_bytes: usize,
    events: VecDeque<Arc<RouterEvent>>,
    bytes: usize,
}

/// Bytes an event takes, about.
pub(super) fn event_bytes(event: &RouterEvent) -> usize {
    let data = match &event.event.data {
        KvData::Stored(stored) => {
            let media = stored.blocks.iter().filter_map(|block| block.media.as_ref());
            stored.blocks.len() * size_of::<StoredBlock>() + media.map(media_bytes).sum::<usize>()
        }
        KvData::Removed(hashes) => 8 * hashes.len(),
        KvData::Cleared => 0,
    };
    size_of::<RouterEvent>() + 2 * size_of::<usize>() + data
}

impl Ring {
    pub(super) fn new(most_events: usize, most_bytes: usize) -> Self {
        Self { most_events, most_bytes, events: VecDeque::new(), bytes: 0 }
    }

    pub(super) fn push(&mut self, event: Arc<RouterEvent>) {
        self.bytes += event_bytes(&event);
        self.events.push_back(event);
        while self.events.len() > self.most_events || self.bytes > self.most_bytes {
            let Some(oldest) = self.events.pop_front() else { break };
            self.bytes -= event_bytes(&oldest);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The oldest id that is still here.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.events.front().map(|event| event.event.event_id)
    }

    /// How many events have this id or a later one.
    pub(super) fn count_from(&self, id: u64) -> usize {
        self.events.len() - self.place(id)
    }

    /// The events with this id and later ones.
    pub(super) fn from(&self, id: u64) -> Vec<Arc<RouterEvent>> {
        self.events.range(self.place(id)..).cloned().collect()
    }

    fn place(&self, id: u64) -> usize {
        self.events.partition_point(|event| event.event.event_id < id)
    }
}
