//! How a call of etcd fails.

use serde::Deserialize;

/// Codes of gRPC that the gateway passes on.
const INVALID_ARGUMENT: i32 = 3;
const NOT_FOUND: i32 = 5;
const PERMISSION_DENIED: i32 = 7;
const RESOURCE_EXHAUSTED: i32 = 8;
const FAILED_PRECONDITION: i32 = 9;
const UNAUTHENTICATED: i32 = 16;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// No answer, or none that etcd would give.
    #[error("{0}")]
    Away(String),
    /// An answer that has more bytes than are read.
    #[error("{0}")]
    TooLarge(String),
    /// etcd's own word.
    #[error("{message}")]
    Refused { code: i32, message: String },
}

impl CallError {
    /// The token of a user has run out, or its server does not know it.
    pub(super) fn is_unauthenticated(&self) -> bool {
        matches!(self, Self::Refused { code, message } if *code == UNAUTHENTICATED || message.contains("invalid auth token"))
    }

    /// A lease of this id is there already.
    pub(super) fn is_lease_exists(&self) -> bool {
        matches!(self, Self::Refused { code: FAILED_PRECONDITION, message } if message.contains("lease already exists"))
    }

    /// What was asked is wrong, such as a value larger than this etcd takes; asking again would not help, and others are not
    /// concerned.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::Refused { code: INVALID_ARGUMENT | PERMISSION_DENIED, .. } => true,
            // Of the server of gRPC, which reads no message as large as this.
            Self::Refused { code: RESOURCE_EXHAUSTED, message } => message.contains("larger than max"),
            Self::Refused { .. } | Self::Away(_) | Self::TooLarge(_) => false,
        }
    }

    /// Whoever asks is refused, and would be again.
    pub(super) fn is_lasting(&self) -> bool {
        self.is_final() || self.is_unauthenticated()
    }

    /// The lease is not there.
    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code: NOT_FOUND, .. })
    }
}

/// An error as the gateway writes it: bare as an answer, below `error` in a stream, whose older form calls the code `grpc_code`.
#[derive(Debug, Deserialize)]
pub(super) struct Refusal {
    #[serde(default)]
    message: String,
    #[serde(default, alias = "grpc_code")]
    code: i32,
}

impl From<Refusal> for CallError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused { code: refusal.code, message: format!("etcd answers \"{}\"", refusal.message) }
    }
}
