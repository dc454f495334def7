//! The answer of one call, read straight off its connection: an item is read when it is asked for, so a slow reader slows
//! the worker down and costs no more than the kernel's buffers. Items too large to hold come in pieces.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::OwnedSemaphorePermit;
use wire::request::{Codec, Limits, Prologue, Reply, ResponseDecoder};

use super::super::alarm::{Alarm, after};
use super::super::error::{CallError, Cause, Refusal};
use super::super::frames::{self, ReadError};
use super::super::options::ClientOptions;
use super::super::typed;
use super::call::Call;
use super::counters::Counters;
use super::line::Line;

/// Most room made for one read, in bytes: a piece of a large item is no larger.
const MAX_ROOM_BYTES: usize = 256 << 10;
/// How long a complete answer waits for the worker's goodbye, on which nothing depends.
const GOODBYE: Duration = Duration::from_secs(1);

/// The items of an answer, in order. Dropping it before its end tells the worker to stop.
#[derive(Debug)]
pub struct Responses {
    peer: Arc<str>,
    line: Line,
    decoder: ResponseDecoder,
    codec: Codec,
    patience: Duration,
    alarm: Alarm,
    max_item_bytes: usize,
    /// The beginning of an item that is to be whole.
    gathered: BytesMut,
    /// Room for the next read: it doubles while reads fill it.
    room: usize,
    state: State,
    /// One of the calls that may run at once, given back at the end; and who counts the end.
    running: Option<Running>,
}

/// A call's place among those that run, and who counts its end.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) counters: Arc<Counters>,
    pub(super) _place: OwnedSemaphorePermit,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Completed,
    BrokenOff,
    Abandoned,
    /// Before it began, which is counted elsewhere.
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// An item is due.
    Between,
    /// In an item that was begun to be given out.
    Within,
    /// Every item has come; only the goodbye is due.
    Complete,
    /// Nothing more comes.
    Over,
}

/// A part of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The next bytes of the item.
    pub data: Bytes,
    /// The item is complete with them.
    pub last: bool,
}

impl Responses {
    pub(super) fn new(peer: Arc<str>, line: Line, call: &Call, options: &ClientOptions, (running, alarm): (Running, Alarm)) -> Self {
        let codec = call.codec;
        // JSON is gathered before it is read, MessagePack handed on as it comes.
        let item_bytes = match codec {
            Codec::Json => options.max_item_bytes,
            Codec::Msgpack => options.max_pieced_item_bytes,
        };
        Self {
            peer,
            line,
            decoder: ResponseDecoder::after_handshake(codec, Limits { item_bytes }),
            codec,
            patience: call.item_timeout.unwrap_or(options.item_timeout),
            alarm,
            max_item_bytes: options.max_item_bytes,
            gathered: BytesMut::new(),
            room: frames::READ_BYTES,
            state: State::Between,
            running: Some(running),
        }
    }

