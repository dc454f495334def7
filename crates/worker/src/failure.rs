//! Typed errors as a worker answers them, with the classes and causes by which routers of 1.6.1 decide what to do.

use wire::request::TypedError;

/// Why a request is not, or not wholly, answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The request is wrong: the client is told the message, and no other worker is asked.
    InvalidArgument,
    /// The worker has too much to do: another is asked.
    Overloaded,
    /// The worker cannot do it now, such as for want of a peer: another is asked.
    Unavailable,
    /// The engine goes down: another is asked to go on.
    Shutdown,
    /// The engine failed. Not the client's making, and not known to be better elsewhere.
    Internal,
}

impl Failure {
    /// The error, with a message for operators. Of an invalid request, clients are told it too.
    pub fn error(self, message: impl Into<String>) -> TypedError {
        let message = message.into();
        let (error_type, class, reason) = match self {
            Self::InvalidArgument => ("InvalidArgument", "InvalidRequest", "request.invalid_argument"),
            Self::Overloaded => ("WorkerOverloaded", "CapacityExhausted", "capacity.worker_overloaded"),
            Self::Unavailable => ("WorkerUnavailable", "Unavailable", "backend.worker_unavailable"),
            Self::Shutdown => ("Unavailable", "Unavailable", "backend.engine_shutdown"),
            Self::Internal => ("Unknown", "Internal", "backend.unknown"),
        };
        TypedError {
            error_type: error_type.to_owned(),
            class: class.to_owned(),
            reason: reason.to_owned(),
            public: (self == Self::InvalidArgument).then(|| message.clone()),
            message,
        }
    }
}
