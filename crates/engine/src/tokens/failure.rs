//! What a failure of a token-level worker means: whose fault it is, whether another worker is tried, whether a stream that
//! has begun goes on elsewhere, and what the client may be told.
//!
//! 1.6.1 names causes by a dotted reason (`backend.engine_shutdown`); older workers only by a class (`EngineShutdown`).

use std::{sync::Arc, time::Duration};

use transport::request::{Cause, Refusal};
use wire::request::TypedError;

use crate::{error::Class, health::Fault, pulse::Pulse};

/// An attempt that brought no answer, or an answer that broke.
#[derive(Clone, Debug, thiserror::Error)]
#[error("worker at {peer}: {trouble}")]
pub struct TokenFailure {
    /// The worker's address.
    pub peer: Arc<str>,
    /// What went wrong.
    pub trouble: Trouble,
    pub(crate) pulse: Pulse,
}

/// What went wrong.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Trouble {
    /// The call failed.
    #[error("{0}")]
    Call(Cause),
    /// The worker is dead, as its probe found.
    #[error("worker is dead: {0}")]
    Dead(String),
    /// It has left discovery and then sent nothing for this long.
    #[error("left discovery and sent nothing for {0:?}")]
    Left(Duration),
    /// No token came in time.
    #[error("no first token within {0:?}")]
    NoFirstToken(Duration),
    /// Tokens stopped coming.
    #[error("no token for {0:?} in the middle of the answer")]
    Stalled(Duration),
    /// The stream ended in good order and its answer was not finished.
    #[error("ended its answer without a finish reason")]
    Unfinished,
    /// An item cannot be read.
    #[error("sent what cannot be read: {0}")]
    Unreadable(String),
    /// The engine finished with an error.
    #[error("the engine failed: {0}")]
    Engine(String),
    /// The engine gave up a request that nobody cancelled.
    #[error("the engine gave the request up")]
    Aborted,
    /// This process must end.
    #[error("this process is stopping")]
    Stopping,
}

/// What a failure means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The request cannot be right: no worker would take it.
    Request(RequestFault),
    /// The worker is gone, going, frozen or unreachable: another one can serve, also what has begun.
    Worker,
    /// The worker takes no more for now: another one may.
    Overloaded,
    /// All that could serve take no more: trying more workers makes it worse.
    Exhausted,
    /// The worker failed on this request, which may be the request's doing: one other worker is tried.
    Internal,
    /// The time for it has passed, or somebody cancelled it.
    Over,
    /// It is this process that cannot: it is full, or ends.
    Ours,
}

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFault {
    /// A value is not allowed.
    Invalid,
    /// What it names is not there.
    NotFound,
    /// It is not allowed to.
    Denied,
    /// It is too large.
    TooLarge,
    /// It conflicts with another one.
    Conflict,
}

impl TokenFailure {
    /// What it means.
    pub fn meaning(&self) -> Meaning {
        match &self.trouble {
            Trouble::Call(cause) => of_cause(cause),
            Trouble::Dead(_) | Trouble::Left(_) | Trouble::Stalled(_) | Trouble::Aborted => Meaning::Worker,
            Trouble::NoFirstToken(_) => Meaning::Over,
            // The worker answers, and what it answers to this request is no good: another one may do the same.
            Trouble::Engine(_) | Trouble::Unfinished | Trouble::Unreadable(_) => Meaning::Internal,
            Trouble::Stopping => Meaning::Ours,
        }
    }

    /// Whether the worker cannot have seen the request: trying another one then costs nothing.
    pub fn was_not_sent(&self) -> bool {
        matches!(&self.trouble, Trouble::Call(Cause::Address | Cause::Way(_) | Cause::Unreachable(_)))
    }

    /// What it means for a request that has no token yet.
    pub(crate) fn class(&self) -> Class {
        match self.meaning() {
            Meaning::Worker | Meaning::Overloaded => Class::Unavailable,
            Meaning::Internal => Class::Internal,
            Meaning::Request(_) | Meaning::Exhausted | Meaning::Over | Meaning::Ours => Class::Final,
        }
    }

