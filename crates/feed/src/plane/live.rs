//! Events as they come: what each is, and who serves (rule 7).

use std::{sync::Arc, time::Instant};

use wire::{
    BatchError,
    router::{KvData, RouterEvent},
};

use super::{
    PlaneFeed, PlaneQuery, Role,
    held::{Entry, cost},
    incarnation::{Hole, Phase},
};
use crate::{
    rank::{Arrival, Rank},
    trust::Reason,
};

impl PlaneFeed {
    /// What one envelope of a publisher brought, each event for itself (rule 8).
    pub fn events(&mut self, now: Instant, publisher_id: u64, events: Vec<Entry>) -> Option<PlaneQuery> {
        let known = self.position(publisher_id).filter(|_| self.config.block_size.is_some());
        let Some(at) = known else {
            self.counters.strangers += events.len() as u64;
            return self.settle(now);
        };
        for event in events {
            self.event(now, at, event);
        }
        self.settle(now)
    }

    /// An envelope of a publisher that could not be read.
    pub fn undecodable(&mut self, now: Instant, publisher_id: u64, error: &BatchError) -> Option<PlaneQuery> {
        self.counters.undecodable += 1;
        tracing::debug!(stream = %self.config.label, publisher_id, %error, "an envelope of events could not be read");
        if let Some(at) = self.position(publisher_id) {
            self.lose(at);
        }
        self.settle(now)
    }

    /// Messages of a publisher were dropped before they reached the feed: an ordinary gap.
    pub fn dropped(&mut self, now: Instant, publisher_id: u64, messages: u64) -> Option<PlaneQuery> {
        self.counters.dropped = self.counters.dropped.saturating_add(messages);
        if let Some(at) = self.position(publisher_id) {
            self.lose(at);
        }
        self.settle(now)
    }

    /// Events are gone, and which is not known: the publisher is asked, or its next event tells.
    fn lose(&mut self, at: usize) {
        let serves = self.role(at) == Role::Serves;
        let incarnation = &mut self.incarnations[at];
        if !incarnation.recoverable {
            incarnation.unverified = true;
            return;
        }
        incarnation.lost = true;
        if serves {
            self.open_gap();
        }
    }

    fn event(&mut self, now: Instant, at: usize, entry: Entry) {
        let role = self.role(at);
        if role == Role::StandsBy {
            self.counters.strangers += 1;
            return;
        }
        let id = match &entry {
            Ok(event) => event.event.event_id,
            Err(error) => match error.event_id {
                Some(id) => id,
                None => {
                    // Its number is missing from the stream, which is what will be asked for.
                    self.rank.unnumbered();
                    return self.lose(at);
                }
            },
        };
        let incarnation = &mut self.incarnations[at];
        if incarnation.cursor.is_some_and(|cursor| id <= cursor) || incarnation.held.contains(id) {
            if incarnation.denies(id) && role == Role::Serves {
                return self.renumbered(now, at, id, entry);
            }
            self.counters.duplicates += 1;
            return;
        }
        incarnation.quiet_since = now;
        incarnation.polls_unanswered = 0;
        incarnation.seen = incarnation.seen.max(id);
        match (role, self.is_clear(&entry)) {
            (Role::StandsBy, _) => {}
            (Role::Serves | Role::Candidate, true) => self.clear(now, at, id, entry),
            (Role::Candidate, false) => self.hold(at, id, entry),
            (Role::Serves, false) => self.follow(now, at, id, entry),
        }
    }

    /// The publisher's live events deny what it told of itself, or it has begun anew: its events go on from this one, and it is
    /// asked for everything.
    fn renumbered(&mut self, now: Instant, at: usize, id: u64, entry: Entry) {
        let incarnation = &mut self.incarnations[at];
        let before = incarnation.cursor.unwrap_or(0);
        let reason = format!("its event {id} came live, far below event {before} that the publisher had told of");
        incarnation.take_query();
        incarnation.pace.failed(now);
        incarnation.held.clear();
        incarnation.hole = None;
        incarnation.resync = incarnation.recoverable;
        incarnation.denied = true;
        (incarnation.cursor, incarnation.seen) = (Some(id), id);
        self.open_gap();
        self.journal.restarted(now, "its event numbers fell back");
        self.counters.restarts += 1;
        self.close_degraded(now, &Arc::from(reason), true);
        self.fold_in(now, entry, Arrival::Live);
    }

