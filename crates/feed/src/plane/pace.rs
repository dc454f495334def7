//! When a publisher may be asked again: at once, then less and less often, so that a lossy link does not become a storm of
//! queries and a publisher that does not answer is not pestered.

use std::time::{Duration, Instant};

use super::config::PlaneLimits;

/// Waits between the queries to one publisher.
#[derive(Debug)]
pub(crate) struct Pace {
    limits: PlaneLimits,
    /// Spreads the tries of ranks that failed together.
    spread: u64,
    /// Queries since it was quiet.
    asked: u32,
    /// Failures since one was answered.
    failures: u32,
    /// Gaps in a row that the publisher's ring did not reach back to.
    dumps: u32,
    /// Its ring was too short for the waits.
    is_short: bool,
    not_before: Option<Instant>,
}

/// What a query was answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    /// What was asked for.
    AsAsked,
    /// With everything, though only what followed an event was asked for.
    ByDump,
}

impl Pace {
    pub(crate) fn new(limits: PlaneLimits, spread: u64) -> Self {
        Self { limits, spread, asked: 0, failures: 0, dumps: 0, is_short: false, not_before: None }
    }

    pub(crate) fn allows(&self, now: Instant) -> bool {
        self.due(now) <= now
    }

    /// Whether it may be asked so soon that events can wait for the answer.
    pub(crate) fn allows_soon(&self, now: Instant) -> bool {
        self.allows(now + self.limits.pause_longest)
    }

    /// When to ask; `earliest` where nothing stands against it.
    pub(crate) fn due(&self, earliest: Instant) -> Instant {
        self.not_before.unwrap_or(earliest)
    }

    /// A query is asked.
    pub(crate) fn begin(&mut self, now: Instant) {
        if self.failures == 0 && self.not_before.is_some_and(|at| now >= at + self.limits.pause_reset) {
            (self.asked, self.dumps, self.is_short) = (0, 0, false);
        }
        self.asked = self.asked.saturating_add(1);
    }

    pub(crate) fn answered(&mut self, now: Instant, answered: Answered) {
        let PlaneLimits { pause_first, pause_longest, retry_longest, .. } = self.limits;
        self.failures = 0;
        let wait = match answered {
            Answered::AsAsked => {
                self.dumps = 0;
                doubled(pause_first, self.asked).min(if self.is_short { pause_first } else { pause_longest })
            }
            Answered::ByDump => {
                // Sooner next time, so that the ring still has it; if that does not help, less often.
                self.is_short = true;
                self.dumps = self.dumps.saturating_add(1);
                if self.dumps == 1 { pause_first } else { doubled(pause_longest, self.dumps - 1).min(retry_longest) }
            }
        };
        self.not_before = Some(now + wait);
    }

    pub(crate) fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        let wait = doubled(self.limits.pause_first, self.failures).min(self.limits.retry_longest);
        // Up to a quarter more, differently for each publisher and try.
        let part = self.spread.rotate_left(8u32.wrapping_mul(self.failures)) & 0xff;
        self.not_before = Some(now + wait + wait * part as u32 / 1024);
    }
}

/// `first` for the first time, then twice as long as the time before.
fn doubled(first: Duration, times: u32) -> Duration {
    first.saturating_mul(1u32.checked_shl(times.saturating_sub(1)).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lossy_minute_costs_a_query_a_second_and_quiet_resets_it() {
        let limits = PlaneLimits::default();
        let mut pace = Pace::new(limits, 7);
        let start = Instant::now();
        let (mut now, mut waits) = (start, Vec::new());
        assert!(pace.allows(now), "the first at once");
        while now < start + Duration::from_secs(60) {
            pace.begin(now);
            pace.answered(now, Answered::AsAsked);
            let due = pace.due(now);
            assert!(!pace.allows(due - Duration::from_millis(1)) && pace.allows(due));
            waits.push((due - now).as_millis());
            now = due;
        }
        assert_eq!(waits[..5], [200, 400, 800, 1000, 1000]);
        assert!(waits.len() <= 62, "{}", waits.len());
        now += limits.pause_longest + limits.pause_reset;
        pace.begin(now);
        pace.answered(now, Answered::AsAsked);
        assert_eq!(pace.due(now), now + limits.pause_first);
    }

    #[test]
    fn a_ring_that_is_too_short_is_asked_sooner_and_dumps_in_a_row_less_and_less_often() {
        let limits = PlaneLimits::default();
        let mut pace = Pace::new(limits, 7);
        let now = Instant::now();
        let mut wait = |answered| {
            pace.begin(now);
            pace.answered(now, answered);
            (pace.due(now) - now).as_millis()
        };
        let waits = [(); 6].map(|()| wait(Answered::AsAsked));
        assert_eq!(waits, [200, 400, 800, 1000, 1000, 1000]);
        let waits = [Answered::ByDump, Answered::AsAsked, Answered::AsAsked].map(&mut wait);
        assert_eq!(waits, [200, 200, 200]);
        let waits = [(); 8].map(|()| wait(Answered::ByDump));
        assert_eq!(waits, [200, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
    }

    #[test]
    fn failures_wait_longer_each_time_and_never_end() {
        let limits = PlaneLimits::default();
        let mut pace = Pace::new(limits, 0x0123_4567_89ab_cdef);
        let mut now = Instant::now();
        let mut waits = Vec::new();
        for _ in 0..100 {
            pace.begin(now);
            pace.failed(now);
            waits.push((pace.due(now) - now).as_millis());
            now = pace.due(now);
            assert!(pace.allows(now));
        }
        for (at, wait) in waits.iter().enumerate() {
            let plain = (200u128 << at.min(20)).min(30_000);
            assert!((plain..plain + plain / 4 + 1).contains(wait), "{wait} after {at} tries");
        }
        assert_ne!(waits[98], waits[99], "ranks that failed together do not go on together");
        pace.answered(now, Answered::AsAsked);
        pace.failed(now);
        assert!(pace.allows(now + 2 * limits.pause_first), "waits begin anew after an answer");
    }
}
