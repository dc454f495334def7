//! The task that publishes what this frontend has in flight: one publisher for each endpoint that has workers here, with a record
//! in discovery.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tracing::{info, warn};
use transport::{
    discovery::{Discovery, Registration},
    plane::{PlanePublisher, PlaneSocket, PublisherOptions},
};
use wire::{
    discovery::{ChannelTransport, EndpointId, Record, topic},
    load::{ActiveSequenceEvent, encode_sequences},
};

use super::heard::Own;
use crate::fleet::Peers;

/// Events of one message over ZMQ, at most.
const BATCH: usize = 256;
/// How long the first of a batch may wait for more.
const BATCH_WITHIN: Duration = Duration::from_millis(1);
/// Pause before a publisher that could not be opened is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Something to publish.
pub(super) type Tell = (EndpointId, ActiveSequenceEvent);

/// What the task works with.
pub(super) struct Teller<S> {
    /// Makes what it publishes on.
    pub(super) socket: S,
    pub(super) discovery: Discovery,
    pub(super) own: Own,
    /// Events that were not published.
    pub(super) dropped: Arc<AtomicU64>,
    outlets: HashMap<EndpointId, Outlet>,
}

/// Where what is told of one endpoint goes.
enum Outlet {
    Open(Box<Publisher>),
    /// It could not be opened: when it is tried again, and why, if it was tried.
    Closed {
        again: Instant,
        reason: Option<String>,
    },
}

/// Its record goes with it.
struct Publisher {
    publisher: PlanePublisher,
    own: Own,
    _registration: Registration,
}

impl<S: Fn() -> PlaneSocket> Teller<S> {
    pub(super) fn new(socket: S, discovery: Discovery, own: Own, dropped: Arc<AtomicU64>) -> Self {
        Self { socket, discovery, own, dropped, outlets: HashMap::new() }
    }

    /// Publishes until it is dropped, or nobody orders any more. Those who follow workers find us before the first request.
    pub(super) async fn run(mut self, mut peers: watch::Receiver<Peers>, mut orders: mpsc::Receiver<Tell>) {
        loop {
            let endpoints = peers.borrow_and_update().endpoints.clone();
            self.serve(&endpoints).await;
            let again = self.outlets.values().filter_map(Outlet::again).min();
            // All branches are cancel-safe: a watch, a channel and a timer.
            tokio::select! {
                changed = peers.changed() => if changed.is_err() { return },
                () = tokio::time::sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => {}
                order = orders.recv() => match order {
                    Some(first) => self.tell(batch(first, &mut orders).await),
                    None => return,
                },
            }
        }
    }

    /// Has an outlet for each of these endpoints and no others. Those that cannot be opened are tried again later, and hold up
    /// no others meanwhile.
    async fn serve(&mut self, endpoints: &BTreeSet<EndpointId>) {
        self.outlets.retain(|endpoint, _| endpoints.contains(endpoint));
        for endpoint in endpoints {
            let outlet = self.outlets.entry(endpoint.clone()).or_insert_with(|| Outlet::Closed { again: Instant::now(), reason: None });
            let Outlet::Closed { again, reason } = outlet else { continue };
            if *again > Instant::now() {
                continue;
            }
            let known = reason.take();
            *outlet = match open((self.socket)(), &self.discovery, &self.own, endpoint).await {
                Ok(publisher) => Outlet::Open(Box::new(publisher)),
                Err(reason) => {
                    if known.as_ref() != Some(&reason) {
                        warn!(%endpoint, reason, "other frontends cannot be told of requests (--event-plane-host)");
                    }
                    Outlet::Closed { again: Instant::now() + RETRY_AFTER, reason: Some(reason) }
                }
            };
        }
    }

    fn tell(&self, batch: Vec<Tell>) {
        let mut events: HashMap<EndpointId, Vec<ActiveSequenceEvent>> = HashMap::new();
        for (endpoint, event) in batch {
            events.entry(endpoint).or_default().push(event);
        }
        for (endpoint, events) in events {
            match self.outlets.get(&endpoint) {
                Some(Outlet::Open(publisher)) => publisher.publish(&events),
                Some(Outlet::Closed { .. }) => drop(self.dropped.fetch_add(events.len() as u64, Ordering::Relaxed)),
                // Its last worker is gone, and with the record of the publisher what others have booked of it.
                None => {}
            }
        }
    }
}

impl Outlet {
    fn again(&self) -> Option<Instant> {
        match self {
            Self::Open(_) => None,
            Self::Closed { again, .. } => Some(*again),
        }
    }
}

/// What is ordered along with `first`.
async fn batch(first: Tell, orders: &mut mpsc::Receiver<Tell>) -> Vec<Tell> {
    tokio::time::sleep(BATCH_WITHIN).await;
    let mut batch = vec![first];
    while batch.len() < BATCH
        && let Ok(order) = orders.try_recv()
    {
        batch.push(order);
    }
    batch
}

