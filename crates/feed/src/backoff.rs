//! When to ask for a replay again after one failed.

use std::time::{Duration, Instant};

use crate::config::Limits;

/// Waits that double with each failure, and a bound on the tries that time alone starts.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    tries: u32,
    failures: u32,
    not_before: Option<Instant>,
}

impl Backoff {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self { first: limits.retry_first, longest: limits.retry_longest, tries: limits.retries, failures: 0, not_before: None }
    }

    /// Whether a replay may be asked for.
    pub(crate) fn allows(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|at| now >= at)
    }

    /// When to try again without another reason to; `None` when nothing failed or the tries are used up.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.not_before.filter(|_| self.failures <= self.tries)
    }

    pub(crate) fn failed(&mut self, now: Instant) {
        let doubled = 1u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        self.not_before = Some(now + self.first.saturating_mul(doubled).min(self.longest));
        self.failures = self.failures.saturating_add(1);
    }

    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
        self.not_before = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_to_the_longest_and_tries_end() {
        let limits = Limits::default();
        let mut backoff = Backoff::new(&limits);
        let mut now = Instant::now();
        let mut waits = Vec::new();
        assert!(backoff.allows(now));
        loop {
            backoff.failed(now);
            let Some(at) = backoff.retry_at() else { break };
            waits.push((at - now).as_secs());
            assert!(!backoff.allows(at - Duration::from_millis(1)));
            assert!(backoff.allows(at));
            now = at;
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30, 30]);
        assert!(!backoff.allows(now), "a failure beyond the tries still has its wait");
        assert!(backoff.allows(now + limits.retry_longest));
        backoff.succeeded();
        assert_eq!(backoff.retry_at(), None);
        assert!(backoff.allows(now));
    }

    #[test]
    fn any_number_of_failures_is_survived() {
        let mut backoff = Backoff::new(&Limits::default());
        let now = Instant::now();
        for _ in 0..100 {
            backoff.failed(now);
        }
        assert!(backoff.allows(now + Limits::default().retry_longest));
    }
}
