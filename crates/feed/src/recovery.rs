//! Replays: when to ask, what each message of an answer is, and how every gap ends in one counted way (rule 7).

use std::{sync::Arc, time::Instant};

use wire::Message;

use crate::{
    config::ReplayMode,
    feed::{Feed, Link, Phase},
    life::{Mark, Place},
    query::{Progress, Purpose, Query, Replay, ReplayEnd},
    rank::{Arrival, Rank},
    trust::Reason,
};

/// Polls in a row without an answer, and without a live message, before a target is doubted.
const UNANSWERED_POLLS: u32 = 3;

impl Feed {
    /// A message of the pending replay.
    pub fn replayed(&mut self, now: Instant, message: Message) {
        let Phase::Querying(query) = &self.phase else { return };
        let mark = Mark::of(&message);
        let progress = match query.progress {
            Progress::Waiting => self.first_replayed(now, mark, &message),
            Progress::Folding => self.fold_replayed(now, mark, &message),
            Progress::Holed | Progress::Restarted | Progress::Useless => return,
        };
        if let Phase::Querying(query) = &mut self.phase {
            query.progress = progress;
        }
        self.show(now);
    }

    /// The pending replay is not asked for yet: the caller has others under way first. Until [`Feed::replay_begins`] the
    /// publisher's silence means nothing, live messages are held within their own bound, and no target is exact.
    pub fn replay_waits(&mut self, now: Instant) {
        if let Phase::Querying(query) = &mut self.phase {
            query.deadline = None;
            self.counters.replay_waits += 1;
        }
        self.show(now);
    }

    /// The pending replay's turn has come.
    pub fn replay_begins(&mut self, now: Instant) {
        if let Phase::Querying(query) = &mut self.phase {
            query.deadline = Some(now + self.config.limits.replay_total);
        }
        self.show(now);
    }

    /// The pending replay is over.
    pub fn replay_ended(&mut self, now: Instant, end: ReplayEnd) -> Option<Replay> {
        let Phase::Querying(query) = &self.phase else { return None };
        let replay = match (query.progress, &end) {
            (Progress::Restarted, _) => self.query_restarted(now),
            (Progress::Useless, _) => self.query_useless(now),
            (Progress::Holed, _) => self.ask_again(now, "the replay has holes"),
            (Progress::Waiting, ReplayEnd::Marker) => self.nothing_replayed(now),
            (Progress::Waiting, ReplayEnd::Silent) => self.query_failed(now, "the replay socket did not answer"),
            (Progress::Waiting, ReplayEnd::Failed(error)) => self.query_failed(now, &format!("no replay: {error}")),
            (Progress::Folding, ReplayEnd::Marker) => self.query_done(now),
            (Progress::Folding, ReplayEnd::Silent | ReplayEnd::Failed(_)) if self.meets_live() => self.query_done(now),
            (Progress::Folding, ReplayEnd::Silent | ReplayEnd::Failed(_)) => self.ask_again(now, "the replay stopped short"),
        };
        self.show(now);
        replay
    }

    /// Begins to wait for a replay; an earlier one is replaced.
    pub(crate) fn ask(&mut self, now: Instant, purpose: Purpose, anchor: Option<Mark>) -> Replay {
        self.send(Query {
            purpose,
            anchor,
            progress: Progress::Waiting,
            verified: false,
            lacking: false,
            covers: self.held.newest(),
            requests: 1,
            deadline: Some(now + self.config.limits.replay_total),
        })
    }

    /// Asks for what is missing between the cursor and what comes live.
    pub(crate) fn ask_for_gap(&mut self, now: Instant) -> Replay {
        match self.life.last() {
            Some(last) => self.ask(now, Purpose::Gap, Some(last)),
            None => self.ask(now, Purpose::Join, None),
        }
    }

