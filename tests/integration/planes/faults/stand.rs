//! Two publishers, two frontends, requests to both, and what is counted while something fails.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use mocker::Handle;
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::sleep;
use transport::{
    discovery::{Backend, Discovery, Options, Registration},
    plane::PlaneKind,
};

use super::{
    Scale,
    noise::NatsWire,
    publisher::{Plan, Publisher, Report},
    traffic::Traffic,
};
use crate::{
    planes::{
        Place, announce,
        lossy::{Faults, Wire},
        open_ai_worker,
    },
    support::{eventually, frontend::Frontend, seen, simulated::quick},
};

/// In kv mode, by events alone.
const KV: [&str; 4] = ["--router-mode", "kv", "--router-predicted-ttl-secs", "0"];
/// The workers, whoever publishes for them.
const WORKERS: [u64; 2] = [1001, 1002];
/// etcd's leases are of 30 s, and of a loss it says so late.
const LEASES_END_WITHIN: Duration = Duration::from_secs(60);

/// Requests end before what they are sent to.
pub(super) struct Stand {
    pub(super) traffic: Vec<Traffic>,
    pub(super) place: Place,
    pub(super) noise: Arc<Faults>,
    pub(super) publishers: Vec<Publisher>,
    pub(super) frontends: Vec<Frontend>,
    scale: Scale,
    rows: Vec<Row>,
    /// Of each frontend after the last fault.
    counted: Vec<Counters>,
    requests: u64,
    /// Events published until then, and when that was.
    events: (u64, Instant),
    _engines: Vec<Handle>,
    _records: Vec<Registration>,
    wires: (Option<Wire>, Option<NatsWire>, Option<TempDir>),
}

/// What one frontend says of its event streams, summed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) dumps: u64,
    pub(super) queries: u64,
    pub(super) gaps: u64,
    pub(super) duplicates: u64,
    pub(super) restarts: u64,
}

/// What one fault did.
#[derive(Debug)]
pub(super) struct Row {
    fault: String,
    /// From the end of the fault until both frontends were equal to both publishers.
    pub(super) equal_after: Duration,
    /// Of both frontends, since the fault before.
    pub(super) counted: Counters,
    events_per_second: u64,
    pub(super) requests: u64,
    pub(super) failures: Vec<String>,
}

impl Stand {
    /// Everything is up, caches are full, and both frontends know all of both.
    pub(super) async fn start(plane: PlaneKind, scale: Scale) -> Self {
        let noise = Arc::<Faults>::default();
        let (place, wires, planes) = match plane {
            PlaneKind::Zmq => zmq(&noise),
            PlaneKind::Nats => nats(&noise).await,
        };
        // What is announced where the publishers are is copied to where the frontends are.
        let discovery = wires.2.as_ref().map_or_else(|| place.discovery(), folder);
        let (mut engines, mut records) = (Vec::new(), Vec::new());
        for worker in WORKERS {
            let engine = quick().await;
            records.push(announce(&discovery, open_ai_worker("dynamo", worker, &engine.url())).await);
            engines.push(engine);
        }
        let planes = planes.map(|(name, value)| (name.to_owned(), value)).to_vec();
        let plan = |worker_id| Plan {
            worker_id,
            blocks: scale.blocks / WORKERS.len(),
            events_per_second: scale.events_per_second / WORKERS.len(),
            ttl: scale.ttl,
            planes: planes.clone(),
        };
        let publishers = WORKERS.map(|worker| Publisher::start(plan(worker))).into_iter().collect();
        let frontends = vec![place.frontend(&KV), place.frontend(&KV)];
        let mut stand = Self {
            place,
            noise,
            publishers,
            frontends,
            traffic: Vec::new(),
            scale,
            rows: Vec::new(),
            counted: vec![Counters::default(); 2],
            requests: 0,
            events: (0, Instant::now()),
            _engines: engines,
            _records: records,
            wires,
        };
        stand.fill().await;
        stand
    }

    async fn fill(&mut self) {
        for frontend in &self.frontends {
            frontend.serves(WORKERS.len(), "exact").await;
        }
        self.traffic = self.frontends.iter().map(|frontend| Traffic::to(frontend.address)).collect();
        let since = Instant::now();
        let reports: Vec<Report> = self.publishers.iter_mut().map(Publisher::fill).collect();
        let filled = since.elapsed();
        self.equals().await;
        let blocks: u64 = reports.iter().map(|report| report.blocks).sum();
        println!("{blocks} blocks published in {filled:?}, known to both frontends after {:?}", since.elapsed());
        self.publishers.iter_mut().for_each(|publisher| {
            publisher.flow();
        });
        sleep(self.scale.flows_on).await;
        self.row("none, from the start on", Instant::now()).await;
    }

