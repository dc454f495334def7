//! One worker: what its operator said, what its engine says, its ranks, and what is known of its health.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use engine::{Probe, Pulse};
use feed::{Leases, RankStatus};
use index::{BlockSize, Catalog, Lane, LocalHash, Target, Window};
use parking_lot::{Mutex, RwLock};
use sched::Exclusion;
use transport::stream::Stream;

use super::introspect::Identity;
use crate::config::worker_flag::WorkerSpec;

/// How long an engine's word about a prefix is believed without an event (rule 11).
const CONFIRMED_TTL: Duration = Duration::from_secs(600);

/// One worker.
pub(crate) struct Worker {
    pub(crate) spec: WorkerSpec,
    pub(crate) probe: Probe,
    draining: AtomicBool,
    /// What the engine said, and the ranks made of it. `None` until it has answered once. Guards a pointer.
    serving: RwLock<Option<Arc<Serving>>>,
    /// Answers whose `prompt_tokens` were not ours.
    mismatches: AtomicU64,
    last_mismatch: Mutex<Option<(u64, u64)>>,
}

/// A worker that has told what it serves.
pub(crate) struct Serving {
    pub(crate) identity: Identity,
    pub(crate) ranks: Vec<Arc<Rank>>,
}

/// One data-parallel rank of a worker.
pub(crate) struct Rank {
    pub(crate) dp_rank: u32,
    /// Sent upstream; `None` for a worker without ranks.
    pub(crate) header: Option<u32>,
    pub(crate) target: Target,
    /// Its place in the status of the stream.
    pub(crate) stream: Option<Arc<Stream>>,
    /// As configured, or as the engine or its events say.
    block_size: OnceLock<BlockSize>,
    eagle: AtomicBool,
    emptied: AtomicU64,
    predicted: Mutex<Option<Leases>>,
    confirmed: Mutex<Option<Leases>>,
}

impl Worker {
    pub(crate) fn new(spec: WorkerSpec, probe: Probe) -> Self {
        let (draining, mismatches) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { spec, probe, draining, serving: RwLock::new(None), mismatches, last_mismatch: Mutex::new(None) }
    }

    pub(crate) fn id(&self) -> &str {
        &self.spec.id
    }

    pub(crate) fn pulse(&self) -> &Pulse {
        self.probe.pulse()
    }

    pub(crate) fn serving(&self) -> Option<Arc<Serving>> {
        self.serving.read().clone()
    }

    pub(crate) fn set_serving(&self, serving: Option<Arc<Serving>>) -> Option<Arc<Serving>> {
        std::mem::replace(&mut *self.serving.write(), serving)
    }

    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Why no request may go there now, if so.
    pub(crate) fn exclusion(&self) -> Option<Exclusion> {
        use engine::health::{Down, State};
        if self.is_draining() {
            return Some(Exclusion::Draining);
        }
        match self.pulse().status().state {
            State::Up | State::Suspect => None,
            State::Down(Down::Unproven) => Some(Exclusion::NotReady),
            State::Down(Down::BreakerOpen | Down::Failing | Down::Dead) => Some(Exclusion::BreakerOpen),
        }
    }

    /// Counts an answer whose prompt has another number of tokens than ours; the first is named in the log.
    pub(crate) fn count_mismatch(&self, ours: u64, theirs: u64) {
        if self.mismatches.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(
                worker = self.id(),
                ours,
                theirs,
                "the engine counts other prompt tokens than the router: its tokenizer or chat template differs from --model-path"
            );
        }
        *self.last_mismatch.lock() = Some((ours, theirs));
    }

    /// How many such answers there were, and the last one's counts (ours, theirs).
    pub(crate) fn mismatches(&self) -> (u64, Option<(u64, u64)>) {
        (self.mismatches.load(Ordering::Relaxed), *self.last_mismatch.lock())
    }

    /// One word for people: the state of its health, or `draining`.
    pub(crate) fn state(&self) -> &'static str {
        if self.is_draining() { "draining" } else { self.pulse().status().state.name() }
    }
}

impl Rank {
    pub(crate) fn new(dp_rank: u32, header: Option<u32>, target: Target) -> Self {
        let (predicted, confirmed) = (Mutex::new(None), Mutex::new(None));
        let (eagle, emptied) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { dp_rank, header, target, stream: None, block_size: OnceLock::new(), eagle, emptied, predicted, confirmed }
    }

