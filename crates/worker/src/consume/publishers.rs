//! Who publishes, as discovery's records say.

use std::collections::BTreeMap;

use bytes::Bytes;
use transport::{discovery::Change, follow::SourceSpec};
use wire::discovery::{EventChannel, EventSource, Key, Record, topic};

use super::Followed;

/// A worker and its data-parallel rank.
pub(super) type Rank = (u64, u32);

/// The records of KV events in one namespace.
#[derive(Debug)]
pub(super) struct Publishers {
    of: Followed,
    sources: BTreeMap<Key, (u64, EventSource)>,
    channels: BTreeMap<Key, EventChannel>,
    arrivals: u64,
}

impl Publishers {
    pub(super) fn new(of: Followed) -> Self {
        Self { of, sources: BTreeMap::new(), channels: BTreeMap::new(), arrivals: 0 }
    }

    pub(super) fn take(&mut self, change: Change) {
        match change {
            Change::Reset(all) => {
                let before = std::mem::take(&mut self.sources);
                self.channels.clear();
                for (key, document) in all {
                    // What is there again keeps its age.
                    if let Some(known) = before.get(&key) {
                        self.sources.insert(key.clone(), known.clone());
                    }
                    self.add(key, &document);
                }
            }
            Change::Add(key, document) => self.add(key, &document),
            Change::Remove(key) => {
                self.sources.remove(&key);
                self.channels.remove(&key);
            }
        }
    }

    fn add(&mut self, key: Key, document: &Bytes) {
        match Record::from_json(document) {
            Ok(Record::EventSource(source)) if source.topic == topic::KV_EVENTS && self.is_wanted(&source) => {
                if self.sources.get(&key).is_none_or(|(_, known)| *known != source) {
                    self.arrivals += 1;
                    self.sources.insert(key, (self.arrivals, source));
                }
            }
            Ok(Record::EventChannel(channel)) if channel.topic == topic::KV_EVENTS => drop(self.channels.insert(key, channel)),
            Ok(Record::EventSource(_) | Record::EventChannel(_) | Record::Endpoint(_) | Record::Model(_) | Record::OpenAiWorker(_)) => {}
            Err(error) => tracing::warn!(%key, %error, "a discovery record cannot be read"),
        }
    }

    fn is_wanted(&self, source: &EventSource) -> bool {
        let id = &source.kv_state_endpoint;
        id.namespace == self.of.namespace && self.of.component.as_ref().is_none_or(|component| id.component == *component)
    }

    /// By rank, the oldest first.
    pub(super) fn by_rank(&self) -> BTreeMap<Rank, Vec<SourceSpec>> {
        let channels: BTreeMap<u64, &EventChannel> = self.channels.values().map(|channel| (channel.instance_id, channel)).collect();
        let mut sources: Vec<_> = self.sources.values().collect();
        sources.sort_by_key(|(arrived, _)| *arrived);
        let mut ranks: BTreeMap<Rank, Vec<SourceSpec>> = BTreeMap::new();
        for (_, source) in sources {
            let channel = channels.get(&source.publisher_id).map(|channel| (*channel).clone());
            let spec = SourceSpec { publisher_id: source.publisher_id, channel, recovery: source.recovery_target.clone() };
            ranks.entry((source.worker_id, source.dp_rank)).or_default().push(spec);
        }
        ranks
    }
}
