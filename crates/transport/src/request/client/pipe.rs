//! One connection to a worker, used by many requests: they go out in turn, and the worker acknowledges each in the same
//! order. One task owns the socket; requests wait for it in a bounded queue.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};
use wire::request::Ack;

use super::super::frames::{self, ReadError};
use super::super::net;
use super::super::options::ClientOptions;
use super::super::outbox::Outbox;

/// Requests handed to the task that it has not taken yet; whoever has another waits.
const QUEUE_REQUESTS: usize = 64;
/// No further request is taken while this many bytes wait for the socket.
const TAKE_BELOW_BYTES: usize = 64 << 10;

/// A request's way onto one connection.
#[derive(Clone, Debug)]
pub(super) struct Pipe {
    queue: mpsc::Sender<Submission>,
    load: Arc<AtomicUsize>,
    closed: CancellationToken,
}

/// Why a request was not acknowledged.
#[derive(Clone, Debug)]
pub(super) enum PipeError {
    /// The worker cannot be reached.
    Unreachable(Arc<str>),
    /// It has the request and does not acknowledge it.
    Unacknowledged,
    /// The connection broke; the request may or may not have arrived.
    Broken(Arc<str>),
    /// The worker answered with something that is no acknowledgement.
    Malformed(Arc<str>),
}

#[derive(Debug)]
struct Submission {
    frame: Bytes,
    answer: oneshot::Sender<Result<Ack, PipeError>>,
    load: Load,
}

/// A request that is queued or waits for its acknowledgement.
#[derive(Debug)]
struct Load(Arc<AtomicUsize>);

impl Load {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count.clone())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pipe {
    /// A pipe, and the task that connects and drives it until it breaks or is idle for too long.
    pub(super) fn open(address: Arc<str>, options: Arc<ClientOptions>) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (submit, queue) = mpsc::channel(QUEUE_REQUESTS);
        let closed = CancellationToken::new();
        let driver = Driver {
            options,
            queue,
            out: Outbox::default(),
            waiting: VecDeque::new(),
            input: BytesMut::new(),
            used: Instant::now(),
            _closed: closed.clone().drop_guard(),
        };
        (Self { queue: submit, load: Arc::default(), closed }, driver.run(address))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Requests that are queued here or wait for their acknowledgement.
    pub(super) fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }

    /// Sends a request and waits for its acknowledgement.
    pub(super) async fn send(&self, frame: Bytes) -> Result<Ack, PipeError> {
        let gone = || PipeError::Broken("the connection was closed".into());
        let (answer, acknowledged) = oneshot::channel();
        let submission = Submission { frame, answer, load: Load::new(&self.load) };
        self.queue.send(submission).await.map_err(|_| gone())?;
        acknowledged.await.unwrap_or_else(|_| Err(gone()))
    }
}

/// The task's side.
#[derive(Debug)]
struct Driver {
    options: Arc<ClientOptions>,
    queue: mpsc::Receiver<Submission>,
    out: Outbox,
    /// In the order of their requests on the wire.
    waiting: VecDeque<Waiting>,
    input: BytesMut,
    used: Instant,
    _closed: DropGuard,
}

#[derive(Debug)]
struct Waiting {
    until: Instant,
    answer: oneshot::Sender<Result<Ack, PipeError>>,
    _load: Load,
}

impl Driver {
    async fn run(mut self, address: Arc<str>) {
        let error = match net::dial(&address, self.options.connect_timeout).await {
            Ok(stream) => self.serve(&stream).await,
            Err(error) => PipeError::Unreachable(error.to_string().into()),
        };
        tracing::debug!(%address, ?error, "a connection to a worker is over");
        self.fail(&error);
    }

    /// Tells every request that waits; those behind the one that was not acknowledged may try elsewhere.
    fn fail(mut self, error: &PipeError) {
        self.queue.close();
        let behind = match error {
            PipeError::Unacknowledged => &PipeError::Broken("an earlier request was not acknowledged".into()),
            PipeError::Unreachable(_) | PipeError::Broken(_) | PipeError::Malformed(_) => error,
        };
        let mut error = error;
        for waiting in self.waiting.drain(..) {
            // Nobody waits for it any more: nothing to tell.
            let _ = waiting.answer.send(Err(error.clone()));
            error = behind;
        }
        while let Ok(submission) = self.queue.try_recv() {
            let _ = submission.answer.send(Err(behind.clone()));
        }
    }

    /// Both branches that move bytes only learn of readiness while they wait, so either may be dropped.
    async fn serve(&mut self, stream: &TcpStream) -> PipeError {
        loop {
            // A worker that always has more must not keep this thread to itself.
            consume_budget().await;
            let takes = self.out.bytes() < TAKE_BELOW_BYTES && self.waiting.len() < self.options.max_unacknowledged;
            let interest = if self.out.is_empty() { Interest::READABLE } else { Interest::READABLE | Interest::WRITABLE };
            let due = self.waiting.front().map_or(self.used + self.options.idle_timeout, |first| first.until);
            let moved = tokio::select! {
                submission = self.queue.recv(), if takes => match submission {
                    Some(submission) => {
                        self.take(submission);
                        self.out.write_to(stream).map(drop).map_err(broken)
                    }
                    None => return PipeError::Broken("the connection is no longer needed".into()),
                },
                ready = stream.ready(interest) => match ready {
                    Ok(ready) if ready.is_readable() || ready.is_read_closed() => self.read(stream),
                    Ok(_) => self.out.write_to(stream).map(drop).map_err(broken),
                    Err(error) => Err(broken(error)),
                },
                () = sleep_until(due) => Err(match self.waiting.is_empty() {
                    true => PipeError::Broken("the connection was idle".into()),
                    false => PipeError::Unacknowledged,
                }),
            };
            if let Err(error) = moved {
                return error;
            }
        }
    }

    /// Puts a request, and those that wait behind it, into the outbox.
    fn take(&mut self, first: Submission) {
        self.used = Instant::now();
        let until = self.used + self.options.ack_timeout;
        let mut next = Some(first);
        while let Some(Submission { frame, answer, load }) = next {
            if !answer.is_closed() {
                self.out.push(frame);
                self.waiting.push_back(Waiting { until, answer, _load: load });
            }
            let room = self.out.bytes() < TAKE_BELOW_BYTES && self.waiting.len() < self.options.max_unacknowledged;
            next = if room { self.queue.try_recv().ok() } else { None };
        }
    }

    fn read(&mut self, stream: &TcpStream) -> Result<(), PipeError> {
        match frames::read_ready(stream, &mut self.input, frames::READ_BYTES) {
            Ok(_) => {}
            Err(ReadError::Closed) => return Err(PipeError::Broken("the worker closed the connection".into())),
            Err(ReadError::Silent(_)) => {}
            Err(ReadError::Broken(error)) => return Err(broken(error)),
        }
        while let Some(ack) = Ack::take(&mut self.input).map_err(|error| PipeError::Malformed(error.to_string().into()))? {
            let Some(waiting) = self.waiting.pop_front() else {
                return Err(PipeError::Malformed("it acknowledged what was not asked".into()));
            };
            self.used = Instant::now();
            // Its caller may have left; the acknowledgement is then nobody's.
            let _ = waiting.answer.send(Ok(ack));
        }
        // Readiness may have been told for both directions at once.
        self.out.write_to(stream).map(drop).map_err(broken)
    }
}

fn broken(error: io::Error) -> PipeError {
    PipeError::Broken(error.to_string().into())
}
