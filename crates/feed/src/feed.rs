//! The feed of one publisher: what comes in, and what each live message is.

use std::{sync::Arc, time::Instant};

use index::Catalog;
use wire::{FrameError, Message};

use crate::{
    backoff::Backoff,
    config::{FeedConfig, ReplayMode},
    demand::Demand,
    fold::Fold,
    held::{Held, Kept},
    journal::Journal,
    life::{Life, Mark, Place},
    observation::Observation,
    query::{Progress, Purpose, Query, Replay, ReplayEnd},
    rank::{Arrival, Rank},
    status::{Status, StreamStatus},
    trust::{Activity, Reason},
};

/// One publisher's stream: its cursor, and the writers of its targets. Dropping it retracts their blocks.
///
/// The caller reads the sockets, tells what came, carries out each [`Replay`] that is returned, and calls [`Feed::tick`]
/// when [`Feed::deadline`] is due.
#[derive(Debug)]
pub struct Feed {
    pub(crate) config: FeedConfig,
    pub(crate) link: Link,
    pub(crate) life: Life,
    pub(crate) phase: Phase,
    pub(crate) held: Held,
    pub(crate) backoff: Backoff,
    /// A stretch of the stream is known to be missing, and how that ends is not yet known.
    pub(crate) gap_open: bool,
    /// Live messages were dropped on our side while a replay was pending.
    pub(crate) lost: bool,
    /// A replay from 0 began later: nothing older is to be had from this life.
    pub(crate) too_old: bool,
    /// What a check that was never answered would have compared with.
    pub(crate) unverified: Option<Mark>,
    pub(crate) polls_unanswered: u32,
    /// The first loss of the connection since the engine's life was last known to be the same.
    pub(crate) unsure_since: Option<Instant>,
    /// Message 0 of the engine's life.
    first: Option<Mark>,
    /// Message 0 of the life before, and when that may have ended: until the new one's is here, it may be the same life after
    /// all, whose replay or order was broken.
    former: Option<(Mark, Instant)>,
    /// When to look whether an unreadable message was one of the stream's.
    pub(crate) suspicion: Option<Instant>,
    pub(crate) ranks: Vec<Rank>,
    pub(crate) fold: Fold,
    pub(crate) counters: StreamStatus,
    pub(crate) status: Arc<Status>,
    journal: Journal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Never,
    Up,
    Down,
}

#[derive(Debug)]
pub(crate) enum Phase {
    /// Live messages are folded in as they come.
    Following,
    /// A replay is pending; live messages are held.
    Querying(Query),
}

impl Feed {
    /// A feed that has heard nothing. Its writers are made in `catalog` once the block size is known.
    pub fn new(config: FeedConfig, catalog: Arc<Catalog>) -> Self {
        let ranks = config.ranks.start..config.ranks.start.saturating_add(config.ranks.size);
        let ranks: Vec<Rank> = ranks.zip(&config.targets).map(|(rank, target)| Rank::new(rank, *target)).collect();
        let status = Arc::new(Status::new(ranks.iter().map(|rank| rank.status().clone()).collect()));
        Self {
            link: Link::Never,
            life: Life::default(),
            phase: Phase::Following,
            held: Held::new(config.limits.held_bytes),
            backoff: Backoff::new(&config.limits),
            gap_open: false,
            lost: false,
            too_old: false,
            unverified: None,
            polls_unanswered: 0,
            unsure_since: None,
            first: None,
            former: None,
            suspicion: None,
            fold: Fold::new(catalog, config.model.clone(), config.block_size, config.adapters.clone()),
            ranks,
            counters: StreamStatus::default(),
            status,
            journal: Journal::new(config.label.clone()),
            config,
        }
    }