    /// What it says against the worker by itself: never what the request did, nor what is known already.
    pub(crate) fn fault(&self) -> Option<Fault> {
        match &self.trouble {
            Trouble::Call(cause) if of_cause(cause) != Meaning::Worker => None,
            Trouble::Call(Cause::Item(_) | Cause::Failed { .. }) => Some(Fault::Answer),
            Trouble::Call(_) => Some(Fault::Connection),
            Trouble::NoFirstToken(_) | Trouble::Stalled(_) => Some(Fault::Connection),
            Trouble::Dead(_) | Trouble::Left(_) | Trouble::Aborted | Trouble::Stopping => None,
            Trouble::Engine(_) | Trouble::Unfinished | Trouble::Unreadable(_) => None,
        }
    }

    /// What a client may read of it: the worker's public words where it has any; never addresses.
    pub fn public(&self) -> String {
        match &self.trouble {
            Trouble::Call(Cause::Item(error)) => words(error),
            Trouble::Call(Cause::Failed { error: Some(error), .. }) => words(error),
            Trouble::Call(cause) => match cause {
                Cause::Busy(_) => "too many requests run already; try again".to_owned(),
                Cause::Stopped => "the frontend is stopping".to_owned(),
                Cause::TooLarge { bytes, limit } => format!("the request has {bytes} bytes for the worker, and {limit} are allowed"),
                Cause::Request(_) => "the request cannot be sent to a worker".to_owned(),
                Cause::Refused { kind: Refusal::Overloaded, .. } => "the worker takes no more requests for now; try again".to_owned(),
                Cause::Address | Cause::Way(_) | Cause::Unreachable(_) => "cannot connect to the worker".to_owned(),
                Cause::Unacknowledged(_) | Cause::NoPong(_) | Cause::NoCallHome { .. } => {
                    "the worker did not answer the request".to_owned()
                }
                Cause::Refused { .. } => "the worker refused the request".to_owned(),
                Cause::Failed { .. } | Cause::Item(_) => "the worker failed before its first token".to_owned(),
                Cause::Lost(_) | Cause::Broken(_) | Cause::Silent(_) | Cause::Truncated(_) => "the worker broke off its answer".to_owned(),
                Cause::Malformed(_) => "the worker sent what cannot be read".to_owned(),
            },
            Trouble::Dead(_) => "the worker died".to_owned(),
            Trouble::Left(_) => "the worker left in the middle of its answer".to_owned(),
            Trouble::NoFirstToken(within) => format!("the worker sent no token within {within:?}"),
            Trouble::Stalled(quiet) => format!("the worker sent nothing for {quiet:?} in the middle of its answer"),
            Trouble::Unfinished => "the worker ended its answer before it was finished".to_owned(),
            Trouble::Unreadable(_) => "the worker sent what cannot be read".to_owned(),
            Trouble::Engine(message) => format!("the engine failed: {message}"),
            Trouble::Aborted => "the engine gave the request up".to_owned(),
            Trouble::Stopping => "the frontend is stopping".to_owned(),
        }
    }

    /// A short stable name for a metric label.
    pub fn kind(&self) -> &'static str {
        match &self.trouble {
            Trouble::Call(cause) => match cause {
                Cause::Address | Cause::Way(_) | Cause::Unreachable(_) => "connect",
                Cause::Request(_) | Cause::TooLarge { .. } => "unsendable",
                Cause::Busy(_) => "too_many_calls",
                Cause::Stopped => "stopping",
                Cause::Lost(_) | Cause::Broken(_) | Cause::Truncated(_) => "closed",
                Cause::Unacknowledged(_) | Cause::NoPong(_) => "unacknowledged",
                Cause::Refused { kind: Refusal::Overloaded, .. } => "overloaded",
                Cause::Refused { .. } => "refused",
                Cause::NoCallHome { .. } => "no_call_home",
                Cause::Failed { .. } | Cause::Item(_) => match of_cause(cause) {
                    Meaning::Request(_) => "request",
                    Meaning::Worker => "worker_error",
                    Meaning::Overloaded => "overloaded",
                    Meaning::Exhausted => "exhausted",
                    Meaning::Internal => "engine_error",
                    Meaning::Over | Meaning::Ours => "cancelled",
                },
                Cause::Silent(_) => "stalled",
                Cause::Malformed(_) => "malformed",
            },
            Trouble::Dead(_) => "worker_dead",
            Trouble::Left(_) => "left",
            Trouble::NoFirstToken(_) => "no_first_byte",
            Trouble::Stalled(_) => "stalled",
            Trouble::Unfinished => "unfinished",
            Trouble::Unreadable(_) => "malformed",
            Trouble::Engine(_) => "engine_error",
            Trouble::Aborted => "aborted",
            Trouble::Stopping => "stopping",
        }
    }
}

