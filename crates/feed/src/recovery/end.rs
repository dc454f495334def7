//! What the end of an answer means: done, asked again, or given up.

use std::{sync::Arc, time::Instant};

use crate::{
    feed::{Feed, Phase},
    life::Place,
    query::{Progress, Purpose, Query, Replay},
    rank::Rank,
    trust::Reason,
};

/// Polls in a row without an answer, and without a live message, before a target is doubted.
const UNANSWERED_POLLS: u32 = 3;

impl Feed {
    /// Whether what was replayed reaches what came live, so that nothing is missing though no marker came.
    pub(super) fn meets_live(&self) -> bool {
        let next = self.life.next().unwrap_or(u64::MAX);
        match self.held.front() {
            Some(front) => front.seq <= next,
            None => self.held.newest().is_some_and(|newest| newest < next),
        }
    }

    /// The publisher says it has nothing from there on.
    pub(super) fn nothing_replayed(&mut self, now: Instant) -> Option<Replay> {
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
    pub(super) fn query_restarted(&mut self, now: Instant) -> Option<Replay> {
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
    pub(super) fn query_useless(&mut self, now: Instant) -> Option<Replay> {
        self.phase = Phase::Following;
        self.backoff.succeeded();
        self.drain(now)
    }

    /// Asks for the rest of an answer that broke off.
    pub(super) fn ask_again(&mut self, now: Instant, why: &str) -> Option<Replay> {
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

    pub(super) fn query_done(&mut self, now: Instant) -> Option<Replay> {
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
    pub(super) fn query_failed(&mut self, now: Instant, why: &str) -> Option<Replay> {
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
