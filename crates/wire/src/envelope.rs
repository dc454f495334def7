//! What every message of the event plane is wrapped in, and how it lies in ZMQ frames and under NATS subjects.

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    cursor::{Broken, Cursor, Item},
    discovery::scope::encode_segment,
    out::Out,
};

/// The version of the frame around an envelope on ZMQ.
const FRAME_VERSION: u8 = 1;

/// Bytes of that frame's header: the version and a length.
const FRAME_HEADER_BYTES: usize = 5;

/// One message of one publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Random for each publisher object, 53 bits.
    pub publisher_id: u64,
    /// From 0 per publisher. Tells lost messages of topics without numbers of their own; KV events have their own.
    pub sequence: u64,
    /// When it was sent, in milliseconds since the epoch by the publisher's clock.
    pub published_at_ms: u64,
    /// The topic, without scope.
    pub topic: String,
    /// MessagePack, by topic.
    pub payload: Bytes,
}

/// Bytes or frames that are no envelope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// The bytes end inside a value, or are not MessagePack.
    #[error("the envelope is no complete messagepack value")]
    Broken,
    /// A field is missing, or something else than its kind of value.
    #[error("the envelope's {0} is missing or not of its kind")]
    Field(&'static str),
    /// Not four frames.
    #[error("a message of {0} frames, expected topic, publisher, sequence and envelope")]
    Frames(usize),
    /// The publisher or sequence frame is not 8 bytes, or says something else than the envelope.
    #[error("the {0} frame does not fit the envelope")]
    Mismatch(&'static str),
    /// The frame around the envelope has another version.
    #[error("an envelope in a frame of version {0}, expected {FRAME_VERSION}")]
    Version(u8),
    /// The frame around the envelope has another length than it says.
    #[error("an envelope frame that says {said} bytes and has {has}")]
    Length {
        /// By its header.
        said: u32,
        /// Behind its header.
        has: usize,
    },
}

impl From<Broken> for EnvelopeError {
    fn from(_: Broken) -> Self {
        Self::Broken
    }
}

impl Envelope {
    /// The body of a NATS message.
    pub fn encode(&self) -> Bytes {
        let mut out = Out::default();
        out.map(5);
        out.text("publisher_id");
        out.unsigned(self.publisher_id);
        out.text("sequence");
        out.unsigned(self.sequence);
        out.text("published_at");
        out.unsigned(self.published_at_ms);
        out.text("topic");
        out.text(&self.topic);
        out.text("payload");
        out.binary(&self.payload);
        out.finish()
    }

    /// Reads the body of a NATS message. The payload is shared with it, not copied. Unknown keys are skipped.
    pub fn decode(body: &Bytes) -> Result<Self, EnvelopeError> {
        let mut cursor = Cursor::new(body);
        let Item::Map(pairs) = cursor.item()? else { return Err(EnvelopeError::Field("map")) };
        let (mut publisher_id, mut sequence, mut published_at, mut topic, mut payload) = (None, None, None, None, None);
        for _ in 0..pairs {
            let key = cursor.key()?;
            let value = cursor.item()?;
            cursor.skip_inside(value)?;
            match (key, value) {
                (Some(b"publisher_id"), Item::Unsigned(id)) => publisher_id = Some(id),
                (Some(b"sequence"), Item::Unsigned(number)) => sequence = Some(number),
                (Some(b"published_at"), Item::Unsigned(time)) => published_at = Some(time),
                (Some(b"topic"), Item::Text(text)) => topic = std::str::from_utf8(text).ok(),
                (Some(b"payload"), Item::Binary(bytes)) => payload = Some(body.slice_ref(bytes)),
                _ => {}
            }
        }
        let field = EnvelopeError::Field;
        Ok(Self {
            publisher_id: publisher_id.ok_or(field("publisher_id"))?,
            sequence: sequence.ok_or(field("sequence"))?,
            published_at_ms: published_at.ok_or(field("published_at"))?,
            topic: topic.ok_or(field("topic"))?.to_owned(),
            payload: payload.ok_or(field("payload"))?,
        })
    }

    /// The frames of a ZMQ message: topic, publisher, sequence, and the envelope behind a version and its length.
    pub fn zmq_frames(&self) -> Vec<Bytes> {
        let envelope = self.encode();
        let mut frame = BytesMut::with_capacity(FRAME_HEADER_BYTES + envelope.len());
        frame.put_u8(FRAME_VERSION);
        // A publisher's payloads are far below 4 GiB: queues are bounded below that.
        frame.put_u32(u32::try_from(envelope.len()).unwrap_or(u32::MAX));
        frame.put_slice(&envelope);
        vec![
            Bytes::copy_from_slice(self.topic.as_bytes()),
            Bytes::copy_from_slice(&self.publisher_id.to_be_bytes()),
            Bytes::copy_from_slice(&self.sequence.to_be_bytes()),
            frame.freeze(),
        ]
    }

    /// Reads the frames of a ZMQ message. The topic frame may be the bare topic or, as brokers have it, the full subject.
    pub fn from_zmq(frames: &[Bytes]) -> Result<Self, EnvelopeError> {
        let [topic, publisher, sequence, frame] = frames else { return Err(EnvelopeError::Frames(frames.len())) };
        let (header, body) = frame.split_at_checked(FRAME_HEADER_BYTES).ok_or(EnvelopeError::Broken)?;
        if header[0] != FRAME_VERSION {
            return Err(EnvelopeError::Version(header[0]));
        }
        let said = u32::from_be_bytes([header[1], header[2], header[3], header[4]]);
        if usize::try_from(said) != Ok(body.len()) {
            return Err(EnvelopeError::Length { said, has: body.len() });
        }
        let envelope = Self::decode(&frame.slice_ref(body))?;
        if publisher[..] != envelope.publisher_id.to_be_bytes() {
            return Err(EnvelopeError::Mismatch("publisher"));
        }
        if sequence[..] != envelope.sequence.to_be_bytes() {
            return Err(EnvelopeError::Mismatch("sequence"));
        }
        if topic[..] != *envelope.topic.as_bytes() && !ends_with_topic(topic, &envelope.topic) {
            return Err(EnvelopeError::Mismatch("topic"));
        }
        Ok(envelope)
    }
}

/// Whether a subject is that of the topic in some scope.
fn ends_with_topic(subject: &[u8], topic: &str) -> bool {
    let topic = encode_segment(topic);
    subject.strip_suffix(topic.as_bytes()).is_some_and(|prefix| prefix.ends_with(b"."))
}

/// The NATS subject of a topic under a scope's prefix.
pub fn subject(prefix: &str, topic: &str) -> String {
    format!("{prefix}.{}", encode_segment(topic))
}
