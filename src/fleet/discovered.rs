//! Keeps the fleet as discovery says: adds what has records, drains what has none any more, hands each rank its publishers.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use transport::discovery::{self, Change, Discovery};
use wire::discovery::{Endpoint, EndpointId, EventChannel, OpenAiWorker, topic};

use super::{
    AddError, Fleet,
    clip::clipped,
    gone::{Fate, Gone},
    introspect::EventPlan,
    loads::Loads,
    origin::{Discovered, Origin},
    reach::{Reach, Told},
    records::{Edition, Instance, Kind, Records, Wanted},
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

/// What is found missing so long after the grace of discovery is still its loss.
const LOST_WITH_GRACE: Duration = Duration::from_secs(1);

/// How many workers or changes are dealt with at a stretch: requests run on the same threads.
const AT_A_STRETCH: usize = 64;

/// Most changes that are looked at together.
const TOGETHER: usize = 100_000;

/// Least time between two looks at everything there is on record. What comes meanwhile is looked at together.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// Most bytes of a url or a model's name in a record: both are told again with each answer of `/workers`.
const MOST_TEXT_BYTES: usize = 2048;

/// The workers that discovery found.
#[derive(Clone, Default)]
pub(crate) struct Directory(Arc<RwLock<BTreeMap<Instance, Arc<Worker>>>>);

impl Directory {
    /// The worker of this number; of a process with several endpoints the first.
    pub(crate) fn worker(&self, number: u64) -> Option<Arc<Worker>> {
        let from = Instance { number, endpoint: EndpointId::new("", "", "") };
        let workers = self.0.read();
        workers.range(from..).next().filter(|(instance, _)| instance.number == number).map(|(_, worker)| worker.clone())
    }

    fn get(&self, instance: &Instance) -> Option<Arc<Worker>> {
        self.0.read().get(instance).cloned()
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
    refused: BTreeMap<Instance, String>,
    /// Until then, what discovery has no record of any more was most likely lost by it: it was away, and owners had that long to
    /// register again.
    lost_until: Option<Instant>,
    /// Token-level workers that have no record any more.
    gone: BTreeMap<Instance, Gone>,
    /// It was said that workers of other hosts cannot call back.
    warned: bool,
}

impl Keeper {
    pub(super) fn new(fleet: Arc<Fleet>, planes: Arc<Planes>, peers: watch::Sender<Peers>) -> Self {
        let records = Records::new(planes.options().namespace.clone());
        let loads = Loads { directory: fleet.directory.clone(), counters: planes.loads.clone() };
        let loads = Listeners::new(planes.clone(), Arc::new(loads));
        let hands = Hands {
            fleet,
            planes,
            loads,
            peers,
            changed: false,
            refused: BTreeMap::new(),
            lost_until: None,
            gone: BTreeMap::new(),
            warned: false,
        };
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
                let retry = !self.hands.refused.is_empty() || !self.hands.gone.is_empty();
                // Both branches are cancel-safe: a watch that keeps what it has not handed out, and a timer.
                tokio::select! {
                    change = watch.next() => match change {
                        Some(change) => self.take(change),
                        None => return,
                    },
                    () = tokio::time::sleep(RETRY_EVERY), if retry => {}
                }
                // What has come meanwhile is looked at together.
                for taken in 1..=TOGETHER {
                    let Some(Some(change)) = watch.next().now_or_never() else { break };
                    self.take(change);
                    breathe(taken).await;
                }
                self.hands.make(&self.records).await;
                tokio::time::sleep(LOOK_PAUSE).await;
            }
        };
        stop.run_until_cancelled(work).await;
    }
}

impl Keeper {
    fn take(&mut self, change: Change) {
        // The first one is the beginning; any other, discovery that was away.
        if matches!(change, Change::Reset(_)) && self.records.len() > 0 {
            self.hands.lost_until = Some(Instant::now() + discovery::Options::default().grace + LOST_WITH_GRACE);
        }
        self.records.take(change);
    }
}