    /// Waits until both frontends know of each publisher what it says of itself, while it is paused. It is asked again each time:
    /// where messages were dropped, an event without content follows on its own.
    async fn equals(&mut self) {
        for frontend in &self.frontends {
            for publisher in &mut self.publishers {
                eventually("the index equals what is published", async || {
                    let (report, rank) = (publisher.report(), frontend.rank(&publisher.worker_id()).await);
                    let equal = rank["trust"] == "exact"
                        && rank["last_seq"].as_u64().unwrap_or(0) == report.last_event_id
                        && rank["digest"] == *report.digest
                        && rank["blocks"] == report.blocks;
                    seen(equal, (report, &rank))
                })
                .await;
            }
        }
    }

    /// The fault ended at `ended`: how long until both ends are equal, and what was counted on the way.
    pub(super) async fn row(&mut self, fault: &str, ended: Instant) -> &Row {
        sleep(self.scale.flows_on).await;
        let events = self.events_per_second();
        let reports: Vec<Report> = self.publishers.iter_mut().map(Publisher::pause).collect();
        self.equals().await;
        let equal_after = ended.elapsed();
        assert!(reports.iter().all(|report| report.dropped_calls == 0), "this machine is too slow for the rate: {reports:?}");
        let mut counted = Counters::default();
        for (frontend, before) in self.frontends.iter().zip(&mut self.counted) {
            let now = counters(frontend).await;
            counted = counted + (now - *before);
            *before = now;
        }
        let requests: u64 = self.traffic.iter().map(Traffic::requests).sum();
        let failures: Vec<String> = self.traffic.iter().flat_map(Traffic::failures).collect();
        let row =
            Row { fault: fault.to_owned(), equal_after, counted, events_per_second: events, requests: requests - self.requests, failures };
        println!("{row}");
        self.requests = requests;
        self.rows.push(row);
        self.publishers.iter_mut().for_each(|publisher| {
            publisher.flow();
        });
        self.events = (self.published(), Instant::now());
        let row = self.rows.last().unwrap();
        assert!(row.equal_after < self.scale.equal_within, "{row}");
        assert!(row.failures.is_empty(), "{row}: {:?}", row.failures);
        assert!(row.requests > 0, "{row}");
        row
    }

    fn published(&mut self) -> u64 {
        self.publishers.iter_mut().map(|publisher| publisher.report().events).sum()
    }

    /// Since the last row.
    fn events_per_second(&mut self) -> u64 {
        let (before, since) = self.events;
        let seconds = since.elapsed().as_secs_f64();
        (self.published().saturating_sub(before) as f64 / seconds) as u64
    }

    /// What a new process begins with.
    pub(super) fn counts_anew(&mut self, frontend: usize) {
        self.counted[frontend] = Counters::default();
    }

    /// A frontend that follows the publishers themselves, where the others are behind a wire.
    pub(super) async fn direct(&self) -> Option<Frontend> {
        let inner = self.wires.2.as_ref()?.path().to_str().unwrap();
        let args = ["--discovery-backend", "file", "--file-kv", inner];
        let frontend = Frontend::start(&[&KV[..], &args].concat());
        frontend.serves(WORKERS.len(), "exact").await;
        Some(frontend)
    }

    /// Waits until nobody is announced who has died.
    pub(super) async fn one_publisher_each(&self) {
        let since = Instant::now();
        for (frontend, publisher) in
            self.frontends.iter().flat_map(|frontend| self.publishers.iter().map(move |publisher| (frontend, publisher)))
        {
            while frontend.rank(&publisher.worker_id()).await["publishers"].as_array().unwrap().len() != 1 {
                assert!(since.elapsed() < LEASES_END_WITHIN);
                sleep(Duration::from_millis(100)).await;
            }
        }
    }

    /// What an operator sees of a plane at both frontends.
    pub(super) async fn shown(&self, plane: &str, state: &str) {
        for frontend in &self.frontends {
            eventually(&format!("{plane} is shown {state}"), async || {
                let health = frontend.get("/health").await.json();
                seen(health["planes"][plane]["state"] == state, &health)
            })
            .await;
        }
    }

