//! Whether a worker gets requests, and whether it is dead. Pure: `now` is an argument.
//!
//! Three questions that are easily mixed up are kept apart:
//! - *May it get requests?* Not while its port refuses, its health answers 5xx, or its breaker is open.
//! - *Is it dead?* Only silence proves that: no sign of life for a while. A slow health answer is no death while bytes
//!   come, and a worker that closed its port but goes on streaming is draining, not dead. Only death cuts open streams.
//! - *Is it failing?* Requests that really fail open the breaker; our own probe half-opens it, never a user's request.
//!
//! What opens the breaker must be evidence against the worker: a request that no engine can answer comes again and again,
//! and would close off the whole fleet. So:
//! - A connection that fails, breaks or falls silent, and a 502, 503 or 504, speak of the worker: they count at once.
//! - A 500, an error event, or of token-level workers an answer that cannot be read or has no finish, may be the request's
//!   doing: it counts when another worker has answered the same request well. When the other one fails too, or there is none
//!   to ask, it proves nothing ([`Moves`](crate::Moves) keeps the evidence). An engine that has lost its core is found by its health.
//! - An error that an engine tells in the middle of a stream cannot be put to another worker, and proves nothing.

use std::time::{Duration, Instant};

/// The limits of the state machine.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Between probes of a worker that is up. Default 2 s.
    pub probe_every: Duration,
    /// A good probe within this time is worth another one. Default 2 s.
    pub nudged_after: Duration,
    /// Silence after which a worker whose health does not answer gets no requests. Default 30 s, when it is dead.
    pub out_after: Duration,
    /// Silence after which a worker whose health does not answer is dead. Default 30 s.
    pub dead_after: Duration,
    /// Silence after which a worker whose port refuses is dead. Default 2 s.
    pub refused_dead_after: Duration,
    /// Failed requests in a row that open the breaker. Default 5.
    pub breaker_failures: u32,
    /// First wait before a worker that is down is probed again; doubles. Default 0.5 s.
    pub backoff_min: Duration,
    /// Longest such wait. Default 10 s.
    pub backoff_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            probe_every: Duration::from_secs(2),
            nudged_after: Duration::from_secs(2),
            out_after: Duration::from_secs(30),
            dead_after: Duration::from_secs(30),
            refused_dead_after: Duration::from_secs(2),
            breaker_failures: 5,
            backoff_min: Duration::from_millis(500),
            backoff_max: Duration::from_secs(10),
        }
    }
}

/// What a worker may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It answers.
    Up,
    /// It gets requests, and is under watch: its health is slow, or its breaker is half-open.
    Suspect,
    /// It gets no requests.
    Down(Down),
}

/// Why a worker gets no requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Down {
    /// It has not answered a probe yet.
    Unproven,
    /// Its port refuses or its health answers 5xx. Streams it still feeds go on.
    Failing,
    /// Too many requests failed in a row.
    BreakerOpen,
    /// It refuses or is mute, and no byte came for long enough. Its open requests are given up.
    Dead,
}

impl State {
    /// Whether requests may be sent to it.
    pub fn is_routable(self) -> bool {
        match self {
            State::Up | State::Suspect => true,
            State::Down(_) => false,
        }
    }

    /// One word for people and metrics.
    pub fn name(self) -> &'static str {
        match self {
            State::Up => "up",
            State::Suspect => "suspect",
            State::Down(Down::Unproven) => "unproven",
            State::Down(Down::Failing) => "failing",
            State::Down(Down::BreakerOpen) => "breaker_open",
            State::Down(Down::Dead) => "dead",
        }
    }
}

/// A worker's state, for people.
#[derive(Debug, Clone)]
pub struct Status {
    /// What it may be used for.
    pub state: State,
    /// Why, in words.
    pub reason: String,
    /// When the state last changed.
    pub since: Instant,
    /// Times the breaker opened.
    pub breaker_opened: u64,
    /// Times it was found dead.
    pub deaths: u64,
}

/// What a probe brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probed {
    /// Anything below 500: the server is there, whatever it thinks of the path or the key.
    Answered,
    /// A 5xx: the server is there and says that it cannot serve.
    Unhealthy(u16),
    /// Connection refused.
    Refused,
    /// No answer: time-out, unreachable, closed; with the reason.
    Silent(String),
}

/// What kind of failure a request met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The connection failed or broke: worth a probe at once.
    Connection,
    /// The worker answered that it cannot serve, or failed where another worker did not.
    Answer,
}

/// The state machine of one worker's health.
#[derive(Debug)]
pub(crate) struct Health {
    limits: Limits,
    status: Status,
    /// Requests that failed in a row.
    failures: u32,
    backoff: Duration,
    /// The breaker is half-open since then.
    half_open: Option<Instant>,
    /// The last good probe, or the start.
    last_good: Instant,
    next_probe: Instant,
}

impl Health {
    /// A worker nobody has heard of yet; its first probe is due now.
    pub(crate) fn new(now: Instant, limits: Limits) -> Self {
        let status =
            Status { state: State::Down(Down::Unproven), reason: "not probed yet".to_owned(), since: now, breaker_opened: 0, deaths: 0 };
        let backoff = limits.backoff_min;
        Self { limits, status, failures: 0, backoff, half_open: None, last_good: now, next_probe: now }
    }

    /// The current state and its reason.
    pub(crate) fn status(&self) -> &Status {
        &self.status
    }

