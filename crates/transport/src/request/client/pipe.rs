//! One connection to a worker, used by many requests: they go out in turn, and the worker acknowledges each in the same
//! order. One task owns the socket; requests wait for it in a bounded queue.
//!
//! A connection that the worker closes is the first sign of a worker that died, so the calls it has acknowledged and not
//! answered are failed then, and do not wait out their time.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{self, error::SendError};
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};
use wire::request::Ack;

use super::super::alarm::Alarm;
use super::super::error::{Cause, Refusal};
use super::super::frames::{self, ReadError};
use super::super::net;
use super::super::options::ClientOptions;
use super::super::outbox::Outbox;
use super::expected::Expected;
use super::subject::Subject;

/// Requests handed to the task that it has not taken yet; whoever has another waits.
const QUEUE_REQUESTS: usize = 64;
/// No further request is taken while this many bytes wait for the socket.
const TAKE_BELOW_BYTES: usize = 64 << 10;
/// A worker that closed its connection in good order, to end, may have called back at the same moment.
const LAST_CALLS: Duration = Duration::from_millis(100);
/// Of calls that are acknowledged, those answered are forgotten beyond this many.
const REVIEW_CALLS: usize = 64;

/// A request's way onto one connection.
#[derive(Clone, Debug)]
pub(super) struct Pipe {
    queue: mpsc::Sender<Submission>,
    load: Arc<AtomicUsize>,
    closed: CancellationToken,
    /// Why it is over, for whoever comes too late.
    end: Arc<OnceLock<Cause>>,
}

/// A request: what comes before its body, and the body.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) head: Bytes,
    pub(super) body: Bytes,
}

#[derive(Debug)]
struct Submission {
    frame: Frame,
    turn: Turn,
}

/// A request that is queued or waits for its acknowledgement. Should it be dropped, its call is told that the connection broke.
#[derive(Debug)]
struct Turn {
    subject: Subject,
    expected: Arc<Expected>,
    load: Arc<AtomicUsize>,
    open: bool,
}

impl Turn {
    fn new(subject: Subject, expected: &Arc<Expected>, load: &Arc<AtomicUsize>) -> Self {
        load.fetch_add(1, Ordering::Relaxed);
        Self { subject, expected: expected.clone(), load: load.clone(), open: true }
    }

    fn fail(mut self, cause: Cause) {
        self.open = false;
        self.expected.fail(self.subject, cause);
    }

    /// The worker has it. `None`: its call is answered already, or given up.
    fn acknowledged(mut self) -> Option<Subject> {
        self.open = false;
        self.expected.acknowledge(self.subject).then_some(self.subject)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.load.fetch_sub(1, Ordering::Relaxed);
        if self.open {
            self.expected.fail(self.subject, Cause::Broken("the connection was closed".into()));
        }
    }
}

impl Pipe {
    /// A pipe, and the task that connects and drives it until it breaks or is idle for too long.
    pub(super) fn open(
        address: Arc<str>,
        options: Arc<ClientOptions>,
        expected: Arc<Expected>,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (submit, queue) = mpsc::channel(QUEUE_REQUESTS);
        let (closed, end) = (CancellationToken::new(), Arc::<OnceLock<Cause>>::default());
        let driver = Driver {
            end: end.clone(),
            options,
            expected,
            queue,
            out: Outbox::default(),
            waiting: VecDeque::new(),
            unanswered: Vec::new(),
            review_at: REVIEW_CALLS,
            input: BytesMut::new(),
            used: Instant::now(),
        };
        (Self { queue: submit, load: Arc::default(), closed: closed.clone(), end }, driver.run(address, closed.drop_guard()))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Requests that are queued here or wait for their acknowledgement.
    pub(super) fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }

    /// Hands on the request of a call that is expected, which hears of its end whatever becomes of it.
    pub(super) async fn submit(&self, frame: Frame, subject: Subject, expected: &Arc<Expected>) {
        let turn = Turn::new(subject, expected, &self.load);
        if let Err(SendError(Submission { turn, .. })) = self.queue.send(Submission { frame, turn }).await {
            // Without an end its task was dropped, and the request is too, which tells its call.
            if let Some(cause) = self.end.get() {
                turn.fail(cause.clone());
            }
        }
    }
}

/// The task's side.
#[derive(Debug)]
struct Driver {
    end: Arc<OnceLock<Cause>>,
    options: Arc<ClientOptions>,
    expected: Arc<Expected>,
    queue: mpsc::Receiver<Submission>,
    out: Outbox,
    /// In the order of their requests on the wire.
    waiting: VecDeque<Waiting>,
    /// Calls that were acknowledged, and of those answered some that are not forgotten yet: at most as many again, and a few.
    unanswered: Vec<Subject>,
    /// So many of them are looked through.
    review_at: usize,
    input: BytesMut,
    used: Instant,
}

#[derive(Debug)]
struct Waiting {
    until: Instant,
    turn: Turn,
}

/// Why a connection is over.
#[derive(Debug)]
enum End {
    Unreachable(Arc<str>),
    /// A request was not acknowledged in time.
    Unacknowledged(Duration),
    /// The worker closed it, or it broke.
    Left(Arc<str>),
    /// It was not used, or is not needed any more.
    Idle,
    Malformed(Arc<str>),
}

impl End {
    /// For the request that was to be acknowledged next.
    fn first(&self) -> Cause {
        match self {
            Self::Unacknowledged(after) => Cause::Unacknowledged(*after),
            Self::Unreachable(_) | Self::Left(_) | Self::Idle | Self::Malformed(_) => self.behind(),
        }
    }