    /// Tries by time alone, after a failure.
    pub(crate) fn retry(&mut self, now: Instant) -> Option<Replay> {
        if self.link != Link::Up || self.backoff.retry_at().is_none_or(|at| now < at) {
            return None;
        }
        let unverified = self.unverified.filter(|_| self.ranks.iter().any(Rank::is_doubtful));
        let (purpose, anchor) = if unverified.is_some() {
            (Purpose::Check, unverified)
        } else if self.life.last().is_none() {
            (Purpose::Join, None)
        } else if !self.too_old && self.ranks.iter().any(Rank::is_lacking) {
            (Purpose::Heal, None)
        } else if self.polls_unanswered > 0 {
            (Purpose::Poll, self.life.last())
        } else {
            self.backoff.succeeded();
            return None;
        };
        Some(self.ask(now, purpose, anchor))
    }

    /// Looks whether an unreadable message was one that is missing now.
    pub(crate) fn look(&mut self, now: Instant) -> Option<Replay> {
        if self.suspicion.is_none_or(|at| now < at) {
            return None;
        }
        self.suspicion = None;
        self.poll(now)
    }

    /// Asks for messages that are known to have been dropped, if any are.
    pub(crate) fn make_up(&mut self, now: Instant) -> Option<Replay> {
        if !std::mem::take(&mut self.lost) {
            return None;
        }
        self.open_gap();
        if self.may_ask(now) {
            return Some(self.ask_for_gap(now));
        }
        // Without a connection, the question asked after the next one covers it.
        if self.link == Link::Up || self.config.replay == ReplayMode::Unavailable {
            self.close_degraded(now, &Arc::from("live messages were dropped"));
        }
        None
    }

    pub(crate) fn open_gap(&mut self) {
        if !self.gap_open {
            self.gap_open = true;
            self.counters.gaps += 1;
        }
    }

    pub(crate) fn close_rebuilt(&mut self) {
        if std::mem::take(&mut self.gap_open) {
            self.counters.rebuilt += 1;
        }
    }

    pub(crate) fn close_degraded(&mut self, now: Instant, reason: &Reason) {
        if std::mem::take(&mut self.gap_open) {
            self.counters.degraded_gaps += 1;
            self.each(|rank| rank.lack(now, reason));
        }
    }

    fn send(&mut self, query: Query) -> Replay {
        self.counters.replay_requests += 1;
        self.suspicion = None;
        let replay = query.replay();
        self.phase = Phase::Querying(query);
        replay
    }

    /// The first message of an answer tells what the answer is worth.
    fn first_replayed(&mut self, now: Instant, mark: Mark, message: &Message) -> Progress {
        let Phase::Querying(query) = &mut self.phase else { return Progress::Useless };
        match query.anchor {
            // More than was asked for.
            Some(anchor) if mark.seq < anchor.seq => Progress::Waiting,
            Some(anchor) if mark == anchor => {
                query.verified = true;
                Progress::Folding
            }
            Some(anchor) if mark.seq == anchor.seq => Progress::Restarted,
            Some(_) if query.purpose.missing_is_restart() && !query.verified => Progress::Restarted,
            None if query.purpose == Purpose::Heal && mark.seq != 0 => {
                self.too_old = true;
                Progress::Useless
            }
            None if query.purpose == Purpose::Heal => {
                query.purpose = Purpose::Join;
                self.begin_life();
                self.fold_replayed(now, mark, message)
            }
            Some(_) | None => match self.fold_replayed(now, mark, message) {
                Progress::Holed => {
                    // The publisher keeps nothing older, and never will again.
                    self.too_old = true;
                    self.fold_beyond_hole(now, mark, message)
                }
                progress => progress,
            },
        }
    }

