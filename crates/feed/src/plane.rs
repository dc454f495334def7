//! The consuming side of the event plane for one rank: all publishers that speak for it, one after the other or at once.

mod answer;
mod config;
mod heeds;
mod held;
mod incarnation;
mod live;
mod pace;
mod show;
mod takeover;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Instant,
};

use index::Catalog;

pub use config::{PlaneConfig, PlaneLimits, PlaneQuery, QueryId, Source};

use crate::{
    fold::Fold,
    journal::Journal,
    rank::Rank,
    status::{Status, StreamStatus},
};
use incarnation::{Incarnation, Link, Phase, Purpose};

/// Publishers of which it is remembered which came first, though they are gone.
const REMEMBERED_PUBLISHERS: usize = 16;

/// One rank on the event plane: the cursor of each of its publishers, and the lanes of its target. Dropping it retracts
/// their blocks.
///
/// One publisher at a time *serves*: its events are in the lanes. Newer ones are *candidates* until they are complete, older
/// ones *stand by*. The caller tells what discovery and the event plane bring, carries out each [`PlaneQuery`] that is
/// returned, and calls [`PlaneFeed::tick`] when [`PlaneFeed::deadline`] is due. The table of states is in this crate's README.
#[derive(Debug)]
pub struct PlaneFeed {
    config: PlaneConfig,
    fold: Fold,
    rank: Rank,
    /// The oldest first.
    incarnations: Vec<Incarnation>,
    /// Whose events are folded in.
    serving: Option<u64>,
    /// Whose blocks are held.
    speaker: Option<u64>,
    /// The serving publisher was removed; its blocks stay for a while.
    gone: Option<Gone>,
    /// Which publishers were heard of, in order.
    known: VecDeque<Known>,
    /// Events of the serving publisher are known to be missing, and how that ends is not yet known.
    gap_open: bool,
    queries: u64,
    /// The time of the last call.
    clock: Option<Instant>,
    counters: StreamStatus,
    status: Arc<Status>,
    journal: Journal,
}

#[derive(Debug)]
struct Gone {
    at: Instant,
    /// As it was, in case only its record is gone.
    incarnation: Incarnation,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    id: u64,
    order: u64,
    added: Instant,
}

/// What a publisher is to the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// A newer one serves.
    StandsBy,
    Serves,
    /// None serves, or an older one.
    Candidate,
}

impl PlaneFeed {
    /// A feed that has heard nothing.
    pub fn new(config: PlaneConfig, catalog: Arc<Catalog>) -> Self {
        let mut rank = Rank::of_sets(config.dp_rank, config.target);
        if config.block_size.is_none() {
            rank.contradict("no block size is known: the events do not tell it, and the model's card does not");
        }
        Self {
            fold: Fold::new(catalog, config.model.clone(), config.block_size, BTreeMap::new()),
            status: Arc::new(Status::new(vec![rank.status().clone()])),
            rank,
            incarnations: Vec::new(),
            serving: None,
            speaker: None,
            gone: None,
            known: VecDeque::new(),
            gap_open: false,
            queries: 0,
            clock: None,
            counters: StreamStatus::default(),
            journal: Journal::new(config.label.clone()),
            config,
        }
    }

    /// Discovery names a publisher of the rank, for the first time or again.
    pub fn source_added(&mut self, now: Instant, source: Source) -> Option<PlaneQuery> {
        if let Some(at) = self.position(source.publisher_id) {
            let incarnation = &mut self.incarnations[at];
            // What it could not tell before it can tell now.
            incarnation.resync |= source.recoverable && !incarnation.recoverable && incarnation.cursor.is_some() && self.rank.is_lacking();
            incarnation.recoverable = source.recoverable;
        } else if let Some(gone) = self.gone.take_if(|gone| gone.incarnation.id == source.publisher_id) {
            // Only its record was gone. What it published meanwhile shows in its numbers.
            self.serving = Some(source.publisher_id);
            self.insert(Incarnation { recoverable: source.recoverable, ..gone.incarnation });
            let older = self.position(source.publisher_id).unwrap_or(0);
            self.incarnations[..older].iter_mut().for_each(Incarnation::stand_by);
        } else {
            let known = self.remember(now, source.publisher_id);
            self.insert(Incarnation { added: known.added, ..Incarnation::new(now, source, known.order, self.config.limits) });
        }
        self.settle(now)
    }

