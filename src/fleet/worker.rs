//! One worker: what its operator said, what its engine says, its ranks, and what is known of its health.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use engine::{
    Probe, Pulse,
    health::{Down, State},
};
use feed::{Added, RankStatus, StreamStatus};
use index::{BlockSize, Lane, LocalHash, Target, Window};
use parking_lot::{Mutex, RwLock};
use sched::Exclusion;
use tokio::sync::watch;

use super::{
    introspect::Identity,
    leased::{Indexes, Leased},
    origin::Origin,
    source::Source,
    via::Mark,
};
use crate::config::worker_flag::WorkerSpec;

/// How long an engine's word about a prefix is believed without an event (rule 11).
const CONFIRMED_TTL: Duration = Duration::from_secs(600);

/// One worker.
pub(crate) struct Worker {
    id: String,
    pub(crate) reach: Reach,
    pub(crate) origin: Origin,
    draining: AtomicBool,
    /// What the engine said, and the ranks made of it. `None` until it has answered once. Guards a pointer.
    serving: RwLock<Option<Arc<Serving>>>,
    /// Answers whose `prompt_tokens` were not ours.
    mismatches: AtomicU64,
    last_mismatch: Mutex<Option<(u64, u64)>>,
    /// Why it could not be asked what it serves, the last time that failed.
    unanswered: Mutex<Option<String>>,
    /// What answered then is not the engine.
    is_no_engine: AtomicBool,
}

/// How requests get to a worker.
pub(crate) enum Reach {
    /// It is an OpenAI server.
    OpenAi(Box<OpenAi>),
    /// It takes token ids on the request plane.
    Tokens(Tokens),
}

/// An OpenAI server.
pub(crate) struct OpenAi {
    pub(crate) spec: WorkerSpec,
    probe: Probe,
    /// Named in what is sent to it.
    pub(crate) mark: Mark,
    /// When something that was sent to it last came back. Held for a copy.
    circle: Mutex<Option<Circle>>,
}

/// Something that was sent to a worker has come back.
#[derive(Clone, Copy)]
struct Circle {
    at: Instant,
    why: &'static str,
}

/// How long a worker gets no requests after one came back. Then one may try again, and is moved to another worker if that
/// leads here still; probes that come back try every few seconds.
const CIRCLE_FOR: Duration = Duration::from_secs(300);
/// Why it gets none, where nobody is between.
const ITSELF: &str = "worker is this frontend itself";
/// The same, where other frontends are.
const SENDS_BACK: &str = "worker is a frontend that sends requests back to this one";

/// A worker that takes token ids on the request plane. Nothing is sent to it yet.
pub(crate) struct Tokens {
    /// What its records say, and each change of that.
    pub(super) told: watch::Sender<Identity>,
}

/// Why a worker gets no requests although nothing is wrong with it.
const TOKENS_ONLY: &str = "takes token ids on the request plane, which requests cannot be sent over yet; its index is kept";

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
    /// Its events, where there are any.
    pub(crate) source: Option<Source>,
    /// Tokens per block as the operator or the engine says; 0: neither does.
    told: AtomicU32,
    /// Tokens per block as the stream has it; 0: it does not know yet.
    heard: AtomicU32,
    eagle: AtomicBool,
    emptied: AtomicU64,
    predicted: Arc<Leased>,
    confirmed: Arc<Leased>,
}

impl Worker {
    /// An OpenAI server.
    pub(crate) fn open_ai(server: OpenAi, origin: Origin) -> Self {
        Self::new(server.spec.id.clone(), Reach::OpenAi(Box::new(server)), origin)
    }

    /// A worker that takes token ids, as its records say.
    pub(crate) fn tokens(id: String, told: Identity, origin: Origin) -> Self {
        Self::new(id, Reach::Tokens(Tokens { told: watch::Sender::new(told) }), origin)
    }

