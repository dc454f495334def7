//! What is said around requests and items: control headers, acknowledgements, hand-shakes, prologues, stop and kill.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{FrameError, MAX_ACK_BYTES, PART_HEAD_BYTES, TwoPart, TypedError};

/// How bodies and items are encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Codec {
    /// MessagePack, maps with names.
    Msgpack,
    /// JSON, also where none is named.
    #[default]
    Json,
}

/// The header of a request's payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlHeader {
    /// The request's id.
    pub id: String,
    /// How the body is encoded, and the answer is to be.
    pub codec: Codec,
    /// Where the answer goes.
    pub connection: ConnectionInfo,
}

/// Where the answerer calls home.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionInfo {
    /// `host:port` of the asker's listener.
    pub address: String,
    /// The stream's name, for the hand-shake; one for each request.
    pub subject: String,
    /// The request's id.
    pub context: String,
    /// What the stream carries.
    pub stream_type: StreamType,
}

/// What a stream carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamType {
    /// More of the request.
    Request,
    /// The answer.
    Response,
}

#[derive(Deserialize)]
struct ControlJson {
    id: String,
    #[serde(default)]
    request_type: Option<String>,
    #[serde(default)]
    payload_codec: Codec,
    connection_info: ConnectionJson<String>,
}

/// The same as it is written, in 1.6.1's order.
#[derive(Serialize)]
struct ControlText<'a> {
    id: &'a str,
    request_type: &'static str,
    response_type: &'static str,
    payload_codec: Codec,
    connection_info: ConnectionJson<&'a str>,
}

#[derive(Serialize, Deserialize)]
struct ConnectionJson<T> {
    transport: T,
    info: T,
}

/// The only way home there is.
const TCP_SERVER: &str = "tcp_server";

impl ControlHeader {
    /// The JSON, for one body in and many items out.
    pub fn encode(&self) -> Bytes {
        let mut json = Vec::new();
        self.put(&mut json);
        json.into()
    }

    /// What comes before the body in a payload: the lengths, and the JSON. The body follows as it is.
    pub fn put_before_body(&self, body_bytes: usize, out: &mut Vec<u8>) {
        let at = out.len();
        out.extend_from_slice(&[0; PART_HEAD_BYTES]);
        self.put(out);
        let header = out.len() - at - PART_HEAD_BYTES;
        out[at..at + 8].copy_from_slice(&(header as u64).to_be_bytes());
        out[at + 8..at + 16].copy_from_slice(&(body_bytes as u64).to_be_bytes());
    }

    fn put(&self, out: &mut Vec<u8>) {
        let control = ControlText {
            id: &self.id,
            request_type: "single_in",
            response_type: "many_out",
            payload_codec: self.codec,
            connection_info: ConnectionJson { transport: TCP_SERVER, info: &json_text(&self.connection) },
        };
        // Structs of strings and names, which are always JSON, written to memory.
        serde_json::to_writer(out, &control).expect("plain structs are JSON");
    }

    /// Reads a header. One that asks for anything else than one body in is refused.
    pub fn decode(header: &[u8]) -> Result<Self, FrameError> {
        const PART: &str = "control header";
        let control: ControlJson = serde_json::from_slice(header).map_err(FrameError::json(PART))?;
        if control.request_type.is_some_and(|kind| kind != "single_in") {
            return Err(FrameError::Order("a request of several parts"));
        }
        if control.connection_info.transport != TCP_SERVER {
            return Err(FrameError::Order("an answer over another transport than TCP"));
        }
        let connection = serde_json::from_str(&control.connection_info.info).map_err(FrameError::json(PART))?;
        Ok(Self { id: control.id, codec: control.payload_codec, connection })
    }
}

/// The answer to a request frame, on the connection it came on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ack {
    /// It was taken: the answerer will call home, unless it cannot read the body.
    Accepted,
    /// It was not, and no one will call.
    Refused(String),
}

impl Ack {
    /// `u32 length, text`.
    pub fn encode(&self) -> Bytes {
        let text = match self {
            Self::Accepted => "",
            Self::Refused(reason) if reason.is_empty() => "refused",
            Self::Refused(reason) => &reason[..reason.floor_char_boundary(MAX_ACK_BYTES)],
        };
        let mut bytes = BytesMut::with_capacity(4 + text.len());
        // Cut to far less than 4 GiB above.
        bytes.put_u32(u32::try_from(text.len()).unwrap_or(0));
        bytes.put_slice(text.as_bytes());
        bytes.freeze()
    }

    /// Takes a whole acknowledgement off the buffer. `Ok(None)`: more bytes are needed.
    pub fn take(buffer: &mut BytesMut) -> Result<Option<Self>, FrameError> {
        let Some((length, _)) = buffer.split_first_chunk() else { return Ok(None) };
        let length = super::two_part::bounded("acknowledgement", u32::from_be_bytes(*length).into(), MAX_ACK_BYTES)?;
        if buffer.len() < 4 + length {
            return Ok(None);
        }
        buffer.advance(4);
        let text = buffer.split_to(length);
        if text.is_empty() {
            return Ok(Some(Self::Accepted));
        }
        Ok(Some(Self::Refused(String::from_utf8_lossy(&text).into_owned())))
    }
}

/// The first message of who calls home.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handshake {
    /// Which request it answers.
    pub subject: String,
    /// What it carries.
    pub stream_type: StreamType,
}

impl Handshake {
    /// The header.
    pub fn encode(&self) -> TwoPart {
        TwoPart::of_header(json_text(self))
    }

    /// Reads a header.
    pub fn decode(header: &[u8]) -> Result<Self, FrameError> {
        serde_json::from_slice(header).map_err(FrameError::json("hand-shake"))
    }
}

/// The second message: whether there will be items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prologue {
    /// Why not.
    pub error: Option<String>,
    /// The same, with its class.
    pub typed: Option<TypedError>,
}

#[derive(Serialize, Deserialize)]
struct PrologueJson {
    error: Option<String>,
    /// A shape not known here is as good as none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    typed_error: Option<Value>,
}

impl Prologue {
    /// The header.
    pub fn encode(&self) -> TwoPart {
        let typed_error = self.typed.as_ref().map(TypedError::to_value);
        TwoPart::of_header(json_text(&PrologueJson { error: self.error.clone(), typed_error }))
    }

    /// Reads a header.
    pub fn decode(header: &[u8]) -> Result<Self, FrameError> {
        let json: PrologueJson = serde_json::from_slice(header).map_err(FrameError::json("prologue"))?;
        Ok(Self { error: json.error, typed: json.typed_error.as_ref().and_then(TypedError::from_value) })
    }
}

/// What an asker says on the connection that called home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Control {
    /// Enough: end the work, what is there may still come.
    Stop,
    /// Nobody listens any more.
    Kill,
}

impl Control {
    /// The header.
    pub fn encode(self) -> TwoPart {
        TwoPart::of_header(json_text(&self))
    }

    /// Takes a whole control message off the buffer. `Ok(None)`: more bytes are needed.
    pub fn take(buffer: &mut BytesMut) -> Result<Option<Self>, FrameError> {
        let Some(message) = TwoPart::take(buffer, MAX_ACK_BYTES)? else { return Ok(None) };
        serde_json::from_slice(&message.header).map(Some).map_err(FrameError::json("control message"))
    }
}

fn json_text<T: Serialize>(value: &T) -> String {
    // Structs of strings and names, which are always JSON.
    serde_json::to_string(value).expect("plain structs are JSON")
}
