//! Keeps the fleet as discovery says: adds what has records, drains what has none any more, hands each rank its publishers.

mod adding;
mod hands;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use transport::discovery::{self, Change, Discovery};
use wire::discovery::{EndpointId, EventChannel};

use super::{
    Fleet,
    gone::Gone,
    loads::Loads,
    records::{Instance, Records},
    worker::Worker,
};
use crate::planes::{Planes, listeners::Listeners};

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

/// Lets others run after each stretch.
async fn breathe(done: usize) {
    if done.is_multiple_of(AT_A_STRETCH) {
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
#[path = "discovered_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "token_tests.rs"]
mod token_tests;
