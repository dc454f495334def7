//! The worker's side of a relayed answer: its bytes, what they say, and how they can break.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::StatusCode;
use http_body::{Body, SizeHint};
use hyper::body::Incoming;
use tokio_util::sync::CancellationToken;

use crate::{
    cause,
    pulse::Pulse,
    sse::Scanner,
    usage::{Usage, UsageWatch},
};

/// How an answer that had begun broke.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Break {
    /// The connection ended or failed in the middle.
    #[error("the connection broke: {0}")]
    Closed(String),
    /// The stream ended in good order, without `[DONE]` and without a `finish_reason`.
    #[error("the stream ended unfinished")]
    Unfinished,
    /// No byte for the between-tokens time-out.
    #[error("no byte for {0:?}")]
    Stalled(Duration),
    /// The worker's health was lost.
    #[error("worker is dead: {0}")]
    WorkerDead(String),
    /// Our own process must end.
    #[error("this process is stopping")]
    Stopping,
    /// The engine reported an error in its own stream, which was passed on as it came.
    #[error("the engine reported an error in its stream")]
    EngineError,
    /// The engine failed, and this is what clients may know of it.
    #[error("the engine failed: {0}")]
    Engine(String),
}

/// What is read out of an answer on its way.
#[derive(Debug)]
pub(crate) enum Reading {
    /// Server-sent events.
    Events(Box<Scanner>),
    /// One JSON text.
    Json(Box<UsageWatch>),
    /// Bytes nothing is read from: other types, or encoded ones.
    Opaque,
}

impl Reading {
    fn feed(&mut self, bytes: &[u8]) {
        match self {
            Reading::Events(scanner) => scanner.feed(bytes),
            Reading::Json(usage) => usage.feed(bytes),
            Reading::Opaque => {}
        }
    }

    pub(crate) fn usage(&self) -> Option<Usage> {
        match self {
            Reading::Events(scanner) => scanner.usage(),
            Reading::Json(usage) => usage.last(),
            Reading::Opaque => None,
        }
    }

    pub(crate) fn events(&self) -> u64 {
        match self {
            Reading::Events(scanner) => scanner.events(),
            Reading::Json(_) | Reading::Opaque => 0,
        }
    }
}

/// What ends a request though its connection holds: the worker's death, or our own end.
pub(crate) fn interruption(stop: CancellationToken, pulse: Option<Pulse>) -> impl Future<Output = Break> + Send {
    let life = pulse.as_ref().map(Pulse::life);
    async move {
        let death = async {
            match &life {
                Some(life) => life.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => Break::Stopping,
            () = death => Break::WorkerDead(pulse.as_ref().map_or_else(String::new, |pulse| pulse.status().reason)),
        }
    }
}

/// Where the bytes of an answer come from.
enum Source {
    /// A connection to an OpenAI server.
    Body(Incoming),
    /// What a worker says over the request plane. Its end and its health are watched over there.
    Events(Pin<Box<dyn Stream<Item = Result<Bytes, Break>> + Send>>),
    /// All of it is here.
    Whole(Option<Bytes>),
}

/// The bytes of one answer. Dropping it before its end closes the connection.
pub(crate) struct Upstream {
    source: Source,
    pulse: Option<Pulse>,
    interruption: Pin<Box<dyn Future<Output = Break> + Send>>,
    /// Whether its end says something about the worker's health. An engine that can generate no more may still answer 400.
    is_proof: bool,
}

impl Upstream {
    /// The body of an answer with a good status; of others, the end proves nothing about the worker.
    pub(crate) fn new(status: StatusCode, body: Incoming, pulse: Option<Pulse>, stop: CancellationToken) -> Self {
        let interruption = Box::pin(interruption(stop, pulse.clone()));
        Self { source: Source::Body(body), pulse, interruption, is_proof: status.is_success() }
    }

    /// Events of a worker that is no server.
    pub(crate) fn events(events: Pin<Box<dyn Stream<Item = Result<Bytes, Break>> + Send>>) -> Self {
        Self::unwatched(Source::Events(events))
    }

    /// An answer that is here as a whole.
    pub(crate) fn whole(body: Bytes) -> Self {
        Self::unwatched(Source::Whole(Some(body)))
    }

    fn unwatched(source: Source) -> Self {
        Self { source, pulse: None, interruption: Box::pin(std::future::pending()), is_proof: false }
    }

    /// The next bytes, already read by `reading`; `None` at the end in good order.
    pub(crate) fn poll_bytes(&mut self, cx: &mut Context<'_>, reading: &mut Reading) -> Poll<Option<Result<Bytes, Break>>> {
        loop {
            let Poll::Ready(bytes) = self.source.poll(cx) else {
                let interruption = ready!(self.interruption.as_mut().poll(cx));
                return Poll::Ready(Some(Err(interruption)));
            };
            let Some(bytes) = bytes else { return Poll::Ready(None) };
            match bytes {
                Ok(bytes) => {
                    if bytes.is_empty() {
                        continue;
                    }
                    if let Some(pulse) = &self.pulse {
                        pulse.byte();
                    }
                    reading.feed(&bytes);
                    return Poll::Ready(Some(Ok(bytes)));
                }
                Err(broken) => return Poll::Ready(Some(Err(broken))),
            }
        }
    }

    /// Whether the last byte has been read. A server with a known length may not ask once more.
    pub(crate) fn is_over(&self) -> bool {
        match &self.source {
            Source::Body(body) => body.is_end_stream(),
            Source::Events(_) => false,
            Source::Whole(body) => body.is_none(),
        }
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Body(body) => body.size_hint(),
            Source::Events(_) => SizeHint::default(),
            Source::Whole(body) => SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64)),
        }
    }

    /// The pulse that is told how the answer ends.
    pub(crate) fn judge(&self) -> Option<&Pulse> {
        self.pulse.as_ref().filter(|_| self.is_proof)
    }
}

impl Source {
    /// Trailers are passed over, as no bytes: they are the connection's.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Break>>> {
        match self {
            Self::Body(body) => Pin::new(body).poll_frame(cx).map(|frame| {
                frame.map(|frame| match frame {
                    Ok(frame) => Ok(frame.into_data().unwrap_or_default()),
                    Err(error) => Err(Break::Closed(cause::text_of(&error))),
                })
            }),
            Self::Events(events) => events.poll_next_unpin(cx),
            Self::Whole(body) => Poll::Ready(body.take().map(Ok)),
        }
    }
}

/// A time-out that runs only while something is waited for, and costs no timer while bytes come.
#[derive(Debug)]
pub(crate) struct Patience {
    limit: Duration,
    /// When the present wait began.
    waiting_since: Option<tokio::time::Instant>,
    timer: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl Patience {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, waiting_since: None, timer: None }
    }

    /// Something came: the present wait is over.
    pub(crate) fn rewarded(&mut self) {
        self.waiting_since = None;
    }

    /// Ready when the present wait has lasted for the limit. Asking begins a wait.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Duration> {
        let limit = self.limit;
        let since = *self.waiting_since.get_or_insert_with(tokio::time::Instant::now);
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(since + limit)));
        // A timer set in an earlier wait fires early, and is only then set anew.
        loop {
            ready!(timer.as_mut().poll(cx));
            if timer.deadline() >= since + limit {
                return Poll::Ready(limit);
            }
            timer.as_mut().reset(since + limit);
        }
    }
}
