//! The body of the answer to the client: the worker's bytes as they came, and an honest end.
//!
//! A stream that breaks ends with one error event and a broken-off body; a plain answer that breaks, with a broken-off body.
//! Dropping the relay closes the connection to the worker, which ends the engine's work.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Sleep;

use crate::{
    health::Fault,
    upstream::{Break, Patience, Reading, Upstream},
    usage::Usage,
};

/// Whoever must know how an answer goes; owns what is freed with it.
pub trait Observer: Send + 'static {
    /// A stream has its first event: prefill is over. Not called for plain answers.
    fn first_event(&mut self);

    /// Called exactly once, at the latest when the relay is dropped.
    fn ended(self, summary: Summary);
}

/// Nobody looks.
impl Observer for () {
    fn first_event(&mut self) {}

    fn ended(self, _summary: Summary) {}
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// All of it went by.
    Complete,
    /// The worker's side broke.
    Broken(Break),
    /// The client left first; the engine's work was ended.
    ClientLeft,
}

/// What is known of an answer at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// How it ended.
    pub end: End,
    /// Events with data that went by, `[DONE]` left out; 0 for plain answers.
    pub events: u64,
    /// The engine's last word on its token counts, if it said any.
    pub usage: Option<Usage>,
}

/// How long the last bytes of a broken answer are given to leave before the body fails: a server drops what it has not
/// written then.
const LAST_BYTES_LEAVE: Duration = Duration::from_millis(100);

/// The body of a relayed answer.
pub struct Relay<O: Observer> {
    held: VecDeque<Bytes>,
    state: State,
    reading: Reading,
    patience: Patience,
    observer: Option<O>,
    /// Whether the observer knows of the first event.
    begun: bool,
}

enum State {
    /// The worker's bytes come.
    Flowing(Upstream),
    /// The last bytes are out; then the body fails.
    Breaking(Pin<Box<Sleep>>, Break),
    Over,
}

/// Nothing in it is pinned in place.
impl<O: Observer> Unpin for Relay<O> {}

impl<O: Observer> Relay<O> {
    pub(crate) fn new(held: VecDeque<Bytes>, upstream: Upstream, reading: Reading, between_tokens: Duration, observer: O) -> Self {
        let patience = Patience::new(between_tokens);
        let mut relay = Self { held, state: State::Flowing(upstream), reading, patience, observer: Some(observer), begun: false };
        relay.tell_beginning();
        relay
    }

    /// Tells the first event, once. It may still be on its way when the relay begins: what is held of it has a bound.
    fn tell_beginning(&mut self) {
        if self.begun || self.reading.events() == 0 {
            return;
        }
        self.begun = true;
        if let Some(observer) = &mut self.observer {
            observer.first_event();
        }
    }

    /// Tells the end, once, to the observer and to the worker's health.
    fn end(&mut self, end: End) {
        if let State::Flowing(upstream) = &self.state
            && let Some(pulse) = upstream.judge()
        {
            match &end {
                End::Complete => pulse.succeeded(),
                End::Broken(broken @ (Break::Closed(_) | Break::Stalled(_))) => pulse.failed(Fault::Connection, &broken.to_string()),
                // What an engine says in a stream may be the request's doing, and nobody else can be asked any more.
                End::Broken(Break::Unfinished | Break::EngineError | Break::Engine(_) | Break::WorkerDead(_) | Break::Stopping)
                | End::ClientLeft => {}
            }
        }
        self.state = State::Over;
        if let Some(observer) = self.observer.take() {
            observer.ended(Summary { end, events: self.reading.events(), usage: self.reading.usage() });
        }
    }

    /// The worker's bytes ended in good order; whether the answer did is another matter.
    fn close(&mut self) -> Option<Bytes> {
        let end = match &self.reading {
            Reading::Events(scanner) if scanner.has_failed() => End::Broken(Break::EngineError),
            Reading::Events(scanner) if !scanner.is_finished() => return self.break_off(Break::Unfinished),
            Reading::Events(_) | Reading::Json(_) | Reading::Opaque => End::Complete,
        };
        self.end(end);
        None
    }

