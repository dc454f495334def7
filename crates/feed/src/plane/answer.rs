//! Answers: events from the publisher's ring, a dump, or the word that there is nothing; and how each gap ends.

use std::{sync::Arc, time::Instant};

use wire::{
    recovery::{Answer, Listing, Part, Tail},
    router::RouterFault,
};

use super::{
    PlaneFeed, PlaneQuery, QueryId, Role,
    held::Entry,
    incarnation::{Hole, Phase, Purpose},
    pace::Answered,
    takeover::Step,
};
use crate::rank::Arrival;

/// Polls in a row without an answer, and without an event, before the target is doubted.
pub(super) const UNANSWERED_POLLS: u32 = 3;

/// What a dump replaces, if it is complete.
const EVERYTHING: &str = "all";

impl PlaneFeed {
    /// A part of the answer to a query, in their order. What belongs to no pending query is ignored.
    pub fn answered(&mut self, now: Instant, id: QueryId, part: Part) -> Option<PlaneQuery> {
        let at = self.asking(id)?;
        let limits = self.config.limits;
        if let Some(query) = self.incarnations[at].query_mut() {
            let longest = query.began.map(|began| began + limits.query_total);
            query.deadline = Some((now + limits.query_silence).min(longest.unwrap_or(now + limits.query_silence)));
        }
        match part {
            // The lanes may change with each; that they do is shown before, and how they look follows with the end.
            Part::Event(entry) => {
                let asked_for = self.purpose(at);
                self.answer_event(now, at, entry);
                if self.purpose(at) == asked_for {
                    return None;
                }
            }
            Part::Begin(listing) => self.answer_begins(now, at, listing),
            Part::End(tail) => self.answer_ends(now, at, &tail),
            Part::Other(answer) => self.answer_other(now, at, answer),
        }
        self.settle(now)
    }

    /// A query came to nothing: not sent, refused, broken off.
    pub fn query_failed(&mut self, now: Instant, id: QueryId, reason: &str) -> Option<PlaneQuery> {
        let at = self.asking(id)?;
        self.fail(now, at, reason);
        self.settle(now)
    }

    fn purpose(&self, at: usize) -> Option<Purpose> {
        self.incarnations[at].query().map(|query| query.purpose)
    }

    fn answer_begins(&mut self, now: Instant, at: usize, listing: Listing) {
        let Some(query) = self.incarnations[at].query_mut() else { return };
        let fits = match listing {
            Listing::Events => query.start.is_some(),
            Listing::TreeDump => true,
        };
        if !fits || query.listing.is_some_and(|before| before != listing) {
            return self.fail(now, at, "its answer is of another kind than was asked for");
        }
        query.listing = Some(listing);
    }

    fn answer_event(&mut self, now: Instant, at: usize, entry: Entry) {
        let Some(query) = self.incarnations[at].query() else { return };
        match query.listing {
            Some(Listing::TreeDump) => self.collect(now, at, entry),
            Some(Listing::Events) if query.heals => self.heal(now, at, entry),
            Some(Listing::Events) => self.replay(now, at, entry),
            None => self.fail(now, at, "its answer has no beginning"),
        }
    }

    /// An event of a dump.
    fn collect(&mut self, now: Instant, at: usize, entry: Entry) {
        let most = self.config.limits.dump_blocks;
        let ours = entry.as_ref().is_ok_and(|event| self.is_ours(event));
        let Some(query) = self.incarnations[at].query_mut() else { return };
        match entry {
            Ok(event) if ours => {
                if let Err(reason) = query.dump.push(event) {
                    self.rank.ignore(reason);
                } else if query.dump.named() > most {
                    self.fail(now, at, "its dump has more blocks than are allowed");
                }
            }
            Ok(event) => {
                query.foreign.get_or_insert((event.worker_id, event.event.dp_rank));
                self.rank.mismatched();
            }
            Err(error) => match error.fault {
                RouterFault::Tier(_) => {}
                RouterFault::Missing(_) | RouterFault::Field { .. } | RouterFault::Data(_) => query.unusable += 1,
            },
        }
    }

    /// An event that was asked for because it is missing. What came live meanwhile is folded in around it.
    fn replay(&mut self, now: Instant, at: usize, entry: Entry) {
        let Some(id) = number(&entry) else { return self.fold_in(now, entry, Arrival::Late) };
        self.fold_held_before(now, at, id);
        let next = self.incarnations[at].next();
        if id < next {
            return;
        }
        if let Some(query) = self.incarnations[at].query_mut() {
            // It stood still because something was missed.
            query.purpose = Purpose::Need;
        }
        self.open_gap();
        if id > next && !self.is_clear(&entry) {
            self.lack_at_publisher(now, at, id);
        }
        self.incarnations[at].reached(id);
        self.doubt_foreign(now, &entry);
        self.fold_in(now, entry, Arrival::Late);
    }

    /// The answer to our question tells of another target, and so lacks what it should tell of ours.
    fn doubt_foreign(&mut self, now: Instant, entry: &Entry) {
        if let Some(event) = entry.as_ref().ok().filter(|event| !self.is_ours(event)) {
            let reason = self.foreign((event.worker_id, event.event.dp_rank));
            self.rank.lack(now, &reason);
        }
    }

