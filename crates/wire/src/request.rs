//! The bytes of the request plane: who asks connects once and sends [`RequestFrame`]s, each acknowledged on the same connection; who
//! answers dials back, one connection for each request, and streams two-part messages.
//!
//! The asker: [`RequestFrame`] with a [`ControlHeader`] and the body as its [`TwoPart`] payload; [`Ack::take`]; then on the connection
//! that calls home [`ResponseDecoder`], and [`Control`] in the other direction. The answerer: [`RequestFrame::take`], [`Ack`], and
//! [`Response`]'s frames. Every `take` leaves the buffer as it is until the whole is there, holds the lengths it reads to a bound, and
//! allocates nothing by them.

mod control;
mod error;
mod frame;
mod response;
mod two_part;

pub use control::{Ack, Codec, ConnectionInfo, Control, ControlHeader, Handshake, Prologue, StreamType};
pub use error::TypedError;
pub use frame::RequestFrame;
pub use response::{Limits, Reply, Response, ResponseDecoder};
pub use two_part::TwoPart;
pub(crate) use two_part::{MAX_HEADER_BYTES, PART_HEAD_BYTES};

/// The longest acknowledgement that is read, in bytes: an error text.
pub const MAX_ACK_BYTES: usize = 64 << 10;

/// A path that nobody serves. A frame for it is a question whether the answerer is there: it is refused at once and starts nothing.
pub const PROBE_PATH: &str = "probe-of-liveness";

/// Bytes that are no frame of the request plane. The connection is of no use any more.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// A part is longer than its bound.
    #[error("the {part} has {bytes} bytes, expected at most {bound}")]
    TooLong {
        /// Which part.
        part: &'static str,
        /// What its length says.
        bytes: u64,
        /// The bound.
        bound: u64,
    },
    /// A part that is a string is not UTF-8.
    #[error("the {0} is not UTF-8")]
    Text(&'static str),
    /// A part is not the JSON it should be.
    #[error("the {part} is not as it should be: {error}")]
    Json {
        /// Which part.
        part: &'static str,
        /// The parser's words.
        error: serde_json::Error,
    },
    /// A part is not the MessagePack it should be.
    #[error("the {0} is not as it should be")]
    Item(&'static str),
    /// A frame that cannot come here.
    #[error("a frame out of place: {0}")]
    Order(&'static str),
}

impl FrameError {
    fn json(part: &'static str) -> impl Fn(serde_json::Error) -> Self {
        move |error| Self::Json { part, error }
    }
}
