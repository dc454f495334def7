//! The workers: added and removed by configuration and by the admin API, kept by one task each, seen by requests as
//! snapshots.
//!
//! A worker that was added is asked what it serves until it answers; requests reach it from then on for as long as its
//! own health allows (rule 14). Nothing here chooses among workers.

mod discovered;
mod introspect;
mod keeper;
mod leased;
mod loads;
mod names;
mod origin;
mod records;
mod source;
#[cfg(test)]
mod tests;
pub(crate) mod via;
mod view;
mod worker;

use std::{
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use engine::{BaseUrl, Client, Probe, ProbeOptions};
use index::{BlockSize, Catalog, Targets};
use parking_lot::{Mutex, RwLock};
use sched::Scheduler;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use transport::follow::PlaneClient;

pub(crate) use leased::Indexes;
pub(crate) use view::{Cut, Member, Served, View};
pub(crate) use worker::{OpenAi, Rank, Worker};

use crate::config::{Config, worker_flag::WorkerSpec};
use crate::planes::Planes;
pub(crate) use discovered::{Directory, Peers};
use introspect::Identity;
use origin::Origin;
pub(crate) use origin::Publisher;
use via::{Mark, Process};

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
    /// The workers that discovery found.
    pub(crate) directory: Directory,
    targets: Targets,
    /// Named in what is sent to workers.
    pub(crate) process: Process,
    /// Runs event streams, so that a flood of events never delays a request.
    events: tokio::runtime::Handle,
    /// The event plane, where publishers found by discovery are followed.
    plane: Option<Arc<PlaneClient>>,
    view: RwLock<Arc<View>>,
    /// Guards changes of the list, one at a time.
    changes: Mutex<Vec<Kept>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// A worker with the way to end its task. One that was removed stays until its last request is over.
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

/// Why a worker's prefix cache was not emptied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResetError {
    #[error("it takes token ids on the request plane, where resets cannot be sent yet")]
    NoServer,
    #[error(transparent)]
    Ask(#[from] engine::discover::AskError),
}

impl Fleet {
    /// The fleet with the configured workers.
    pub(crate) fn start(
        config: Arc<Config>,
        client: Client,
        scheduler: Arc<Scheduler>,
        events: tokio::runtime::Handle,
        plane: Option<Arc<PlaneClient>>,
    ) -> Result<Arc<Self>, AddError> {
        let fleet = Arc::new(Self {
            client,
            catalog: Arc::new(Catalog::default()),
            scheduler,
            directory: Directory::default(),
            targets: Targets::new(),
            process: Process::new(),
            events,
            plane,
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

    /// Keeps the fleet as discovery says, from now on. What is returned says which other frontends there are.
    pub(crate) fn follow(self: &Arc<Self>, planes: &Arc<Planes>) -> watch::Receiver<Peers> {
        let (peers, seen) = watch::channel(Peers::default());
        if let Some(discovery) = planes.discovery() {
            let keeper = discovered::Keeper::new(self.clone(), planes.clone(), peers);
            self.tasks.spawn(keeper.run(discovery.clone(), self.stop.clone()));
        }
        seen
    }

    /// Runs a task beside the event streams, until the fleet stops.
    pub(crate) fn spawn_on_events(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        let until = async move {
            stop.run_until_cancelled_owned(task).await;
        };
        self.tasks.spawn_on(until, &self.events);
    }

    /// The present snapshot.
    pub(crate) fn view(&self) -> Arc<View> {
        self.view.read().clone()
    }

    /// Adds a worker; it serves once it has answered.
    pub(crate) fn add(self: &Arc<Self>, spec: WorkerSpec) -> Result<Arc<Worker>, AddError> {
        self.add_server(spec, Origin::Listed)
    }

    fn add_server(self: &Arc<Self>, spec: WorkerSpec, origin: Origin) -> Result<Arc<Worker>, AddError> {
        let mut kept = self.changes.lock();
        free(&kept, &spec.id, Some(&spec.url))?;
        let mark = self.process.mark();
        let options = ProbeOptions { headers: self.headers(mark), ..ProbeOptions::default() };
        let probe = Probe::spawn(self.client.clone(), spec.url.clone(), options);
        let server = OpenAi::new(spec, probe, mark);
        Ok(self.keep(&mut kept, Worker::open_ai(server, origin)))
    }

    fn add_tokens(self: &Arc<Self>, id: String, told: Identity, origin: Origin) -> Result<Arc<Worker>, AddError> {
        let mut kept = self.changes.lock();
        free(&kept, &id, None)?;
        Ok(self.keep(&mut kept, Worker::tokens(id, told, origin)))
    }

    fn keep(self: &Arc<Self>, kept: &mut Vec<Kept>, worker: Worker) -> Arc<Worker> {
        let (worker, stop) = (Arc::new(worker), self.stop.child_token());
        self.tasks.spawn(keeper::watch_health(worker.clone(), stop.clone()));
        self.tasks.spawn(keeper::keep(self.clone(), worker.clone(), stop.clone()));
        kept.push(Kept { worker: worker.clone(), stop });
        self.publish(kept);
        worker
    }

    /// Takes no new requests for the worker; what runs there finishes, and until then it is shown. `false`: there is none
    /// with this id, or it was removed before.
    pub(crate) fn remove(&self, id: &str) -> bool {
        let kept = self.changes.lock();
        let Some(removed) = kept.iter().find(|kept| kept.worker.id() == id && !kept.worker.is_draining()) else { return false };
        removed.worker.drain();
        removed.stop.cancel();
        self.publish(&kept);
        true
    }

    /// The worker's last request is over.
    fn retired(&self, worker: &Arc<Worker>) {
        let mut kept = self.changes.lock();
        kept.retain(|kept| !Arc::ptr_eq(&kept.worker, worker));
        self.publish(&kept);
    }

    /// Makes the snapshot anew after a worker changed what it serves.
    pub(crate) fn refresh(&self) {
        self.publish(&self.changes.lock());
    }

    fn publish(&self, kept: &[Kept]) {
        let workers: Vec<_> = kept.iter().map(|kept| kept.worker.clone()).collect();
        *self.view.write() = Arc::new(View::of(&workers));
    }

    /// Empties a worker's prefix cache and forgets it here at once.
    pub(crate) async fn reset(&self, worker: &Worker) -> Result<(), ResetError> {
        let server = worker.server().ok_or(ResetError::NoServer)?;
        self.engine(server, RESET_WITHIN).reset_prefix_cache().await?;
        let serving = worker.serving();
        let ranks = serving.as_ref().map_or(&[][..], |serving| &serving.ranks);
        for rank in ranks {
            rank.forget_wholly().await;
        }
        // Ranks may share a stream, which resets all of them.
        for (at, source) in ranks.iter().enumerate().filter_map(|(at, rank)| Some((at, rank.source.as_ref()?))) {
            let seen = |rank: &Arc<Rank>| rank.source.as_ref().is_some_and(|earlier| earlier.is(source));
            if !ranks[..at].iter().any(seen) {
                source.reins().reset().await;
            }
        }
        Ok(())
    }

    /// The worker's engine, to be asked on our own account.
    pub(crate) fn engine(&self, server: &OpenAi, within: Duration) -> engine::discover::Engine {
        engine::discover::Engine::new(self.client.clone(), server.spec.url.clone(), self.headers(server.mark), within)
    }

    /// Headers of what we ask engines on our own account.
    fn headers(&self, mark: Mark) -> http::HeaderMap {
        let authorization = self.config.engine.authorization.clone();
        let mut headers: http::HeaderMap = authorization.into_iter().map(|value| (http::header::AUTHORIZATION, value)).collect();
        mark.write(&mut headers);
        headers
    }

    /// What was sent to a worker has come back, by way of so many other frontends: it gets nothing more for a while. Returns
    /// why.
    pub(crate) fn led_back(&self, worker: u64, others: usize) -> String {
        let view = self.view();
        let led = view.workers.iter().filter_map(|one| Some((one, one.server()?))).find(|(_, server)| server.mark.is_of(worker));
        match led {
            Some((worker, server)) => {
                let (reason, is_news) = server.led_back(Instant::now(), others);
                if is_news {
                    tracing::warn!(worker = worker.id(), reason, "what was sent to the worker came back; it gets no requests");
                }
                format!("{reason} (worker '{}')", worker.id())
            }
            None => "by way of a worker that was removed".to_owned(),
        }
    }

    /// Where leases of a model are written, for prompts cut into blocks of `block_size`.
    pub(crate) fn indexes<'a>(&'a self, base: &'a str, block_size: BlockSize) -> Indexes<'a> {
        let capacity = NonZeroUsize::new(self.config.predicted_blocks).unwrap_or(NonZeroUsize::MIN);
        Indexes { catalog: &self.catalog, base, block_size, capacity }
    }

    /// Ends every task and waits for them.
    pub(crate) async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Whether a worker of this id, or at this URL, can be added.
fn free(kept: &[Kept], id: &str, url: Option<&BaseUrl>) -> Result<(), AddError> {
    for worker in kept.iter().map(|kept| &kept.worker).filter(|worker| !worker.is_draining()) {
        if worker.id() == id {
            return Err(AddError::SameId(id.to_owned()));
        }
        if let Some(url) = url.filter(|url| worker.server().is_some_and(|server| server.spec.url == **url)) {
            return Err(AddError::SameUrl(url.to_string()));
        }
    }
    Ok(())
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
