//! What discovery has on record, and the workers that follow from it. No task and no socket: changes in, workers out.

use std::collections::BTreeMap;

use bytes::Bytes;
use tracing::warn;
use transport::discovery::Change;
use wire::discovery::{Endpoint, EndpointId, EventChannel, EventSource, Key, Model, OpenAiWorker, Record, Scope, topic};

use super::{clip::clipped, origin::Publisher};

/// All records.
pub(super) struct Records {
    /// The only namespace that counts.
    namespace: Option<String>,
    known: BTreeMap<Key, Known>,
    arrivals: u64,
}

struct Known {
    record: Record,
    /// Later ones have higher numbers.
    arrived: u64,
}

/// A worker by what no two share: one process may serve several endpoints, each a worker of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Instance {
    /// Its number in events.
    pub(super) number: u64,
    pub(super) endpoint: EndpointId,
}

/// A worker as its records describe it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wanted<'a> {
    pub(super) kind: Kind<'a>,
    /// Who publishes for each rank.
    pub(super) publishers: BTreeMap<u32, Vec<Publisher>>,
}

/// What a worker is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind<'a> {
    /// A stock engine beside a sidecar.
    Server(&'a OpenAiWorker),
    /// One that takes token ids, with the cards of its model and adapters.
    Tokens { endpoint: &'a Endpoint, models: Vec<&'a Model>, edition: Edition },
}

/// Of the cards of one worker: another one where anything about them has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Edition {
    cards: usize,
    latest: u64,
}

impl Records {
    pub(super) fn new(namespace: Option<String>) -> Self {
        Self { namespace, known: BTreeMap::new(), arrivals: 0 }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    pub(super) fn take(&mut self, change: Change) {
        match change {
            Change::Reset(all) => {
                let mut before = std::mem::take(&mut self.known);
                for (key, document) in all {
                    // What is there again keeps its age.
                    if let Some((key, known)) = before.remove_entry(&key) {
                        self.known.insert(key, known);
                    }
                    self.add(key, &document);
                }
            }
            Change::Add(key, document) => self.add(key, &document),
            Change::Remove(key) => drop(self.known.remove(&key)),
        }
    }

    fn add(&mut self, key: Key, document: &Bytes) {
        let record = match Record::from_json(document) {
            Ok(record) => record,
            // What was known stays: a document that cannot be read says nothing.
            Err(error) => {
                let (key, error) = (key.to_string(), error.to_string());
                return warn!(key = &*clipped(&key), error = &*clipped(&error), "a discovery record cannot be read");
            }
        };
        if self.namespace.as_deref().is_some_and(|wanted| namespace(&record) != wanted) {
            return;
        }
        if self.known.get(&key).is_none_or(|known| known.record != record) {
            self.arrivals += 1;
            self.known.insert(key, Known { record, arrived: self.arrivals });
        }
    }

    /// The channels of a topic, by publisher.
    pub(super) fn channels(&self, topic: &str) -> BTreeMap<u64, &EventChannel> {
        let channels = self.known.values().filter_map(|known| match &known.record {
            Record::EventChannel(channel) => Some(channel),
            Record::Endpoint(_) | Record::Model(_) | Record::EventSource(_) | Record::OpenAiWorker(_) => None,
        });
        channels.filter(|channel| channel.topic == topic).map(|channel| (channel.instance_id, channel)).collect()
    }

    /// The workers.
    pub(super) fn workers(&self) -> BTreeMap<Instance, Wanted<'_>> {
        let publishers = self.publishers();
        let mut kinds = self.token_workers();
        kinds.extend(self.servers());
        // Of a process that serves one endpoint whatever it publishes is that one's, also where it is published under another.
        let numbers: Vec<u64> = kinds.keys().map(|instance| instance.number).collect();
        let is_alone =
            |number: u64| numbers.partition_point(|known| *known <= number) - numbers.partition_point(|known| *known < number) == 1;
        let mut wanted = BTreeMap::new();
        for (instance, kind) in kinds {
            let of = if is_alone(instance.number) { None } else { Some(&instance.endpoint) };
            let mut ranks: BTreeMap<u32, Vec<Publisher>> = BTreeMap::new();
            for (dp_rank, endpoint, publisher) in publishers.get(&instance.number).into_iter().flatten() {
                if of.is_none_or(|of| of == *endpoint) {
                    ranks.entry(*dp_rank).or_default().push(publisher.clone());
                }
            }
            wanted.insert(instance, Wanted { kind, publishers: ranks });
        }
        wanted
    }