    /// An event of the serving publisher beyond its cursor.
    fn follow(&mut self, now: Instant, at: usize, id: u64, entry: Entry) {
        let incarnation = &mut self.incarnations[at];
        if incarnation.must_hold() {
            self.hold(at, id, entry);
        } else if id == incarnation.next() {
            // Its number proves that nothing was missed since the one before.
            incarnation.unverified = false;
            if let Some(query) = incarnation.query_mut() {
                query.unverified = false;
            }
            incarnation.cursor = Some(id);
            self.fold_in(now, entry, Arrival::Live);
            self.drain(now, at);
        } else if incarnation.recoverable && incarnation.hole.is_none() && incarnation.pace.allows_soon(now) {
            self.open_gap();
            self.hold(at, id, entry);
        } else {
            let why = if incarnation.recoverable {
                "the publisher is asked again later"
            } else {
                "the publisher has no recovery that can be asked"
            };
            self.pass(now, at, id, why);
            self.incarnations[at].cursor = Some(id);
            self.fold_in(now, entry, Arrival::Live);
        }
    }

    /// The target is empty at this event, whatever came before it and is missing: nothing of that has to be asked for.
    fn clear(&mut self, now: Instant, at: usize, id: u64, entry: Entry) {
        match self.role(at) {
            Role::Candidate => self.speak(now, at),
            Role::Serves | Role::StandsBy => {}
        }
        let incarnation = &mut self.incarnations[at];
        if incarnation.cursor.is_some() && id > incarnation.next() && !self.gap_open {
            self.counters.gaps += 1;
            self.gap_open = true;
        }
        if let Some(query) = incarnation.take_query() {
            incarnation.lost |= query.lost;
        }
        incarnation.phase = Phase::Idle;
        incarnation.hole = None;
        incarnation.resync = false;
        incarnation.unverified = false;
        incarnation.trouble = None;
        incarnation.cursor = Some(id);
        incarnation.held.drop_through(id);
        self.close_rebuilt();
        self.fold_in(now, entry, Arrival::Live);
        self.drain(now, at);
    }

    /// Keeps an event for later, if there is room.
    fn hold(&mut self, at: usize, id: u64, entry: Entry) {
        let held: usize = self.incarnations.iter().map(|incarnation| incarnation.held.bytes()).sum();
        // Who has no recovery may wait for long, and is not to crowd out those who wait for an answer.
        let share = if self.incarnations[at].recoverable { 1 } else { 4 };
        if held + cost(&entry) > self.config.limits.held_bytes / share {
            // It is beyond the cursor and not held, so it is missing.
            self.counters.held_overflow += 1;
        } else {
            self.incarnations[at].held.push(id, entry);
        }
    }

    /// Folds in what is held, up to the next that is missing.
    pub(super) fn drain(&mut self, now: Instant, at: usize) {
        loop {
            let incarnation = &mut self.incarnations[at];
            if let Some(cursor) = incarnation.cursor {
                incarnation.held.drop_through(cursor);
            }
            let next = incarnation.next();
            let Some(entry) = incarnation.held.pop_if(next) else { break };
            incarnation.cursor = Some(next);
            self.fold_in(now, entry, Arrival::Late);
        }
        let incarnation = &self.incarnations[at];
        if incarnation.is_missing() {
            self.open_gap();
        } else if !incarnation.is_in_doubt() && std::mem::take(&mut self.gap_open) {
            self.counters.replayed += 1;
        }
    }

    /// An answer is complete: folds in what is held, and what is still missing is asked for again, soon or later.
    pub(super) fn go_on(&mut self, now: Instant, at: usize) {
        self.drain(now, at);
        let incarnation = &self.incarnations[at];
        if incarnation.is_missing() && !incarnation.pace.allows_soon(now) {
            self.drain_past(now, at, "the publisher is asked again later");
        }
    }

    /// Folds in all that is held, past what is missing: it cannot be had, or not now.
    pub(super) fn drain_past(&mut self, now: Instant, at: usize, why: &str) {
        while let Some((id, entry)) = self.incarnations[at].held.pop() {
            let next = self.incarnations[at].next();
            if id < next {
                continue;
            }
            if id > next {
                self.pass(now, at, id, why);
            }
            self.incarnations[at].cursor = Some(id);
            self.fold_in(now, entry, Arrival::Late);
        }
        if self.incarnations[at].is_missing() {
            let beyond = self.incarnations[at].seen.saturating_add(1);
            self.pass(now, at, beyond, why);
            self.incarnations[at].cursor = Some(beyond - 1);
        }
    }

