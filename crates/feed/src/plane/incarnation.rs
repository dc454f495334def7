//! One publisher of the rank: where its stream stands, what is missing, and what is asked.

use std::time::Instant;

use wire::recovery::Listing;

use super::{
    config::{PlaneLimits, PlaneQuery, QueryId, Source},
    held::Held,
    pace::Pace,
    takeover::{Collected, Takeover},
};
use crate::trust::Reason;

/// How many events a late copy may be behind the last one folded in: more than fit into the queues between a publisher and us,
/// 32 MiB at either end, at the 40 bytes that the smallest event takes.
const MOST_BEHIND: u64 = 1 << 21;

/// A restarted publisher is another one: they have nothing in common but the rank.
#[derive(Debug)]
pub(crate) struct Incarnation {
    pub(crate) id: u64,
    pub(crate) recoverable: bool,
    /// When it was first heard of: later ones are newer.
    pub(crate) order: u64,
    pub(crate) added: Instant,
    pub(crate) link: Link,
    /// The last event that was folded in; `None` while nothing of it is.
    pub(crate) cursor: Option<u64>,
    /// The highest event heard of. Beyond the cursor: something is missing.
    pub(crate) seen: u64,
    /// Missing events that later ones were folded in without.
    pub(crate) hole: Option<Hole>,
    /// What is held is no state of it: it has to begin with a dump.
    pub(crate) resync: bool,
    /// Its live events have numbers far below those it told of, and no answer has agreed with them since.
    pub(crate) denied: bool,
    /// Events were dropped on our side, or could not even be numbered.
    pub(crate) lost: bool,
    /// The connection was lost, and whether anything was missed is not known.
    pub(crate) unverified: bool,
    pub(crate) phase: Phase,
    pub(crate) held: Held,
    pub(crate) pace: Pace,
    /// Why its last query failed.
    pub(crate) trouble: Option<Reason>,
    pub(crate) polls_unanswered: u32,
    /// Since when its stream stands still.
    pub(crate) quiet_since: Instant,
    pub(crate) polled: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Never,
    Up,
    Down,
}

/// Where events are missing, with the target lacking them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hole {
    /// The first of them.
    pub(crate) from: u64,
    /// [`crate::rank::Rank::lacks`] if this is all that the target lacks.
    pub(crate) alone: Option<u64>,
}

#[derive(Debug)]
pub(crate) enum Phase {
    /// Events are folded in as they come.
    Idle,
    Asking(Box<Query>),
    /// A dump is written into the lanes; events are held.
    Applying(Box<Takeover>),
}

/// Why it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Something is missing, or may be.
    Need,
    /// Its stream stands still.
    Poll,
}

/// The pending query of one publisher.
#[derive(Debug)]
pub(crate) struct Query {
    pub(crate) id: QueryId,
    pub(crate) start: Option<u64>,
    pub(crate) purpose: Purpose,
    /// The highest event heard of when it was asked: the publisher has it.
    pub(crate) seen: u64,
    /// It answers these, too.
    pub(crate) lost: bool,
    pub(crate) unverified: bool,
    /// It begins in a hole, so events that were folded in already come again.
    pub(crate) heals: bool,
    /// Events were missing in its answer.
    pub(crate) holed: bool,
    /// The event that comes next in the answer.
    pub(crate) next: u64,
    pub(crate) listing: Option<Listing>,
    pub(crate) page: u32,
    pub(crate) dump: Collected,
    /// Events of the dump that could not be used.
    pub(crate) unusable: u64,
    /// Worker and rank of the first event of the dump that is of another target.
    pub(crate) foreign: Option<(u64, u32)>,
    /// When it was sent; `None` while it waits for its turn.
    pub(crate) began: Option<Instant>,
    pub(crate) deadline: Option<Instant>,
}

impl Incarnation {
    pub(crate) fn new(now: Instant, source: Source, order: u64, limits: PlaneLimits) -> Self {
        Self {
            id: source.publisher_id,
            recoverable: source.recoverable,
            order,
            added: now,
            link: Link::Never,
            cursor: None,
            seen: 0,
            hole: None,
            resync: false,
            denied: false,
            lost: false,
            unverified: false,
            phase: Phase::Idle,
            held: Held::default(),
            pace: Pace::new(limits, source.publisher_id),
            trouble: None,
            polls_unanswered: 0,
            quiet_since: now,
            polled: None,
        }
    }

    /// The events up to `id` are folded in; what was held of them is dropped.
    pub(crate) fn reached(&mut self, id: u64) {
        self.held.drop_through(id);
        self.cursor = Some(id);
        self.seen = self.seen.max(id);
    }