    fn new(id: String, reach: Reach, origin: Origin) -> Self {
        let (draining, mismatches) = (AtomicBool::new(false), AtomicU64::new(0));
        Self {
            id,
            reach,
            origin,
            draining,
            serving: RwLock::new(None),
            mismatches,
            last_mismatch: Mutex::new(None),
            unanswered: Mutex::new(None),
            is_no_engine: AtomicBool::new(false),
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The OpenAI server it is, if it is one.
    pub(crate) fn server(&self) -> Option<&OpenAi> {
        match &self.reach {
            Reach::OpenAi(server) => Some(server),
            Reach::Tokens(_) => None,
        }
    }

    pub(crate) fn serving(&self) -> Option<Arc<Serving>> {
        self.serving.read().clone()
    }

    pub(crate) fn set_serving(&self, serving: Option<Arc<Serving>>) {
        *self.serving.write() = serving;
        self.hand_out_sources();
    }

    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Why no request may go there now, if so.
    pub(crate) fn exclusion(&self) -> Option<Exclusion> {
        if self.is_draining() {
            return Some(Exclusion::Draining);
        }
        let Some(server) = self.server() else { return Some(Exclusion::NotReady) };
        if self.is_no_engine() || server.circle(Instant::now()).is_some() {
            return Some(Exclusion::NotReady);
        }
        match server.pulse().state() {
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

    /// Keeps why a question to the engine failed, and whether who answered is not the engine; `None` once it has answered.
    pub(super) fn set_unanswered(&self, reason: Option<String>, is_no_engine: bool) {
        *self.unanswered.lock() = reason;
        self.is_no_engine.store(is_no_engine, Ordering::Release);
    }

    fn is_no_engine(&self) -> bool {
        self.is_no_engine.load(Ordering::Acquire)
    }

    /// Its health in words, and why it serves nothing although it is there.
    pub(crate) fn reason(&self) -> String {
        let Some(server) = self.server() else { return TOKENS_ONLY.to_owned() };
        if let Some(why) = server.circle(Instant::now()) {
            return why.to_owned();
        }
        let health = server.pulse().status().reason;
        match &*self.unanswered.lock() {
            Some(unanswered) => format!("{health}; cannot tell what it serves: {unanswered}"),
            None => health,
        }
    }

    /// What `/route` says of an exclusion of this worker.
    pub(crate) fn explain(&self, excluded: Exclusion) -> &'static str {
        match (&self.reach, excluded) {
            (Reach::Tokens(_), Exclusion::NotReady) => TOKENS_ONLY,
            (Reach::OpenAi(server), Exclusion::NotReady) => server.circle(Instant::now()).unwrap_or(excluded.as_str()),
            (Reach::Tokens(_) | Reach::OpenAi(_), _) => excluded.as_str(),
        }
    }

    /// One word for people: the state of its health, or `draining`, or that it leads back here, or that it cannot be sent requests
    /// at all.
    pub(crate) fn state(&self) -> &'static str {
        match self.server() {
            _ if self.is_draining() => "draining",
            Some(server) if server.circle(Instant::now()).is_some() => "loop",
            Some(server) if self.is_no_engine() && server.pulse().state().is_routable() => State::Down(Down::Unproven).name(),
            Some(server) => server.pulse().state().name(),
            None => "index_only",
        }
    }

    /// Hands what its records say of publishers to its ranks, now and after each change of either.
    pub(super) fn hand_out_sources(&self) {
        let (Some(discovered), Some(serving)) = (self.origin.discovered(), self.serving()) else { return };
        discovered.hand_out(|sources| {
            for rank in &serving.ranks {
                if let Some(Source::Plane(follower)) = &rank.source {
                    follower.set_sources(sources(rank.dp_rank));
                }
            }
        });
    }
}

impl OpenAi {
    pub(super) fn new(spec: WorkerSpec, probe: Probe, mark: Mark) -> Self {
        Self { spec, probe, mark, circle: Mutex::new(None) }
    }

    /// Something that was sent to it came back, by way of so many other frontends. Returns why it gets no requests now, and
    /// whether that is news.
    pub(super) fn led_back(&self, now: Instant, others: usize) -> (&'static str, bool) {
        let why = if others == 0 { ITSELF } else { SENDS_BACK };
        let known = self.circle(now);
        *self.circle.lock() = Some(Circle { at: now, why });
        (why, known != Some(why))
    }

    /// Why it gets no requests, where what was sent to it came back lately.
    fn circle(&self, now: Instant) -> Option<&'static str> {
        let circle = *self.circle.lock();
        circle.filter(|circle| now.saturating_duration_since(circle.at) < CIRCLE_FOR).map(|circle| circle.why)
    }

    pub(crate) fn pulse(&self) -> &Pulse {
        self.probe.pulse()
    }
}

impl Rank {
    pub(crate) fn new(dp_rank: u32, header: Option<u32>, target: Target, source: Option<Source>) -> Self {
        Self {
            dp_rank,
            header,
            target,
            source,
            told: AtomicU32::new(0),
            heard: AtomicU32::new(0),
            eagle: AtomicBool::new(false),
            emptied: AtomicU64::new(0),
            predicted: Leased::new(target, Lane::Predicted),
            confirmed: Leased::new(target, Lane::Confirmed),
        }
    }