/// Where the token-level workers are reached that have records.
fn addresses<'a>(wanted: &BTreeMap<Instance, Wanted<'a>>) -> BTreeSet<&'a str> {
    let endpoints = wanted.values().filter_map(|wanted| match wanted.kind {
        Kind::Tokens { endpoint, .. } => endpoint.transport.tcp_parts(),
        Kind::Server(_) => None,
    });
    endpoints.map(|(address, _)| address).collect()
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
        self.refused.retain(|instance, _| wanted.contains_key(instance));
        let gone: Vec<_> = {
            let workers = self.fleet.directory.0.read();
            workers
                .iter()
                .filter(|(instance, _)| !wanted.contains_key(*instance))
                .map(|(instance, worker)| (instance.clone(), worker.clone()))
                .collect()
        };
        let addresses = addresses(&wanted);
        for (at, (instance, worker)) in gone.into_iter().enumerate() {
            self.let_go(instance, &worker, &addresses);
            breathe(at).await;
        }
        for (at, (instance, wanted)) in wanted.into_iter().enumerate() {
            self.keep(instance, &wanted);
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

    /// Discovery has no record of the worker. What streams tokens is kept for a while, unless another is at its address.
    fn let_go(&mut self, instance: Instance, worker: &Worker, addresses: &BTreeSet<&str>) {
        let Some(tokens) = worker.tokens() else {
            info!(worker = worker.id(), "discovery has no record of the worker any more; it takes no new requests");
            return self.remove(&instance);
        };
        let (now, health) = (Instant::now(), worker.pulse().status());
        let is_replaced = tokens.endpoint().transport.tcp_parts().is_some_and(|(address, _)| addresses.contains(address));
        let gone = self.gone.entry(instance.clone()).or_insert_with(|| {
            let (worker, state) = (worker.id(), health.state.name());
            if self.lost_until.is_some_and(|until| now < until) {
                warn!(worker, state, "discovery was away and has no record of the worker any more; it gets requests as long as it answers");
                Gone::lost(now)
            } else {
                info!(worker, state, "discovery has no record of the worker any more; it takes no new requests");
                tokens.pulse().probe_soon();
                Gone::new(now, &health)
            }
        });
        match gone.fate(now, &health) {
            Fate::Awaited if !tokens.is_gone() => {
                tokens.leave();
                self.changed = true;
            }
            Fate::Serving if tokens.is_gone() && !is_replaced => {
                info!(worker = worker.id(), "the worker answers again, and gets requests although discovery has no record of it");
                tokens.come_back();
                self.changed = true;
            }
            Fate::Awaited | Fate::Serving if !is_replaced => {}
            Fate::Awaited | Fate::Serving | Fate::Over => {
                tokens.leave();
                self.remove(&instance);
            }
        }
    }

    fn keep(&mut self, instance: Instance, wanted: &Wanted<'_>) {
        let known = self.fleet.directory.get(&instance);
        let worker = match known {
            Some(known) if self.can_stay(&known, &wanted.kind) => {
                self.take_back(&instance, &known);
                known
            }
            Some(known) => {
                info!(worker = known.id(), "the worker's record names another engine or another address now; it is added anew");
                self.remove(&instance);
                match self.add(instance, &wanted.kind) {
                    Some(worker) => worker,
                    None => return,
                }
            }
            None => match self.add(instance, &wanted.kind) {
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

    /// Discovery has a record of the worker, perhaps again.
    fn take_back(&mut self, instance: &Instance, worker: &Worker) {
        if self.gone.remove(instance).is_some()
            && let Some(tokens) = worker.tokens()
        {
            info!(worker = worker.id(), "discovery has a record of the worker again");
            tokens.come_back();
            self.changed = true;
        }
    }

    /// A worker on another host cannot call back to loopback, with its answers or with what was missed; that is said once.
    fn look_for_others(&mut self, wanted: &Wanted<'_>) {
        if self.warned || self.planes.options().response_host.is_some() {
            return;
        }
        let recoveries = wanted.publishers.values().flatten().filter_map(|publisher| publisher.recovery.as_ref());
        let generates = match wanted.kind {
            Kind::Tokens { endpoint, .. } => Some(endpoint),
            Kind::Server(_) => None,
        };
        let elsewhere = |endpoint: &Endpoint| {
            let host = endpoint.transport.tcp_parts()?.0.rsplit_once(':')?.0.trim_matches(['[', ']']);
            let here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
            (!here).then(|| host.to_owned())
        };
        if let Some(host) = generates.into_iter().chain(recoveries).filter_map(elsewhere).next() {
            self.warned = true;
            warn!(
                host,
                "a worker is on another host, which cannot call back to 127.0.0.1 with its answers: set --tcp-response-stream-host (DYN_TCP_RESPONSE_STREAM_HOST) to an address of this host"
            );
        }
    }

    /// Whether the worker is what its record says, where necessary after taking over what is new.
    fn can_stay(&self, worker: &Worker, kind: &Kind<'_>) -> bool {
        match (&worker.reach, kind) {
            (Reach::OpenAi(server), Kind::Server(record)) => self.spec(record).is_ok_and(|spec| spec == server.spec),
            (Reach::Tokens(tokens), Kind::Tokens { endpoint, models, edition }) => {
                if **endpoint != *tokens.endpoint() {
                    return false;
                }
                if !tokens.was_told(*edition)
                    && let Ok(told) = self.told(models, *edition)
                {
                    tokens.tell(told);
                }
                true
            }
            (Reach::OpenAi(_), Kind::Tokens { .. }) | (Reach::Tokens(_), Kind::Server(_)) => false,
        }
    }

    fn add(&mut self, instance: Instance, kind: &Kind<'_>) -> Option<Arc<Worker>> {
        match self.try_add(&instance, kind) {
            Ok(worker) => {
                self.refused.remove(&instance);
                self.changed = true;
                self.fleet.directory.0.write().insert(instance, worker.clone());
                Some(worker)
            }
            Err(reason) => {
                if self.refused.get(&instance) != Some(&reason) {
                    warn!(worker = instance.number, reason = &*clipped(&reason), "a worker that discovery found cannot be added");
                    self.refused.insert(instance, reason);
                }
                None
            }
        }
    }

    fn try_add(&self, instance: &Instance, kind: &Kind<'_>) -> Result<Arc<Worker>, String> {
        let text = |error: AddError| error.to_string();
        let origin = Origin::Discovered(Discovered::new(instance.number, instance.endpoint.clone()));
        match kind {
            Kind::Server(record) => self.fleet.add_server(self.spec(record)?, origin).map_err(text),
            Kind::Tokens { endpoint, models, edition } => {
                let told = self.told(models, *edition)?;
                // One process may serve several endpoints; the first that came has the number alone.
                let number = instance.number.to_string();
                let id = match self.fleet.directory.worker(instance.number) {
                    None => number,
                    Some(_) => [number.as_str(), &endpoint.id.namespace, &endpoint.id.component, &endpoint.id.endpoint].join("."),
                };
                self.fleet.add_tokens(id, (*endpoint).clone(), told, origin).map_err(text)
            }
        }
    }

    fn remove(&mut self, instance: &Instance) {
        self.gone.remove(instance);
        let Some(worker) = self.fleet.directory.0.write().remove(instance) else { return };
        // An operator may have removed it before.
        self.changed |= self.fleet.take_out(worker.id());
    }

    fn told(&self, models: &[&wire::discovery::Model], edition: Edition) -> Result<Told, String> {
        let listens = self.fleet.config.listens_to_events();
        Told::of(models, edition, if listens { EventPlan::Plane } else { |_| EventPlan::Off })
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

#[cfg(test)]
#[path = "token_tests.rs"]
mod token_tests;
