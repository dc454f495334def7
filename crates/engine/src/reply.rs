//! The beginning of an answer: held back until it is known to be one.

use std::{collections::VecDeque, future::poll_fn, pin::Pin, time::Duration};

use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::{
    error::{ANSWER_LIMIT_BYTES, Answer, Failure},
    headers,
    pulse::Pulse,
    relay::{Observer, Relay},
    sse::{self, Open, Scanner},
    upstream::{Break, Reading, Upstream},
    usage::UsageWatch,
};

/// What a worker answered.
#[derive(Debug)]
pub enum Reply {
    /// An answer in the client's own protocol, to be relayed as it is.
    Bytes(BytesReply),
}

/// An answer that has begun: its head, and a body that is still coming.
pub struct BytesReply {
    /// The worker's status: 2xx, 3xx or 4xx.
    pub status: StatusCode,
    /// Its headers without those of the connection.
    pub headers: HeaderMap,
    held: VecDeque<Bytes>,
    upstream: Upstream,
    reading: Reading,
    between_tokens: Duration,
}

/// The time-outs of one answer.
pub(crate) struct Waits {
    pub(crate) first_byte: Duration,
    pub(crate) deadline: Instant,
    pub(crate) between_tokens: Duration,
    /// Cancelled when every answer must end.
    pub(crate) stop: CancellationToken,
}

/// The most that is held of a stream that does not come to its first event; then it is relayed as it is.
const HELD_LIMIT_BYTES: usize = 256 * 1024;

/// How long the body of a failed answer is waited for. Its head has told the failure already.
const FAILED_BODY_WITHIN: Duration = Duration::from_secs(2);

impl BytesReply {
    /// An answer that is here as a whole, in JSON.
    pub fn json(body: Bytes) -> Self {
        // It is never waited for.
        Self::good("application/json", Upstream::whole(body), Reading::Json(Box::new(UsageWatch::new())), Duration::ZERO)
    }

    /// Events that have begun, of a worker that is no server.
    pub(crate) fn events(events: Pin<Box<dyn Stream<Item = Result<Bytes, Break>> + Send>>, between_tokens: Duration) -> Self {
        let reading = Reading::Events(Box::new(Scanner::new()));
        let mut reply = Self::good("text/event-stream", Upstream::events(events), reading, between_tokens);
        reply.headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        reply
    }

    fn good(kind: &'static str, upstream: Upstream, reading: Reading, between_tokens: Duration) -> Self {
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(kind))]);
        Self { status: StatusCode::OK, headers, held: VecDeque::new(), upstream, reading, between_tokens }
    }

    /// Head and body for the client. The observer is told of a stream's first event (here, unless it is so long that it is
    /// still coming) and of the end.
    pub fn relay<O: Observer>(self, observer: O) -> (StatusCode, HeaderMap, Relay<O>) {
        let relay = Relay::new(self.held, self.upstream, self.reading, self.between_tokens, observer);
        (self.status, self.headers, relay)
    }
}

impl std::fmt::Debug for BytesReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BytesReply").field("status", &self.status).field("headers", &self.headers).finish_non_exhaustive()
    }
}

/// Waits until an answer whose head is there has begun, or has failed.
pub(crate) async fn begin(response: Response<Incoming>, pulse: Option<Pulse>, waits: Waits) -> Result<Reply, Failure> {
    if let Some(pulse) = &pulse {
        pulse.byte();
    }
    let (head, body) = response.into_parts();
    let (status, mut headers) = (head.status, head.headers);
    headers::to_client(&mut headers);
    if status.is_server_error() {
        return Err(Failure::Status(Box::new(failed_answer(status, headers, body).await)));
    }
    let reading = reading_of(status, &headers);
    if matches!(reading, Reading::Events(_)) {
        // An event of our own may be added.
        headers.remove(header::CONTENT_LENGTH);
    }
    let upstream = Upstream::new(status, body, pulse, waits.stop.clone());
    let mut reply = BytesReply { status, headers, held: VecDeque::new(), upstream, reading, between_tokens: waits.between_tokens };
    hold(&mut reply, &waits).await?;
    Ok(Reply::Bytes(reply))
}

