//! What a reader of an answer gives, piece by piece.

use super::Answer;
use crate::{
    cursor::Broken,
    router::{RouterEvent, RouterEventError},
};

/// The longest answer that is read, in bytes. 2 million blocks take about 150 MB.
pub const MAX_ANSWER_BYTES: u64 = 1 << 30;

/// The longest single value in it, in bytes: an event of a run of half a million blocks.
pub const MAX_VALUE_BYTES: usize = 64 << 20;

/// A piece of an answer, in their order: one [`Begin`](Part::Begin), its events, one [`End`](Part::End). Or [`Other`](Part::Other) alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A list of events follows.
    Begin(Listing),
    /// One of them; an odd one is an error in its place (rule 8).
    Event(Result<RouterEvent, RouterEventError>),
    /// The list is complete.
    End(Tail),
    /// An answer without events.
    Other(Answer),
}

/// Which list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// Events by their numbers.
    Events,
    /// A dump.
    TreeDump,
}

/// What is known at the end of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    /// Which list it was.
    pub listing: Listing,
    /// The newest event there is, or that the dump has in it.
    pub last_event_id: u64,
    /// What a dump replaces: `all`, also where it is not said.
    pub reset_scope: String,
    /// Which page, from 0.
    pub page: u32,
    /// Whether no page follows.
    pub last: bool,
    /// Whether the publisher itself lacks something, see [`Item::lacking`](super::Item::lacking).
    pub lacking: bool,
}

/// An answer that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// The bytes are not MessagePack, or end too early.
    #[error("the answer is no complete messagepack value")]
    Broken,
    /// A field is missing, or something else than its kind of value.
    #[error("the answer's {0} is missing or not of its kind")]
    Field(&'static str),
    /// More than [`MAX_ANSWER_BYTES`].
    #[error("the answer is longer than {MAX_ANSWER_BYTES} bytes")]
    TooLong,
    /// One value of more than [`MAX_VALUE_BYTES`].
    #[error("one value of the answer is longer than {MAX_VALUE_BYTES} bytes")]
    ValueTooLong,
}

impl From<Broken> for AnswerError {
    fn from(_: Broken) -> Self {
        Self::Broken
    }
}
