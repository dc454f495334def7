//! One payload to a [`Batch`]: the outer shape, and each event in its place.

use crate::{
    Event,
    cursor::{Broken, Cursor, Item},
    fields::{self, Fault},
};

/// A list of events may claim one event for each so many bytes left (no known event is shorter than 18) ...
const BYTES_PER_EVENT: usize = 16;

/// ... and this many more, so that short odd ones are still counted one by one. A decoded event takes over 200
/// bytes of memory whatever it took on the wire, so the count needs a bound of its own (rule 16).
const ODD_EVENTS: usize = 1024;

/// The events of one scheduler step of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Seconds since the epoch by the engine's clock; `None` where it is missing or no number.
    pub timestamp: Option<f64>,
    /// The data-parallel rank the engine says it is.
    pub rank: Option<u32>,
    /// In the order they happened. One that cannot be read is an error in its place (rule 8).
    pub events: Vec<Result<Event, EventError>>,
}

/// A payload of which nothing can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The bytes end inside a value, or are not MessagePack.
    #[error("the batch is no complete messagepack value")]
    Broken,
    /// The outermost value is neither an array nor a map.
    #[error("the batch is {0}, expected an array or a map")]
    Shape(&'static str),
    /// The batch has no list of events.
    #[error("the batch has no list of events")]
    NoEvents,
    /// More events than so few bytes can hold.
    #[error("the batch claims {0} events, more than its bytes can hold")]
    TooManyEvents(usize),
    /// The rank is no rank, so whom the events concern is not known.
    #[error("the rank of the batch is {0}, expected a 32-bit integer or nil")]
    Rank(&'static str),
}

impl From<Broken> for BatchError {
    fn from(_: Broken) -> Self {
        Self::Broken
    }
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
    #[error("the event's {field} is or has {found}")]
    Field {
        /// The field.
        field: &'static str,
        /// What it holds.
        found: &'static str,
    },
    /// A block hash that is binary and neither 16 nor 32 bytes.
    #[error("a block hash of {0} bytes, expected 16 or 32")]
    HashBytes(usize),
    /// Token pairs of which the second of one is not the first of the next.
    #[error("the event's token pairs do not overlap")]
    BrokenPairs,
}

/// Reads a payload. `Err` only where the batch itself is unreadable; see [`Batch::events`] for the rest.
///
/// The batch is an array of timestamp, events and rank, cut short or with more behind, or a map of the same. Memory
/// is taken in proportion to the bytes given, whatever lengths they claim. Bytes behind the batch are ignored.
pub fn batch(payload: &[u8]) -> Result<Batch, BatchError> {
    let mut cursor = Cursor::new(payload);
    let mut parts = Parts::default();
    let outermost = cursor.item()?;
    if let Item::Array(slots) = outermost {
        for slot in 0..slots {
            match slot {
                0 => parts.timestamp(&mut cursor)?,
                1 => parts.events(&mut cursor)?,
                2 => parts.rank(&mut cursor)?,
                _ => cursor.skip(1)?,
            }
        }
    } else if let Item::Map(pairs) = outermost {
        for _ in 0..pairs {
            match cursor.key()? {
                Some(b"ts" | b"timestamp") => parts.timestamp(&mut cursor)?,
                Some(b"events") => parts.events(&mut cursor)?,
                Some(b"data_parallel_rank" | b"attn_dp_rank" | b"dp_rank") => parts.rank(&mut cursor)?,
                _ => cursor.skip(1)?,
            }
        }
    } else {
        return Err(BatchError::Shape(outermost.kind()));
    }
    let events = parts.events.ok_or(BatchError::NoEvents)?;
    Ok(Batch { timestamp: parts.timestamp, rank: parts.rank, events })
}

#[derive(Default)]
struct Parts {
    timestamp: Option<f64>,
    rank: Option<u32>,
    events: Option<Vec<Result<Event, EventError>>>,
}

impl Parts {
    fn timestamp(&mut self, cursor: &mut Cursor<'_>) -> Result<(), BatchError> {
        let item = cursor.item()?;
        self.timestamp = item.as_float();
        Ok(cursor.skip_inside(item)?)
    }

    fn rank(&mut self, cursor: &mut Cursor<'_>) -> Result<(), BatchError> {
        self.rank = match cursor.item()? {
            Item::Nil => None,
            Item::Unsigned(rank) => Some(u32::try_from(rank).map_err(|_| BatchError::Rank("out of range"))?),
            other => return Err(BatchError::Rank(other.kind())),
        };
        Ok(())
    }

    fn events(&mut self, cursor: &mut Cursor<'_>) -> Result<(), BatchError> {
        let Item::Array(count) = cursor.item()? else { return Err(BatchError::NoEvents) };
        if count > ODD_EVENTS + cursor.remaining() / BYTES_PER_EVENT {
            return Err(BatchError::TooManyEvents(count));
        }
        let mut events = Vec::with_capacity(count);
        for _ in 0..count {
            events.push(match fields::event(cursor) {
                Ok(event) => Ok(event),
                Err(Fault::Event(error)) => Err(error),
                Err(Fault::Broken) => return Err(BatchError::Broken),
            });
        }
        self.events = Some(events);
        Ok(())
    }
}