    /// The live socket is connected, for the first time or again. Call it before any message of the new connection.
    pub fn connected(&mut self, now: Instant) -> Option<Replay> {
        let first = self.link == Link::Never;
        self.link = Link::Up;
        self.abandon();
        let known = self.unverified.or(self.life.last());
        let replay = match (self.config.replay, known) {
            (ReplayMode::Available, Some(known)) => Some(self.ask(now, Purpose::Check, Some(known))),
            (ReplayMode::Available, None) => {
                self.each(Rank::perhaps_restarted);
                Some(self.ask(now, Purpose::Join, None))
            }
            (ReplayMode::Unavailable, Some(_)) if !first => {
                let reason = Arc::from("reconnected, and without a replay socket nothing tells what was missed");
                self.each(|rank| rank.doubt(now, &reason));
                None
            }
            (ReplayMode::Unavailable, Some(_) | None) => None,
        };
        self.show(now);
        replay
    }

    /// The live socket lost its connection. A pending replay is of no further use.
    pub fn disconnected(&mut self, now: Instant) {
        self.link = Link::Down;
        self.unsure_since.get_or_insert(now);
        self.abandon();
        self.show(now);
    }

    /// A live message.
    pub fn live(&mut self, now: Instant, message: Message) -> Option<Replay> {
        let mark = Mark::of(&message);
        self.polls_unanswered = 0;
        let replay = match self.phase {
            Phase::Following => self.follow(now, mark, message),
            Phase::Querying(_) => self.hold(now, mark, message),
        };
        self.show(now);
        replay
    }

    /// A live message that is no numbered batch. If it was one of the stream's, the next number or a poll a second later
    /// tells.
    pub fn malformed(&mut self, now: Instant, error: &FrameError) {
        self.counters.malformed += 1;
        if self.counters.malformed == 1 {
            tracing::warn!(stream = %self.config.label, %error, "a message of the event socket is no numbered batch");
        }
        if self.config.replay == ReplayMode::Available {
            self.suspicion.get_or_insert(now + self.config.limits.retry_first);
        }
        self.show(now);
    }

    /// Live messages were dropped before they reached the feed.
    pub fn dropped(&mut self, now: Instant, messages: u64) -> Option<Replay> {
        self.counters.dropped = self.counters.dropped.saturating_add(messages);
        self.lost = true;
        let replay = match self.phase {
            Phase::Following => self.make_up(now),
            Phase::Querying(_) => None,
        };
        self.show(now);
        replay
    }

    /// Time passed; due at [`Feed::deadline`].
    pub fn tick(&mut self, now: Instant) -> Option<Replay> {
        let replay = match &self.phase {
            Phase::Querying(query) if query.deadline.is_some_and(|deadline| now >= deadline) => {
                self.replay_ended(now, ReplayEnd::Failed("it did not end in time".to_owned()))
            }
            Phase::Querying(_) => None,
            Phase::Following => self.retry(now).or_else(|| self.look(now)),
        };
        self.show(now);
        replay
    }

