//! What is shown of a rank: its trust and its counters (rule 10).

use std::{sync::Arc, time::Instant};

use super::{
    PlaneFeed,
    answer::UNANSWERED_POLLS,
    incarnation::{Incarnation, Link, Phase, Purpose},
};
use crate::trust::{Activity, Reason};

impl PlaneFeed {
    /// Brings the shared status up to date, and logs each change of trust once.
    pub(super) fn show(&mut self, now: Instant) {
        self.clock = Some(now);
        let (connected, last_seq) = match self.serving() {
            Some(serving) => (serving.link == Link::Up, serving.cursor),
            None => (self.incarnations.iter().any(|incarnation| incarnation.link == Link::Up), None),
        };
        (self.counters.connected, self.counters.last_seq) = (connected, last_seq);
        self.counters.replay_pending = self.incarnations.iter().any(|incarnation| !matches!(incarnation.phase, Phase::Idle));
        self.counters.held_bytes = self.incarnations.iter().map(|incarnation| incarnation.held.bytes()).sum();
        let before = self.rank.show(&self.activity(), &self.fold, last_seq);
        if self.incarnations.iter().any(|incarnation| matches!(incarnation.phase, Phase::Applying(_))) {
            self.rank.hide_digest();
        }
        let status = self.rank.status();
        if let Some(before) = before {
            self.journal.trust_changed(now, before, status);
        }
        self.status.publish_rank(0, status);
        self.status.publish(&self.counters);
    }

    fn serving(&self) -> Option<&Incarnation> {
        self.serving.and_then(|id| self.position(id)).map(|at| &self.incarnations[at])
    }

    fn activity(&self) -> Activity {
        let Some(serving) = self.serving() else { return self.vacancy() };
        if let Some(newer) = self.incarnations.last().filter(|newer| newer.id != serving.id) {
            return successor(newer);
        }
        if self.incarnations.iter().any(|other| other.id != serving.id && other.added == serving.added) {
            return unsure("two publishers claim the rank, and which one is newer cannot be told");
        }
        if matches!(&serving.phase, Phase::Applying(takeover) if takeover.answered.is_some()) {
            return Activity::Recovering("taking over the publisher's complete state");
        }
        let needs = serving.query().is_some_and(|query| query.purpose == Purpose::Need);
        if let Some(trouble) = serving.trouble.as_ref().filter(|_| needs || serving.wants().is_some()) {
            return unsure(&format!("what was missed is not known: {trouble}"));
        }
        if needs || serving.is_missing() || serving.lost || serving.resync {
            return Activity::Recovering("asking the publisher for what was missed");
        }
        if serving.link != Link::Up {
            return Activity::Disconnected;
        }
        if serving.unverified && serving.recoverable {
            return Activity::Recovering("asking the publisher for what was missed");
        }
        if serving.unverified {
            return unsure("events may have been missed, and only the next one tells");
        }
        if serving.polls_unanswered >= UNANSWERED_POLLS {
            return unsure("the publisher neither publishes nor answers");
        }
        Activity::Following
    }

    /// Nobody serves.
    fn vacancy(&self) -> Activity {
        let syncing = |incarnation: &Incarnation| incarnation.recoverable && incarnation.trouble.is_none();
        if self.gone.is_some() {
            return match self.incarnations.iter().any(syncing) {
                true => Activity::Recovering("its publisher is gone, and the next one is asked for its complete state"),
                false => unsure("its publisher is gone"),
            };
        }
        let Some(newest) = self.incarnations.last() else { return unsure("no publisher is known") };
        if self.incarnations.iter().any(|incarnation| syncing(incarnation) && incarnation.link == Link::Up) {
            return Activity::Recovering("asking the publisher for its complete state");
        }
        if let Some(trouble) = &newest.trouble {
            return unsure(&format!("the publisher's state is not known: {trouble}"));
        }
        match newest.link {
            Link::Never | Link::Down => Activity::Disconnected,
            Link::Up => Activity::Following,
        }
    }
}

/// A newer publisher than the serving one is there, and not complete.
fn successor(newer: &Incarnation) -> Activity {
    if !newer.recoverable {
        return unsure("a newer publisher has no recovery that can be asked, and its first event was not seen");
    }
    match &newer.trouble {
        Some(trouble) => unsure(&format!("a newer publisher's state is not known: {trouble}")),
        None => Activity::Recovering("a newer publisher is asked for its complete state"),
    }
}

fn unsure(reason: &str) -> Activity {
    let reason: Reason = Arc::from(reason);
    Activity::Unsure(reason)
}
