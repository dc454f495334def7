//! Why a connection was not made, or ended.

use std::io;
use std::time::Duration;

use thiserror::Error;

/// Why a connection was not made, or ended. The text is meant for operators; the caller adds the peer's address.
#[derive(Debug, Error)]
pub enum Error {
    /// The operating system refused or broke the connection.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A wait reached its bound.
    #[error("{what} took over {} ms", .after.as_millis())]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// The bound.
        after: Duration,
    },
    /// Nothing was heard for too long, though the peer was asked for a sign of life.
    #[error("peer was silent for {} ms and did not answer a ping", .0.as_millis())]
    Silent(Duration),
    /// The endpoint can be bound but not connected to.
    #[error("an endpoint on all interfaces or on port 0 cannot be connected to")]
    Wildcard,
    /// The peer's first bytes are not a ZMTP greeting.
    #[error("peer does not speak ZMTP: it began with \"{0}\"")]
    NotZmtp(String),
    /// The peer speaks a version before 3.0.
    #[error("peer speaks ZMTP {0}, at least 3.0 is needed")]
    OldVersion(u8),
    /// The peer wants another security mechanism than NULL.
    #[error("peer asks for the security mechanism {0:?}, only NULL is spoken")]
    Mechanism(String),
    /// The peer's socket kind does not talk to ours.
    #[error("peer is a {theirs:?} socket, which does not talk to a {ours} socket")]
    SocketKind {
        /// Our kind.
        ours: &'static str,
        /// What the peer says it is.
        theirs: String,
    },
    /// A frame, message or command is larger than its limit. Nothing was allocated for it.
    #[error("peer announced a {what} of {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// `frame`, `message`, `command` or `greeting`.
        what: &'static str,
        /// Size announced so far.
        bytes: u64,
        /// The limit from [`Limits`](super::Limits).
        limit: usize,
    },
    /// A message has more frames than the limit.
    #[error("peer sent a message of over {0} frames")]
    TooManyFrames(usize),
    /// Bytes that no ZMTP peer sends.
    #[error("peer broke the protocol: {0}")]
    Malformed(&'static str),
    /// The peer ended the connection with an ERROR command.
    #[error("peer refused: \"{0}\"")]
    Refused(String),
    /// The peer subscribed to more than the limits allow.
    #[error("peer exceeded the limit of {0}")]
    Subscriptions(&'static str),
    /// The peer closed the connection.
    #[error("peer closed the connection{}", if *.during_handshake { " during the handshake" } else { "" })]
    Closed {
        /// Whether the handshake was still going on.
        during_handshake: bool,
    },
    /// A ROUTER was told to send to an identity that is not connected.
    #[error("no peer has that identity")]
    NoPeer,
}

/// At most this many characters of a peer's own words are kept.
const MAX_QUOTED_CHARS: usize = 200;

/// A peer's bytes as printable, bounded text.
pub(crate) fn quoted(bytes: &[u8]) -> String {
    bytes.iter().take(MAX_QUOTED_CHARS).flat_map(|b| b.escape_ascii()).map(char::from).collect()
}
