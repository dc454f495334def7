//! What the requests to one worker share with its probe: signs of life, outcomes, and the news of its death.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::health::{Fault, Health, Limits, Probed, State, Status};

/// A handle on one worker's health; clones share it. Requests carry it, the probe drives it.
#[derive(Debug, Clone)]
pub struct Pulse {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    start: Instant,
    /// Milliseconds from `start` to the last byte a request received, plus one; 0 before the first.
    last_byte_ms: AtomicU64,
    /// Held for a few lines.
    vitals: Mutex<Vitals>,
    changes: watch::Sender<Status>,
    probe_due: Notify,
}

#[derive(Debug)]
struct Vitals {
    health: Health,
    /// Cancelled at the worker's death; a new one for its next life.
    life: CancellationToken,
}

impl Pulse {
    /// The pulse of a worker that has not been probed.
    pub fn new(limits: Limits) -> Self {
        let start = Instant::now();
        let health = Health::new(start, limits);
        let changes = watch::Sender::new(health.status().clone());
        let vitals = Mutex::new(Vitals { health, life: CancellationToken::new() });
        let shared = Shared { start, last_byte_ms: AtomicU64::new(0), vitals, changes, probe_due: Notify::new() };
        Self { shared: Arc::new(shared) }
    }

    /// A byte came from the worker on some connection.
    pub fn byte(&self) {
        let ms = u64::try_from(self.shared.start.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.shared.last_byte_ms.store(ms + 1, Ordering::Relaxed);
    }

    /// A request came to its good end.
    pub fn succeeded(&self) {
        self.update(|health, now| health.request_succeeded(now));
    }

    /// A request failed by the worker's fault.
    pub fn failed(&self, fault: Fault, reason: &str) {
        self.update(|health, now| health.request_failed(now, fault, reason));
        // Whoever is out because of it is asked soon, and whoever broke a connection at once.
        self.shared.probe_due.notify_one();
    }

    /// Has the worker probed at once: something else than a request speaks against it.
    pub fn probe_soon(&self) {
        self.update(|health, now| health.probe_soon(now));
        self.shared.probe_due.notify_one();
    }

    /// A request has waited for a sign of life for a while: the worker may be frozen, and is asked ahead of its turn.
    pub(crate) fn nudge(&self) {
        self.update(Health::nudge);
        self.shared.probe_due.notify_one();
    }

    /// The current state alone, which costs no copy of its reason: requests read it of every worker.
    pub fn state(&self) -> State {
        self.shared.vitals.lock().health.status().state
    }

    /// The current state with its reason.
    pub fn status(&self) -> Status {
        self.shared.vitals.lock().health.status().clone()
    }

    /// Changes of state. A reader that is late sees the latest only; counters are in the status.
    pub fn watch(&self) -> watch::Receiver<Status> {
        self.shared.changes.subscribe()
    }

    /// Cancelled when the worker dies; already cancelled while it is dead.
    pub(crate) fn life(&self) -> CancellationToken {
        self.shared.vitals.lock().life.clone()
    }

    pub(crate) fn probed(&self, started: Instant, probed: &Probed) {
        let last_byte = match self.shared.last_byte_ms.load(Ordering::Relaxed) {
            0 => None,
            ms => Some(self.shared.start + Duration::from_millis(ms - 1)),
        };
        self.update(|health, now| health.probed(now, started, probed, last_byte));
    }

    pub(crate) fn next_probe(&self) -> Instant {
        self.shared.vitals.lock().health.next_probe()
    }

    /// Resolves when `next_probe` may have moved forward.
    pub(crate) async fn probe_due(&self) {
        self.shared.probe_due.notified().await;
    }

    fn update(&self, change: impl FnOnce(&mut Health, Instant)) {
        let mut vitals = self.shared.vitals.lock();
        let before = vitals.health.status().state;
        change(&mut vitals.health, Instant::now());
        let after = vitals.health.status().state;
        if before == after {
            return;
        }
        let dead = State::Down(crate::health::Down::Dead);
        if after == dead {
            vitals.life.cancel();
        } else if before == dead {
            vitals.life = CancellationToken::new();
        }
        // Sent under the lock, so that readers see changes in their order.
        self.shared.changes.send_replace(vitals.health.status().clone());
    }
}
