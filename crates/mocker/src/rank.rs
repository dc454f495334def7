//! One data-parallel rank: an engine, the task that drives it in real time, and those who wait for its tokens.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::faults::{Freeze, Switches};
use crate::model::{ConfigError, Engine, EngineConfig, Gauges, NewRequest, Output, Refused, RequestId, Step, Totals};
use crate::outlet::Outlet;

/// A timer overshoots by about a millisecond: steps that follow each other may catch up this much.
const CATCH_UP: Duration = Duration::from_millis(20);
/// Longer than any process runs.
const FOR_EVER: Duration = Duration::from_secs(86_400 * 365);

/// Whether a step follows another at once.
#[derive(Clone, Copy)]
enum Pace {
    Busy,
    /// There was nothing to do before it.
    Rested,
}

/// A rank as its HTTP side sees it.
pub(crate) struct Rank {
    /// Guards the engine and who listens to it; held for one step or one submission.
    state: Mutex<State>,
    /// Rung when there may be something to compute.
    wake: Notify,
    batches: AtomicU64,
    unsent_batches: AtomicU64,
}

struct State {
    engine: Engine,
    /// Each channel holds at most `max_tokens` tokens, which `max_model_len` bounds.
    listeners: HashMap<RequestId, mpsc::UnboundedSender<Output>>,
    /// Counts restarts: request ids of one life mean nothing in another.
    life: u64,
}

/// Gauges of a rank as its clients see them: a sequence runs until its last token was delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RankView {
    pub(crate) gauges: Gauges,
    pub(crate) totals: Totals,
}

impl Rank {
    pub(crate) fn new(engine: EngineConfig) -> Result<Self, ConfigError> {
        Ok(Self {
            state: Mutex::new(State { engine: Engine::new(engine)?, listeners: HashMap::new(), life: 0 }),
            wake: Notify::new(),
            batches: AtomicU64::new(0),
            unsent_batches: AtomicU64::new(0),
        })
    }

    /// Queues a sequence; dropping what this returns aborts it.
    pub(crate) fn submit(self: &Arc<Self>, new: NewRequest) -> Result<Generation, Refused> {
        let (sender, tokens) = mpsc::unbounded_channel();
        let mut state = self.state.lock();
        let id = state.engine.submit(new)?;
        state.listeners.insert(id, sender);
        let life = state.life;
        drop(state);
        self.wake.notify_one();
        Ok(Generation { rank: self.clone(), id, life, tokens })
    }

    pub(crate) fn reset_cache(&self) -> bool {
        self.state.lock().engine.reset_cache()
    }

    pub(crate) fn view(&self) -> RankView {
        let state = self.state.lock();
        let mut gauges = state.engine.gauges();
        gauges.running = state.listeners.len().saturating_sub(gauges.waiting);
        RankView { gauges, totals: state.engine.totals() }
    }

    /// Every cached hash with its copies: the truth behind the events.
    pub(crate) fn contents(&self) -> BTreeMap<u64, usize> {
        self.state.lock().engine.contents().collect()
    }

    /// Batches numbered so far, and those of them a fault kept from being sent.
    pub(crate) fn batches(&self) -> (u64, u64) {
        (self.batches.load(Ordering::Relaxed), self.unsent_batches.load(Ordering::Relaxed))
    }

    /// Begins a new life with an empty engine. Whoever listened hears no more.
    pub(crate) fn restart(&self, engine: EngineConfig) -> Result<(), ConfigError> {
        let engine = Engine::new(engine)?;
        let mut state = self.state.lock();
        let life = state.life + 1;
        *state = State { engine, listeners: HashMap::new(), life };
        Ok(())
    }

    /// Drives the engine until `stop`; gives the outlet back.
    pub(crate) async fn drive(
        self: Arc<Self>,
        config: Arc<Config>,
        switches: Switches,
        mut outlet: Option<Outlet>,
        stop: CancellationToken,
    ) -> Option<Outlet> {
        let mut due = Instant::now();
        while !stop.is_cancelled() {
            let awake = async {
                switches.until(|faults| faults.freeze == Freeze::None).await;
                self.next_step().await
            };
            let (step, pace) = tokio::select! {
                () = stop.cancelled() => break,
                step = awake => step,
            };
            let now = Instant::now();
            due = match pace {
                Pace::Rested => now,
                Pace::Busy => due.max(now.checked_sub(CATCH_UP).unwrap_or(now)),
            };
            // Durations are far below what an instant holds, unless rates were set absurdly: then it takes for ever.
            due = due.checked_add(config.paced(step.duration)).unwrap_or(now + FOR_EVER);
            let pause = async {
                if due > Instant::now() {
                    tokio::time::sleep_until(due).await;
                }
                switches.until(|faults| faults.freeze == Freeze::None).await;
            };
            tokio::select! {
                () = stop.cancelled() => break,
                () = pause => {}
            }
            self.publish(&step, outlet.as_mut(), &switches).await;
            self.deliver(&step.outputs);
            tokio::task::yield_now().await;
        }
        outlet
    }

    async fn next_step(&self) -> (Step, Pace) {
        let mut pace = Pace::Busy;
        loop {
            // A submission after this look leaves a permit, so that the wait below ends at once.
            if let Some(step) = self.state.lock().engine.step() {
                return (step, pace);
            }
            pace = Pace::Rested;
            self.wake.notified().await;
        }
    }

    async fn publish(&self, step: &Step, outlet: Option<&mut Outlet>, switches: &Switches) {
        let Some(outlet) = outlet else { return };
        let gauges = self.state.lock().engine.gauges();
        outlet.tell(gauges);
        if step.events.is_empty() {
            return;
        }
        let fate = switches.fate();
        outlet.publish(&step.events, fate).await;
        self.batches.fetch_add(1, Ordering::Relaxed);
        if fate != crate::faults::Fate::Sent {
            self.unsent_batches.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn deliver(&self, outputs: &[Output]) {
        let mut state = self.state.lock();
        for output in outputs {
            let Some(listener) = state.listeners.get(&output.request) else { continue };
            // A listener that has gone aborts its request by itself.
            let _ = listener.send(*output);
            if output.finish.is_some() {
                state.listeners.remove(&output.request);
            }
        }
    }
}

/// The tokens of one sequence. Dropping it aborts the sequence.
pub(crate) struct Generation {
    rank: Arc<Rank>,
    id: RequestId,
    life: u64,
    tokens: mpsc::UnboundedReceiver<Output>,
}

impl Generation {
    /// The next token; `None` after the last, or when the engine restarted. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Output> {
        self.tokens.recv().await
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        let mut state = self.rank.state.lock();
        if state.life == self.life {
            state.listeners.remove(&self.id);
            state.engine.abort(self.id);
        }
    }
}