    /// Goes on at an event though those before it are missing: the target lacks them.
    pub(super) fn pass(&mut self, now: Instant, at: usize, id: u64, why: &str) {
        let from = self.incarnations[at].next();
        self.open_gap();
        let reason: Reason = Arc::from(format!("events {from} to {} are missing: {why}", id.saturating_sub(1)));
        let first = self.incarnations[at].hole.is_none();
        let alone = !self.rank.is_lacking();
        self.close_degraded(now, &reason, first);
        let alone = alone.then(|| self.rank.lacks());
        let incarnation = &mut self.incarnations[at];
        if incarnation.recoverable {
            incarnation.hole.get_or_insert(Hole { from, alone });
        }
    }

    /// Folds one event in.
    pub(super) fn fold_in(&mut self, now: Instant, entry: Entry, arrival: Arrival) {
        self.counters.messages += 1;
        match entry {
            Ok(event) if self.is_ours(&event) => self.rank.apply_router(now, event, arrival, &self.fold),
            Ok(_) => self.rank.mismatched(),
            Err(error) if error.event_id.is_some() => self.rank.unusable(now, &error),
            Err(_) => self.rank.unnumbered(),
        }
    }

    pub(super) fn is_ours(&self, event: &RouterEvent) -> bool {
        event.worker_id == self.config.worker_id && event.event.dp_rank == self.config.dp_rank
    }

    /// Whether it empties our target.
    pub(super) fn is_clear(&self, entry: &Entry) -> bool {
        let Ok(event) = entry else { return false };
        matches!(event.event.data, KvData::Cleared) && self.is_ours(event) && Rank::is_own(&event.domain)
    }

    /// Who serves without an answer: a publisher whose events we have from its first on, or, where nobody serves, one that
    /// has no recovery or does not answer.
    pub(super) fn promote(&mut self, now: Instant) {
        let candidates = (0..self.incarnations.len()).rev().take_while(|at| self.role(*at) == Role::Candidate);
        let idle = |at: &usize| matches!(self.incarnations[*at].phase, Phase::Idle) && !self.incarnations[*at].held.is_empty();
        let nobody = self.serving.is_none() && self.gone.is_none();
        let found = candidates.filter(idle).find(|at| {
            let incarnation = &self.incarnations[*at];
            let whole = incarnation.held.first().is_some_and(|first| first <= 1);
            let alone = !incarnation.recoverable || incarnation.trouble.is_some();
            alone && (whole || nobody)
        });
        let Some(at) = found else { return };
        let Some(first) = self.incarnations[at].held.first() else { return };
        self.speak(now, at);
        self.rank.forget();
        self.close_rebuilt();
        if first <= 1 {
            self.rank.begin_whole();
        } else {
            let incarnation = &mut self.incarnations[at];
            let why = incarnation.trouble.as_deref().unwrap_or("the publisher has no recovery that can be asked");
            let reason = Arc::from(format!("joined at event {first}, and the ones before are not known: {why}"));
            incarnation.resync = incarnation.recoverable;
            self.rank.lack(now, &reason);
        }
        if let Some(entry) = self.incarnations[at].held.pop_if(first) {
            self.incarnations[at].cursor = Some(first);
            self.fold_in(now, entry, Arrival::Late);
        }
        self.drain(now, at);
        if !self.incarnations[at].recoverable || self.incarnations[at].resync {
            self.drain_past(now, at, "the publisher has no recovery that can be asked, or does not answer");
        }
    }

    /// This publisher serves from now on, and those before it stand by.
    pub(super) fn speak(&mut self, now: Instant, at: usize) {
        let id = self.incarnations[at].id;
        match self.speaker {
            Some(speaker) if speaker == id => {}
            Some(_) => {
                self.counters.restarts += 1;
                self.journal.restarted(now, "another publisher speaks for the rank");
                self.rank.publisher_changed(now);
            }
            None => self.rank.perhaps_restarted(),
        }
        self.speaker = Some(id);
        self.serving = Some(id);
        self.gone = None;
        self.incarnations[..at].iter_mut().for_each(super::incarnation::Incarnation::stand_by);
    }

    pub(super) fn open_gap(&mut self) {
        if !self.gap_open {
            self.gap_open = true;
            self.counters.gaps += 1;
        }
    }

    pub(super) fn close_rebuilt(&mut self) {
        if std::mem::take(&mut self.gap_open) {
            self.counters.rebuilt += 1;
        }
    }

    /// `first`: the target does not lack it already.
    fn close_degraded(&mut self, now: Instant, reason: &Reason, first: bool) {
        if std::mem::take(&mut self.gap_open) {
            self.counters.degraded_gaps += 1;
        }
        if first {
            self.rank.lack(now, reason);
        }
    }
}
