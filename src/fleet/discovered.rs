//! Keeps the fleet as discovery says: adds what has records, drains what has none any more, hands each rank its publishers.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use futures_util::FutureExt;
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use transport::discovery::Discovery;
use wire::discovery::{Endpoint, EndpointId, EventChannel, OpenAiWorker, topic};

use super::{
    AddError, Fleet,
    clip::clipped,
    introspect::{EventPlan, Identity},
    loads::Loads,
    origin::{Discovered, Origin},
    reach::{Reach, Told, TokenWorker},
    records::{Kind, Records, Wanted},
    worker::Worker,
};
use crate::{
    config::worker_flag::{Events, Role, WorkerSpec},
    planes::{Planes, listeners::Listeners},
};

/// The prefix of every key.
const ALL: &str = "v1/";

/// How often it is tried again to add a worker that could not be: its place may be free by then.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// How many workers or changes are dealt with at a stretch: requests run on the same threads.
const AT_A_STRETCH: usize = 64;

/// Most changes that are looked at together.
const TOGETHER: usize = 100_000;

/// Least time between two looks at everything there is on record. What comes meanwhile is looked at together.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// Most bytes of a url or a model's name in a record: both are told again with each answer of `/workers`.
const MOST_TEXT_BYTES: usize = 2048;

/// The workers that discovery found, by their number in events.
#[derive(Clone, Default)]
pub(crate) struct Directory(Arc<RwLock<BTreeMap<u64, Arc<Worker>>>>);

impl Directory {
    /// The worker of this number.
    pub(crate) fn worker(&self, worker_id: u64) -> Option<Arc<Worker>> {
        self.0.read().get(&worker_id).cloned()
    }
}

/// What discovery says that frontends before one fleet need to find each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Peers {
    /// Those that have workers here.
    pub(crate) endpoints: BTreeSet<EndpointId>,
    /// Where frontends tell each other of requests, by publisher.
    pub(crate) channels: BTreeMap<u64, EventChannel>,
}

/// Makes the fleet what discovery says.
pub(super) struct Keeper {
    records: Records,
    hands: Hands,
}

/// What a [`Keeper`] works on.
struct Hands {
    fleet: Arc<Fleet>,
    planes: Arc<Planes>,
    loads: Listeners<Loads>,
    /// Whoever tells other frontends of requests looks here.
    peers: watch::Sender<Peers>,
    /// Workers were added or removed that no snapshot tells of yet.
    changed: bool,
    /// Workers that could not be added, and why.
    refused: BTreeMap<u64, String>,
    /// It was said that workers of other hosts cannot call back.
    warned: bool,
}

impl Keeper {
    pub(super) fn new(fleet: Arc<Fleet>, planes: Arc<Planes>, peers: watch::Sender<Peers>) -> Self {
        let records = Records::new(planes.options().namespace.clone());
        let loads = Loads { directory: fleet.directory.clone(), counters: planes.loads.clone() };
        let loads = Listeners::new(planes.clone(), Arc::new(loads));
        let hands = Hands { fleet, planes, loads, peers, changed: false, refused: BTreeMap::new(), warned: false };
        Self { records, hands }
    }

    /// Follows `discovery` until `stop`. The fleet stays as it is while discovery is away (rule 14).
    pub(super) async fn run(mut self, discovery: Discovery, stop: CancellationToken) {
        let mut watch = {
            let _on = self.hands.planes.events().enter();
            discovery.watch(ALL)
        };
        let work = async {
            loop {
                let retry = !self.hands.refused.is_empty();
                // Both branches are cancel-safe: a watch that keeps what it has not handed out, and a timer.
                tokio::select! {
                    change = watch.next() => match change {
                        Some(change) => self.records.take(change),
                        None => return,
                    },
                    () = tokio::time::sleep(RETRY_EVERY), if retry => {}
                }
                // What has come meanwhile is looked at together.
                for taken in 1..=TOGETHER {
                    let Some(Some(change)) = watch.next().now_or_never() else { break };
                    self.records.take(change);
                    breathe(taken).await;
                }
                self.hands.make(&self.records).await;
                tokio::time::sleep(LOOK_PAUSE).await;
            }
        };
        stop.run_until_cancelled(work).await;
    }
}

/// Lets others run after each stretch.
async fn breathe(done: usize) {
    if done.is_multiple_of(AT_A_STRETCH) {
        tokio::task::yield_now().await;
    }
}

impl Hands {
    /// Makes the fleet what the records say. Whatever that changes, requests see at once, in one snapshot.
    async fn make(&mut self, records: &Records) {
        let wanted = records.workers();
        self.refused.retain(|id, _| wanted.contains_key(id));
        let gone: Vec<u64> = self.fleet.directory.0.read().keys().filter(|id| !wanted.contains_key(id)).copied().collect();
        for (at, id) in gone.into_iter().enumerate() {
            info!(worker = id, "discovery has no record of the worker any more; it takes no new requests");
            self.remove(id);
            breathe(at).await;
        }
        for (at, (id, wanted)) in wanted.into_iter().enumerate() {
            self.keep(id, &wanted);
            breathe(at).await;
        }
        if std::mem::take(&mut self.changed) {
            self.fleet.publish();
        }
        self.loads.follow(&records.channels(topic::KV_METRICS));
        let peers = self.peers(records);
        self.peers.send_if_modified(|known| {
            let changed = *known != peers;
            *known = peers;
            changed
        });
        self.planes.set_records(records.len());
    }

    fn peers(&self, records: &Records) -> Peers {
        let workers = self.fleet.directory.0.read();
        let endpoints = workers.values().filter_map(|worker| worker.origin.discovered()).map(|discovered| discovered.endpoint.clone());
        let channels = records.channels(topic::ACTIVE_SEQUENCES).into_iter().map(|(publisher, channel)| (publisher, channel.clone()));
        Peers { endpoints: endpoints.collect(), channels: channels.collect() }
    }