    /// Discovery does not name it any more. While it is not known who comes next its blocks stay, for a while.
    pub fn source_removed(&mut self, now: Instant, publisher_id: u64) -> Option<PlaneQuery> {
        if let Some(at) = self.position(publisher_id) {
            let mut incarnation = self.incarnations.remove(at);
            if self.serving == Some(publisher_id) {
                self.serving = None;
                if matches!(incarnation.phase, Phase::Applying(_)) {
                    self.forget();
                } else {
                    self.suspend(&mut incarnation);
                    self.gone = Some(Gone { at: now, incarnation });
                }
            }
        }
        self.settle(now)
    }

    /// We are subscribed to the publisher's events, for the first time or again. Call it before any event of the connection.
    pub fn connected(&mut self, now: Instant, publisher_id: u64) -> Option<PlaneQuery> {
        if let Some(at) = self.position(publisher_id) {
            let incarnation = &mut self.incarnations[at];
            if incarnation.link != Link::Never || incarnation.cursor.is_some() {
                incarnation.unverified = true;
            }
            incarnation.link = Link::Up;
            incarnation.quiet_since = now;
        }
        self.settle(now)
    }

    /// The subscription is interrupted. A pending query goes on: it is asked elsewhere.
    pub fn disconnected(&mut self, now: Instant, publisher_id: u64) -> Option<PlaneQuery> {
        if let Some(at) = self.position(publisher_id) {
            self.incarnations[at].link = Link::Down;
        }
        self.settle(now)
    }

    /// A query waits for those of other ranks to end. Until [`PlaneFeed::query_begins`] its silence means nothing.
    pub fn query_waits(&mut self, now: Instant, id: QueryId) {
        if let Some(query) = self.asking(id).and_then(|at| self.incarnations[at].query_mut()) {
            (query.began, query.deadline) = (None, None);
            self.counters.replay_waits += 1;
        }
        self.show(now);
    }

    /// The query's turn has come.
    pub fn query_begins(&mut self, now: Instant, id: QueryId) {
        let silence = self.config.limits.query_silence;
        if let Some(query) = self.asking(id).and_then(|at| self.incarnations[at].query_mut()) {
            (query.began, query.deadline) = (Some(now), Some(now + silence));
        }
        self.show(now);
    }

    /// Whether an answer to this query is still of use.
    pub fn is_asking(&self, id: QueryId) -> bool {
        self.asking(id).is_some()
    }

    /// Time passed; due at [`PlaneFeed::deadline`].
    pub fn tick(&mut self, now: Instant) -> Option<PlaneQuery> {
        if self.gone.as_ref().is_some_and(|gone| now >= gone.at + self.config.limits.linger) {
            self.forget();
        }
        for at in 0..self.incarnations.len() {
            match &self.incarnations[at].phase {
                Phase::Idle => {}
                Phase::Asking(query) if query.deadline.is_some_and(|deadline| now >= deadline) => {
                    self.fail(now, at, "the publisher did not answer in time");
                }
                Phase::Asking(_) => {}
                Phase::Applying(_) => self.take_over(now, at),
            }
        }
        self.settle(now)
    }

    /// When [`PlaneFeed::tick`] is due. In the past: there is more to do at once, and others may be let in between.
    pub fn deadline(&self) -> Option<Instant> {
        let clock = self.clock?;
        let linger = self.gone.as_ref().map(|gone| gone.at + self.config.limits.linger);
        let each = self.incarnations.iter().enumerate().filter_map(|(at, incarnation)| match &incarnation.phase {
            Phase::Asking(query) => query.deadline,
            Phase::Applying(_) => Some(clock),
            Phase::Idle if self.role(at) == Role::StandsBy || self.config.block_size.is_none() => None,
            Phase::Idle if incarnation.wants().is_some() => Some(incarnation.pace.due(clock)),
            Phase::Idle => incarnation.poll_at(&self.config.limits),
        });
        each.chain(linger).min()
    }