async fn open(socket: PlaneSocket, discovery: &Discovery, own: &Own, endpoint: &EndpointId) -> Result<Publisher, String> {
    // 53 bits, as other publishers' ids.
    let publisher_id = (rand::random::<u64>() >> 11).max(1);
    let opened = PlanePublisher::open(socket, endpoint.scope(), topic::ACTIVE_SEQUENCES, publisher_id, PublisherOptions::default()).await;
    let publisher = opened.map_err(|error| error.to_string())?;
    own.add(publisher_id);
    let record = Record::from(publisher.channel().clone());
    let registration = discovery.register(record.key(), record.to_json());
    info!(%endpoint, channel = ?publisher.channel().transport, "other frontends are told of requests");
    Ok(Publisher { publisher, own: own.clone(), _registration: registration })
}

impl Publisher {
    /// Several in one message over ZMQ, one in each over NATS, as 1.6.1 does.
    fn publish(&self, events: &[ActiveSequenceEvent]) {
        match self.publisher.channel().transport {
            ChannelTransport::Nats { .. } => {
                for event in events {
                    self.publisher.publish(event.encode());
                }
            }
            ChannelTransport::Zmq { .. } | ChannelTransport::ZmqBroker { .. } => {
                self.publisher.publish(encode_sequences(events));
            }
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.own.remove(self.publisher.channel().instance_id);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use transport::discovery::{Backend, Change, MemStore, Options, Watch};
    use wire::load::SequenceData;

    use super::*;

    struct Rig {
        peers: watch::Sender<Peers>,
        orders: mpsc::Sender<Tell>,
        dropped: Arc<AtomicU64>,
        own: Own,
        watch: Watch,
        _task: tokio_util::task::AbortOnDropHandle<()>,
    }

    fn endpoint(name: &str) -> EndpointId {
        EndpointId::new("dynamo", name, "generate")
    }

    impl Rig {
        fn start(socket: fn() -> PlaneSocket) -> Self {
            let discovery = Discovery::open(Backend::Mem(MemStore::default()), Options::default()).unwrap();
            let watch = discovery.watch("v1/");
            let (peers, served) = watch::channel(Peers::default());
            let (orders, ordered) = mpsc::channel(16);
            let (dropped, own) = (Arc::<AtomicU64>::default(), Own::default());
            let teller = Teller::new(socket, discovery, own.clone(), dropped.clone());
            let task = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(teller.run(served, ordered)));
            Self { peers, orders, dropped, own, watch, _task: task }
        }

        fn serve(&self, names: &[&str]) {
            let endpoints = names.iter().map(|name| endpoint(name)).collect();
            self.peers.send_replace(Peers { endpoints, channels: BTreeMap::new() });
        }

        /// The records there are, once there are `count`.
        async fn records(&mut self, count: usize) -> BTreeSet<String> {
            let mut known = BTreeSet::new();
            let told = async {
                loop {
                    match self.watch.next().await.unwrap() {
                        Change::Reset(all) => known = all.into_iter().map(|(key, _)| key.as_str().to_owned()).collect(),
                        Change::Add(key, _) => drop(known.insert(key.as_str().to_owned())),
                        Change::Remove(key) => drop(known.remove(key.as_str())),
                    }
                    if known.len() == count {
                        return;
                    }
                }
            };
            tokio::time::timeout(Duration::from_secs(20), told).await.unwrap();
            known
        }
    }

    #[tokio::test]
    async fn a_publisher_goes_with_the_last_worker_of_its_endpoint() {
        let mut rig = Rig::start(PlaneSocket::loopback);
        rig.serve(&["a", "b"]);
        rig.records(2).await;
        assert_eq!(rig.own.len(), 2);
        rig.serve(&[]);
        let mut gone = 0;
        while gone < 2 {
            let next = tokio::time::timeout(Duration::from_secs(20), rig.watch.next()).await.unwrap().unwrap();
            gone += usize::from(matches!(next, Change::Remove(_)));
        }
        assert_eq!(rig.own.len(), 0);
    }

    #[tokio::test]
    async fn what_cannot_be_published_is_counted_and_holds_up_nothing() {
        // No address of this host: it is for documents.
        let rig = Rig::start(|| PlaneSocket::Zmq { bind_host: "203.0.113.1".to_owned(), advertise_host: None });
        rig.serve(&["a"]);
        let began = Instant::now();
        for number in 1..=5 {
            let event = ActiveSequenceEvent {
                request_id: number.to_string(),
                worker_id: 1,
                dp_rank: 0,
                data: SequenceData::Free,
                router_id: 1,
                lora_name: None,
            };
            rig.orders.send((endpoint("a"), event)).await.unwrap();
            while rig.dropped.load(Ordering::Relaxed) < number {
                tokio::task::yield_now().await;
                assert!(began.elapsed() < Duration::from_secs(20));
            }
        }
        assert!(began.elapsed() < RETRY_AFTER, "each waited for the next try");
    }
}
