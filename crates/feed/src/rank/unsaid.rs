//! A cache reset that passed through us, until the engine's own clear event has come (rule 5).

use std::time::Instant;

use super::Arrival;
use crate::demand::ON_ITS_WAY;

/// A reset whose clear event was not seen to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnsaidClear {
    reset: Instant,
    /// It may have come unseen: a replay brought a clear event of unknown age, or the engine restarted about then and the
    /// cache that was reset was its last life's.
    pub(super) perhaps_said: bool,
}

/// What a batch tells of the clear event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It may still come.
    Open,
    /// It has come, or may have.
    Said,
    /// There will be none.
    Missing,
}

impl UnsaidClear {
    pub(super) fn new(reset: Instant) -> Self {
        Self { reset, perhaps_said: false }
    }

    /// Whether the reset may still show in what is published.
    pub(super) fn is_on_its_way(&self, now: Instant) -> bool {
        now < self.reset + ON_ITS_WAY
    }

    /// Looks whether a batch answers the reset; `clears`: there is a clear event in it. The engine says its clear at the head of the
    /// first batch after it; what comes late may have been published before. Long after the reset, a live batch without one tells
    /// that there will be none.
    pub(super) fn batch(&mut self, now: Instant, clears: bool, arrival: Arrival) -> Answer {
        match (arrival, clears) {
            (Arrival::Live, true) => return Answer::Said,
            (Arrival::Late, true) => self.perhaps_said = true,
            (Arrival::Live, false) if !self.is_on_its_way(now) => {
                return if self.perhaps_said { Answer::Said } else { Answer::Missing };
            }
            (Arrival::Live | Arrival::Late, false) => {}
        }
        Answer::Open
    }
}