    /// When the next probe is due.
    pub(crate) fn next_probe(&self) -> Instant {
        self.next_probe
    }

    /// A request came to its good end.
    pub(crate) fn request_succeeded(&mut self, now: Instant) {
        self.failures = 0;
        if self.half_open.take().is_some() {
            self.backoff = self.limits.backoff_min;
            self.change(now, State::Up, "a request succeeded");
        }
    }

    /// A request failed by the worker's fault, as the head of this file has it.
    pub(crate) fn request_failed(&mut self, now: Instant, fault: Fault, reason: &str) {
        self.failures = self.failures.saturating_add(1);
        if !self.status.state.is_routable() {
            return;
        }
        if self.half_open.is_some() || self.failures >= self.limits.breaker_failures {
            let reason = format!("{} requests in a row failed, the last with: {reason}", self.failures);
            self.half_open = None;
            self.status.breaker_opened += 1;
            self.change(now, State::Down(Down::BreakerOpen), &reason);
            self.back_off(now);
        } else if fault == Fault::Connection {
            self.next_probe = now;
        }
    }

    /// Something speaks for another look at once.
    pub(crate) fn probe_soon(&mut self, now: Instant) {
        self.next_probe = self.next_probe.min(now);
    }

    /// A request waits for a sign of life. The next probe is due at once, unless one has just been answered.
    pub(crate) fn nudge(&mut self, now: Instant) {
        let known = now.saturating_duration_since(self.last_good) < self.limits.nudged_after;
        if self.status.state == State::Up && !known {
            self.next_probe = self.next_probe.min(now);
        }
    }

    /// A probe that began at `started` has ended. `last_byte` is when a request last received a byte from this worker.
    pub(crate) fn probed(&mut self, now: Instant, started: Instant, probed: &Probed, last_byte: Option<Instant>) {
        let last_sign = last_byte.map_or(self.last_good, |byte| byte.max(self.last_good));
        let quiet = now.saturating_duration_since(last_sign);
        match probed {
            Probed::Answered => return self.answered(now),
            Probed::Unhealthy(status) => {
                let reason = format!("its health answers {status}");
                self.unusable(now, quiet >= self.limits.dead_after, &reason);
            }
            Probed::Refused => {
                self.unusable(now, quiet >= self.limits.refused_dead_after, "connection refused");
            }
            Probed::Silent(reason) => {
                let bytes_meanwhile = last_byte.is_some_and(|byte| byte >= started);
                self.silent(now, quiet, bytes_meanwhile, reason);
            }
        }
        if self.status.state.is_routable() {
            self.next_probe = now + self.limits.backoff_min;
        } else {
            self.back_off(now);
        }
    }

    fn answered(&mut self, now: Instant) {
        self.last_good = now;
        self.next_probe = now + self.limits.probe_every;
        match (self.status.state, self.half_open) {
            (State::Down(Down::BreakerOpen), _) => {
                self.half_open = Some(now);
                self.change(now, State::Suspect, "breaker half-open: health answers, no request has succeeded yet");
            }
            (State::Suspect, Some(since)) if now.saturating_duration_since(since) < self.limits.backoff_max => {}
            (State::Up, _) => {}
            // The back-off of a half-open breaker stays until a request succeeds.
            (State::Suspect, Some(_)) => {
                self.half_open = None;
                self.failures = 0;
                self.change(now, State::Up, "breaker closed: no request failed since it was half-open");
            }
            (State::Suspect | State::Down(Down::Unproven | Down::Failing | Down::Dead), _) => {
                self.half_open = None;
                self.failures = 0;
                self.backoff = self.limits.backoff_min;
                self.change(now, State::Up, "health answers");
            }
        }
    }

    /// The worker itself says that it takes nothing.
    fn unusable(&mut self, now: Instant, silent_for_long: bool, reason: &str) {
        if silent_for_long || self.status.state == State::Down(Down::Dead) {
            self.die(now, reason);
        } else {
            self.half_open = None;
            self.change(now, State::Down(Down::Failing), reason);
        }
    }

    fn silent(&mut self, now: Instant, quiet: Duration, bytes_meanwhile: bool, reason: &str) {
        if quiet >= self.limits.dead_after {
            let reason = format!("{reason}, and no byte for {} s", quiet.as_secs());
            return self.die(now, &reason);
        }
        match self.status.state {
            // Slow is not dead, and not even suspect while its streams flow.
            State::Up if bytes_meanwhile => {}
            State::Up | State::Suspect if quiet >= self.limits.out_after => {
                self.half_open = None;
                self.change(now, State::Down(Down::Failing), reason);
            }
            State::Up | State::Suspect if self.half_open.is_none() => self.change(now, State::Suspect, reason),
            State::Up | State::Suspect | State::Down(_) => reason.clone_into(&mut self.status.reason),
        }
    }

    fn die(&mut self, now: Instant, reason: &str) {
        self.half_open = None;
        self.status.deaths += u64::from(self.status.state != State::Down(Down::Dead));
        self.change(now, State::Down(Down::Dead), reason);
    }

    fn change(&mut self, now: Instant, state: State, reason: &str) {
        if self.status.state != state {
            self.status.since = now;
            self.status.state = state;
        }
        reason.clone_into(&mut self.status.reason);
    }

    fn back_off(&mut self, now: Instant) {
        self.next_probe = now + self.backoff;
        self.backoff = (self.backoff * 2).min(self.limits.backoff_max);
    }
}

#[cfg(test)]
mod tests;