fn of_cause(cause: &Cause) -> Meaning {
    match cause {
        Cause::Request(_) => Meaning::Request(RequestFault::Invalid),
        Cause::Busy(_) | Cause::Stopped => Meaning::Ours,
        Cause::Address
        | Cause::Way(_)
        | Cause::Unreachable(_)
        | Cause::Lost(_)
        | Cause::Broken(_)
        | Cause::Unacknowledged(_)
        | Cause::NoPong(_)
        | Cause::Silent(_)
        | Cause::Truncated(_)
        | Cause::Malformed(_) => Meaning::Worker,
        // Before anything is sent this is about the request; a worker never sends items of such a size.
        Cause::TooLarge { .. } => Meaning::Request(RequestFault::TooLarge),
        Cause::Refused { kind, .. } => match kind {
            Refusal::Overloaded => Meaning::Overloaded,
            Refusal::Unavailable => Meaning::Worker,
            Refusal::Other => Meaning::Internal,
        },
        // A worker that cannot read the body does just this.
        Cause::NoCallHome { .. } => Meaning::Internal,
        Cause::Failed { error, .. } => error.as_deref().map_or(Meaning::Internal, of_typed),
        Cause::Item(error) => of_typed(error),
    }
}

/// By the reason, else by the class of older workers.
fn of_typed(error: &TypedError) -> Meaning {
    match error.reason.as_str() {
        "backend.cannot_connect"
        | "backend.connection_timeout"
        | "backend.disconnected"
        | "backend.engine_shutdown"
        | "backend.response_timeout"
        | "backend.stream_incomplete"
        | "backend.worker_unavailable"
        | "transport.cannot_connect"
        | "transport.connection_timeout"
        | "transport.disconnected" => Meaning::Worker,
        "capacity.worker_overloaded" => Meaning::Overloaded,
        "capacity.exhausted" | "capacity.pool_exhausted" => Meaning::Exhausted,
        "request.cancelled" | "request.deadline_exceeded" | "backend.cancelled" => Meaning::Over,
        "request.not_found" => Meaning::Request(RequestFault::NotFound),
        "request.permission_denied" => Meaning::Request(RequestFault::Denied),
        "request.payload_too_large" => Meaning::Request(RequestFault::TooLarge),
        "request.conflict" => Meaning::Request(RequestFault::Conflict),
        "backend.invalid_argument" => Meaning::Request(RequestFault::Invalid),
        reason if reason.starts_with("request.") => Meaning::Request(RequestFault::Invalid),
        _ => of_class(error),
    }
}

fn of_class(error: &TypedError) -> Meaning {
    match error.error_type.as_str() {
        "InvalidArgument" => Meaning::Request(RequestFault::Invalid),
        "NotFound" => Meaning::Request(RequestFault::NotFound),
        "PermissionDenied" => Meaning::Request(RequestFault::Denied),
        "CannotConnect" | "ConnectionTimeout" | "Disconnected" | "EngineShutdown" | "ResponseTimeout" | "StreamIncomplete"
        | "WorkerUnavailable" => Meaning::Worker,
        "WorkerOverloaded" => Meaning::Overloaded,
        "ResourceExhausted" => Meaning::Exhausted,
        "Cancelled" | "DeadlineExceeded" => Meaning::Over,
        _ if error.class == "InvalidRequest" => Meaning::Request(RequestFault::Invalid),
        _ => Meaning::Internal,
    }
}