    pub(super) fn print(&self, plane: PlaneKind) {
        println!("\n{plane:?}, {} blocks\n{HEAD}", self.scale.blocks);
        for row in &self.rows {
            println!("{row}");
        }
    }

    pub(super) fn lost(&self) -> u64 {
        self.noise.lost.load(Ordering::Relaxed)
    }
}

/// A frontend of this place, as those of the stand.
pub(super) fn frontend(place: &Place) -> Frontend {
    place.frontend(&KV)
}

type Planes = [(&'static str, String); 4];
type Wires = (Option<Wire>, Option<NatsWire>, Option<TempDir>);

/// Publishers register in a folder of their own; what is between it and etcd copies their records and carries their messages.
fn zmq(noise: &Arc<Faults>) -> (Place, Wires, Planes) {
    let (place, inner) = (Place::etcd(), tempfile::tempdir().unwrap());
    let planes = [
        ("DYN_DISCOVERY_BACKEND", "file".to_owned()),
        ("DYN_FILE_KV", inner.path().to_str().unwrap().to_owned()),
        ("DYN_EVENT_PLANE", "zmq".to_owned()),
        ("DYN_NAMESPACE", "dynamo".to_owned()),
    ];
    let wire = Wire::with(noise.clone(), folder(&inner), place.discovery());
    (place, (Some(wire), None, Some(inner)), planes)
}

fn folder(folder: &TempDir) -> Discovery {
    Discovery::open(Backend::File { root: folder.path().to_owned() }, Options::default()).unwrap()
}

/// Publishers reach NATS through a wire that reads along.
async fn nats(noise: &Arc<Faults>) -> (Place, Wires, Planes) {
    let mut place = Place::etcd_and_nats();
    let wire = NatsWire::to(place.nats_server().port(), noise.clone()).await;
    let planes = [
        ("DYN_DISCOVERY_BACKEND", "etcd".to_owned()),
        ("ETCD_ENDPOINTS", place.etcd_server().url()),
        ("DYN_EVENT_PLANE", "nats".to_owned()),
        ("NATS_SERVER", wire.url()),
    ];
    (place, (None, Some(wire), None), planes)
}

async fn counters(frontend: &Frontend) -> Counters {
    let page = frontend.get("/metrics").await.text();
    let sum = |name: &str| {
        let name = format!("dynamo_router_kv_{name}_total{{");
        let values = page.lines().filter(|line| line.starts_with(&name)).filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
        values.sum::<f64>() as u64
    };
    Counters {
        dumps: sum("dumps"),
        queries: sum("replay_requests"),
        gaps: sum("gaps"),
        duplicates: sum("duplicates"),
        restarts: sum("restarts"),
    }
}

impl std::ops::Add for Counters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            dumps: self.dumps + other.dumps,
            queries: self.queries + other.queries,
            gaps: self.gaps + other.gaps,
            duplicates: self.duplicates + other.duplicates,
            restarts: self.restarts + other.restarts,
        }
    }
}

impl std::ops::Sub for Counters {
    type Output = Self;

    /// Where a rank went with its counters, nothing.
    fn sub(self, other: Self) -> Self {
        Self {
            dumps: self.dumps.saturating_sub(other.dumps),
            queries: self.queries.saturating_sub(other.queries),
            gaps: self.gaps.saturating_sub(other.gaps),
            duplicates: self.duplicates.saturating_sub(other.duplicates),
            restarts: self.restarts.saturating_sub(other.restarts),
        }
    }
}

const HEAD: &str =
    "fault                                     | equal after | events/s | dumps | queries | gaps | doubles | restarts | requests | failed";

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fault, equal_after, counted, events_per_second, requests, failures } = self;
        let Counters { dumps, queries, gaps, duplicates, restarts } = counted;
        write!(
            f,
            "{fault:<41} | {:>9.2} s | {events_per_second:>8} | {dumps:>5} | {queries:>7} | {gaps:>4} | {duplicates:>7} | {restarts:>8} | {requests:>8} | {}",
            equal_after.as_secs_f64(),
            failures.len()
        )
    }
}

/// Of `GET /workers`, for what is asked of one rank.
pub(super) async fn trust(frontend: &Frontend, worker: &str) -> Value {
    frontend.rank(worker).await["trust"].clone()
}