    /// With a block size that was told, and the stream of its events.
    pub(crate) fn with(mut self, size: Option<BlockSize>, stream: Option<Arc<Stream>>) -> Self {
        self.block_size = size.map_or_else(OnceLock::new, OnceLock::from);
        self.stream = stream;
        self
    }

    /// What was told, else what the events say; then it stays, as the index is made of it.
    pub(crate) fn block_size(&self) -> Option<BlockSize> {
        if let Some(size) = self.block_size.get() {
            return Some(*size);
        }
        let heard = self.status()?.block_size.and_then(BlockSize::new)?;
        Some(*self.block_size.get_or_init(|| heard))
    }

    /// What a block's hash covers, as its events show.
    pub(crate) fn window(&self) -> Window {
        if self.eagle.load(Ordering::Relaxed) { Window::Eagle } else { Window::Plain }
    }

    /// How often its cache was emptied, as far as was noticed: by a restart, a clear, a reset.
    pub(crate) fn emptied(&self) -> u64 {
        self.emptied.load(Ordering::Acquire)
    }

    /// Takes over what the stream has noticed. What was predicted and confirmed of a cache that was emptied is void.
    pub(crate) fn follow(&self) {
        let Some(status) = self.status() else { return };
        self.eagle.store(status.eagle, Ordering::Relaxed);
        if self.emptied.swap(status.emptied, Ordering::AcqRel) != status.emptied {
            self.forget();
        }
    }

    /// State and counters of its events, where it has a stream.
    pub(crate) fn status(&self) -> Option<RankStatus> {
        self.stream.as_ref()?.status().rank(self.dp_rank)
    }

    /// Books a dispatched prompt as held for `ttl` (rule 12).
    pub(crate) fn predict(&self, indexes: Indexes<'_>, ttl: Duration, chain: &[LocalHash]) {
        self.hold((&self.predicted, Lane::Predicted), indexes, ttl, chain);
    }

    /// Takes the engine's word that it holds these leading blocks (rule 11).
    pub(crate) fn confirm(&self, indexes: Indexes<'_>, chain: &[LocalHash]) {
        self.hold((&self.confirmed, Lane::Confirmed), indexes, CONFIRMED_TTL, chain);
    }

    fn hold(&self, (leases, lane): (&Mutex<Option<Leases>>, Lane), indexes: Indexes<'_>, ttl: Duration, chain: &[LocalHash]) {
        let Some(size) = self.block_size() else { return };
        if chain.is_empty() {
            return;
        }
        let mut leases = leases.lock();
        let leases = leases.get_or_insert_with(|| {
            let indexer = indexes.catalog.indexer(indexes.base, size);
            Leases::new(&indexer, self.target, lane, ttl, indexes.capacity)
        });
        leases.hold(Instant::now(), chain);
    }

    /// Lets go of what was held long enough.
    pub(crate) fn expire(&self, now: Instant) {
        for leases in [&self.predicted, &self.confirmed] {
            if let Some(leases) = leases.lock().as_mut() {
                // In steps, so that no request waits long for the lock of the index.
                while leases.next_expiry().is_some_and(|due| due <= now) && leases.expire(now) > 0 {}
            }
        }
    }

    /// Forgets what was predicted and confirmed: the cache was reset or the engine is another one.
    pub(crate) fn forget(&self) {
        *self.predicted.lock() = None;
        *self.confirmed.lock() = None;
    }

    /// Of its device lane, where it has one.
    pub(crate) fn digest(&self, catalog: &Catalog) -> Option<u64> {
        let size = self.block_size()?;
        let of_size = catalog.all().into_iter().filter(|(_, indexer)| indexer.block_size() == size);
        of_size.map(|(_, indexer)| indexer.digest(self.target)).reduce(u64::wrapping_add)
    }

    /// Blocks in the predicted and confirmed lanes.
    pub(crate) fn leased_blocks(&self) -> usize {
        [&self.predicted, &self.confirmed].iter().map(|leases| leases.lock().as_ref().map_or(0, Leases::blocks)).sum()
    }
}

/// Where a rank's lanes are written.
#[derive(Clone, Copy)]
pub(crate) struct Indexes<'a> {
    pub(crate) catalog: &'a Catalog,
    /// The base model.
    pub(crate) base: &'a str,
    /// Blocks one lane of one rank may hold.
    pub(crate) capacity: NonZeroUsize,
}