    /// `host:port/path` of the endpoint that answers.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The next item, whole; `None` after the last. After an error other than [`Cause::Item`] nothing more comes.
    /// Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Bytes, CallError>> {
        loop {
            let piece = match self.next_piece().await? {
                Ok(piece) if piece.last && self.gathered.is_empty() => return Some(Ok(piece.data)),
                Ok(piece) => piece,
                Err(error) => return Some(Err(error)),
            };
            if self.gathered.len() + piece.data.len() > self.max_item_bytes {
                let bytes = (self.gathered.len() + piece.data.len()) as u64;
                return Some(Err(self.fail(Cause::TooLarge { bytes, limit: self.max_item_bytes })));
            }
            self.gathered.extend_from_slice(&piece.data);
            if piece.last {
                return Some(Ok(self.gathered.split().freeze()));
            }
        }
    }

    /// The next part of an item, as large as what has arrived; small items come in one. In JSON all do. Not to be mixed with
    /// [`next`](Self::next) within an item. Cancel-safe.
    pub async fn next_piece(&mut self) -> Option<Result<Piece, CallError>> {
        let within = self.state == State::Within;
        match self.read_piece().await {
            Ok(Some(piece)) => {
                self.state = if piece.last { State::Between } else { State::Within };
                let error = if piece.last && !within { typed::of_item(self.codec, &piece.data) } else { None };
                match error {
                    Some(error) => Some(Err(CallError::new(&self.peer, Cause::Item(Arc::new(error))))),
                    None => Some(Ok(piece)),
                }
            }
            Ok(None) => {
                self.end(Outcome::Completed);
                None
            }
            Err(cause) => Some(Err(self.fail(cause))),
        }
    }

    /// The worker's word that there will be items. After an error it is over.
    pub(super) async fn prologue(&mut self) -> Result<(), Cause> {
        let cause = match self.read_reply().await {
            Ok(Reply::Prologue(Prologue { error: None, .. })) => return Ok(()),
            Ok(Reply::Prologue(Prologue { error: Some(message), typed })) => {
                // The worker is done; there is nothing to stop.
                self.line.finish();
                match Refusal::of(&message) {
                    // Over NATS this is where it is said.
                    kind @ (Refusal::Overloaded | Refusal::Unavailable) => Cause::Refused { kind, text: message.into() },
                    Refusal::Other => Cause::Failed { message: message.into(), error: typed.map(Arc::new) },
                }
            }
            Ok(Reply::Handshake(_) | Reply::Data { .. } | Reply::Final | Reply::Sentinel) => {
                Cause::Malformed("an answer without a prologue".into())
            }
            Err(cause) => cause,
        };
        self.line.hang_up();
        self.end(Outcome::Failed);
        Err(cause)
    }

    fn fail(&mut self, cause: Cause) -> CallError {
        self.line.hang_up();
        self.end(Outcome::BrokenOff);
        CallError::new(&self.peer, cause)
    }

    fn end(&mut self, outcome: Outcome) {
        self.state = State::Over;
        self.gathered = BytesMut::new();
        let Some(Running { counters, _place }) = self.running.take() else { return };
        let counter = match outcome {
            Outcome::Completed => &counters.completed,
            Outcome::BrokenOff => &counters.broken_off,
            Outcome::Abandoned => &counters.abandoned,
            Outcome::Failed => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    async fn read_piece(&mut self) -> Result<Option<Piece>, Cause> {
        loop {
            if self.state == State::Over {
                return Ok(None);
            }
            match self.read_reply().await {
                Ok(Reply::Data { bytes, end }) => return Ok(Some(Piece { data: bytes, last: end })),
                Ok(Reply::Final) => self.state = State::Complete,
                Ok(Reply::Sentinel) if self.state == State::Complete => {
                    self.line.finish();
                    return Ok(None);
                }
                Ok(Reply::Sentinel) => return Err(Cause::Truncated("it said goodbye first".into())),
                Ok(Reply::Handshake(_) | Reply::Prologue(_)) => return Err(Cause::Malformed("an answer that begins again".into())),
                // A worker that goes between the last item and the goodbye has answered all the same.
                Err(Cause::Truncated(_) | Cause::Silent(_)) if self.state == State::Complete => {
                    self.line.finish();
                    return Ok(None);
                }
                Err(cause) => return Err(cause),
            }
        }
    }

    async fn read_reply(&mut self) -> Result<Reply, Cause> {
        let patience = if self.state == State::Complete { self.patience.min(GOODBYE) } else { self.patience };
        let Some((stream, input)) = self.line.parts() else { return Err(Cause::Truncated("it is over".into())) };
        loop {
            if let Some(reply) = self.decoder.next(input)? {
                return Ok(reply);
            }
            let count = tokio::select! {
                biased;
                read = frames::read(stream, input, self.room) => read?,
                () = self.alarm.at(after(patience)) => return Err(Cause::Silent(patience)),
            };
            self.room = if count >= self.room { (self.room * 2).min(MAX_ROOM_BYTES) } else { self.room };
        }
    }
}

impl Drop for Responses {
    fn drop(&mut self) {
        self.end(Outcome::Abandoned);
    }
}

impl From<ReadError> for Cause {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Closed => Self::Truncated("it closed the connection".into()),
            ReadError::Broken(error) => Self::Truncated(error.to_string().into()),
        }
    }
}