    /// By the number of the worker, with rank and endpoint; those that came first before the others.
    fn publishers(&self) -> BTreeMap<u64, Vec<(u32, &EndpointId, Publisher)>> {
        let channels = self.channels(topic::KV_EVENTS);
        let sources = self.known.values().filter_map(|known| match &known.record {
            Record::EventSource(source) if source.topic == topic::KV_EVENTS => Some((known.arrived, source)),
            Record::EventSource(_) | Record::Endpoint(_) | Record::Model(_) | Record::EventChannel(_) | Record::OpenAiWorker(_) => None,
        });
        let mut sources: Vec<_> = sources.collect();
        sources.sort_by_key(|(arrived, _)| *arrived);
        let mut publishers: BTreeMap<u64, Vec<_>> = BTreeMap::new();
        for (_, source) in sources {
            let channel = channels.get(&source.publisher_id).map(|channel| (*channel).clone());
            let publisher = Publisher { id: source.publisher_id, channel, recovery: source.recovery_target.clone() };
            publishers.entry(source.worker_id).or_default().push((source.dp_rank, &source.kv_state_endpoint, publisher));
        }
        publishers
    }

    /// Engines beside a sidecar. Where two records name one engine, its sidecar was started anew and the older record only has
    /// not run out yet. Which one is older is known of those that came one after the other. Of those that a reset tells
    /// together it is not, as no record says when it was made: the one with the highest number counts, and where that is the
    /// older one, its engine's events are not heard until the record runs out.
    fn servers(&self) -> impl Iterator<Item = (Instance, Kind<'_>)> {
        let mut by_url: BTreeMap<&str, (u64, &OpenAiWorker)> = BTreeMap::new();
        for known in self.known.values() {
            let Record::OpenAiWorker(worker) = &known.record else { continue };
            let newest = by_url.entry(worker.url.trim_end_matches('/')).or_insert((known.arrived, worker));
            if known.arrived > newest.0 {
                *newest = (known.arrived, worker);
            }
        }
        let instance = |worker: &OpenAiWorker| Instance { number: worker.instance_id, endpoint: worker.id.clone() };
        by_url.into_values().map(move |(_, worker)| (instance(worker), Kind::Server(worker)))
    }

    /// Instances of endpoints that have a model card.
    fn token_workers(&self) -> BTreeMap<Instance, Kind<'_>> {
        let mut workers: BTreeMap<Instance, Kind<'_>> = BTreeMap::new();
        for known in self.known.values() {
            let Record::Model(model) = &known.record else { continue };
            let serves = Endpoint::tcp(model.id.clone(), model.instance_id, "").key();
            let Some(Record::Endpoint(endpoint)) = self.known.get(&serves).map(|known| &known.record) else { continue };
            let instance = Instance { number: model.instance_id, endpoint: model.id.clone() };
            let first = || Kind::Tokens { endpoint, models: Vec::new(), edition: Edition::default() };
            if let Kind::Tokens { models, edition, .. } = workers.entry(instance).or_insert_with(first) {
                models.push(model);
                *edition = Edition { cards: models.len(), latest: edition.latest.max(known.arrived) };
            }
        }
        workers
    }
}

