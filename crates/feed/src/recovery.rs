//! Replays: when to ask, and how every gap ends in one counted way (rule 7).

mod answer;
mod end;

use std::{sync::Arc, time::Instant};

use wire::Message;

use crate::{
    config::ReplayMode,
    feed::{Feed, Link, Phase},
    life::Mark,
    query::{Progress, Purpose, Query, Replay, ReplayEnd},
    rank::Rank,
    trust::Reason,
};

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
}
