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

/// How long an error event is given to leave before the body breaks off. A server drops what it has not written when a
/// body fails.
const ERROR_EVENT_LEAVES: Duration = Duration::from_millis(100);

/// The body of a relayed answer.
pub struct Relay<O: Observer> {
    held: VecDeque<Bytes>,
    state: State,
    reading: Reading,
    patience: Patience,
    observer: Option<O>,
}

enum State {
    /// The worker's bytes come.
    Flowing(Upstream),
    /// The error event is out; then the body fails.
    Breaking(Pin<Box<Sleep>>, Break),
    Over,
}

/// What a good end of the worker's bytes means.
enum Closing {
    Whole,
    EngineError,
    Unfinished,
}

/// Nothing in it is pinned in place.
impl<O: Observer> Unpin for Relay<O> {}

impl<O: Observer> Relay<O> {
    pub(crate) fn new(held: VecDeque<Bytes>, upstream: Upstream, reading: Reading, between_tokens: Duration, mut observer: O) -> Self {
        if reading.events() > 0 {
            observer.first_event();
        }
        let patience = Patience::new(between_tokens);
        Self { held, state: State::Flowing(upstream), reading, patience, observer: Some(observer) }
    }

    /// Tells the end, once, to the observer and to the worker's health.
    fn end(&mut self, end: End) {
        if let State::Flowing(upstream) = &self.state
            && let Some(pulse) = upstream.pulse()
        {
            match &end {
                End::Complete => pulse.succeeded(),
                End::Broken(Break::Closed(_) | Break::Stalled(_)) => pulse.failed(Fault::Connection, &end_text(&end)),
                End::Broken(Break::Unfinished | Break::EngineError) => pulse.failed(Fault::Answer, &end_text(&end)),
                End::Broken(Break::WorkerDead(_)) | End::ClientLeft => {}
            }
        }
        self.state = State::Over;
        if let Some(observer) = self.observer.take() {
            observer.ended(Summary { end, events: self.reading.events(), usage: self.reading.usage() });
        }
    }

    /// What it means when the worker's bytes end here in good order.
    fn closing(&self) -> Closing {
        let Reading::Events(scanner) = &self.reading else { return Closing::Whole };
        if scanner.has_failed() {
            Closing::EngineError
        } else if scanner.is_finished() {
            Closing::Whole
        } else {
            Closing::Unfinished
        }
    }

    /// Ends a broken answer: what the client gets last, then the failure of the body.
    fn break_off(&mut self, broken: Break) -> Result<Bytes, Break> {
        self.end(End::Broken(broken.clone()));
        let Reading::Events(scanner) = &self.reading else { return Err(broken) };
        // The engine has told its error itself; one is enough.
        let event = if scanner.has_failed() { String::new() } else { error_event(&broken) };
        let last = Bytes::from(format!("{}{event}", scanner.closing()));
        if last.is_empty() {
            return Err(broken);
        }
        self.state = State::Breaking(Box::pin(tokio::time::sleep(ERROR_EVENT_LEAVES)), broken);
        Ok(last)
    }

    fn poll_flowing(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Break>>> {
        let State::Flowing(upstream) = &mut self.state else { return Poll::Ready(None) };
        match upstream.poll_bytes(cx, &mut self.reading) {
            Poll::Ready(Some(Ok(bytes))) => {
                self.patience.rewarded();
                if upstream.is_over() {
                    self.finish();
                }
                Poll::Ready(Some(Ok(bytes)))
            }
            Poll::Ready(Some(Err(broken))) => Poll::Ready(Some(self.break_off(broken))),
            Poll::Ready(None) => {
                self.finish();
                match self.state {
                    State::Flowing(_) => Poll::Ready(Some(self.break_off(Break::Unfinished))),
                    State::Breaking(..) | State::Over => Poll::Ready(None),
                }
            }
            Poll::Pending => {
                let limit = ready!(self.patience.poll(cx));
                Poll::Ready(Some(self.break_off(Break::Stalled(limit))))
            }
        }
    }

    /// Ends an answer whose bytes all went by, unless it is a stream that still owes its end: that is told when the
    /// worker's bytes are asked for once more.
    fn finish(&mut self) {
        match self.closing() {
            Closing::Whole => self.end(End::Complete),
            Closing::EngineError => self.end(End::Broken(Break::EngineError)),
            Closing::Unfinished => {}
        }
    }
}

impl<O: Observer> Body for Relay<O> {
    type Data = Bytes;
    type Error = Break;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Break>>> {
        let this = &mut *self;
        if let Some(bytes) = this.held.pop_front() {
            if this.held.is_empty() && matches!(&this.state, State::Flowing(upstream) if upstream.is_over()) {
                this.finish();
            }
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        match &mut this.state {
            State::Flowing(_) => this.poll_flowing(cx).map_ok(Frame::data),
            State::Breaking(leaving, broken) => {
                ready!(leaving.as_mut().poll(cx));
                let broken = broken.clone();
                this.state = State::Over;
                Poll::Ready(Some(Err(broken)))
            }
            State::Over => Poll::Ready(None),
        }
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
        // A client may hang up as soon as it has `[DONE]`; and an answer without a body is never asked for one.
        let complete = match &self.reading {
            Reading::Events(scanner) => scanner.is_done() && !scanner.has_failed() && self.held.is_empty(),
            Reading::Json(_) | Reading::Opaque => self.is_end_stream(),
        };
        self.end(if complete { End::Complete } else { End::ClientLeft });
    }
}

fn end_text(end: &End) -> String {
    match end {
        End::Broken(broken) => broken.to_string(),
        End::Complete | End::ClientLeft => String::new(),
    }
}

/// The event a client gets at the end of a broken stream. Names no peer: the client has its worker's id already.
fn error_event(broken: &Break) -> String {
    let (message, code) = match broken {
        Break::Closed(_) => ("the worker closed the connection in the middle of the stream", "worker_closed"),
        Break::Unfinished => ("the worker ended the stream before it was finished", "worker_unfinished"),
        Break::Stalled(_) => ("the worker sent nothing for too long in the middle of the stream", "worker_stalled"),
        Break::WorkerDead(_) => ("the worker died in the middle of the stream", "worker_dead"),
        Break::EngineError => ("the worker reported an error", "worker_error"),
    };
    let error = serde_json::json!({"error": {"message": message, "type": "server_error", "param": null, "code": code}});
    format!("data: {error}\n\n")
}
