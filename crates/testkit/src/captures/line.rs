//! The kinds of lines in a capture.

use bytes::Bytes;
use serde_json::Value;

use super::base64;

/// What the capture is of.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The engine and its version.
    pub engine: String,
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks of the engine's cache, one of which is never used; not said by legacy captures.
    pub kv_blocks: Option<u32>,
    /// The topic of the stream; not said by legacy captures.
    pub topic: Option<String>,
    /// Frames of a replayed message, for legacy captures: 3 or 4.
    pub replay_frames: Option<u32>,
    /// The whole line.
    pub json: Value,
}

/// One line behind the first.
#[derive(Clone, Debug)]
pub enum Line {
    /// A request that may have used the cache.
    Request(Box<Request>),
    /// Any other HTTP call.
    Control(Control),
    /// One message of the live stream.
    Live(Live),
    /// A replay and its answer.
    Replay(Replay),
    /// Anything else: `replay-malformed`, `replay-many`, `note`, `abort`, `concurrent`.
    Other {
        /// The kind of line.
        kind: String,
        /// The whole line.
        json: Value,
    },
}

/// A request and its answer.
#[derive(Clone, Debug)]
pub struct Request {
    /// Unique in its file.
    pub id: String,
    /// The scenario the line is from, in legacy captures.
    pub part: Option<String>,
    /// What is special about it.
    pub note: String,
    /// The path it was sent to; empty in legacy captures.
    pub path: String,
    /// The body; null in legacy captures.
    pub body: Value,
    /// Request headers; null in legacy captures.
    pub headers: Value,
    /// Token ids of each prompt. Empty where the capture does not know them (a list of texts), and more than one for
    /// a list of token-id prompts.
    pub prompts: Vec<Vec<u32>>,
    /// Name of the adapter.
    pub lora: Option<String>,
    /// The body's cache salt.
    pub cache_salt: Option<String>,
    /// What a small set-based model predicted from the events before; `None` where it made no prediction.
    pub predicted_cached_tokens: Option<u32>,
    /// `usage.prompt_tokens_details.cached_tokens` of the answer; `None` for an answer without.
    pub engine_cached_tokens: Option<u32>,
    /// HTTP status; `None` in legacy captures.
    pub status: Option<u16>,
    /// The answer: JSON, or the text of the event stream; null in legacy captures.
    pub response: Value,
}

/// An HTTP call that is no inference.
#[derive(Clone, Debug)]
pub struct Control {
    /// HTTP method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// HTTP status of the answer.
    pub status: u16,
    /// The whole line.
    pub json: Value,
}

/// A message as a SUB socket received it.
#[derive(Clone, Debug)]
pub struct Live {
    /// The scenario the line is from, in legacy captures.
    pub part: Option<String>,
    /// The request that was sent last before it.
    pub cause: String,
    /// Its sequence number.
    pub seq: u64,
    /// Topic, sequence, payload.
    pub frames: Vec<Bytes>,
    /// The payload as JSON; binary as `{"b64": ..}`.
    pub decoded: Value,
}

/// A replay request and what came back.
#[derive(Clone, Debug)]
pub struct Replay {
    /// What is special about it.
    pub label: String,
    /// The first sequence number asked for.
    pub start_seq: u64,
    /// The frames sent.
    pub request: Vec<Bytes>,
    /// Messages that came back, with the end marker; long replies keep only the first and last of them.
    pub messages_total: u64,
    /// The messages kept.
    pub reply: Vec<Replayed>,
}

/// One message of a replay's answer.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// As received.
    pub frames: Vec<Bytes>,
    /// The payload as JSON; null for the end marker.
    pub decoded: Value,
}

impl Scenario {
    pub(super) fn new(at: &str, json: Value) -> Self {
        let line = Fields { at, json: &json };
        assert_eq!(line.text("kind"), "scenario", "{at}");
        Self {
            engine: line.text("engine"),
            block_size: line.number("block_size"),
            kv_blocks: line.optional_number("kv_blocks"),
            topic: line.optional_text("topic"),
            replay_frames: line.optional_number("replay_reply_frames_at_dealer"),
            json,
        }
    }
}

