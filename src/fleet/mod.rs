//! The workers: added and removed by configuration and by the admin API, kept by one task each, seen by requests as
//! snapshots.
//!
//! A worker that was added is asked what it serves until it answers; requests reach it from then on for as long as its
//! own health allows (rule 14). Nothing here chooses among workers.

mod introspect;
mod keeper;
mod view;
mod worker;

use std::{
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use engine::{Client, Probe, ProbeOptions};
use index::{Catalog, Targets};
use parking_lot::{Mutex, RwLock};
use sched::Scheduler;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use view::{Cut, Member, Served, View};
pub(crate) use worker::{Indexes, Rank, Worker};

use crate::config::{Config, worker_flag::WorkerSpec};

/// How often leases are looked through.
const EXPIRY_EVERY: Duration = Duration::from_millis(100);

/// How long a cache reset may take.
const RESET_WITHIN: Duration = Duration::from_secs(30);

/// All workers, and what is shared among them.
pub(crate) struct Fleet {
    pub(crate) config: Arc<Config>,
    pub(crate) client: Client,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) scheduler: Arc<Scheduler>,
    targets: Targets,
    /// Runs event streams, so that a flood of events never delays a request.
    events: tokio::runtime::Handle,
    view: RwLock<Arc<View>>,
    /// Guards changes of the list, one at a time.
    changes: Mutex<Vec<Kept>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// A worker with the way to end its task.
struct Kept {
    worker: Arc<Worker>,
    stop: CancellationToken,
}

/// Why a worker was not added.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AddError {
    #[error("a worker with id '{0}' exists already")]
    SameId(String),
    #[error("a worker at {0} exists already")]
    SameUrl(String),
}

impl Fleet {
    /// The fleet with the configured workers.
    pub(crate) fn start(
        config: Arc<Config>,
        client: Client,
        scheduler: Arc<Scheduler>,
        events: tokio::runtime::Handle,
    ) -> Result<Arc<Self>, AddError> {
        let fleet = Arc::new(Self {
            client,
            catalog: Arc::new(Catalog::default()),
            scheduler,
            targets: Targets::new(),
            events,
            view: RwLock::default(),
            changes: Mutex::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            config: config.clone(),
        });
        for spec in &config.workers {
            fleet.add(spec.clone())?;
        }
        fleet.tasks.spawn(expire(fleet.clone()));
        Ok(fleet)
    }

    /// The present snapshot.
    pub(crate) fn view(&self) -> Arc<View> {
        self.view.read().clone()
    }

    /// Adds a worker; it serves once it has answered.
    pub(crate) fn add(self: &Arc<Self>, spec: WorkerSpec) -> Result<Arc<Worker>, AddError> {
        let mut kept = self.changes.lock();
        if kept.iter().any(|kept| kept.worker.id() == spec.id) {
            return Err(AddError::SameId(spec.id));
        }
        if kept.iter().any(|kept| kept.worker.spec.url == spec.url) {
            return Err(AddError::SameUrl(spec.url.to_string()));
        }
        let options = ProbeOptions { headers: self.headers(), ..ProbeOptions::default() };
        let probe = Probe::spawn(self.client.clone(), spec.url.clone(), options);
        let worker = Arc::new(Worker::new(spec, probe));
        let stop = self.stop.child_token();
        self.tasks.spawn(keeper::keep(self.clone(), worker.clone(), stop.clone()));
        kept.push(Kept { worker: worker.clone(), stop });
        self.publish(&kept);
        Ok(worker)
    }

    /// Takes no new requests for the worker; what runs there finishes. `false`: there is none with this id.
    pub(crate) fn remove(&self, id: &str) -> bool {
        let mut kept = self.changes.lock();
        let Some(at) = kept.iter().position(|kept| kept.worker.id() == id) else { return false };
        let removed = kept.remove(at);
        removed.worker.drain();
        removed.stop.cancel();
        self.publish(&kept);
        true
    }

    /// Makes the snapshot anew after a worker changed what it serves.
    pub(crate) fn refresh(&self) {
        self.publish(&self.changes.lock());
    }

    fn publish(&self, kept: &[Kept]) {
        let view = Arc::new(View::of(kept.iter().map(|kept| kept.worker.clone()).collect()));
        *self.view.write() = view;
    }

    /// Empties a worker's prefix cache and forgets it here at once.
    pub(crate) async fn reset(&self, worker: &Worker) -> Result<(), engine::discover::AskError> {
        self.engine(worker, RESET_WITHIN).reset_prefix_cache().await?;
        for rank in worker.serving().iter().flat_map(|serving| &serving.ranks) {
            rank.forget();
            if let Some(stream) = &rank.stream {
                stream.reset().await;
            }
        }
        Ok(())
    }

    /// The worker's engine, to be asked on our own account.
    pub(crate) fn engine(&self, worker: &Worker, within: Duration) -> engine::discover::Engine {
        engine::discover::Engine::new(self.client.clone(), worker.spec.url.clone(), self.headers(), within)
    }

    /// Headers of what we ask engines on our own account.
    pub(crate) fn headers(&self) -> http::HeaderMap {
        let mut headers = http::HeaderMap::new();
        if let Some(value) = self.config.engine.authorization.as_deref().and_then(|value| value.parse().ok()) {
            headers.insert(http::header::AUTHORIZATION, value);
        }
        headers
    }

    /// Where leases of a model are written.
    pub(crate) fn indexes<'a>(&'a self, base: &'a str) -> Indexes<'a> {
        let capacity = NonZeroUsize::new(self.config.predicted_blocks).unwrap_or(NonZeroUsize::MIN);
        Indexes { catalog: &self.catalog, base, capacity }
    }

    /// Ends every task and waits for them.
    pub(crate) async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Lets leases run out, also where nothing is dispatched any more, and follows what the streams notice.
async fn expire(fleet: Arc<Fleet>) {
    let mut tick = tokio::time::interval(EXPIRY_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let rounds = async {
        loop {
            tick.tick().await;
            let fleet = fleet.clone();
            // Expiry walks the index; it must not hold a request's thread.
            let round = tokio::task::spawn_blocking(move || {
                for worker in &fleet.view().workers {
                    for rank in worker.serving().iter().flat_map(|serving| &serving.ranks) {
                        rank.follow();
                        rank.expire(Instant::now());
                    }
                }
            });
            if let Err(error) = round.await {
                tracing::error!(%error, "expiry of predictions failed");
            }
        }
    };
    fleet.stop.run_until_cancelled(rounds).await;
}
