//! The workers: added and removed by configuration and by the admin API, kept by one task each, seen by requests as
//! snapshots.
//!
//! A worker that was added is asked what it serves until it answers; requests reach it from then on for as long as its
//! own health allows (rule 14). Nothing here chooses among workers.

mod agreement;
mod clip;
mod discovered;
mod gone;
mod introspect;
mod keeper;
mod leased;
mod library;
mod loads;
mod names;
mod origin;
mod rank;
mod reach;
mod records;
mod roster;
mod source;
#[cfg(test)]
mod tests;
mod token_keeper;
pub(crate) mod via;
mod view;
mod worker;

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use engine::{Client, Probe, ProbeOptions, tokens::TokenClient};
use index::{BlockSize, Catalog, Targets};
use parking_lot::{Mutex, RwLock};
use prompt::Pool;
use sched::Scheduler;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use transport::follow::PlaneClient;
use wire::discovery::Endpoint;

pub(crate) use leased::Indexes;
pub(crate) use rank::Rank;
pub(crate) use reach::{OpenAi, Reach, Role, TokenModel, TokenWorker};
pub(crate) use view::{Cut, Member, Served, View};
pub(crate) use worker::Worker;

use crate::config::{Config, worker_flag::WorkerSpec};
use crate::planes::Planes;
pub(crate) use discovered::{Directory, Peers};
use library::Library;
use origin::Origin;
pub(crate) use origin::Publisher;
use roster::Roster;
use via::{Mark, Process};

/// How often leases are looked through: the first while some are held, the second while there are none.
const EXPIRY_EVERY: Duration = Duration::from_millis(100);
const EXPIRY_EVERY_IDLE: Duration = Duration::from_millis(500);

/// Snapshots that tell of what workers did by themselves rest so many times as long as the last one took. What happens
/// meanwhile is told together, so that a thousand workers that answer or end at once cost a few snapshots, not a thousand.
const SNAPSHOT_RESTS: u32 = 4;

/// A snapshot that took less needs no rest.
const SNAPSHOT_QUICK: Duration = Duration::from_millis(1);

/// How long a cache reset may take.
const RESET_WITHIN: Duration = Duration::from_secs(30);

/// All workers, and what is shared among them.
pub(crate) struct Fleet {
    pub(crate) config: Arc<Config>,
    pub(crate) client: Client,
    /// Sends requests to token-level workers; `None` where none are looked for.
    pub(crate) tokens: Option<TokenClient>,
    /// The folders of their models.
    pub(crate) library: Library,
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
    /// Snapshots that were made so far.
    snapshots: AtomicU64,
    /// Some worker's card contradicts another one's, so that it matters which of them live.
    disputed: AtomicBool,
    /// Guards changes of the list, one at a time.
    changes: Mutex<Roster>,
    /// What workers did by themselves so far, in number.
    happened: AtomicU64,
    /// Guards the snapshots that tell of it, one at a time. Held across the rest between two.
    told: tokio::sync::Mutex<Told>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// What a fleet is made with.
pub(crate) struct Parts {
    /// Of OpenAI servers.
    pub(crate) client: Client,
    /// Of token-level workers, where discovery may find some.
    pub(crate) tokens: Option<TokenClient>,
    pub(crate) scheduler: Arc<Scheduler>,
    /// Turns prompts into tokens.
    pub(crate) pool: Arc<Pool>,
    /// Runs event streams.
    pub(crate) events: tokio::runtime::Handle,
    /// Where publishers found by discovery are followed.
    pub(crate) plane: Option<Arc<PlaneClient>>,
}

/// What the last snapshot tells of.
struct Told {
    /// This many of what happened.
    happened: u64,
    /// When the next one may be made.
    next: Instant,
}

/// Why a worker was not added.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AddError {
    #[error("a worker with id '{0}' exists already")]
    SameId(String),
    #[error("a worker at {0} exists already")]
    SameUrl(String),
    #[error("no requests are sent to token-level workers here")]
    NoClient,
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
    pub(crate) fn start(config: Arc<Config>, parts: Parts) -> Result<Arc<Self>, AddError> {
        let Parts { client, tokens, scheduler, pool, events, plane } = parts;
        let fleet = Arc::new(Self {
            client,
            tokens,
            library: Library::new(pool),
            catalog: Arc::new(Catalog::default()),
            scheduler,
            directory: Directory::default(),
            targets: Targets::new(),
            process: Process::new(),
            events,
            plane,
            view: RwLock::default(),
            snapshots: AtomicU64::new(0),
            disputed: AtomicBool::new(false),
            changes: Mutex::default(),
            happened: AtomicU64::new(0),
            told: tokio::sync::Mutex::new(Told { happened: 0, next: Instant::now() }),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            config: config.clone(),
        });
        for spec in &config.workers {
            fleet.add_server(spec.clone(), Origin::Listed)?;
        }
        fleet.publish();
        fleet.spawn_on_events(expire(fleet.clone()));
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
        let added = self.add_server(spec, Origin::Listed)?;
        self.publish();
        Ok(added)
    }