    fn foreign(&self, (worker_id, dp_rank): (u64, u32)) -> Arc<str> {
        let ours = (self.config.worker_id, self.config.dp_rank);
        Arc::from(format!(
            "the publisher was asked for worker {} rank {}, and its answer has events of worker {worker_id} rank {dp_rank}",
            ours.0, ours.1
        ))
    }

    /// Folds in what came live before this event; what is missing in between is not in the answer either.
    fn fold_held_before(&mut self, now: Instant, at: usize, id: u64) {
        while let Some(first) = self.incarnations[at].held.first().filter(|first| *first < id) {
            let next = self.incarnations[at].next();
            if first > next {
                self.lack_at_publisher(now, at, first);
            }
            let Some(entry) = self.incarnations[at].held.pop_if(first) else { break };
            if first >= next {
                self.incarnations[at].cursor = Some(first);
                self.fold_in(now, entry, Arrival::Late);
            }
        }
    }

    /// An event from a hole on: events that were folded in without those of the hole come again, in their order. Each block is
    /// then as the last event says that names it, so the lanes end as if nothing had been missing.
    fn heal(&mut self, now: Instant, at: usize, entry: Entry) {
        let Some(id) = number(&entry) else { return self.fold_in(now, entry, Arrival::Late) };
        let clears = self.is_clear(&entry);
        let Some(query) = self.incarnations[at].query_mut() else { return };
        if id < query.next {
            return;
        }
        let skips = id > query.next && !clears;
        query.holed = (query.holed || skips) && !clears;
        query.next = id.saturating_add(1);
        if self.incarnations[at].cursor.is_none_or(|cursor| id > cursor) {
            self.fold_held_before(now, at, id);
            self.incarnations[at].reached(id);
        }
        self.doubt_foreign(now, &entry);
        self.fold_in(now, entry, Arrival::Late);
    }

    fn answer_ends(&mut self, now: Instant, at: usize, tail: &Tail) {
        let Some(query) = self.incarnations[at].query_mut() else { return };
        if tail.page != query.page || query.listing != Some(tail.listing) {
            return self.fail(now, at, "the pages of its answer do not follow each other");
        }
        query.page += 1;
        if !tail.last {
            return;
        }
        if self.incarnations[at].is_denied(tail.last_event_id) {
            return self.fail(now, at, &format!("its answer ends with event {}, far beyond its live events", tail.last_event_id));
        }
        self.incarnations[at].denied = false;
        match tail.listing {
            Listing::TreeDump if tail.reset_scope != EVERYTHING => self.fail(now, at, "its dump is of a part only"),
            Listing::TreeDump => self.begin_takeover(now, at, tail),
            Listing::Events => self.replayed_to(now, at, tail.last_event_id),
        }
    }

    /// The answer from the ring is complete.
    fn replayed_to(&mut self, now: Instant, at: usize, last_event_id: u64) {
        let Some(query) = self.incarnations[at].query() else { return };
        if last_event_id < query.seen {
            return self.contradicted(now, at);
        }
        let (heals, next) = (query.heals, query.next);
        self.drain(now, at);
        if heals {
            self.healed(now, at, last_event_id.saturating_add(1) > next);
        }
        self.fold_held_before(now, at, last_event_id.saturating_add(1));
        if self.incarnations[at].next() <= last_event_id {
            self.lack_at_publisher(now, at, last_event_id.saturating_add(1));
            let incarnation = &mut self.incarnations[at];
            incarnation.cursor = Some(last_event_id);
            incarnation.seen = incarnation.seen.max(last_event_id);
        }
        self.query_done(now, at);
    }

    /// The end of a hole. What the publisher does not have is missing for good; else the target is whole, if nothing else is
    /// missing.
    fn healed(&mut self, now: Instant, at: usize, stops_short: bool) {
        let Some(query) = self.incarnations[at].query() else { return };
        let holed = query.holed || stops_short;
        let Some(Hole { alone, .. }) = self.incarnations[at].hole.take() else { return };
        if holed {
            self.rank.lack(now, &Arc::from("events were missed that the publisher does not have either"));
        } else if alone == Some(self.rank.lacks()) {
            self.rank.begin_whole();
        }
    }

    /// What is missing before this event is not to be had from the publisher.
    fn lack_at_publisher(&mut self, now: Instant, at: usize, id: u64) {
        self.pass(now, at, id, "the publisher does not have them either");
        // Asking again would bring the same.
        self.incarnations[at].hole = None;
    }

    fn answer_other(&mut self, now: Instant, at: usize, answer: Answer) {
        let Some(query) = self.incarnations[at].query() else { return };
        match answer {
            Answer::TooNew { newest_available, .. } if query.start.is_some() => {
                if newest_available < query.seen {
                    self.contradicted(now, at);
                } else {
                    self.query_done(now, at);
                }
            }
            Answer::TooNew { .. } => self.fail(now, at, "it calls everything too new"),
            Answer::InvalidRange { start_id, end_id } => self.fail(now, at, &format!("it calls {start_id} to {end_id} no range")),
            Answer::TreeDumpFailed { message, .. } => self.fail(now, at, &format!("it could not dump: {message}")),
            Answer::Error(message) => self.fail(now, at, &message),
            Answer::Unknown(name) => self.fail(now, at, &format!("its answer {name:?} is not known")),
            Answer::Events { .. } | Answer::TreeDump { .. } => self.fail(now, at, "its answer did not come in parts"),
        }
    }

