//! The ZMQ frames around a batch, and the replay protocol's request.
//!
//! A SUB socket gives `topic, sequence, payload`; a DEALER that asked for a replay gets `"", sequence, payload` from
//! engines before vLLM 0.26 and SGLang 0.5.23, and `"", topic, sequence, payload` from later ones. The last two
//! frames decide everywhere; what is before them is the subscriber's business.

use bytes::Bytes;

/// The sequence number that ends a replay, beside an empty payload: -1 as 8 bytes.
pub(crate) const END_OF_REPLAY: u64 = u64::MAX;

/// Bytes of a sequence frame.
const SEQUENCE_BYTES: usize = size_of::<u64>();

/// One numbered message of an engine's stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Counts from 0 at each start of the engine, one per message.
    pub seq: u64,
    /// The MessagePack batch, for [`batch`](crate::batch).
    pub payload: Bytes,
}

/// What the frames of one ZMQ message are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Framed {
    /// A batch of events, live or replayed.
    Batch(Message),
    /// The replay that was asked for is over.
    EndOfReplay,
}

/// Frames that are no message of an engine's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Neither 2, 3 nor 4 frames.
    #[error("a message of {0} frames, expected 2 to 4")]
    Count(usize),
    /// The frame before the payload is no sequence number.
    #[error("a sequence frame of {0} bytes, expected {SEQUENCE_BYTES}")]
    Sequence(usize),
    /// The sequence number of the end marker beside a payload of so many bytes.
    #[error("sequence -1 with a payload of {0} bytes, expected none")]
    EndMarker(usize),
}

/// Takes one ZMQ message apart. The last two frames are an 8-byte big-endian sequence number and the payload, which
/// is shared and not copied.
pub fn message(frames: &[Bytes]) -> Result<Framed, FrameError> {
    let ([sequence, payload] | [_, sequence, payload] | [_, _, sequence, payload]) = frames else {
        return Err(FrameError::Count(frames.len()));
    };
    let sequence: [u8; SEQUENCE_BYTES] = sequence.as_ref().try_into().map_err(|_| FrameError::Sequence(sequence.len()))?;
    match (u64::from_be_bytes(sequence), payload.len()) {
        (END_OF_REPLAY, 0) => Ok(Framed::EndOfReplay),
        (END_OF_REPLAY, bytes) => Err(FrameError::EndMarker(bytes)),
        (seq, _) => Ok(Framed::Batch(Message { seq, payload: payload.clone() })),
    }
}

/// The frames by which a DEALER asks for every batch from `from` on, inclusive. The empty first frame is the
/// delimiter a REQ socket would have added; without it engines do not answer.
pub fn replay_request(from: u64) -> [Bytes; 2] {
    [Bytes::new(), sequence(from)]
}

/// The other side of [`replay_request`], for a publisher: the sequence number asked for, out of the frames after
/// the identity. `None` for what engines leave unanswered: a missing delimiter or more frames. As they do, it reads a
/// shorter number as it stands; one longer than 8 bytes is past the end of every stream.
pub fn replay_start(frames: &[Bytes]) -> Option<u64> {
    let [delimiter, sequence] = frames else {
        return None;
    };
    if !delimiter.is_empty() {
        return None;
    }
    let significant = sequence.iter().position(|byte| *byte != 0).map_or(&[][..], |first| &sequence[first..]);
    if significant.len() > SEQUENCE_BYTES {
        return Some(u64::MAX);
    }
    Some(significant.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

pub(crate) fn sequence(seq: u64) -> Bytes {
    Bytes::copy_from_slice(&seq.to_be_bytes())
}
