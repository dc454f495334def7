//! The prefill under way at one target: which bookings are in it, when each ends, how fast the target is.
//!
//! The first event of a stream ends its prefill. A plain answer shows nothing before its end, so its prefill is taken to end
//! when the target, at the pace learned from streams, has worked off what was booked before it and then its own tokens.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::ask::Answer;

/// The weight of a new sample in the moving mean of the pace.
const SAMPLE_WEIGHT: f64 = 0.2;
/// Samples of fewer tokens tell more about the way to the engine than about its speed.
const LEAST_SAMPLE_TOKENS: u64 = 256;
/// Slower samples come from an engine that was stuck.
const LONGEST_SAMPLE: Duration = Duration::from_secs(120);

/// Names one booking; ordered by when it ends of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PrefillKey {
    due: Due,
    /// Unique within a scheduler.
    number: u64,
}

/// When the prefill of a booking ends of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    At(Instant),
    /// Only with an event or with the end of the answer.
    Open,
}

#[derive(Clone, Copy, Debug)]
struct Booking {
    tokens: u64,
    answer: Answer,
    /// Tokens that were under way before it.
    ahead: u64,
    since: Instant,
}

/// The bookings of one target. What every choice reads comes first.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Prefills {
    /// The sum over `bookings`.
    tokens: u64,
    /// The earliest due time in `bookings`, so that most reads need no look into the tree.
    next_due: Option<Instant>,
    bookings: BTreeMap<PrefillKey, Booking>,
    /// Seconds per token, a moving mean.
    pace: Option<f64>,
}

impl Prefills {
    /// Tokens under way. Call [`Prefills::expire`] before.
    #[inline]
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The learned speed in tokens per second.
    pub(crate) fn tokens_per_second(&self) -> Option<f64> {
        self.pace.map(|pace| 1.0 / pace)
    }

    /// Whether the time of a booking has come.
    #[inline]
    pub(crate) fn has_due(&self, now: Instant) -> bool {
        self.next_due.is_some_and(|due| due <= now)
    }

    /// Ends the bookings whose time has come.
    pub(crate) fn expire(&mut self, now: Instant) {
        while self.has_due(now) {
            if let Some((_, booking)) = self.bookings.pop_first() {
                self.tokens -= booking.tokens;
            }
            self.update_next_due();
        }
    }

    /// Books tokens; `number` is unique. Call [`Prefills::expire`] before.
    pub(crate) fn begin(&mut self, now: Instant, number: u64, tokens: u64, answer: Answer) -> PrefillKey {
        let ahead = self.tokens;
        let due = match (answer, self.pace) {
            (Answer::Plain, Some(pace)) => due_after(now, pace * (ahead + tokens) as f64),
            (Answer::Plain, None) | (Answer::Stream, _) => Due::Open,
        };
        let key = PrefillKey { due, number };
        self.bookings.insert(key, Booking { tokens, answer, ahead, since: now });
        self.tokens += tokens;
        self.update_next_due();
        key
    }

    /// Ends a booking at the first event of its answer. A stream teaches the pace; a plain answer does not: its first event comes with
    /// its end. Does nothing if the booking has ended already.
    pub(crate) fn first_event(&mut self, now: Instant, key: PrefillKey) {
        let Some(booking) = self.end(key) else { return };
        match booking.answer {
            Answer::Stream => self.learn(booking.ahead + booking.tokens, now.saturating_duration_since(booking.since)),
            Answer::Plain => {}
        }
    }

    /// Ends a booking without learning: its answer is over. Does nothing if it has ended already.
    pub(crate) fn abandon(&mut self, key: PrefillKey) {
        self.end(key);
    }

    fn end(&mut self, key: PrefillKey) -> Option<Booking> {
        let booking = self.bookings.remove(&key)?;
        self.tokens -= booking.tokens;
        self.update_next_due();
        Some(booking)
    }

    /// Engines work prefills off in order, so between booking and first event lie the tokens ahead and the booking's own.
    fn learn(&mut self, tokens: u64, elapsed: Duration) {
        if tokens < LEAST_SAMPLE_TOKENS || elapsed > LONGEST_SAMPLE || elapsed.is_zero() {
            return;
        }
        let sample = elapsed.as_secs_f64() / tokens as f64;
        self.pace = Some(self.pace.map_or(sample, |pace| pace + SAMPLE_WEIGHT * (sample - pace)));
    }