    /// The query answered all that it was asked for.
    fn query_done(&mut self, now: Instant, at: usize) {
        let incarnation = &mut self.incarnations[at];
        if let Some(query) = incarnation.take_query() {
            match query.purpose {
                Purpose::Need => incarnation.pace.answered(now, Answered::AsAsked),
                Purpose::Poll => {}
            }
        }
        incarnation.trouble = None;
        incarnation.polls_unanswered = 0;
        self.go_on(now, at);
    }

    /// The publisher says that it never published what it did publish: it has lost its state and kept its name. It has to begin
    /// anew, and like a failure that waits longer each time.
    fn contradicted(&mut self, now: Instant, at: usize) {
        let incarnation = &mut self.incarnations[at];
        incarnation.take_query();
        incarnation.pace.failed(now);
        incarnation.resync = true;
        incarnation.held.clear();
        incarnation.seen = 0;
        self.journal.restarted(now, "its event numbers began anew");
        self.counters.restarts += 1;
    }

    /// The query is given up. The serving publisher's events go on, past what is missing; time brings the next try.
    pub(super) fn fail(&mut self, now: Instant, at: usize, reason: &str) {
        let serves = self.role(at) == Role::Serves;
        let incarnation = &mut self.incarnations[at];
        let Some(query) = incarnation.take_query() else { return };
        tracing::debug!(stream = %self.config.label, publisher = incarnation.id, start = query.start, reason, "recovery query failed");
        self.counters.replay_failures += 1;
        incarnation.lost |= query.lost;
        incarnation.unverified |= query.unverified;
        if let Some(hole) = incarnation.hole.as_mut().filter(|_| query.heals) {
            hole.from = query.next.max(hole.from);
        }
        match query.purpose {
            Purpose::Poll if !incarnation.is_missing() => {
                incarnation.polls_unanswered = incarnation.polls_unanswered.saturating_add(1);
                return;
            }
            Purpose::Poll | Purpose::Need => {}
        }
        incarnation.pace.failed(now);
        incarnation.trouble = Some(Arc::from(reason));
        let waited = query.began.is_none_or(|began| now > began + self.config.limits.pause_longest);
        let goes_on = waited || !incarnation.pace.allows_soon(now);
        if serves {
            self.drain(now, at);
            if goes_on {
                self.drain_past(now, at, reason);
            }
        }
    }

    fn begin_takeover(&mut self, now: Instant, at: usize, tail: &Tail) {
        let Some(query) = self.incarnations[at].take_query() else { return };
        // A publisher whose ring is empty answers each poll with all it holds.
        let is_news = query.purpose == Purpose::Need || self.incarnations[at].cursor != Some(tail.last_event_id) || self.rank.is_lacking();
        self.speak(now, at);
        // The clear event that a reset waits for may be in it.
        self.rank.perhaps_restarted();
        // What is missing from here on is noted on top of it.
        self.rank.begin_whole();
        if query.unusable > 0 {
            let reason = format!("{} events of the publisher's dump could not be read", query.unusable);
            self.rank.lack(now, &Arc::from(reason));
        }
        if let Some(foreign) = query.foreign {
            let reason = self.foreign(foreign);
            self.rank.lack(now, &reason);
        }
        if tail.lacking {
            self.rank.lack(now, &Arc::from("its publisher missed something of its engine before it was asked for everything"));
        }
        let answered = is_news.then_some(if query.start.is_none() { Answered::AsAsked } else { Answered::ByDump });
        self.incarnations[at].phase = Phase::Applying(Box::new(query.dump.complete(tail.last_event_id, answered)));
        self.take_over(now, at);
    }

    /// The next step of a dump that is written into the lanes.
    pub(super) fn take_over(&mut self, now: Instant, at: usize) {
        let incarnation = &mut self.incarnations[at];
        let Phase::Applying(takeover) = &mut incarnation.phase else { return };
        match takeover.step(now, &mut self.rank, &self.fold) {
            Step::More => return,
            Step::Done => {}
        }
        let answered = takeover.answered;
        self.counters.dumps += u64::from(takeover.blocks > 0);
        incarnation.cursor = Some(takeover.last_event_id);
        incarnation.seen = incarnation.seen.max(takeover.last_event_id);
        incarnation.phase = Phase::Idle;
        incarnation.hole = None;
        incarnation.resync = false;
        incarnation.trouble = None;
        incarnation.polls_unanswered = 0;
        if let Some(answered) = answered {
            incarnation.pace.answered(now, answered);
        }
        self.close_rebuilt();
        self.go_on(now, at);
    }
}

fn number(entry: &Entry) -> Option<u64> {
    match entry {
        Ok(event) => Some(event.event.event_id),
        Err(error) => error.event_id,
    }
}
