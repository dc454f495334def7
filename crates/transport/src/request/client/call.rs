//! What is asked of whom, and its bytes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use wire::discovery::{Endpoint, Transport};
use wire::request::{Codec, ConnectionInfo, ControlHeader, RequestFrame, StreamType};

use super::pipe::Frame;
use super::post;
use super::subject::Subject;

/// Headers that are ours to write; a caller's of these names are left out.
const OWN: [&str; 3] = ["request-id", "x-endpoint-path", "x-frontend-send-ts-ns"];

/// What to ask of whom.
#[derive(Clone, Debug)]
pub struct Call {
    pub(super) way: Way,
    pub(super) body: Bytes,
    pub(super) codec: Codec,
    id: Option<String>,
    headers: Vec<(String, String)>,
    pub(super) item_timeout: Option<Duration>,
}

/// How the endpoint is reached.
#[derive(Clone, Debug)]
pub(super) enum Way {
    /// `host:port/path`.
    Tcp(String),
    /// The subject.
    Nats(String),
}

impl Call {
    /// A call of the endpoint at `host:port/path`, with a body in MessagePack.
    pub fn new(address: impl Into<String>, body: Bytes) -> Self {
        Self::by(Way::Tcp(address.into()), body)
    }

    /// A call of an instance, with a body in MessagePack; `None` where it is reached neither over TCP nor over NATS.
    pub fn to(endpoint: &Endpoint, body: Bytes) -> Option<Self> {
        let way = match &endpoint.transport {
            Transport::Tcp(address) => Way::Tcp(address.clone()),
            Transport::NatsTcp(subject) => Way::Nats(subject.clone()),
            Transport::Other(_) => return None,
        };
        Some(Self::by(way, body))
    }

    fn by(way: Way, body: Bytes) -> Self {
        Self { way, body, codec: Codec::Msgpack, id: None, headers: Vec::new(), item_timeout: None }
    }

    /// How the body is encoded, and the answer is to be.
    pub fn codec(self, codec: Codec) -> Self {
        Self { codec, ..self }
    }

    /// The request's id; a random one where none is given.
    pub fn id(self, id: impl Into<String>) -> Self {
        Self { id: Some(id.into()), ..self }
    }

    /// A header beside `request-id`, `x-endpoint-path` and `x-frontend-send-ts-ns`. Over NATS a name or value that would break a
    /// line fails the call.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let name = name.into();
        if !OWN.contains(&name.as_str()) {
            self.headers.push((name, value.into()));
        }
        self
    }

    /// Longest silence of the worker before its answer and within it, instead of the client's.
    pub fn item_timeout(self, patience: Duration) -> Self {
        Self { item_timeout: Some(patience), ..self }
    }

    /// `host:port/path`, or the subject.
    pub(super) fn peer(&self) -> &str {
        match &self.way {
            Way::Tcp(peer) | Way::Nats(peer) => peer,
        }
    }

    /// The frame for a path; `None` where path or headers are too long for one.
    pub(super) fn frame(&self, path: &str, subject: Subject, home: &str) -> Option<Frame> {
        let control = self.control(subject, home);
        let sent = now_ns();
        let own = [("request-id", control.id.as_str()), ("x-endpoint-path", path), ("x-frontend-send-ts-ns", sent.as_str())];
        let headers = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).chain(own);
        let head = RequestFrame::before_body(path, headers, &control, self.body.len())?;
        Some(Frame { head, body: self.body.clone() })
    }

    /// The message for a subject.
    pub(super) fn message(&self, to: &str, subject: Subject, home: &str) -> post::Request {
        let control = self.control(subject, home);
        let mut payload = Vec::with_capacity(self.body.len() + 512);
        control.put_before_body(self.body.len(), &mut payload);
        payload.extend_from_slice(&self.body);
        let mut headers = self.headers.clone();
        headers.push(("request-id".to_owned(), control.id));
        headers.push(("x-frontend-send-ts-ns".to_owned(), now_ns()));
        post::Request { subject: to.to_owned(), headers, payload: payload.into() }
    }

    fn control(&self, subject: Subject, home: &str) -> ControlHeader {
        let id = self.id.clone().unwrap_or_else(|| Subject::random().to_string());
        let connection = ConnectionInfo {
            address: home.to_owned(),
            subject: subject.to_string(),
            context: id.clone(),
            stream_type: StreamType::Response,
        };
        ControlHeader { id, codec: self.codec, connection }
    }
}

fn now_ns() -> String {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}
