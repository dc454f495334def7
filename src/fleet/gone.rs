//! A token-level worker of which discovery has no record any more: withdrawn, or lost. Pure: `now` is an argument.
//!
//! Who ends in good order takes its record away while it is well, and goes on answering pings while it finishes what it runs: it
//! must get nothing new. A record that runs out while its worker stands still, or that discovery lost with all others, is another
//! matter: a worker of 1.6.1 does not register again. There its health decides, as for any worker (rule 14).

use std::time::{Duration, Instant};

use engine::health::{Down, State, Status};

/// How long a worker that was withdrawn is kept, unless it is dead before: its streams go on, and where its record comes back it is
/// the same worker with the same index.
const WITHDRAWN_FOR: Duration = Duration::from_secs(30);
/// How long it is awaited that a worker that was lost answers again.
const LOST_FOR: Duration = Duration::from_secs(120);
/// By then it is known whether a worker that seemed well when its record went answers still.
const SURE_AFTER: Duration = Duration::from_secs(3);
/// How the health of a worker begins whose host answers that nothing listens there: its process has ended.
const REFUSED: &str = "connection refused";
/// What is in that of a worker whose requests go over NATS, where nobody takes them. Its process has ended, or has yet to connect anew
/// after NATS was away.
const NOBODY: &str = "nobody serves it on NATS";
/// That takes it no longer.
const CONNECTS_WITHIN: Duration = Duration::from_secs(15);

/// A worker without a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gone {
    how: How,
    /// When it was seen to be so, or to be well, the last time.
    since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// It seemed well when its record went, and is asked whether it is.
    Unsure,
    /// It was well after its record went.
    Withdrawn,
    /// It did not answer, or discovery itself was away.
    Lost,
}

/// What is to be done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It gets nothing new, and is kept.
    Awaited,
    /// It gets requests, as if it had a record.
    Serving,
    /// It is let go of.
    Over,
}

impl Gone {
    /// Its record has gone just now. Whoever knows it has it probed.
    pub(super) fn new(now: Instant, health: &Status) -> Self {
        let how = match health.state {
            State::Up | State::Suspect | State::Down(Down::Unproven) => How::Unsure,
            State::Down(Down::BreakerOpen | Down::Failing | Down::Dead) => How::Lost,
        };
        Self { how, since: now }
    }

    /// Discovery was away, and has lost its record.
    pub(super) fn lost(now: Instant) -> Self {
        Self { how: How::Lost, since: now }
    }

    /// What is to be done with it now.
    pub(super) fn fate(&mut self, now: Instant, health: &Status) -> Fate {
        let waited = now.saturating_duration_since(self.since);
        if self.how == How::Unsure && waited >= SURE_AFTER {
            self.how = if health.state == State::Up { How::Withdrawn } else { How::Lost };
        }
        match (self.how, health.state) {
            (How::Unsure, _) => Fate::Awaited,
            (How::Withdrawn, State::Down(Down::Dead)) => Fate::Over,
            (How::Withdrawn, _) if waited >= WITHDRAWN_FOR => Fate::Over,
            (How::Withdrawn, _) => Fate::Awaited,
            (How::Lost, State::Up | State::Suspect) => {
                self.since = now;
                Fate::Serving
            }
            (How::Lost, State::Down(_)) if waited >= LOST_FOR || health.reason.starts_with(REFUSED) => Fate::Over,
            (How::Lost, State::Down(_)) if waited >= CONNECTS_WITHIN && health.reason.contains(NOBODY) => Fate::Over,
            (How::Lost, State::Down(_)) => Fate::Awaited,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(now: Instant, state: State, reason: &str) -> Status {
        Status { state, reason: reason.to_owned(), since: now, breaker_opened: 0, deaths: 0 }
    }

    #[test]
    fn who_was_well_gets_nothing_more_however_well_it_is() {
        let now = Instant::now();
        let (up, dead) = (status(now, State::Up, ""), status(now, State::Down(Down::Dead), "silent"));
        let mut gone = Gone::new(now, &up);
        assert_eq!(gone.fate(now, &dead), Fate::Awaited);
        assert_eq!(gone.fate(now + SURE_AFTER, &up), Fate::Awaited);
        assert_eq!(gone.fate(now + WITHDRAWN_FOR - Duration::from_millis(1), &up), Fate::Awaited);
        assert_eq!(gone.fate(now + WITHDRAWN_FOR, &up), Fate::Over);
        assert_eq!(gone.fate(now, &dead), Fate::Over);
    }

    #[test]
    fn who_stood_still_serves_when_it_goes_on_and_is_let_go_of_when_its_process_has_ended() {
        let now = Instant::now();
        let silent = status(now, State::Down(Down::Dead), "no answer to a ping");
        let (up, refused) = (status(now, State::Up, "health answers"), status(now, State::Down(Down::Failing), "connection refused"));
        // Whether that was known when its record went, or is found then.
        for known in [&silent, &up] {
            let mut gone = Gone::new(now, known);
            assert_eq!(gone.fate(now + Duration::from_secs(100), &silent), Fate::Awaited);
            assert_eq!(gone.fate(now + Duration::from_secs(100), &up), Fate::Serving);
            // It is awaited as long again.
            assert_eq!(gone.fate(now + Duration::from_secs(200), &silent), Fate::Awaited);
            assert_eq!(gone.fate(now + Duration::from_secs(220), &silent), Fate::Over);
            assert_eq!(gone.fate(now + Duration::from_secs(200), &refused), Fate::Over);
        }
        assert_eq!(Gone::new(now, &refused).fate(now, &refused), Fate::Over);
        let nobody =
            status(now, State::Down(Down::Dead), "no answer to a ping: cannot connect: nobody serves it on NATS, and no byte for 7 s");
        let mut gone = Gone::new(now, &nobody);
        assert_eq!((gone.fate(now, &nobody), gone.fate(now + CONNECTS_WITHIN, &nobody)), (Fate::Awaited, Fate::Over));
    }
}
