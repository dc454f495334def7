//! Requests on the connection that asks: `u16 length, path, u16 length, headers as JSON, u32 length, payload`, big-endian.

use bytes::{Buf, Bytes, BytesMut};
use serde_json::{Map, Value};

use super::{ControlHeader, FrameError};

/// Room for the headers and for the control header of most requests, in bytes.
const HEADERS_BYTES: usize = 256;
const CONTROL_BYTES: usize = 512;

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
        let headers = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let mut frame = head(&self.path, headers, self.payload.len())?;
        put_length(&mut frame, self.payload.len())?;
        frame.extend_from_slice(&self.payload);
        Some(frame.into())
    }

    /// What comes before the body of a request: the body follows as it is, so that it need not be copied. A header's name may come
    /// once. `None` as for [`encode`](Self::encode).
    pub fn before_body<'a>(
        path: &str,
        headers: impl Iterator<Item = (&'a str, &'a str)>,
        control: &ControlHeader,
        body_bytes: usize,
    ) -> Option<Bytes> {
        let mut frame = head(path, headers, CONTROL_BYTES)?;
        let at = frame.len();
        put_length(&mut frame, 0)?;
        control.put_before_body(body_bytes, &mut frame);
        let payload = u32::try_from(frame.len() - at - 4 + body_bytes).ok()?;
        frame[at..at + 4].copy_from_slice(&payload.to_be_bytes());
        Some(frame.into())
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

/// Path and headers of a frame, with room for so many bytes behind them.
fn head<'a>(path: &str, headers: impl Iterator<Item = (&'a str, &'a str)>, behind: usize) -> Option<Vec<u8>> {
    let mut frame = Vec::with_capacity(8 + path.len() + HEADERS_BYTES + behind);
    frame.extend_from_slice(&u16::try_from(path.len()).ok()?.to_be_bytes());
    frame.extend_from_slice(path.as_bytes());
    let at = frame.len();
    frame.extend_from_slice(b"\0\0{");
    for (index, (name, value)) in headers.enumerate() {
        if index > 0 {
            frame.push(b',');
        }
        put_text(&mut frame, name);
        frame.push(b':');
        put_text(&mut frame, value);
    }
    frame.push(b'}');
    let headers = u16::try_from(frame.len() - at - 2).ok()?;
    frame[at..at + 2].copy_from_slice(&headers.to_be_bytes());
    Some(frame)
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    // Text is always JSON, and memory always takes it.
    serde_json::to_writer(out, text).expect("text is JSON");
}

fn put_length(out: &mut Vec<u8>, length: usize) -> Option<()> {
    out.extend_from_slice(&u32::try_from(length).ok()?.to_be_bytes());
    Some(())
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
