//! Why a call did not bring what was asked for.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use wire::request::{FrameError, TypedError};

/// A call that failed, with the peer it went to. The text is meant for operators.
#[derive(Clone, Debug, Error)]
#[error("{peer}: {cause}")]
pub struct CallError {
    peer: Arc<str>,
    cause: Cause,
}

impl CallError {
    pub(super) fn new(peer: &Arc<str>, cause: Cause) -> Self {
        Self { peer: peer.clone(), cause }
    }

    /// `host:port/path` of the endpoint called.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// What went wrong.
    pub fn cause(&self) -> &Cause {
        &self.cause
    }
}

/// What went wrong with a call.
#[derive(Clone, Debug, Error)]
pub enum Cause {
    /// The address is not `host:port/path`. Nothing was sent.
    #[error("not an address of the form host:port/endpoint path")]
    Address,
    /// The request cannot be put into a frame. Nothing was sent.
    #[error("the request cannot be sent: {0}")]
    Request(Arc<str>),
    /// So many calls run, or requests wait, as are allowed. Nothing was sent.
    #[error("too many calls at once, the limit is {0}")]
    Busy(usize),
    /// The client was stopped.
    #[error("the client was stopped")]
    Stopped,
    /// No connection to the worker. Nothing was sent.
    #[error("cannot connect: {0}")]
    Unreachable(Arc<str>),
    /// The endpoint is reached in a way that this client has not.
    #[error("cannot be reached from here: {0}")]
    Way(Arc<str>),
    /// The connection broke before the acknowledgement, twice; the request may have arrived.
    #[error("the connection broke before the request was acknowledged: {0}")]
    Broken(Arc<str>),
    /// The worker took the request and did not acknowledge it.
    #[error("did not acknowledge the request within {} ms", .0.as_millis())]
    Unacknowledged(Duration),
    /// The worker took a ping's connection and did not answer it: it hangs, is frozen, or is something else.
    #[error("did not answer a ping within {} ms", .0.as_millis())]
    NoPong(Duration),
    /// The worker said no instead of acknowledging.
    #[error("refused the request: {text}")]
    Refused {
        /// What kind of no.
        kind: Refusal,
        /// The worker's words.
        text: Arc<str>,
    },
    /// The worker acknowledged, and closed its connection before it called back: it ended, most likely.
    #[error("acknowledged the request and closed its connection before it called back: {0}")]
    Lost(Arc<str>),
    /// The worker acknowledged and then did not connect to us.
    #[error(
        "acknowledged the request and did not call back within {} ms: it cannot read the body, is overloaded, or does not \
         reach {address}", .after.as_millis()
    )]
    NoCallHome {
        /// How long it was waited for.
        after: Duration,
        /// Where it was told to connect to.
        address: Arc<str>,
    },
    /// The worker failed before its first item.
    #[error("failed: {message}")]
    Failed {
        /// The worker's words.
        message: Arc<str>,
        /// The same, where the worker is new enough to type its errors.
        error: Option<Arc<TypedError>>,
    },
    /// An item that says what went wrong. The stream ends in good order after it.
    #[error("answered with an error: {}", .0.message)]
    Item(Arc<TypedError>),
    /// Nothing came for too long in the middle of an answer.
    #[error("sent nothing for {} ms in the middle of its answer", .0.as_millis())]
    Silent(Duration),
    /// The stream ended without saying that it is complete.
    #[error("ended its answer without completing it{}", if .0.is_empty() { String::new() } else { format!(": {}", .0) })]
    Truncated(Arc<str>),
    /// An item is larger than its limit. Nothing was allocated for it.
    #[error("announced an item of {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// Size announced.
        bytes: u64,
        /// The limit.
        limit: usize,
    },
    /// Bytes that no worker sends.
    #[error("broke the protocol: {0}")]
    Malformed(Arc<str>),
}

/// What an acknowledgement that is none means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// As many calls run there as it takes; another worker may take it.
    Overloaded,
    /// It has no such endpoint, or is about to end.
    Unavailable,
    /// Something else.
    Other,
}

impl From<FrameError> for Cause {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::TooLong { bytes, bound, .. } => Self::TooLarge { bytes, limit: usize::try_from(bound).unwrap_or(usize::MAX) },
            FrameError::Text(_) | FrameError::Json { .. } | FrameError::Item(_) | FrameError::Order(_) => {
                Self::Malformed(error.to_string().into())
            }
        }
    }
}

impl Refusal {
    /// By how 1.6.1 begins the texts.
    pub(super) fn of(text: &str) -> Self {
        if text.starts_with(OVERLOADED) {
            Self::Overloaded
        } else if text.starts_with(UNAVAILABLE) {
            Self::Unavailable
        } else {
            Self::Other
        }
    }
}

/// How an acknowledgement begins that says no for now. 1.6.1 takes any text that begins with neither for a yes.
pub(super) const OVERLOADED: &str = "Server overloaded:";
/// How one begins that says no.
pub(super) const UNAVAILABLE: &str = "Server unavailable:";
