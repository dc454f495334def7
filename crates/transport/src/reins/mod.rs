//! What a driver is told from outside, and what it shows. A driver is the task that keeps a feed: [`crate::stream`] one of an
//! engine's own sockets, [`crate::follow`] one on the event plane. Whoever started it holds its [`Reins`], the task what is told by
//! them, `Told`; whom it hears is the driver's own.

mod demands;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use feed::{Demand, Heeds, Observation, RankRange, Status};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use demands::Demands;

/// Observations that wait for the task; further ones are dropped and counted.
const MAX_OBSERVATIONS: usize = 1024;
/// Resets that wait for the task; whoever asks for another waits too.
const MAX_RESETS: usize = 4;

/// The state of the live connection, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// Nothing has happened yet.
    Starting,
    /// Connected; to at least one publisher, where there are several.
    Up,
    /// Not connected; another attempt is always under way.
    Down {
        /// Why.
        reason: String,
    },
}

/// A running driver. Dropping it stops its task soon and retracts its blocks; [`stop`](Self::stop) waits.
#[derive(Debug)]
pub struct Reins {
    status: Arc<Status>,
    shared: Arc<Shared>,
    observations: mpsc::Sender<Observation>,
    observations_dropped: AtomicU64,
    resets: mpsc::Sender<Reset>,
    stop: DropGuard,
    /// Cancelled once the task is over and what it held is dropped.
    over: CancellationToken,
}

/// What the task is told, and where it shows its link.
#[derive(Debug)]
pub(crate) struct Told {
    shared: Arc<Shared>,
    observations: mpsc::Receiver<Observation>,
    resets: mpsc::Receiver<Reset>,
}

/// One thing that the task is told.
#[derive(Debug)]
pub(crate) enum Word {
    Demands,
    Observation(Observation),
    Reset(Reset),
}

#[derive(Debug)]
struct Shared {
    /// Written by the task; held for one copy.
    link: Mutex<Link>,
    demands: Demands,
}

/// Answered when a reset is done.
type Reset = oneshot::Sender<()>;

/// Starts a driver on `runtime`: the task that `drive` makes of what it will be told, until it is dropped.
pub(crate) fn start<T>(runtime: &Handle, status: Arc<Status>, ranks: RankRange, drive: impl FnOnce(Told) -> T) -> Reins
where
    T: Future<Output = ()> + Send + 'static,
{
    let shared = Arc::new(Shared { link: Mutex::new(Link::Starting), demands: Demands::new(ranks) });
    let (observations, observed) = mpsc::channel(MAX_OBSERVATIONS);
    let (resets, asked) = mpsc::channel(MAX_RESETS);
    let task = Box::pin(drive(Told { shared: shared.clone(), observations: observed, resets: asked }));
    let (stop, over) = (CancellationToken::new(), CancellationToken::new());
    let (until, ended) = (stop.clone(), over.clone().drop_guard());
    runtime.spawn(async move {
        until.run_until_cancelled_owned(task).await;
        drop(ended);
    });
    Reins { status, shared, observations, observations_dropped: AtomicU64::new(0), resets, stop: stop.drop_guard(), over }
}

impl Reins {
    /// Trust and counters, readable at any time.
    pub fn status(&self) -> Arc<Status> {
        self.status.clone()
    }

    /// The state of the live connection.
    pub fn link(&self) -> Link {
        self.shared.link.lock().clone()
    }

    /// An answer told how much of its prompt was cached (rule 11). Never blocks; dropped and counted when the task is
    /// too far behind.
    pub fn observe(&self, observation: Observation) {
        if self.observations.try_send(observation).is_err() {
            self.observations_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Observations dropped because the task was too far behind.
    pub fn observations_dropped(&self) -> u64 {
        self.observations_dropped.load(Ordering::Relaxed)
    }

    /// A request with this demand is about to be sent to a rank (rules 4 and 13). Never blocks and is never lost; the feed is
    /// told before anything that is heard later.
    pub fn demand(&self, rank: u32, demand: Demand) {
        self.shared.demands.make(rank, demand);
    }

    /// A cache reset passed through us and succeeded (rule 5). Once this returns, none of the blocks of before it is in the index.
    pub async fn reset(&self) {
        let (done, reset) = oneshot::channel();
        // Either fails only where the task is over, and then it has no blocks.
        if self.resets.send(done).await.is_ok() {
            let _ = reset.await;
        }
    }

    /// Ends the task; once this returns its connections are closed and its blocks are retracted.
    pub async fn stop(&self) {
        self.stop.token().cancel();
        self.over.cancelled().await;
    }
}

impl Told {
    /// What is told next; waits for it. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Word {
        // Each branch waits on something that keeps what it has not handed out.
        tokio::select! {
            () = self.shared.demands.made() => Word::Demands,
            Some(observation) = self.observations.recv() => Word::Observation(observation),
            Some(done) = self.resets.recv() => Word::Reset(done),
        }
    }

    /// Passes on what was told.
    pub(crate) fn pass_on(&self, word: Word, feed: &mut impl Heeds) {
        match word {
            Word::Demands => self.pass_on_demands(feed),
            Word::Observation(observation) => feed.observed(now(), &observation),
            Word::Reset(done) => {
                feed.reset(now());
                // Nobody waits for it any more where this fails.
                let _ = done.send(());
            }
        }
    }

    /// Tells the feed what was demanded. A request is announced before it is sent, so whoever calls this before each message has
    /// its demands known before what it made the engine publish.
    pub(crate) fn pass_on_demands(&self, feed: &mut impl Heeds) {
        for (rank, demand) in self.shared.demands.take() {
            feed.demanded(now(), rank, demand);
        }
    }

    pub(crate) fn show_link(&self, link: Link) {
        *self.shared.link.lock() = link;
    }
}

/// Until a feed's deadline.
pub(crate) async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

/// Tokio's clock, which tests can pause.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