    /// Ends a broken answer. Returns what the client gets last, if anything; then the body fails.
    fn break_off(&mut self, broken: Break) -> Option<Bytes> {
        if matches!(&self.reading, Reading::Events(scanner) if scanner.is_done() && !scanner.has_failed()) {
            // All was said; how the connection ends after it matters to nobody.
            self.end(End::Complete);
            return None;
        }
        self.end(End::Broken(broken.clone()));
        let last = match &self.reading {
            // The engine has told its error itself; one is enough.
            Reading::Events(scanner) if scanner.has_failed() => scanner.closing().to_owned(),
            Reading::Events(scanner) => format!("{}{}", scanner.closing(), error_event(&broken)),
            Reading::Json(_) | Reading::Opaque => String::new(),
        };
        self.state = State::Breaking(Box::pin(tokio::time::sleep(LAST_BYTES_LEAVE)), broken);
        Some(Bytes::from(last)).filter(|last| !last.is_empty())
    }

    /// The next bytes for the client; `None` where the state has changed without any.
    fn poll_flowing(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let State::Flowing(upstream) = &mut self.state else { return Poll::Ready(None) };
        match upstream.poll_bytes(cx, &mut self.reading) {
            Poll::Ready(Some(Ok(bytes))) => {
                self.patience.rewarded();
                self.tell_beginning();
                Poll::Ready(Some(bytes))
            }
            Poll::Ready(Some(Err(broken))) => Poll::Ready(self.break_off(broken)),
            Poll::Ready(None) => Poll::Ready(self.close()),
            Poll::Pending => {
                let limit = ready!(self.patience.poll(cx));
                Poll::Ready(self.break_off(Break::Stalled(limit)))
            }
        }
    }
}

impl<O: Observer> Body for Relay<O> {
    type Data = Bytes;
    type Error = Break;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Break>>> {
        let this = &mut *self;
        let bytes = match this.held.pop_front() {
            Some(held) => Some(held),
            None => ready!(this.poll_flowing(cx)),
        };
        if let Some(bytes) = bytes {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        let broken = match &mut this.state {
            State::Breaking(leaving, broken) => {
                ready!(leaving.as_mut().poll(cx));
                Some(broken.clone())
            }
            State::Flowing(_) | State::Over => None,
        };
        this.state = State::Over;
        Poll::Ready(broken.map(Err))
    }

    fn is_end_stream(&self) -> bool {
        let over = match &self.state {
            // A stream's end is judged when it is read.
            State::Flowing(upstream) => upstream.is_over() && !matches!(self.reading, Reading::Events(_)),
            State::Breaking(..) => false,
            State::Over => true,
        };
        over && self.held.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let State::Flowing(upstream) = &self.state else { return SizeHint::default() };
        if matches!(self.reading, Reading::Events(_)) {
            return SizeHint::default();
        }
        let held: u64 = self.held.iter().map(|bytes| bytes.len() as u64).sum();
        let coming = upstream.size_hint();
        let mut hint = SizeHint::new();
        if let Some(upper) = coming.upper() {
            hint.set_upper(upper + held);
        }
        hint.set_lower(coming.lower() + held);
        hint
    }
}

impl<O: Observer> Drop for Relay<O> {
    fn drop(&mut self) {
        if self.observer.is_none() {
            return;
        }
        let end = match &self.reading {
            // A client may hang up as soon as it has an error or `[DONE]`.
            Reading::Events(scanner) if scanner.has_failed() => End::Broken(Break::EngineError),
            Reading::Events(scanner) if scanner.is_done() && self.held.is_empty() => End::Complete,
            // A server that knows the length stops asking at the last byte.
            Reading::Json(_) | Reading::Opaque if self.is_end_stream() => End::Complete,
            Reading::Events(_) | Reading::Json(_) | Reading::Opaque => End::ClientLeft,
        };
        self.end(end);
    }
}

/// The event a client gets at the end of a broken stream. Names no peer: the client has its worker's id already.
fn error_event(broken: &Break) -> String {
    let (message, code) = match broken {
        Break::Closed(_) => ("the worker closed the connection in the middle of the stream", "worker_closed"),
        Break::Unfinished => ("the worker ended the stream before it was finished", "worker_unfinished"),
        Break::Stalled(_) => ("the worker sent nothing for too long in the middle of the stream", "worker_stalled"),
        Break::WorkerDead(_) => ("the worker died in the middle of the stream", "worker_dead"),
        Break::Stopping => ("the frontend is stopping and the time for running answers has passed", "frontend_stopping"),
        Break::EngineError => ("the worker reported an error", "worker_error"),
        Break::Engine(message) => (&**message, "worker_error"),
    };
    let error = serde_json::json!({"error": {"message": message, "type": "server_error", "param": null, "code": code}});
    format!("data: {error}\n\n")
}