    /// The same for one of many; whoever adds them publishes them together.
    fn add_server(self: &Arc<Self>, spec: WorkerSpec, origin: Origin) -> Result<Arc<Worker>, AddError> {
        let mut roster = self.changes.lock();
        roster.free(&spec.id, Some(&spec.url))?;
        let mark = self.process.mark();
        let options = ProbeOptions { headers: self.headers(mark), ..ProbeOptions::default() };
        let probe = Probe::spawn(self.client.clone(), spec.url.clone(), options);
        let server = OpenAi::new(spec, probe, mark);
        Ok(self.keep(&mut roster, Worker::open_ai(server, origin)))
    }

    fn add_tokens(self: &Arc<Self>, id: String, endpoint: Endpoint, told: reach::Told, origin: Origin) -> Result<Arc<Worker>, AddError> {
        let client = self.tokens.clone().ok_or(AddError::NoClient)?;
        let mut roster = self.changes.lock();
        roster.free(&id, None)?;
        let probe = client.probe(endpoint.clone(), engine::tokens::limits());
        let worker = TokenWorker::new(endpoint, probe, told);
        Ok(self.keep(&mut roster, Worker::of_tokens(id, worker, origin)))
    }

    fn keep(self: &Arc<Self>, roster: &mut Roster, worker: Worker) -> Arc<Worker> {
        let (worker, stop) = (Arc::new(worker), self.stop.child_token());
        let number = roster.add(worker.clone(), stop.clone());
        self.tasks.spawn(keeper::watch_health(self.clone(), worker.clone(), stop.clone()));
        let (fleet, kept) = (self.clone(), worker.clone());
        self.tasks.spawn(async move {
            keeper::keep(&fleet, &kept, stop).await;
            fleet.changes.lock().retire(number);
            fleet.refresh().await;
        });
        worker
    }

    /// Takes no new requests for the worker; what runs there finishes, and until then it is shown. `false`: there is none
    /// with this id, or it was removed before.
    pub(crate) fn remove(&self, id: &str) -> bool {
        let removed = self.take_out(id);
        if removed {
            self.publish();
        }
        removed
    }

    /// The same for one of many; whoever removes them publishes that together.
    fn take_out(&self, id: &str) -> bool {
        self.changes.lock().remove(id)
    }

    /// Makes the snapshot anew after a worker changed what it serves, or is over. Once this returns it is told; what happens
    /// to many at a time is told by one snapshot. A fleet that stops tells nothing any more.
    pub(crate) async fn refresh(&self) {
        let mine = self.happened.fetch_add(1, Ordering::AcqRel) + 1;
        // Whoever has something to tell now is told of with this one.
        tokio::task::yield_now().await;
        let mut told = self.told.lock().await;
        if told.happened >= mine || self.stop.is_cancelled() {
            return;
        }
        if told.next > Instant::now() {
            let rest = tokio::time::sleep_until(told.next.into());
            if self.stop.run_until_cancelled(rest).await.is_none() {
                return;
            }
        }
        told.happened = self.happened.load(Ordering::Acquire);
        let started = Instant::now();
        self.publish();
        let took = started.elapsed();
        if took >= SNAPSHOT_QUICK {
            told.next = Instant::now() + took * SNAPSHOT_RESTS;
        }
    }

    /// Whether cards contradict each other.
    fn is_disputed(&self) -> bool {
        self.disputed.load(Ordering::Acquire)
    }

    /// Makes the snapshot anew.
    fn publish(&self) {
        // Held until the snapshot is in place, so that an older one never comes after it.
        let roster = self.changes.lock();
        let workers = roster.workers();
        self.disputed.store(agreement::judge(&workers), Ordering::Release);
        let view = Arc::new(View::of(&workers));
        self.snapshots.fetch_add(1, Ordering::Relaxed);
        *self.view.write() = view;
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

/// Lets leases run out, also where nothing is dispatched any more, and follows what the streams notice. Expiry walks the index:
/// it runs beside the event streams, so that it holds no request's thread.
async fn expire(fleet: Arc<Fleet>) {
    loop {
        let mut held = 0;
        for worker in &fleet.view().workers {
            for rank in worker.serving().iter().flat_map(|serving| &serving.ranks) {
                rank.follow();
                while rank.expire_step(Instant::now()) {
                    tokio::task::yield_now().await;
                }
                held += rank.leased_blocks();
            }
        }
        tokio::time::sleep(if held > 0 { EXPIRY_EVERY } else { EXPIRY_EVERY_IDLE }).await;
    }
}