    /// When [`Feed::tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Querying(query) => query.deadline,
            Phase::Following if self.link == Link::Up => [self.backoff.retry_at(), self.suspicion].into_iter().flatten().min(),
            Phase::Following => None,
        }
    }

    /// Rule 5: a cache reset that passed through us succeeded. Every target of the stream is empty now.
    pub fn reset(&mut self, now: Instant) {
        self.each(|rank| rank.reset(now));
        self.show(now);
    }

    /// Rule 11: an answer said how much of its prompt was cached. What the engine has beyond `predicted_blocks` is the
    /// caller's to hold in [`index::Lane::Confirmed`]; here waiting stores that continue it are attached, and a degraded
    /// target that reported less loses what it did not have.
    pub fn observed(&mut self, now: Instant, observation: &Observation) {
        let position = self.position(observation.rank);
        if let Some(rank) = position.and_then(|position| self.ranks.get_mut(position)) {
            rank.observed(now, observation);
        }
        self.show(now);
    }

    /// Rules 4 and 13: a request with this demand is dispatched to a rank. Call it before any message that the engine may send
    /// because of it.
    pub fn demanded(&mut self, now: Instant, rank: u32, demand: Demand) {
        let position = self.position(rank);
        if let Some(rank) = position.and_then(|position| self.ranks.get_mut(position)) {
            rank.demanded(now, demand);
        }
        self.show(now);
    }

    /// Is the publisher idle, or are we deaf? Asks for the last message again, if nothing else is under way. A restart or
    /// messages that were missed show in the answer; an answer as expected changes nothing.
    pub fn poll(&mut self, now: Instant) -> Option<Replay> {
        let replay = match self.phase {
            Phase::Following if self.may_ask(now) => Some(self.ask(now, Purpose::Poll, self.unverified.or(self.life.last()))),
            Phase::Following | Phase::Querying(_) => None,
        };
        self.show(now);
        replay
    }

    /// What the feed shows, readable from any thread.
    pub fn status(&self) -> Arc<Status> {
        self.status.clone()
    }

    /// Rule 7, outside of a replay.
    pub(crate) fn follow(&mut self, now: Instant, mark: Mark, message: Message) -> Option<Replay> {
        match self.life.place(mark) {
            Place::Next => self.apply(now, mark, &message, Arrival::Live),
            Place::Ahead => return self.jumped(now, mark, message),
            Place::Duplicate => self.counters.duplicates += 1,
            Place::Foreign | Place::Forgotten => {
                self.restarted(now, "its sequence numbers began anew");
                self.held.clear();
                return self.follow(now, mark, message);
            }
        }
        None
    }

    fn jumped(&mut self, now: Instant, mark: Mark, message: Message) -> Option<Replay> {
        if !self.may_ask(now) {
            self.apply(now, mark, &message, Arrival::Live);
            return None;
        }
        self.open_gap();
        match self.held.push(mark, message, &self.life) {
            Kept::Held | Kept::Duplicate | Kept::Restart => {}
            Kept::Overflow => self.overflowed(),
        }
        Some(self.ask_for_gap(now))
    }

    /// Rule 7, while a replay is pending.
    fn hold(&mut self, now: Instant, mark: Mark, message: Message) -> Option<Replay> {
        match self.held.push(mark, message.clone(), &self.life) {
            Kept::Held => {}
            Kept::Duplicate => self.counters.duplicates += 1,
            Kept::Overflow => self.overflowed(),
            Kept::Restart => {
                // The pending replay, of whichever life, is replaced or ignored; so is what was held.
                self.restarted(now, "its sequence numbers began anew");
                self.held.clear();
                self.lost = false;
                self.phase = Phase::Following;
                return self.follow(now, mark, message);
            }
        }
        None
    }

    /// Folds one message in. A jump that comes here is one that nothing fills: it ends as degraded.
    pub(crate) fn apply(&mut self, now: Instant, mark: Mark, message: &Message, arrival: Arrival) {
        match (self.life.place(mark), self.life.last()) {
            (Place::Next, None) => {
                self.begun(mark);
                self.each(Rank::begin_whole);
                if matches!(self.phase, Phase::Following) {
                    self.close_rebuilt();
                }
            }
            (Place::Next, Some(_)) => {}
            (Place::Ahead, last) => self.lack_jump(now, last, mark),
            (Place::Duplicate | Place::Foreign | Place::Forgotten, _) => return,
        }
        self.life.advance(mark);
        self.counters.messages += 1;
        match wire::batch(&message.payload) {
            Ok(batch) => self.apply_batch(now, batch, arrival),
            Err(error) => {
                self.counters.undecodable += 1;
                let reason: Reason = Arc::from(format!("batch {} could not be read: {error}", mark.seq));
                self.each(|rank| rank.lack(now, &reason));
            }
        }
    }

    fn apply_batch(&mut self, now: Instant, batch: wire::Batch, arrival: Arrival) {
        let socket = self.position(self.config.socket_rank).unwrap_or(0);
        let named = batch.rank.map(|rank| self.position(rank));
        let Some(rank) = self.ranks.get_mut(named.flatten().unwrap_or(socket)) else { return };
        if named == Some(None) {
            rank.mismatched();
        }
        rank.apply(now, batch, arrival, &mut self.fold);
    }

    fn lack_jump(&mut self, now: Instant, last: Option<Mark>, mark: Mark) {
        let reason: Reason = match last {
            Some(last) => Arc::from(format!("messages {} to {} are missing", last.seq.saturating_add(1), mark.seq - 1)),
            None => Arc::from(format!("joined at message {}; the ones before it are gone", mark.seq)),
        };
        self.open_gap();
        self.close_degraded(now, &reason);
    }

    /// Another engine life begins; what was known of the last one is void.
    pub(crate) fn restarted(&mut self, now: Instant, why: &str) {
        self.counters.restarts += 1;
        self.journal.restarted(now, why);
        // The new life may be as old as the lost connection, and requests may have reached it since.
        let ended = self.unsure_since.take().unwrap_or(now);
        if let Some(first) = self.first.take() {
            self.former.get_or_insert((first, ended));
        }
        self.each(|rank| rank.restarted(now));
        self.begin_life();
    }

    /// Message 0 of a life. Another one than the last life's proves that the cache is another.
    fn begun(&mut self, first: Mark) {
        self.first = Some(first);
        if let Some((_, ended)) = self.former.take().filter(|(former, _)| *former != first) {
            self.each(|rank| rank.settle_demands(ended));
        }
    }

    pub(crate) fn begin_life(&mut self) {
        self.life = Life::default();
        self.too_old = false;
        self.unverified = None;
        self.fold.begin_life();
        for rank in &mut self.ranks {
            rank.begin_life(&self.fold);
        }
    }

    /// The pending replay and what was held for it go; the next connection asks again.
    fn abandon(&mut self) {
        self.phase = Phase::Following;
        self.held.clear();
        self.lost = false;
        self.suspicion = None;
    }

    fn overflowed(&mut self) {
        self.counters.held_overflow += 1;
        self.lost = true;
    }

    pub(crate) fn position(&self, rank: u32) -> Option<usize> {
        self.config.ranks.position(rank).filter(|position| *position < self.ranks.len())
    }

    pub(crate) fn each(&mut self, act: impl FnMut(&mut Rank)) {
        self.ranks.iter_mut().for_each(act);
    }

    pub(crate) fn may_ask(&self, now: Instant) -> bool {
        self.config.replay == ReplayMode::Available && self.link == Link::Up && self.backoff.allows(now)
    }

    /// Brings the shared status up to date, and logs each change of trust once.
    pub(crate) fn show(&mut self, now: Instant) {
        self.counters.connected = self.link == Link::Up;
        self.counters.replay_pending = matches!(self.phase, Phase::Querying(_));
        self.counters.last_seq = self.life.last().map(|last| last.seq);
        self.counters.held_bytes = self.held.bytes();
        let activity = self.activity();
        for (position, rank) in self.ranks.iter_mut().enumerate() {
            let before = rank.show(&activity, &self.fold, self.counters.last_seq);
            let status = rank.status();
            if let Some(before) = before {
                self.journal.trust_changed(now, before, status);
            }
            self.status.publish_rank(position, status);
        }
        self.status.publish(&self.counters);
    }

    fn activity(&self) -> Activity {
        match (self.link, &self.phase) {
            (Link::Down, _) => Activity::Disconnected,
            (_, Phase::Querying(query)) if query.deadline.is_none() => Activity::Recovering("a replay waits for others to end"),
            (_, Phase::Querying(query)) => match query.purpose.awaited() {
                Some(awaited) => Activity::Recovering(awaited),
                None if self.gap_open || query.progress == Progress::Restarted => Activity::Recovering("replaying what was missed"),
                None => Activity::Following,
            },
            (Link::Never, Phase::Following) => Activity::Disconnected,
            (Link::Up, Phase::Following) if self.life.last().is_none() && self.counters.malformed > 0 => Activity::Unreadable,
            (Link::Up, Phase::Following) => Activity::Following,
        }
    }
}
