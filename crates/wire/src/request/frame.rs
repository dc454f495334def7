//! Requests on the connection that asks: `u16 length, path, u16 length, headers as JSON, u32 length, payload`, big-endian.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde_json::{Map, Value};

use super::FrameError;

/// One request, as it lies on the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestFrame {
    /// The endpoint, as [`EndpointId::request_path`](crate::discovery::EndpointId::request_path) has it.
    pub path: String,
    /// Names and values, in their order.
    pub headers: Vec<(String, String)>,
    /// A [`TwoPart`](super::TwoPart) of control header and body.
    pub payload: Bytes,
}

impl RequestFrame {
    /// The frame. `None` if a part is longer than its length field can say.
    pub fn encode(&self) -> Option<Bytes> {
        let headers: Map<String, Value> = self.headers.iter().map(|(name, value)| (name.clone(), Value::String(value.clone()))).collect();
        let headers = Value::Object(headers).to_string();
        let mut frame = BytesMut::with_capacity(8 + self.path.len() + headers.len() + self.payload.len());
        frame.put_u16(u16::try_from(self.path.len()).ok()?);
        frame.put_slice(self.path.as_bytes());
        frame.put_u16(u16::try_from(headers.len()).ok()?);
        frame.put_slice(headers.as_bytes());
        frame.put_u32(u32::try_from(self.payload.len()).ok()?);
        frame.put_slice(&self.payload);
        Some(frame.freeze())
    }

    /// Takes a whole frame off the buffer. `Ok(None)`: more bytes are needed.
    pub fn take(buffer: &mut BytesMut, max_payload_bytes: usize) -> Result<Option<Self>, FrameError> {
        let Some(path) = length(buffer, 0, 2) else { return Ok(None) };
        let headers_at = 2 + path;
        let Some(headers) = length(buffer, headers_at, 2) else { return Ok(None) };
        let payload_at = headers_at + 2 + headers;
        let Some(payload) = length(buffer, payload_at, 4) else { return Ok(None) };
        if payload > max_payload_bytes {
            return Err(FrameError::TooLong { part: "payload", bytes: payload as u64, bound: max_payload_bytes as u64 });
        }
        let whole = payload_at + 4 + payload;
        if buffer.len() < whole {
            return Ok(None);
        }
        let mut frame = buffer.split_to(whole).freeze();
        frame.advance(2);
        let path = String::from_utf8(frame.split_to(path).into()).map_err(|_| FrameError::Text("path"))?;
        frame.advance(2);
        let headers = header_pairs(&frame.split_to(headers))?;
        frame.advance(4);
        Ok(Some(Self { path, headers, payload: frame }))
    }

    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// The big-endian number of so many bytes, if it is there.
fn length(buffer: &[u8], at: usize, width: usize) -> Option<usize> {
    let bytes = buffer.get(at..at + width)?;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

/// An object of strings; values of other kinds are left out.
fn header_pairs(json: &[u8]) -> Result<Vec<(String, String)>, FrameError> {
    if json.is_empty() {
        return Ok(Vec::new());
    }
    let headers: Map<String, Value> = serde_json::from_slice(json).map_err(FrameError::json("headers"))?;
    let strings = headers.into_iter().filter_map(|(name, value)| match value {
        Value::String(value) => Some((name, value)),
        _ => None,
    });
    Ok(strings.collect())
}
