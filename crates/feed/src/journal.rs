//! What a feed writes to the log: each restart and each change of trust once, and never a flood.

use std::time::{Duration, Instant};

use crate::{status::RankStatus, trust::Trust};

/// Lines per [`WINDOW`]; a stream that two engines share, or a hostile one, changes with every message.
const LINES: u32 = 60;
const WINDOW: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Journal {
    /// The stream's name.
    stream: String,
    window: Option<Instant>,
    lines: u32,
}

impl Journal {
    pub(crate) fn new(stream: String) -> Self {
        Self { stream, window: None, lines: 0 }
    }

    pub(crate) fn restarted(&mut self, now: Instant, why: &str) {
        if self.has_room(now) {
            tracing::info!(stream = %self.stream, why, "engine restarted");
        }
    }

    pub(crate) fn trust_changed(&mut self, now: Instant, before: Trust, status: &RankStatus) {
        if !self.has_room(now) {
            return;
        }
        let (stream, rank, reason, blocks) = (&*self.stream, status.rank, &*status.reason, status.blocks);
        let (trust, before) = (status.trust.as_str(), before.as_str());
        match status.trust {
            Trust::Exact | Trust::Recovering => tracing::info!(stream, rank, before, trust, reason, blocks, "trust changed"),
            Trust::Blind | Trust::Degraded => tracing::warn!(stream, rank, before, trust, reason, blocks, "trust changed"),
        }
    }

    /// Takes one line of the window, if there is one. The counters of the status go on without the log.
    fn has_room(&mut self, now: Instant) -> bool {
        if self.window.is_none_or(|began| now >= began + WINDOW) {
            (self.window, self.lines) = (Some(now), 0);
        }
        self.lines = self.lines.saturating_add(1);
        if self.lines == LINES + 1 {
            tracing::warn!(stream = %self.stream, "the stream changes too often, no more of it is logged for a minute");
        }
        self.lines <= LINES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_and_ends_with_its_window() {
        let mut journal = Journal::new("stream".to_owned());
        let now = Instant::now();
        assert_eq!((0..1_000).filter(|_| journal.has_room(now)).count(), LINES as usize);
        assert!(!journal.has_room(now + WINDOW - Duration::from_millis(1)));
        assert!(journal.has_room(now + WINDOW));
    }
}