    fn update_next_due(&mut self) {
        self.next_due = match self.bookings.first_key_value() {
            Some((PrefillKey { due: Due::At(due), .. }, _)) => Some(*due),
            Some((PrefillKey { due: Due::Open, .. }, _)) | None => None,
        };
    }
}

fn due_after(now: Instant, seconds: f64) -> Due {
    let due = Duration::try_from_secs_f64(seconds).ok().and_then(|wait| now.checked_add(wait));
    due.map_or(Due::Open, Due::At)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Prefills that have learned 1,000 tokens per second.
    fn paced(now: Instant) -> Prefills {
        let mut prefills = Prefills::default();
        let key = prefills.begin(now, 0, 1000, Answer::Stream);
        prefills.first_event(now + SECOND, key);
        assert_eq!(prefills.tokens_per_second(), Some(1000.0));
        assert_eq!(prefills.tokens(), 0);
        prefills
    }

    #[test]
    fn a_plain_answer_ends_once_its_tokens_are_worked_off() {
        let now = Instant::now();
        let mut prefills = paced(now);
        prefills.begin(now, 1, 2000, Answer::Plain);
        prefills.begin(now, 2, 500, Answer::Plain);
        for (after_ms, tokens) in [(1999, 2500), (2000, 500), (2499, 500), (2500, 0)] {
            prefills.expire(now + Duration::from_millis(after_ms));
            assert_eq!(prefills.tokens(), tokens, "after {after_ms} ms");
        }
    }

    #[test]
    fn without_a_pace_a_plain_answer_ends_at_its_end() {
        let now = Instant::now();
        let mut prefills = Prefills::default();
        let key = prefills.begin(now, 1, 2000, Answer::Plain);
        prefills.expire(now + 3600 * SECOND);
        assert_eq!(prefills.tokens(), 2000);
        prefills.abandon(key);
        prefills.abandon(key);
        assert_eq!((prefills.tokens(), prefills.tokens_per_second()), (0, None));
    }

    #[test]
    fn tokens_ahead_count_towards_the_pace() {
        let now = Instant::now();
        let mut prefills = Prefills::default();
        let first = prefills.begin(now, 1, 3000, Answer::Stream);
        let second = prefills.begin(now, 2, 1000, Answer::Stream);
        prefills.first_event(now + 3 * SECOND, first);
        prefills.first_event(now + 4 * SECOND, second);
        let rate = prefills.tokens_per_second().unwrap();
        assert!((rate - 1000.0).abs() < 1e-6, "{rate}");
    }

    #[test]
    fn odd_samples_teach_nothing() {
        let now = Instant::now();
        for (tokens, elapsed) in [(255, SECOND), (1000, 121 * SECOND), (1000, Duration::ZERO)] {
            let mut prefills = Prefills::default();
            let key = prefills.begin(now, 1, tokens, Answer::Stream);
            prefills.first_event(now + elapsed, key);
            assert_eq!((prefills.tokens(), prefills.tokens_per_second()), (0, None));
        }
    }

    #[test]
    fn a_plain_answer_teaches_nothing() {
        let now = Instant::now();
        let mut prefills = Prefills::default();
        let key = prefills.begin(now, 1, 1000, Answer::Plain);
        prefills.first_event(now + SECOND, key);
        assert_eq!((prefills.tokens(), prefills.tokens_per_second()), (0, None));
    }

    #[test]
    fn a_stream_does_not_end_by_time_and_ends_once() {
        let now = Instant::now();
        let mut prefills = paced(now);
        let key = prefills.begin(now, 1, 300, Answer::Stream);
        prefills.expire(now + 3600 * SECOND);
        assert_eq!(prefills.tokens(), 300);
        prefills.first_event(now + SECOND, key);
        let pace = prefills.tokens_per_second();
        prefills.first_event(now + 2 * SECOND, key);
        assert_eq!((prefills.tokens(), prefills.tokens_per_second()), (0, pace));
    }
}
