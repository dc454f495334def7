//! How a send can fail, whose fault that is, and the one retry story (rule 15).
//!
//! What to do next is a function of the failure and of what was tried before. Status codes for the client are left to
//! the caller.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use crate::{health::Fault, pulse::Pulse, tokens::TokenFailure};

/// A request that reached no answer worth relaying. Nothing of it has gone to the client.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{tried} at worker {peer}: {failure}")]
pub struct SendError {
    /// The worker's address.
    pub peer: String,
    /// Method and path of what was sent.
    pub tried: String,
    /// What went wrong.
    pub failure: Failure,
    /// The worker's health, where it was sent along.
    pub(crate) pulse: Option<Pulse>,
}

/// What went wrong before the first byte for the client was there.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Failure {
    /// The host is there and nothing listens on the port.
    #[error("connection refused")]
    Refused,
    /// No connection could be begun: this host is out of file descriptors. Says nothing of the worker.
    #[error("out of file descriptors here: {0}")]
    Exhausted(String),
    /// No connection: name not found, unreachable, or the connect time-out.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// The connection was made, and TLS failed on it.
    #[error("tls failed: {0}")]
    Tls(String),
    /// The worker closed the connection before the first byte of its answer, or before the first event of its stream.
    #[error("closed before the first byte: {0}")]
    Closed(String),
    /// What came back is not HTTP within our bounds.
    #[error("not a readable answer: {0}")]
    Malformed(String),
    /// Nothing to relay within the first-byte time-out.
    #[error("no first byte within {0:?}")]
    NoFirstByte(Duration),
    /// The first event had begun, and the between-tokens time-out passed before it was whole.
    #[error("no byte for {0:?} in the middle of the first event")]
    Stalled(Duration),
    /// Its health was lost while the request waited (or before it was sent).
    #[error("worker is dead: {0}")]
    WorkerDead(String),
    /// It answered with a 5xx.
    #[error("answered {}", .0.status)]
    Status(Box<Answer>),
    /// It answered 200 and its first event was an error.
    #[error("answered 200, then an error event ({})", .0.status)]
    ErrorEvent(Box<Answer>),
    /// Our own process must end.
    #[error("this process is stopping")]
    Stopping,
    /// The request cannot be written as HTTP/1.1. No worker would take it.
    #[error("cannot be sent: {0}")]
    Unsendable(String),
}

/// A whole answer, held because it may not be the last word; passed on when it is.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The worker's status; of an error event, its `code` where that is an HTTP error, else 500.
    pub status: StatusCode,
    /// Its headers without those of the connection. `Content-Length` is left to the server.
    pub headers: HeaderMap,
    /// Its body, at most 256 KiB; empty when it was longer or broke off.
    pub body: Bytes,
}

/// The longest body of a failed answer that is kept to be passed on.
pub(crate) const ANSWER_LIMIT_BYTES: usize = 256 * 1024;

/// What a failure means for the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The worker could not be reached, or says it cannot serve: another one can.
    Unavailable,
    /// The worker failed on this request: perhaps the request's doing, so another one is tried once.
    Internal,
    /// Another worker would do the same, or the time for it has passed.
    Final,
}

impl SendError {
    /// What this failure means for the next step.
    pub fn class(&self) -> Class {
        match &self.failure {
            Failure::Refused
            | Failure::Connect(_)
            | Failure::Tls(_)
            | Failure::Closed(_)
            | Failure::Malformed(_)
            | Failure::Stalled(_)
            | Failure::WorkerDead(_) => Class::Unavailable,
            Failure::Exhausted(_) | Failure::NoFirstByte(_) | Failure::Stopping | Failure::Unsendable(_) => Class::Final,
            Failure::Status(answer) | Failure::ErrorEvent(answer) => class_of(answer.status),
        }
    }

    /// What it says of the worker by itself. Never what the client did (rule 15), nor a death already known, nor a 500,
    /// which may be the request's doing: [`Moves`] keeps that until another worker has answered.
    pub(crate) fn fault(&self) -> Option<Fault> {
        match &self.failure {
            Failure::Refused
            | Failure::Connect(_)
            | Failure::Tls(_)
            | Failure::Closed(_)
            | Failure::Malformed(_)
            | Failure::NoFirstByte(_)
            | Failure::Stalled(_) => Some(Fault::Connection),
            Failure::Exhausted(_) | Failure::WorkerDead(_) | Failure::Stopping | Failure::Unsendable(_) => None,
            Failure::Status(_) | Failure::ErrorEvent(_) => (self.class() == Class::Unavailable).then_some(Fault::Answer),
        }
    }

    /// The worker's own answer, to be passed on when no other worker gives a better one.
    pub fn answer(&self) -> Option<&Answer> {
        match &self.failure {
            Failure::Status(answer) | Failure::ErrorEvent(answer) => Some(answer),
            Failure::Refused
            | Failure::Exhausted(_)
            | Failure::Connect(_)
            | Failure::Tls(_)
            | Failure::Closed(_)
            | Failure::Malformed(_)
            | Failure::NoFirstByte(_)
            | Failure::Stalled(_)
            | Failure::WorkerDead(_)
            | Failure::Stopping
            | Failure::Unsendable(_) => None,
        }
    }
}