    /// Takes the operator's or the engine's word for the block size.
    pub(crate) fn tell(&self, size: Option<BlockSize>) {
        self.told.store(size.map_or(0, BlockSize::get), Ordering::Relaxed);
    }

    /// What its stream has, which is what the operator configured or else what the events say; before there are any, what
    /// the engine told.
    pub(crate) fn block_size(&self) -> Option<BlockSize> {
        let heard = || BlockSize::new(self.heard.load(Ordering::Relaxed));
        let shown = || self.status()?.block_size.and_then(BlockSize::new);
        heard().or_else(shown).or_else(|| BlockSize::new(self.told.load(Ordering::Relaxed)))
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
        self.heard.store(status.block_size.unwrap_or(0), Ordering::Relaxed);
        self.take_over_emptied(status.emptied);
    }

    /// Readers come in any order: one with an older status changes nothing.
    fn take_over_emptied(&self, emptied: u64) {
        if self.emptied.fetch_max(emptied, Ordering::AcqRel) < emptied {
            self.forget();
        }
    }

    /// State and counters of its events, where it has a stream.
    pub(crate) fn status(&self) -> Option<RankStatus> {
        self.source.as_ref()?.reins().status().rank(self.dp_rank)
    }

    /// Books a dispatched prompt as held for `ttl` (rule 12). Returns what that added.
    pub(crate) fn predict(&self, indexes: Indexes<'_>, ttl: Duration, chain: &[LocalHash]) -> Option<Added> {
        self.predicted.hold(indexes, ttl, chain)
    }

    /// Takes back what a prediction of `chain` added: the worker never took the prompt.
    pub(crate) fn unpredict(&self, chain: &[LocalHash], added: Added) {
        self.predicted.give_back(chain, added);
    }

    /// Takes the engine's word that it holds these leading blocks (rule 11).
    pub(crate) fn confirm(&self, indexes: Indexes<'_>, chain: &[LocalHash]) {
        self.confirmed.hold(indexes, CONFIRMED_TTL, chain);
    }

    /// Lets go of what was held long enough.
    pub(crate) fn expire(&self, now: Instant) {
        self.predicted.expire(now);
        self.confirmed.expire(now);
    }

    /// Forgets what was predicted and confirmed, soon: the cache was reset or the engine is another one.
    pub(crate) fn forget(&self) {
        self.predicted.forget();
        self.confirmed.forget();
    }

    /// The same; once this returns nothing of before is in the index.
    pub(crate) async fn forget_wholly(&self) {
        for gone in [self.predicted.forget(), self.confirmed.forget()].into_iter().flatten() {
            gone.cancelled().await;
        }
    }

    /// Ends its stream and empties its lanes, for good. Its target may then be another rank's.
    pub(crate) async fn close(&self) {
        if let Some(source) = &self.source {
            source.reins().stop().await;
        }
        self.predicted.close().await;
        self.confirmed.close().await;
    }

    /// The state of its stream, and its own, which is not older.
    pub(crate) fn standing(&self) -> Option<(StreamStatus, RankStatus)> {
        let status = self.source.as_ref()?.reins().status();
        let stream = status.stream();
        Some((stream, status.rank(self.dp_rank)?))
    }

    /// Blocks in the predicted and confirmed lanes.
    pub(crate) fn leased_blocks(&self) -> usize {
        self.predicted.blocks() + self.confirmed.blocks()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use index::{Catalog, Targets};

    use super::*;

    #[test]
    fn a_reader_with_an_older_status_voids_nothing() {
        let rank = Rank::new(0, None, Targets::new().allocate().unwrap(), None);
        let (catalog, size) = (Catalog::default(), BlockSize::new(16).unwrap());
        let indexes = Indexes { catalog: &catalog, base: "m", block_size: size, capacity: NonZeroUsize::MAX };
        rank.take_over_emptied(2);
        rank.predict(indexes, Duration::from_secs(60), &[LocalHash(1)]);
        rank.take_over_emptied(1);
        rank.take_over_emptied(2);
        assert_eq!((rank.emptied(), rank.leased_blocks()), (2, 1));
        rank.take_over_emptied(3);
        assert_eq!((rank.emptied(), rank.leased_blocks()), (3, 0));
    }

    #[test]
    fn a_block_size_that_is_told_anew_counts() {
        let rank = Rank::new(0, None, Targets::new().allocate().unwrap(), None);
        assert_eq!(rank.block_size(), None);
        for size in [16, 32] {
            rank.tell(BlockSize::new(size));
            assert_eq!(rank.block_size().map(BlockSize::get), Some(size));
        }
    }
}
