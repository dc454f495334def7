//! The worker's side of a relayed answer: its bytes, what they say, and how they can break.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
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

/// The bytes of one answer. Dropping it before its end closes the connection.
pub(crate) struct Upstream {
    body: Incoming,
    pulse: Option<Pulse>,
    interruption: Pin<Box<dyn Future<Output = Break> + Send>>,
    /// Whether its end says something about the worker's health. An engine that can generate no more may still answer 400.
    is_proof: bool,
}

impl Upstream {
    /// The body of an answer with a good status; of others, the end proves nothing about the worker.
    pub(crate) fn new(status: StatusCode, body: Incoming, pulse: Option<Pulse>, stop: CancellationToken) -> Self {
        let interruption = Box::pin(interruption(stop, pulse.clone()));
        Self { body, pulse, interruption, is_proof: status.is_success() }
    }

    /// The next bytes, already read by `reading`; `None` at the end in good order.
    pub(crate) fn poll_bytes(&mut self, cx: &mut Context<'_>, reading: &mut Reading) -> Poll<Option<Result<Bytes, Break>>> {
        loop {
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
                let interruption = ready!(self.interruption.as_mut().poll(cx));
                return Poll::Ready(Some(Err(interruption)));
            };
            let Some(frame) = frame else { return Poll::Ready(None) };
            match frame {
                Ok(frame) => {
                    // Trailers stop here: they are the connection's.
                    let Ok(bytes) = frame.into_data() else { continue };
                    if bytes.is_empty() {
                        continue;
                    }
                    if let Some(pulse) = &self.pulse {
                        pulse.byte();
                    }
                    reading.feed(&bytes);
                    return Poll::Ready(Some(Ok(bytes)));
                }
                Err(error) => return Poll::Ready(Some(Err(Break::Closed(cause::text_of(&error))))),
            }
        }
    }

    /// Whether the last byte has been read. A server with a known length may not ask once more.
    pub(crate) fn is_over(&self) -> bool {
        self.body.is_end_stream()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }

    /// The pulse that is told how the answer ends.
    pub(crate) fn judge(&self) -> Option<&Pulse> {
        self.pulse.as_ref().filter(|_| self.is_proof)
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