fn reading_of(status: StatusCode, headers: &HeaderMap) -> Reading {
    let is = |name: header::HeaderName, text: &str| {
        let value = headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        value.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(text)
    };
    let plain = !headers.contains_key(header::CONTENT_ENCODING) || is(header::CONTENT_ENCODING, "identity");
    if !plain || !status.is_success() {
        Reading::Opaque
    } else if is(header::CONTENT_TYPE, "text/event-stream") {
        Reading::Events(Box::new(Scanner::new()))
    } else if is(header::CONTENT_TYPE, "application/json") {
        Reading::Json(Box::new(UsageWatch::new()))
    } else {
        Reading::Opaque
    }
}

/// Takes the body of a failed answer, or none where it is too long, too slow, or breaks.
async fn failed_answer(status: StatusCode, mut headers: HeaderMap, body: Incoming) -> Answer {
    let whole = timeout(FAILED_BODY_WITHIN, Limited::new(body, ANSWER_LIMIT_BYTES).collect()).await;
    headers.remove(header::CONTENT_LENGTH);
    let body = match whole {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) | Err(_) => {
            headers.remove(header::CONTENT_TYPE);
            headers.remove(header::CONTENT_ENCODING);
            Bytes::new()
        }
    };
    Answer { status, headers, body }
}

/// Collects what comes until the answer may go out.
async fn hold(reply: &mut BytesReply, waits: &Waits) -> Result<(), Failure> {
    let mut held_bytes = 0;
    while !may_go_out(reply, held_bytes)? {
        let in_event = matches!(&reply.reading, Reading::Events(scanner) if scanner.open() != Open::Nothing);
        let stall = Instant::now() + waits.between_tokens;
        let until = if in_event { stall.min(waits.deadline) } else { waits.deadline };
        let next = timeout_at(until, poll_fn(|cx| reply.upstream.poll_bytes(cx, &mut reply.reading))).await;
        match next {
            Ok(Some(Ok(bytes))) => {
                held_bytes += bytes.len();
                reply.held.push_back(bytes);
            }
            Ok(Some(Err(broken))) => return Err(failure_of(broken)),
            Ok(None) => return ended(reply),
            Err(_) if until < waits.deadline => return Err(Failure::Stalled(waits.between_tokens)),
            Err(_) => return Err(Failure::NoFirstByte(waits.first_byte)),
        }
    }
    Ok(())
}

/// Whether the answer has begun, as far as it is here.
fn may_go_out(reply: &BytesReply, held_bytes: usize) -> Result<bool, Failure> {
    let Reading::Events(scanner) = &reply.reading else {
        return Ok(held_bytes > 0 || reply.upstream.is_over());
    };
    if scanner.events() == 0 && !scanner.is_done() {
        return Ok(held_bytes > HELD_LIMIT_BYTES);
    }
    match first_error(reply) {
        Some(answer) => Err(Failure::ErrorEvent(Box::new(answer))),
        None => Ok(true),
    }
}

/// The first event as an answer of its own, if it is an error.
fn first_error(reply: &BytesReply) -> Option<Answer> {
    let joined: Vec<u8>;
    let held = if reply.held.len() == 1 {
        &reply.held[0][..]
    } else {
        joined = reply.held.iter().flatten().copied().collect();
        &joined
    };
    memchr::memmem::find(held, b"\"error\"")?;
    let (code, data) = sse::first_error(held)?;
    let status = code
        .and_then(|code| StatusCode::from_u16(code).ok())
        .filter(|status| status.is_client_error() || status.is_server_error())
        .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut headers = reply.headers.clone();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    Some(Answer { status, headers, body: Bytes::copy_from_slice(data.as_bytes()) })
}

fn ended(reply: &BytesReply) -> Result<(), Failure> {
    match &reply.reading {
        Reading::Events(_) => Err(Failure::Closed("the stream ended without an event".to_owned())),
        Reading::Json(_) | Reading::Opaque => Ok(()),
    }
}

pub(crate) fn failure_of(broken: Break) -> Failure {
    match broken {
        Break::Stopping => Failure::Stopping,
        Break::Closed(reason) => Failure::Closed(reason),
        Break::WorkerDead(reason) => Failure::WorkerDead(reason),
        Break::Stalled(limit) => Failure::Stalled(limit),
        // Told of a stream that has begun; here the same is a stream that closed too early.
        Break::Unfinished | Break::EngineError | Break::Engine(_) => Failure::Closed(broken.to_string()),
    }
}