    /// For those behind it, which may try elsewhere.
    fn behind(&self) -> Cause {
        match self {
            Self::Unreachable(reason) => Cause::Unreachable(reason.clone()),
            Self::Unacknowledged(_) => Cause::Broken("an earlier request was not acknowledged".into()),
            Self::Left(reason) => Cause::Broken(reason.clone()),
            Self::Idle => Cause::Broken("the connection was idle".into()),
            Self::Malformed(what) => Cause::Malformed(what.clone()),
        }
    }
}

impl Driver {
    async fn run(mut self, address: Arc<str>, closed: DropGuard) {
        let end = match net::dial(&address, self.options.connect_timeout).await {
            Ok(mut stream) => self.serve(&mut stream).await,
            Err(error) => End::Unreachable(error.to_string().into()),
        };
        tracing::debug!(%address, ?end, "a connection to a worker is over");
        drop(closed);
        self.finish(&end).await;
    }

    /// Tells every call that waits for something to come of this connection.
    async fn finish(mut self, end: &End) {
        // Set once, here.
        let _ = self.end.set(end.behind());
        self.queue.close();
        let mut cause = end.first();
        for waiting in self.waiting.drain(..) {
            waiting.turn.fail(std::mem::replace(&mut cause, end.behind()));
        }
        while let Ok(submission) = self.queue.try_recv() {
            submission.turn.fail(end.behind());
        }
        let End::Left(reason) = end else { return };
        self.expected.retain(&mut self.unanswered);
        if !self.unanswered.is_empty() {
            sleep(LAST_CALLS).await;
            for subject in self.unanswered {
                self.expected.fail(subject, Cause::Lost(reason.clone()));
            }
        }
    }

    /// Every branch only waits until bytes can be moved or a request is there, so each may be dropped.
    async fn serve(&mut self, stream: &mut TcpStream) -> End {
        let (mut reading, writing) = stream.split();
        let mut alarm = Alarm::default();
        loop {
            let takes = self.out.bytes() < TAKE_BELOW_BYTES && self.waiting.len() < self.options.max_unacknowledged;
            let due = self.waiting.front().map_or(self.used + self.options.idle_timeout, |first| first.until);
            let moved = tokio::select! {
                submission = self.queue.recv(), if takes => match submission {
                    Some(submission) => {
                        self.take(submission);
                        self.write(writing.as_ref())
                    }
                    None => return End::Idle,
                },
                read = frames::read(&mut reading, &mut self.input, frames::READ_BYTES) => self.digest(read),
                writable = writing.writable(), if !self.out.is_empty() => match writable {
                    Ok(()) => self.write(writing.as_ref()),
                    Err(error) => Err(left(error)),
                },
                () = alarm.at(due) => Err(match self.waiting.is_empty() {
                    true => End::Idle,
                    false => End::Unacknowledged(self.options.ack_timeout),
                }),
            };
            if let Err(end) = moved {
                return end;
            }
        }
    }

    /// Puts a request, and those that wait behind it, into the outbox.
    fn take(&mut self, first: Submission) {
        self.used = Instant::now();
        let until = self.used + self.options.ack_timeout;
        let mut next = Some(first);
        while let Some(Submission { frame, turn }) = next {
            // One that was given up meanwhile is not sent.
            if self.expected.has(turn.subject) {
                self.out.push(frame.head);
                self.out.push(frame.body);
                self.waiting.push_back(Waiting { until, turn });
            }
            let room = self.out.bytes() < TAKE_BELOW_BYTES && self.waiting.len() < self.options.max_unacknowledged;
            next = if room { self.queue.try_recv().ok() } else { None };
        }
    }

    fn write(&mut self, stream: &TcpStream) -> Result<(), End> {
        self.out.write_to(stream).map(drop).map_err(left)
    }

    /// Passes on the acknowledgements that have come.
    fn digest(&mut self, read: Result<usize, ReadError>) -> Result<(), End> {
        match read {
            Ok(_) => {}
            Err(ReadError::Closed) => return Err(End::Left("the worker closed the connection".into())),
            Err(ReadError::Broken(error)) => return Err(left(error)),
        }
        while let Some(ack) = Ack::take(&mut self.input).map_err(|error| End::Malformed(error.to_string().into()))? {
            let Some(Waiting { turn, .. }) = self.waiting.pop_front() else {
                return Err(End::Malformed("it acknowledged what was not asked".into()));
            };
            self.used = Instant::now();
            match ack {
                Ack::Accepted => self.unanswered.extend(turn.acknowledged()),
                Ack::Refused(text) => turn.fail(Cause::Refused { kind: Refusal::of(&text), text: text.into() }),
            }
        }
        if self.unanswered.len() >= self.review_at {
            self.expected.retain(&mut self.unanswered);
            self.review_at = REVIEW_CALLS + 2 * self.unanswered.len();
        }
        Ok(())
    }
}

fn left(error: io::Error) -> End {
    End::Left(error.to_string().into())
}

#[cfg(test)]
mod tests {
    use super::super::expected::Patience;
    use super::*;

    #[tokio::test]
    async fn a_request_that_comes_after_the_end_is_told_why_it_ended() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = listener.local_addr().unwrap().to_string();
        drop(listener);
        let expected = Arc::<Expected>::default();
        let (pipe, run) = Pipe::open(closed.into(), Arc::default(), expected.clone());
        run.await;
        let mut awaited = expected.add();
        pipe.submit(Frame { head: Bytes::new(), body: Bytes::new() }, awaited.subject, &expected).await;
        let patience = Patience { acknowledgement: None, call: Duration::from_secs(5) };
        let cause = awaited.word(patience, &mut Alarm::default(), &"home".into()).await.unwrap_err();
        assert!(matches!(cause, Cause::Unreachable(_)), "{cause}");
        assert_eq!((pipe.load(), expected.len()), (0, 0));
    }
}