    /// Folds one message of an answer in, and checks it against what came live.
    fn fold_replayed(&mut self, now: Instant, mark: Mark, message: &Message) -> Progress {
        while let Some(front) = self.held.front().filter(|front| front.seq < mark.seq && self.life.place(*front) != Place::Ahead) {
            match self.life.place(front) {
                Place::Next => self.fold_front(now),
                Place::Foreign => return Progress::Restarted,
                Place::Ahead | Place::Duplicate | Place::Forgotten => {
                    self.held.pop();
                }
            }
        }
        match self.life.place(mark) {
            Place::Next => {}
            Place::Duplicate | Place::Forgotten => return Progress::Folding,
            Place::Foreign => return Progress::Restarted,
            Place::Ahead if self.is_last_request() => return self.fold_beyond_hole(now, mark, message),
            Place::Ahead => {
                self.open_gap();
                return Progress::Holed;
            }
        }
        match self.held.front() {
            Some(front) if front == mark => {
                self.held.pop();
            }
            Some(front) if front.seq == mark.seq => return Progress::Restarted,
            // It was missed. In an answer that lacks something the whole recovery is one gap, and counted already.
            Some(_) | None if !self.is_lacking() => self.open_gap(),
            Some(_) | None => {}
        }
        self.apply(now, mark, message, Arrival::Late);
        Progress::Folding
    }

    /// Goes on behind a hole that the replay does not fill.
    fn fold_beyond_hole(&mut self, now: Instant, mark: Mark, message: &Message) -> Progress {
        while self.held.front().is_some_and(|front| front.seq <= mark.seq) {
            self.fold_front(now);
        }
        self.apply(now, mark, message, Arrival::Late);
        if let Phase::Querying(query) = &mut self.phase {
            query.lacking = true;
        }
        Progress::Folding
    }

    fn fold_front(&mut self, now: Instant) {
        if let Some((mark, message)) = self.held.pop() {
            self.apply(now, mark, &message, Arrival::Late);
        }
    }

    fn is_last_request(&self) -> bool {
        matches!(&self.phase, Phase::Querying(query) if query.requests >= self.config.limits.requests)
    }

    fn is_lacking(&self) -> bool {
        matches!(&self.phase, Phase::Querying(query) if query.lacking)
    }

    /// Whether what was replayed reaches what came live, so that nothing is missing though no marker came.
    fn meets_live(&self) -> bool {
        let next = self.life.next().unwrap_or(u64::MAX);
        match self.held.front() {
            Some(front) => front.seq <= next,
            None => self.held.newest().is_some_and(|newest| newest < next),
        }
    }

    /// The publisher says it has nothing from there on.
    fn nothing_replayed(&mut self, now: Instant) -> Option<Replay> {
        let Phase::Querying(query) = &self.phase else { return None };
        let follows_start = self.held.front().is_none_or(|front| front.seq == 0);
        match (query.anchor, query.purpose) {
            (Some(_), purpose) if query.verified || purpose.missing_is_restart() => self.query_restarted(now),
            (None, Purpose::Join | Purpose::Poll) if follows_start => {
                self.each(Rank::begin_whole);
                self.query_done(now)
            }
            (Some(_) | None, _) => self.query_failed(now, "the replay brought nothing, though there were messages"),
        }
    }

    /// The answer is of another life than what is known: forget that, and ask for the new one's start (rule 7).
    fn query_restarted(&mut self, now: Instant) -> Option<Replay> {
        let Phase::Querying(query) = &self.phase else { return None };
        let requests = query.requests + 1;
        self.restarted(now, "its replay is of another life");
        self.open_gap();
        if requests > self.config.limits.requests {
            return self.query_failed(now, "the replay keeps being of another life");
        }
        let replay = self.ask(now, Purpose::Join, None);
        if let Phase::Querying(query) = &mut self.phase {
            query.requests = requests;
        }
        Some(replay)
    }

    /// Nothing was lost by asking, and asking again would bring nothing.
    fn query_useless(&mut self, now: Instant) -> Option<Replay> {
        self.phase = Phase::Following;
        self.backoff.succeeded();
        self.drain(now)
    }