impl Line {
    pub(super) fn new(at: &str, json: Value) -> Self {
        let line = Fields { at, json: &json };
        let kind = line.text("kind");
        match kind.as_str() {
            "request" => Self::Request(Box::new(request(&line))),
            "control" => {
                Self::Control(Control { method: line.text("method"), path: line.text("path"), status: line.number("status"), json })
            }
            "zmq" => Self::Live(Live {
                part: line.optional_text("scenario"),
                cause: line.text("cause"),
                seq: line.number("seq"),
                frames: line.frames("frames_b64"),
                decoded: line.value("decoded"),
            }),
            "replay" => Self::Replay(Replay {
                label: line.text("label"),
                start_seq: line.number("start_seq"),
                request: line.frames("request_frames_b64"),
                messages_total: line.number("messages_total"),
                reply: line.list("reply").iter().map(|json| replayed(at, json)).collect(),
            }),
            _ => Self::Other { kind, json },
        }
    }

    /// The scenario the line is from, in legacy captures.
    pub fn part(&self) -> Option<&str> {
        match self {
            Self::Request(request) => request.part.as_deref(),
            Self::Live(live) => live.part.as_deref(),
            Self::Control(_) | Self::Replay(_) | Self::Other { .. } => None,
        }
    }
}

fn request(line: &Fields<'_>) -> Request {
    let body = line.value("body");
    let prompts = tokens(&line.value("prompt_token_ids"))
        .map(|prompt| vec![prompt])
        .or_else(|| body["prompt"].as_array()?.iter().map(tokens).collect())
        .unwrap_or_default();
    Request {
        id: line.text("id"),
        part: line.optional_text("scenario"),
        note: line.text("note"),
        path: line.optional_text("path").unwrap_or_default(),
        headers: line.value("headers"),
        prompts,
        lora: line.optional_text("lora"),
        cache_salt: line.optional_text("cache_salt"),
        predicted_cached_tokens: line.optional_number("predicted_cached_tokens"),
        engine_cached_tokens: line.optional_number("engine_cached_tokens"),
        status: line.optional_number("status"),
        response: line.value("response"),
        body,
    }
}

fn replayed(at: &str, json: &Value) -> Replayed {
    let message = Fields { at, json };
    Replayed { frames: message.frames("frames_b64"), decoded: message.value("decoded") }
}

/// One prompt's token ids, if that is what it is.
fn tokens(json: &Value) -> Option<Vec<u32>> {
    json.as_array()?.iter().map(|token| token.as_u64()?.try_into().ok()).collect()
}

/// A line's fields, with the line's place for the message when one is not as promised.
struct Fields<'a> {
    at: &'a str,
    json: &'a Value,
}

impl Fields<'_> {
    fn value(&self, key: &str) -> Value {
        self.json[key].clone()
    }

    fn optional_text(&self, key: &str) -> Option<String> {
        self.json[key].as_str().map(str::to_owned)
    }

    fn text(&self, key: &str) -> String {
        self.optional_text(key).unwrap_or_else(|| panic!("{}: {key} is no string", self.at))
    }

    fn optional_number<T: TryFrom<u64>>(&self, key: &str) -> Option<T> {
        self.json[key].as_u64()?.try_into().ok()
    }

    fn number<T: TryFrom<u64>>(&self, key: &str) -> T {
        self.optional_number(key).unwrap_or_else(|| panic!("{}: {key} is no number in range", self.at))
    }

    fn list(&self, key: &str) -> &[Value] {
        self.json[key].as_array().unwrap_or_else(|| panic!("{}: {key} is no list", self.at))
    }

    fn frames(&self, key: &str) -> Vec<Bytes> {
        let frame = |frame: &Value| frame.as_str().and_then(base64::decode).map(Bytes::from);
        let frames = self.list(key).iter().map(frame).collect::<Option<_>>();
        frames.unwrap_or_else(|| panic!("{}: {key} is no list of base64", self.at))
    }
}