    /// What the feed shows, readable from any thread. It has one rank, and [`StreamStatus::last_seq`] is the last event.
    pub fn status(&self) -> Arc<Status> {
        self.status.clone()
    }

    /// What every call ends with: who serves, what is asked, what is shown.
    fn settle(&mut self, now: Instant) -> Option<PlaneQuery> {
        self.clock = Some(now);
        self.promote(now);
        let query = self.next_query(now);
        self.show(now);
        query
    }

    /// The newest publisher that is to be asked something, and may be now.
    fn next_query(&mut self, now: Instant) -> Option<PlaneQuery> {
        self.config.block_size?;
        let limits = self.config.limits;
        for at in (0..self.incarnations.len()).rev() {
            if self.role(at) == Role::StandsBy {
                continue;
            }
            let incarnation = &mut self.incarnations[at];
            let (start, purpose) = match incarnation.wants() {
                Some(start) if incarnation.pace.allows(now) => (start, Purpose::Need),
                Some(_) => continue,
                None if incarnation.poll_at(&limits).is_some_and(|due| now >= due) => (Some(incarnation.next()), Purpose::Poll),
                None => continue,
            };
            let id = QueryId(self.queries);
            self.queries += 1;
            self.counters.replay_requests += 1;
            let query = PlaneQuery { id, publisher_id: incarnation.id, start_event_id: start };
            incarnation.ask(now, query, purpose, &limits);
            return Some(query);
        }
        None
    }

    /// The publisher may come back, and then has to be asked what it published meanwhile.
    fn suspend(&self, incarnation: &mut Incarnation) {
        if let Some(query) = incarnation.take_query() {
            incarnation.lost |= query.lost;
        }
        incarnation.link = Link::Down;
        incarnation.held.clear();
    }

    /// Nothing is known of the rank any more.
    fn forget(&mut self) {
        self.rank.forget();
        self.gone = None;
        self.speaker = None;
        if std::mem::take(&mut self.gap_open) {
            self.counters.degraded_gaps += 1;
        }
    }

    fn remember(&mut self, now: Instant, id: u64) -> Known {
        if let Some(known) = self.known.iter().find(|known| known.id == id) {
            return *known;
        }
        let order = self.known.back().map_or(0, |last| last.order + 1);
        let known = Known { id, order, added: now };
        if self.known.len() == REMEMBERED_PUBLISHERS {
            self.known.pop_front();
        }
        self.known.push_back(known);
        known
    }

    fn insert(&mut self, incarnation: Incarnation) {
        let at = self.incarnations.partition_point(|other| other.order < incarnation.order);
        self.incarnations.insert(at, incarnation);
        if self.incarnations.len() > self.config.limits.publishers
            && let Some(oldest) = self.incarnations.iter().position(|other| Some(other.id) != self.serving)
        {
            let left_out = self.incarnations.remove(oldest);
            tracing::warn!(stream = %self.config.label, publisher = left_out.id, "too many publishers claim the rank, the oldest is left out");
        }
    }

    fn position(&self, publisher_id: u64) -> Option<usize> {
        self.incarnations.iter().position(|incarnation| incarnation.id == publisher_id)
    }

    fn asking(&self, id: QueryId) -> Option<usize> {
        self.incarnations.iter().position(|incarnation| incarnation.query().is_some_and(|query| query.id == id))
    }

    fn role(&self, at: usize) -> Role {
        match self.serving.and_then(|id| self.position(id)) {
            Some(serving) if at < serving => Role::StandsBy,
            Some(serving) if at == serving => Role::Serves,
            Some(_) | None => Role::Candidate,
        }
    }
}
