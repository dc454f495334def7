//! One payload to a [`Batch`].

use crate::Event;

/// The events of one scheduler step of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Seconds since the epoch by the engine's clock.
    pub timestamp: Option<f64>,
    /// The data-parallel rank the engine says it is.
    pub rank: Option<u32>,
    /// In the order they happened. One that cannot be read is an error in its place (rule 8).
    pub events: Vec<Result<Event, EventError>>,
}

/// A payload of which nothing can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The outermost value is neither an array nor a map.
    #[error("the batch is {0}, expected an array or a map")]
    Shape(&'static str),
    /// The batch has no list of events.
    #[error("the batch has no list of events")]
    NoEvents,
    /// The bytes end in the middle of a value, or are not MessagePack.
    #[error("the batch is no complete messagepack value")]
    Broken,
}

/// One event that cannot be used; its neighbours can.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// Neither a tagged array nor a map with a `type`.
    #[error("the event has no type")]
    Untagged,
    /// A field the event cannot do without is not there.
    #[error("the event has no {0}")]
    Missing(&'static str),
    /// A field holds something else than its kind of value.
    #[error("the event's {field} is {found}")]
    Field {
        /// The field.
        field: &'static str,
        /// What it holds.
        found: &'static str,
    },
    /// A block hash that is binary and neither 16 nor 32 bytes.
    #[error("a block hash of {0} bytes, expected 16 or 32")]
    HashBytes(usize),
    /// Token pairs that do not follow from each other.
    #[error("the event's token pairs do not overlap")]
    BrokenPairs,
}

/// Reads a payload. `Err` only where the batch itself is unreadable; see [`Batch::events`] for the rest. Reads each
/// byte once, and allocates in proportion to the bytes given, whatever lengths they claim.
pub fn batch(payload: &[u8]) -> Result<Batch, BatchError> {
    let _ = payload;
    Err(BatchError::Broken)
}