fn words(error: &TypedError) -> String {
    match (&error.public, of_typed(error)) {
        (Some(public), _) if !public.is_empty() => public.clone(),
        // Without public words, what an engine says of a request is for whoever sent it; anything else is for operators.
        (_, Meaning::Request(_)) => error.message.clone(),
        (_, Meaning::Worker) => "the worker cannot serve any more".to_owned(),
        (_, Meaning::Overloaded | Meaning::Exhausted) => "the service takes no more requests for now; try again".to_owned(),
        (_, Meaning::Over) => "the request was cancelled".to_owned(),
        (_, Meaning::Internal | Meaning::Ours) => "the worker reported an error".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Limits;

    fn failure(trouble: Trouble) -> TokenFailure {
        TokenFailure { peer: "gpu1:70/5/dynamo/backend/generate".into(), trouble, pulse: Pulse::new(Limits::default()) }
    }

    fn typed(reason: &str, error_type: &str) -> Cause {
        let error = TypedError { reason: reason.to_owned(), error_type: error_type.to_owned(), ..TypedError::default() };
        Cause::Item(Arc::new(error))
    }

    #[test]
    fn what_a_stream_may_survive_is_what_1_6_1_migrates_and_no_more() {
        for reason in ["transport.cannot_connect", "transport.disconnected", "transport.connection_timeout", "backend.response_timeout"] {
            assert_eq!(of_cause(&typed(reason, "")), Meaning::Worker, "{reason}");
        }
        for reason in ["backend.engine_shutdown", "backend.stream_incomplete", "backend.worker_unavailable"] {
            assert_eq!(of_cause(&typed(reason, "")), Meaning::Worker, "{reason}");
        }
        assert_eq!(of_cause(&typed("capacity.worker_overloaded", "")), Meaning::Overloaded);
        for (reason, meaning) in [
            ("request.cancelled", Meaning::Over),
            ("request.deadline_exceeded", Meaning::Over),
            ("capacity.exhausted", Meaning::Exhausted),
            ("capacity.pool_exhausted", Meaning::Exhausted),
            ("request.invalid_argument", Meaning::Request(RequestFault::Invalid)),
            ("request.new_in_1_7", Meaning::Request(RequestFault::Invalid)),
            ("backend.unknown", Meaning::Internal),
        ] {
            assert_eq!(of_cause(&typed(reason, "")), meaning, "{reason}");
        }
        assert_eq!(of_cause(&typed("", "EngineShutdown")), Meaning::Worker);
        assert_eq!(of_cause(&typed("", "InvalidArgument")), Meaning::Request(RequestFault::Invalid));
    }

    #[test]
    fn what_the_request_did_never_counts_against_the_worker() {
        let fault = |cause| failure(Trouble::Call(cause)).fault();
        assert_eq!(fault(Cause::Unreachable("refused".into())), Some(Fault::Connection));
        assert_eq!(fault(Cause::Truncated("closed".into())), Some(Fault::Connection));
        assert_eq!(fault(typed("backend.engine_shutdown", "")), Some(Fault::Answer));
        assert_eq!(fault(typed("request.invalid_argument", "")), None);
        assert_eq!(fault(typed("capacity.worker_overloaded", "")), None);
        assert_eq!(fault(Cause::Busy(1)), None);
        // A body that no worker can read must not close off the fleet.
        assert_eq!(fault(Cause::NoCallHome { after: Duration::from_secs(5), address: "here".into() }), None);
        // Nor one that every worker answers badly: it is tried at one other, and whoever answers it well convicts the first.
        for trouble in [Trouble::Unfinished, Trouble::Unreadable("no map".into()), Trouble::Engine("out of memory".into())] {
            let failure = failure(trouble);
            assert_eq!((failure.fault(), failure.meaning()), (None, Meaning::Internal), "{failure}");
        }
    }

    #[test]
    fn clients_read_public_words_and_no_addresses() {
        let mut error = TypedError { reason: "backend.unknown".into(), message: "at 10.0.0.7".into(), ..TypedError::default() };
        let text = |error: &TypedError| failure(Trouble::Call(Cause::Item(Arc::new(error.clone())))).public();
        assert!(!text(&error).contains("10.0.0.7"));
        error.public = Some("the image is broken".into());
        assert_eq!(text(&error), "the image is broken");
        assert!(!failure(Trouble::Call(Cause::Unreachable("10.0.0.7:70 refused".into()))).public().contains("10.0.0.7"));
    }
}
