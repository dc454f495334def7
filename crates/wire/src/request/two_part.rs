//! Two-part messages: `u64 header length, u64 body length, u64 checksum, header, body`, big-endian. The checksum is 0 and not looked at,
//! as in release builds of 1.6.1.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::FrameError;

/// Bytes before the header: two lengths and the checksum.
pub(crate) const PART_HEAD_BYTES: usize = 24;

/// The longest header that is read, in bytes: JSON of a few short fields.
pub(crate) const MAX_HEADER_BYTES: usize = 64 << 10;

/// A message of a header, a body or both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TwoPart {
    /// JSON, or empty.
    pub header: Bytes,
    /// In the payload codec, or empty.
    pub body: Bytes,
}

impl TwoPart {
    /// A message with a header only.
    pub fn of_header(header: impl Into<Bytes>) -> Self {
        Self { header: header.into(), body: Bytes::new() }
    }

    /// The whole message.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(PART_HEAD_BYTES + self.header.len() + self.body.len());
        put_head(&mut bytes, self.header.len(), self.body.len());
        bytes.put_slice(&self.header);
        bytes.put_slice(&self.body);
        bytes.freeze()
    }

    /// Takes a whole message off the buffer. `Ok(None)`: more bytes are needed.
    pub fn take(buffer: &mut BytesMut, max_body_bytes: usize) -> Result<Option<Self>, FrameError> {
        let Some((header, body)) = lengths(buffer) else { return Ok(None) };
        let header = bounded("header", header, MAX_HEADER_BYTES)?;
        let body = bounded("body", body, max_body_bytes)?;
        if buffer.len() < PART_HEAD_BYTES + header + body {
            return Ok(None);
        }
        buffer.advance(PART_HEAD_BYTES);
        let header = buffer.split_to(header).freeze();
        Ok(Some(Self { header, body: buffer.split_to(body).freeze() }))
    }

    /// Reads a payload that is exactly one message.
    pub fn decode(payload: &Bytes) -> Result<Self, FrameError> {
        let Some((header, body)) = lengths(payload) else { return Err(FrameError::Order("a payload too short to be a message")) };
        let header = bounded("header", header, MAX_HEADER_BYTES)?;
        let body = bounded("body", body, payload.len())?;
        if payload.len() != PART_HEAD_BYTES + header + body {
            return Err(FrameError::Order("a payload of another length than its message"));
        }
        let at = PART_HEAD_BYTES + header;
        Ok(Self { header: payload.slice(PART_HEAD_BYTES..at), body: payload.slice(at..) })
    }
}

/// The beginning of a message with parts of these lengths.
pub(super) fn put_head(out: &mut BytesMut, header: usize, body: usize) {
    out.put_u64(header as u64);
    out.put_u64(body as u64);
    out.put_u64(0);
}

/// The lengths of header and body, if they are there.
pub(super) fn lengths(buffer: &[u8]) -> Option<(u64, u64)> {
    let (mut head, _) = buffer.split_at_checked(PART_HEAD_BYTES)?;
    Some((head.get_u64(), head.get_u64()))
}

pub(super) fn bounded(part: &'static str, bytes: u64, bound: usize) -> Result<usize, FrameError> {
    match usize::try_from(bytes) {
        Ok(length) if length <= bound => Ok(length),
        _ => Err(FrameError::TooLong { part, bytes, bound: bound as u64 }),
    }
}
