//! The feed of one publisher: what comes in, and what it shows.

mod cursor;

use std::{sync::Arc, time::Instant};

use index::Catalog;
use wire::{FrameError, Message};

use crate::{
    backoff::Backoff,
    config::{FeedConfig, ReplayMode},
    fold::Fold,
    held::Held,
    journal::Journal,
    life::{Life, Mark},
    query::{Progress, Purpose, Query, Replay, ReplayEnd},
    rank::Rank,
    status::{Status, StreamStatus},
    trust::Activity,
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

    /// The pending replay and what was held for it go; the next connection asks again.
    fn abandon(&mut self) {
        self.phase = Phase::Following;
        self.held.clear();
        self.lost = false;
        self.suspicion = None;
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