    fn keep(&mut self, id: u64, wanted: &Wanted<'_>) {
        let known = self.fleet.directory.0.read().get(&id).cloned();
        let worker = match known {
            Some(known) if self.can_stay(&known, &wanted.kind) => known,
            Some(_) => {
                info!(worker = id, "the worker's record names another engine now; it is added anew");
                self.remove(id);
                match self.add(id, &wanted.kind) {
                    Some(worker) => worker,
                    None => return,
                }
            }
            None => match self.add(id, &wanted.kind) {
                Some(worker) => worker,
                None => return,
            },
        };
        let Some(discovered) = worker.origin.discovered() else { return };
        self.look_for_others(wanted);
        if discovered.set_publishers(&wanted.publishers) {
            worker.hand_out_sources();
        }
    }

    /// A worker on another host cannot call back to loopback with what was missed; that is said once.
    fn look_for_others(&mut self, wanted: &Wanted<'_>) {
        if self.warned || self.planes.options().response_host.is_some() {
            return;
        }
        let recoveries = wanted.publishers.values().flatten().filter_map(|publisher| publisher.recovery.as_ref());
        let elsewhere = |endpoint: &Endpoint| {
            let host = endpoint.transport.tcp_parts()?.0.rsplit_once(':')?.0.trim_matches(['[', ']']);
            let here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
            (!here).then(|| host.to_owned())
        };
        if let Some(host) = recoveries.filter_map(elsewhere).next() {
            self.warned = true;
            warn!(
                host,
                "a worker is on another host, which cannot call back to 127.0.0.1 with events that were missed: set --tcp-response-stream-host (DYN_TCP_RESPONSE_STREAM_HOST) to an address of this host"
            );
        }
    }

    /// Whether the worker is what its record says, where necessary after taking over what is new.
    fn can_stay(&self, worker: &Worker, kind: &Kind<'_>) -> bool {
        match (&worker.reach, kind) {
            (Reach::OpenAi(server), Kind::Server(record)) => self.spec(record).is_ok_and(|spec| spec == server.spec),
            (Reach::Tokens(tokens), Kind::Tokens { endpoint, models }) => {
                if **endpoint != *tokens.endpoint() {
                    return false;
                }
                if let Some(told) = self.told(models) {
                    tokens.tell(told);
                }
                true
            }
            (Reach::OpenAi(_), Kind::Tokens { .. }) | (Reach::Tokens(_), Kind::Server(_)) => false,
        }
    }

    fn add(&mut self, id: u64, kind: &Kind<'_>) -> Option<Arc<Worker>> {
        match self.try_add(id, kind) {
            Ok(worker) => {
                self.refused.remove(&id);
                self.changed = true;
                self.fleet.directory.0.write().insert(id, worker.clone());
                Some(worker)
            }
            Err(reason) => {
                if self.refused.get(&id) != Some(&reason) {
                    warn!(worker = id, reason = &*clipped(&reason), "a worker that discovery found cannot be added");
                    self.refused.insert(id, reason);
                }
                None
            }
        }
    }

    fn try_add(&self, id: u64, kind: &Kind<'_>) -> Result<Arc<Worker>, String> {
        let text = |error: AddError| error.to_string();
        match kind {
            Kind::Server(record) => {
                let origin = Origin::Discovered(Discovered::new(id, record.id.clone()));
                self.fleet.add_server(self.spec(record)?, origin).map_err(text)
            }
            Kind::Tokens { endpoint, models } => {
                let told = self.told(models).ok_or("its model card has no display_name")?;
                let origin = Origin::Discovered(Discovered::new(id, endpoint.id.clone()));
                self.fleet.add_tokens(id.to_string(), TokenWorker::new((*endpoint).clone(), told), origin).map_err(text)
            }
        }
    }

    fn remove(&mut self, id: u64) {
        self.fleet.directory.0.write().remove(&id);
        // An operator may have removed it before.
        self.changed |= self.fleet.take_out(&id.to_string());
    }

    fn told(&self, models: &[&wire::discovery::Model]) -> Option<Told> {
        let listens = self.fleet.config.listens_to_events();
        let identity = Identity::of_cards(models, if listens { EventPlan::Plane } else { |_| EventPlan::Off })?;
        Some(Told { identity, cards: models.iter().map(|model| (*model).clone()).collect() })
    }

    /// What an operator would have written for it.
    fn spec(&self, record: &OpenAiWorker) -> Result<WorkerSpec, String> {
        let block_size = record.block_size.and_then(std::num::NonZeroU32::new);
        for (what, text) in [("url", &record.url), ("model", &record.model)] {
            if text.len() > MOST_TEXT_BYTES {
                return Err(format!("its {what} has {} bytes, and {MOST_TEXT_BYTES} are allowed", text.len()));
            }
        }
        Ok(WorkerSpec {
            url: record.url.parse().map_err(|error| format!("its url '{}' cannot be used: {error}", record.url))?,
            id: record.instance_id.to_string(),
            events: record.no_events.clone().map_or(Events::Plane, Events::Absent),
            replay: Vec::new(),
            topic: None,
            model: Some(record.model.clone()).filter(|model| !model.is_empty()),
            block_size: block_size.or(self.fleet.config.block_size),
            dp_size: std::num::NonZeroU32::new(record.dp_size.clamp(1, engine::discover::MAX_RANKS)),
            dp_start: Some(record.dp_start.min(crate::config::worker_flag::HIGHEST_RANK)),
            role: Role::Aggregated,
            lora: Vec::new(),
        })
    }
}

#[cfg(test)]
#[path = "discovered_tests.rs"]
mod tests;