    /// Asks for the rest of an answer that broke off.
    fn ask_again(&mut self, now: Instant, why: &str) -> Option<Replay> {
        let Phase::Querying(query) = &self.phase else { return None };
        if query.requests >= self.config.limits.requests {
            return self.query_failed(now, why);
        }
        Some(self.send(Query {
            purpose: query.purpose,
            anchor: self.life.last(),
            progress: Progress::Waiting,
            verified: true,
            lacking: query.lacking,
            covers: self.held.newest(),
            requests: query.requests + 1,
            deadline: Some(now + self.config.limits.replay_total),
        }))
    }

    fn query_done(&mut self, now: Instant) -> Option<Replay> {
        let Phase::Querying(query) = std::mem::replace(&mut self.phase, Phase::Following) else { return None };
        self.backoff.succeeded();
        self.polls_unanswered = 0;
        match query.purpose {
            Purpose::Check | Purpose::Poll => {
                self.unverified = None;
                self.unsure_since = None;
                self.each(Rank::verified);
            }
            Purpose::Join | Purpose::Heal => self.unverified = None,
            Purpose::Gap => {}
        }
        self.fold_held(now);
        let mut unfilled = false;
        while self.held.front().is_some_and(|front| query.covers.is_some_and(|newest| front.seq <= newest)) {
            unfilled = true;
            self.fold_front(now);
            self.fold_held(now);
        }
        if !unfilled {
            self.close_filled(query.purpose);
        }
        if self.unverified.is_some() || ((query.lacking || unfilled) && !self.too_old) {
            self.backoff.failed(now);
        }
        self.drain(now)
    }

    /// The replay is given up. What is known stays, live messages go on, and time brings the next try.
    fn query_failed(&mut self, now: Instant, why: &str) -> Option<Replay> {
        let Phase::Querying(query) = std::mem::replace(&mut self.phase, Phase::Following) else { return None };
        tracing::debug!(stream = %self.config.label, purpose = ?query.purpose, requests = query.requests, why, "replay failed");
        self.counters.replay_failures += 1;
        self.backoff.failed(now);
        let stopped_short = query.progress == Progress::Folding;
        let doubtful = match query.purpose {
            Purpose::Check => true,
            Purpose::Poll if stopped_short => true,
            Purpose::Poll => {
                self.polls_unanswered += 1;
                self.polls_unanswered >= UNANSWERED_POLLS
            }
            Purpose::Join | Purpose::Gap | Purpose::Heal => stopped_short,
        };
        let replay = self.drain(now);
        let reason: Reason = Arc::from(why);
        self.close_degraded(now, &reason);
        if doubtful {
            self.each(|rank| rank.doubt(now, &reason));
        }
        if doubtful && self.ranks.iter().any(Rank::is_doubtful) {
            let since = query.anchor.filter(|_| !query.verified);
            self.unverified = self.unverified.or(since).or(self.life.last());
        }
        replay
    }

    fn close_filled(&mut self, purpose: Purpose) {
        match purpose {
            Purpose::Join | Purpose::Heal => self.close_rebuilt(),
            Purpose::Gap | Purpose::Check | Purpose::Poll => {
                if std::mem::take(&mut self.gap_open) {
                    self.counters.replayed += 1;
                }
            }
        }
    }

    /// Folds in what was held; a gap inside is asked for, or ends as degraded.
    fn drain(&mut self, now: Instant) -> Option<Replay> {
        self.fold_held(now);
        while self.held.front().is_some() {
            if self.may_ask(now) {
                self.open_gap();
                return Some(self.ask_for_gap(now));
            }
            self.fold_front(now);
            self.fold_held(now);
        }
        self.held.clear();
        self.make_up(now)
    }

    /// Folds in what was held, up to the next gap.
    fn fold_held(&mut self, now: Instant) {
        while let Some(front) = self.held.front() {
            match self.life.place(front) {
                Place::Next => self.fold_front(now),
                Place::Duplicate | Place::Forgotten => {
                    self.held.pop();
                }
                Place::Foreign => self.restarted(now, "its live messages are of another life than its replay"),
                Place::Ahead => break,
            }
        }
    }
}
