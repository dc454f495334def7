//! One worker: what its operator said, what its engine says, its ranks, and what is known of its health.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use engine::{
    Pulse,
    health::{Down, State},
};
use parking_lot::{Mutex, RwLock};
use prompt::Request;
use sched::Exclusion;

use super::{
    introspect::Identity,
    origin::Origin,
    rank::Rank,
    reach::{OpenAi, Reach, TokenWorker},
    source::Source,
};

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

/// A worker that has told what it serves.
pub(crate) struct Serving {
    pub(crate) identity: Identity,
    pub(crate) ranks: Vec<Arc<Rank>>,
}

impl Worker {
    /// An OpenAI server.
    pub(crate) fn open_ai(server: OpenAi, origin: Origin) -> Self {
        Self::new(server.spec.id.clone(), Reach::OpenAi(Box::new(server)), origin)
    }

    /// A worker on the request plane.
    pub(crate) fn of_tokens(id: String, worker: TokenWorker, origin: Origin) -> Self {
        Self::new(id, Reach::Tokens(Box::new(worker)), origin)
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

    /// What it is where it is reached on the request plane.
    pub(crate) fn tokens(&self) -> Option<&TokenWorker> {
        match &self.reach {
            Reach::OpenAi(_) => None,
            Reach::Tokens(worker) => Some(worker),
        }
    }

    /// Whether it takes the client's body and answers in the client's own protocol.
    pub(crate) fn takes_bodies(&self) -> bool {
        self.tokens().is_none_or(|worker| worker.text().is_some())
    }

    /// Whether it takes such a request; a worker that takes token ids, as far as these can be had.
    pub(crate) fn fits(&self, request: &Request) -> bool {
        self.tokens().and_then(TokenWorker::text).is_none_or(|text| text.takes(request))
    }

    /// Its health, for its requests and for readers.
    pub(crate) fn pulse(&self) -> &Pulse {
        match &self.reach {
            Reach::OpenAi(server) => server.pulse(),
            Reach::Tokens(worker) => worker.pulse(),
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

    /// Takes no new requests: it was removed, or discovery has no record of it.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire) || self.tokens().is_some_and(TokenWorker::is_gone)
    }

    /// Why no request may go there now, if so.
    pub(crate) fn exclusion(&self) -> Option<Exclusion> {
        if self.is_draining() {
            return Some(Exclusion::Draining);
        }
        let is_ready = match &self.reach {
            Reach::OpenAi(server) => !self.is_no_engine() && server.circle(Instant::now()).is_none(),
            Reach::Tokens(worker) => worker.is_ready(),
        };
        if !is_ready {
            return Some(Exclusion::NotReady);
        }
        match self.pulse().state() {
            State::Up | State::Suspect => None,
            State::Down(Down::Unproven) => Some(Exclusion::NotReady),
            State::Down(Down::BreakerOpen | Down::Failing | Down::Dead) => Some(Exclusion::BreakerOpen),
        }
    }

    /// Whether what it holds is about to be known: its first sign of life, its model, or what its events told before.
    pub(crate) fn is_arriving(&self) -> bool {
        if self.is_draining() {
            return false;
        }
        let loads = self.tokens().and_then(TokenWorker::lack);
        match (self.pulse().state(), loads) {
            (State::Down(Down::BreakerOpen | Down::Failing | Down::Dead), _) => false,
            (State::Down(Down::Unproven), _) | (_, Some(TokenWorker::LOADING)) => true,
            (State::Up | State::Suspect, Some(_)) => false,
            (State::Up | State::Suspect, None) => match self.serving() {
                Some(serving) => serving.ranks.iter().any(|rank| self.is_published(rank) && rank.is_arriving()),
                None => !self.is_no_engine(),
            },
        }
    }

    /// Whether it gets no requests only for a moment, as far as can be told: it is in quarantine, or starts.
    pub(crate) fn may_be_back_soon(&self) -> bool {
        match self.pulse().state() {
            State::Down(Down::BreakerOpen | Down::Failing | Down::Unproven) => true,
            State::Down(Down::Dead) => false,
            State::Up | State::Suspect => self.tokens().and_then(TokenWorker::lack) == Some(TokenWorker::LOADING),
        }
    }

    /// Whether anybody is known to publish the events of a rank.
    fn is_published(&self, rank: &Rank) -> bool {
        self.origin.discovered().is_none_or(|discovered| !discovered.publishers(rank.dp_rank).is_empty())
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
        if self.tokens().is_some_and(TokenWorker::is_gone) {
            return format!("discovery has no record of it any more, what it runs goes on; {}", self.pulse().status().reason);
        }
        let unready = match &self.reach {
            Reach::OpenAi(server) => server.circle(Instant::now()).map(str::to_owned),
            Reach::Tokens(worker) => worker.unready(),
        };
        if let Some(why) = unready {
            return why;
        }
        let health = self.pulse().status().reason;
        match &*self.unanswered.lock() {
            Some(unanswered) => format!("{health}; cannot tell what it serves: {unanswered}"),
            None => health,
        }
    }

    /// What `/route` says of an exclusion of this worker.
    pub(crate) fn explain(&self, excluded: Exclusion) -> String {
        self.reach.explain(excluded)
    }

    /// One word for people: the state of its health, or `draining`, or what else keeps requests from it.
    pub(crate) fn state(&self) -> &'static str {
        let health = self.pulse().state();
        match &self.reach {
            // One without a record that does not answer either.
            Reach::Tokens(worker) if worker.is_gone() && !health.is_routable() => self.reach.health(health),
            _ if self.is_draining() => "draining",
            Reach::OpenAi(server) if server.circle(Instant::now()).is_some() => "loop",
            Reach::OpenAi(_) if self.is_no_engine() && health.is_routable() => State::Down(Down::Unproven).name(),
            Reach::Tokens(worker) => worker.lack().unwrap_or_else(|| self.reach.health(health)),
            Reach::OpenAi(_) => self.reach.health(health),
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