fn namespace(record: &Record) -> &str {
    match record {
        Record::Endpoint(endpoint) => &endpoint.id.namespace,
        Record::Model(model) => &model.id.namespace,
        Record::OpenAiWorker(worker) => &worker.id.namespace,
        Record::EventChannel(EventChannel { scope, .. }) | Record::EventSource(EventSource { scope, .. }) => match scope {
            Scope::Namespace { name } => name,
            Scope::Component { namespace, .. } => namespace,
            Scope::Endpoint { endpoint } => &endpoint.namespace,
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wire::discovery::{ChannelTransport, ModelCard};

    use super::*;

    fn id() -> EndpointId {
        EndpointId::new("dynamo", "backend", "generate")
    }

    fn told(record: impl Into<Record>) -> (Key, Bytes) {
        let record = record.into();
        (record.key(), record.to_json())
    }

    fn server(instance_id: u64, url: &str) -> (Key, Bytes) {
        let (url, model) = (url.to_owned(), "m".to_owned());
        told(OpenAiWorker { id: id(), instance_id, url, model, block_size: Some(16), dp_start: 0, dp_size: 2, no_events: None })
    }

    fn source(publisher_id: u64, worker_id: u64, dp_rank: u32) -> (Key, Bytes) {
        let recovery_target = Some(Endpoint::tcp(id().sibling("recovery"), worker_id, "127.0.0.1:1"));
        let (scope, topic) = (id().scope(), topic::KV_EVENTS.to_owned());
        told(EventSource { scope, topic, publisher_id, kv_state_endpoint: id(), worker_id, dp_rank, recovery_target })
    }

    fn channel(publisher_id: u64, topic: &str) -> (Key, Bytes) {
        let transport = ChannelTransport::Zmq { endpoint: format!("tcp://127.0.0.1:{publisher_id}") };
        told(EventChannel { scope: id().scope(), topic: topic.to_owned(), instance_id: publisher_id, transport })
    }

    fn model(instance_id: u64, name: &str, suffix: Option<&str>) -> (Key, Bytes) {
        let card = ModelCard(json!({"display_name": name, "kv_cache_block_size": 16}));
        told(Model { id: id(), instance_id, suffix: suffix.map(str::to_owned), card })
    }

    fn endpoint(instance_id: u64) -> (Key, Bytes) {
        told(Endpoint::tcp(id(), instance_id, "127.0.0.1:1"))
    }

    fn records(all: impl IntoIterator<Item = (Key, Bytes)>) -> Records {
        let mut records = Records::new(None);
        records.take(Change::Reset(all.into_iter().collect()));
        records
    }

    fn add(records: &mut Records, (key, document): (Key, Bytes)) {
        records.take(Change::Add(key, document));
    }

    fn instance(number: u64) -> Instance {
        Instance { number, endpoint: id() }
    }

    fn numbers(records: &Records) -> Vec<u64> {
        records.workers().into_keys().map(|instance| instance.number).collect()
    }

    #[test]
    fn publishers_belong_to_the_ranks_their_sources_name_with_or_without_a_channel_yet() {
        let mut records = records([server(7, "http://e"), source(1, 7, 0), source(2, 7, 1), channel(1, topic::KV_EVENTS)]);
        let publishers = records.workers().remove(&instance(7)).unwrap().publishers;
        let shown = |rank| publishers[&rank].iter().map(|one: &Publisher| (one.id, one.channel.is_some())).collect::<Vec<_>>();
        assert_eq!((shown(0), shown(1)), (vec![(1, true)], vec![(2, false)]));
        // A second incarnation after the first, whatever its number, and a channel of another topic.
        add(&mut records, source(0, 7, 0));
        add(&mut records, channel(0, topic::KV_METRICS));
        let publishers = records.workers().remove(&instance(7)).unwrap().publishers;
        assert_eq!(publishers[&0].iter().map(|one| (one.id, one.channel.is_some())).collect::<Vec<_>>(), [(1, true), (0, false)]);
        assert_eq!(records.channels(topic::KV_METRICS).into_keys().collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn a_worker_of_tokens_needs_its_endpoint_and_its_card() {
        let mut records = records([model(5, "m", None), source(1, 5, 0)]);
        assert!(records.workers().is_empty());
        add(&mut records, endpoint(5));
        add(&mut records, model(5, "sql", Some("sql")));
        let wanted = records.workers().remove(&instance(5)).unwrap();
        let Kind::Tokens { endpoint: named, models, .. } = &wanted.kind else { panic!("{wanted:?}") };
        assert_eq!((&named.id, models.len(), wanted.publishers[&0].len()), (&id(), 2, 1));
        records.take(Change::Remove(endpoint(5).0));
        assert!(records.workers().is_empty());
    }

    #[test]
    fn endpoints_of_one_process_are_workers_with_publishers_of_their_own() {
        let other = EndpointId::new("dynamo", "backend", "generate2");
        let card = ModelCard(json!({"display_name": "m2"}));
        let second =
            [told(Endpoint::tcp(other.clone(), 5, "127.0.0.1:1")), told(Model { id: other.clone(), instance_id: 5, suffix: None, card })];
        let (scope, topic) = (other.scope(), topic::KV_EVENTS.to_owned());
        let of_second = EventSource {
            scope,
            topic,
            publisher_id: 2,
            kv_state_endpoint: other.clone(),
            worker_id: 5,
            dp_rank: 0,
            recovery_target: None,
        };
        let records = records([endpoint(5), model(5, "m", None), source(1, 5, 0), told(of_second)].into_iter().chain(second));
        let workers = records.workers();
        let of = |endpoint: EndpointId| {
            let wanted = &workers[&Instance { number: 5, endpoint }];
            wanted.publishers[&0].iter().map(|one| one.id).collect::<Vec<_>>()
        };
        assert_eq!((workers.len(), of(id()), of(other)), (2, vec![1], vec![2]));
    }

    #[test]
    fn the_newest_record_of_an_engine_counts_and_the_older_one_after_it() {
        let mut records = records([server(9, "http://e/"), server(3, "http://other")]);
        add(&mut records, server(4, "http://e"));
        assert_eq!(numbers(&records), [3, 4]);
        // Told all anew, each keeps its age.
        records.take(Change::Reset(vec![server(4, "http://e"), server(9, "http://e/"), server(3, "http://other")]));
        assert_eq!(numbers(&records), [3, 4]);
        records.take(Change::Remove(server(4, "http://e").0));
        assert_eq!(numbers(&records), [3, 9]);
    }

    #[test]
    fn a_reset_is_all_there_is_and_a_document_that_cannot_be_read_changes_nothing() {
        let told = || records([server(1, "http://a"), server(2, "http://b")]);
        let (mut records, unchanged) = (told(), told());
        add(&mut records, (server(1, "").0, Bytes::from_static(b"{\"type\":\"OpenAiWorker\"}")));
        assert_eq!(records.workers(), unchanged.workers());
        records.take(Change::Reset(vec![(server(1, "").0, Bytes::from_static(b"no JSON")), server(3, "http://c")]));
        assert_eq!(numbers(&records), [1, 3]);
    }

    #[test]
    fn other_namespaces_are_left_out() {
        let mut records = Records::new(Some("prod".to_owned()));
        records.take(Change::Reset(vec![server(1, "http://a"), source(1, 1, 0), channel(1, topic::KV_EVENTS)]));
        assert_eq!(records.len(), 0);
    }
}