    /// The event that is next.
    pub(crate) fn next(&self) -> u64 {
        self.cursor.map_or(0, |cursor| cursor.saturating_add(1))
    }

    /// Whether events are known to be missing after the cursor.
    pub(crate) fn is_missing(&self) -> bool {
        self.cursor.is_some_and(|cursor| self.seen > cursor)
    }

    /// Whether an event with this number cannot be a late copy.
    pub(crate) fn denies(&self, id: u64) -> bool {
        let waits = self.resync || matches!(self.phase, Phase::Applying(_));
        !waits && self.cursor.is_some_and(|cursor| cursor.saturating_sub(id) > MOST_BEHIND)
    }

    /// Whether the last event that an answer tells of is denied by those that came live.
    pub(crate) fn is_denied(&self, last_event_id: u64) -> bool {
        self.denied && last_event_id.saturating_sub(self.seen) > MOST_BEHIND
    }

    /// Whether something may be missing that its numbers do not show.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.lost || self.hole.is_some() || self.resync || self.query().is_some_and(|query| query.lost)
    }

    /// Whether even the next event has to wait: the answer to come is, or may be, of a state in which it is not.
    pub(crate) fn must_hold(&self) -> bool {
        match &self.phase {
            Phase::Idle => false,
            Phase::Asking(query) => query.start.is_none() || query.heals || query.listing == Some(Listing::TreeDump),
            Phase::Applying(_) => true,
        }
    }

    /// What it is to be asked, if it is to be: everything, or from an event on.
    pub(crate) fn wants(&self) -> Option<Option<u64>> {
        if !self.recoverable || !matches!(self.phase, Phase::Idle) {
            return None;
        }
        match (self.cursor, self.hole) {
            // Events come before the answer, so that there is no gap between the two.
            (None, _) => (self.link == Link::Up).then_some(None),
            (Some(_), _) if self.resync => Some(None),
            (Some(_), Some(hole)) => Some(Some(hole.from)),
            (Some(_), None) => {
                let needs = self.is_missing() || self.lost || (self.unverified && self.link == Link::Up);
                needs.then(|| Some(self.next()))
            }
        }
    }

    /// When its stream has stood still for so long that it is asked for more.
    pub(crate) fn poll_at(&self, limits: &PlaneLimits) -> Option<Instant> {
        let still = self.recoverable && self.link == Link::Up && matches!(self.phase, Phase::Idle);
        if !still || self.cursor.is_none() || self.wants().is_some() {
            return None;
        }
        let again = self.polled.map(|polled| polled + limits.idle_again);
        Some((self.quiet_since + limits.idle).max(again.unwrap_or(self.quiet_since)))
    }

    /// Begins to wait for an answer.
    pub(crate) fn ask(&mut self, now: Instant, query: PlaneQuery, purpose: Purpose, limits: &PlaneLimits) {
        let PlaneQuery { id, start_event_id: start, .. } = query;
        match purpose {
            Purpose::Need => self.pace.begin(now),
            Purpose::Poll => self.polled = Some(now),
        }
        self.phase = Phase::Asking(Box::new(Query {
            id,
            start,
            purpose,
            seen: self.seen.max(self.cursor.unwrap_or(0)),
            lost: std::mem::take(&mut self.lost),
            unverified: std::mem::take(&mut self.unverified),
            heals: self.hole.is_some() && start.is_some(),
            holed: false,
            next: start.unwrap_or(0),
            listing: None,
            page: 0,
            dump: Collected::default(),
            unusable: 0,
            foreign: None,
            began: Some(now),
            deadline: Some(now + limits.query_silence),
        }));
    }

    /// The pending query is of no further use.
    pub(crate) fn take_query(&mut self) -> Option<Box<Query>> {
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Asking(query) => Some(query),
            other @ (Phase::Idle | Phase::Applying(_)) => {
                self.phase = other;
                None
            }
        }
    }

    pub(crate) fn query(&self) -> Option<&Query> {
        match &self.phase {
            Phase::Asking(query) => Some(query),
            Phase::Idle | Phase::Applying(_) => None,
        }
    }

    pub(crate) fn query_mut(&mut self) -> Option<&mut Query> {
        match &mut self.phase {
            Phase::Asking(query) => Some(query),
            Phase::Idle | Phase::Applying(_) => None,
        }
    }

    /// A newer one speaks for the rank: nothing of this one is of use.
    pub(crate) fn stand_by(&mut self) {
        self.cursor = None;
        self.seen = 0;
        self.hole = None;
        self.resync = false;
        self.denied = false;
        self.lost = false;
        self.unverified = false;
        self.phase = Phase::Idle;
        self.held.clear();
        self.trouble = None;
        self.polls_unanswered = 0;
    }
}