fn class_of(status: StatusCode) -> Class {
    match status {
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => Class::Unavailable,
        other if other.is_server_error() => Class::Internal,
        _ => Class::Final,
    }
}

/// Other workers tried after the first one, whatever the failures.
const MAX_MOVES: u32 = 2;
/// Of those, how many because a worker answered 500.
const MAX_MOVES_AFTER_500: u32 = 1;

/// What to do with a failed send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Send it to a worker that has not seen it. When there is none, pass on what came.
    Elsewhere,
    /// Pass on the last answer, or the error.
    PassOn,
}

/// The moves one request has used, and the workers that failed on it for a reason that may lie in the request.
#[derive(Debug, Default)]
pub struct Moves {
    used: u32,
    after_500: u32,
    /// At most one for each allowed move, and the last.
    accused: Vec<(Pulse, String)>,
}

impl Moves {
    /// Judges a failed send, and books the move it allows.
    pub fn judge(&mut self, error: &SendError) -> Verdict {
        self.moved(error.class(), error.pulse.as_ref(), &error.failure)
    }

    /// The same for a token-level worker, before its first token.
    pub fn judge_tokens(&mut self, failure: &TokenFailure) -> Verdict {
        self.moved(failure.class(), Some(&failure.pulse), &failure.trouble)
    }

    fn moved(&mut self, class: Class, pulse: Option<&Pulse>, failure: &dyn std::fmt::Display) -> Verdict {
        if let (Class::Internal, Some(pulse)) = (class, pulse) {
            self.accused.push((pulse.clone(), failure.to_string()));
        }
        let allowed = match class {
            Class::Unavailable => self.used < MAX_MOVES,
            Class::Internal => self.used < MAX_MOVES && self.after_500 < MAX_MOVES_AFTER_500,
            Class::Final => false,
        };
        if !allowed {
            return Verdict::PassOn;
        }
        self.used += 1;
        self.after_500 += u32::from(class == Class::Internal);
        Verdict::Elsewhere
    }

    /// A worker has answered with this status. A good answer proves that the request was good: the 500s of others
    /// then count against them.
    pub fn answered(&mut self, status: StatusCode) {
        if status.is_success() {
            for (pulse, reason) in self.accused.drain(..) {
                pulse.failed(Fault::Answer, &format!("{reason}, where another worker answered"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Class::{Final, Internal, Unavailable};
    use Verdict::{Elsewhere, PassOn};

    fn answered(status: u16) -> SendError {
        let status = StatusCode::from_u16(status).expect("a status");
        let answer = Answer { status, headers: HeaderMap::new(), body: Bytes::new() };
        error(Failure::Status(Box::new(answer)))
    }

    fn error(failure: Failure) -> SendError {
        SendError { peer: "http://gpu1:8000".into(), tried: "POST /v1/completions".into(), failure, pulse: None }
    }

    #[test]
    fn two_others_when_unreachable_one_other_after_a_500_none_after_a_4xx() {
        for (statuses, verdicts) in [
            (vec![503, 502, 504], vec![Elsewhere, Elsewhere, PassOn]),
            (vec![500, 500], vec![Elsewhere, PassOn]),
            (vec![503, 500, 500], vec![Elsewhere, Elsewhere, PassOn]),
            (vec![500, 503, 503], vec![Elsewhere, Elsewhere, PassOn]),
            (vec![400], vec![PassOn]),
            (vec![503, 400], vec![Elsewhere, PassOn]),
        ] {
            let mut moves = Moves::default();
            let judged: Vec<Verdict> = statuses.iter().map(|status| moves.judge(&answered(*status))).collect();
            assert_eq!(judged, verdicts, "{statuses:?}");
        }
    }

    #[test]
    fn statuses_fall_into_their_classes() {
        for (status, class) in [(502, Unavailable), (503, Unavailable), (504, Unavailable), (500, Internal), (501, Internal), (400, Final)]
        {
            assert_eq!(answered(status).class(), class, "{status}");
        }
    }

    #[test]
    fn a_502_speaks_of_the_worker_and_a_500_or_404_may_speak_of_the_request() {
        for status in [502, 503, 504] {
            assert_eq!(answered(status).fault(), Some(Fault::Answer), "{status}");
        }
        for status in [400, 404, 500, 501] {
            assert_eq!(answered(status).fault(), None, "{status}");
        }
    }

    #[test]
    fn a_wait_that_used_up_its_time_is_not_repeated_but_counts_against_the_worker() {
        let error = error(Failure::NoFirstByte(Duration::from_secs(600)));
        assert_eq!((error.class(), error.fault()), (Final, Some(Fault::Connection)));
    }

    #[test]
    fn texts_name_the_peer_and_what_was_tried() {
        let text = error(Failure::Refused).to_string();
        assert_eq!(text, "POST /v1/completions at worker http://gpu1:8000: connection refused");
    }
}
