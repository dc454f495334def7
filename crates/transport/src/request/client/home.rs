//! Where workers call back: one listener for the answers of all calls. A connection names its call by a subject nobody can
//! guess, valid once; whoever does not is closed and costs one place among the newcomers until then.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use wire::request::{Handshake, StreamType};

use super::super::frames;
use super::super::net;
use super::super::newcomers::{Newcomer, Newcomers};
use super::super::options::ClientOptions;
use super::line::Line;
use super::subject::Subject;

/// Pause after a failed accept: the usual cause is a lack of file descriptors, which a busy loop does not cure.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Home {
    address: Arc<str>,
    expected: Arc<Expected>,
    newcomers: Arc<Newcomers>,
}

/// Calls whose worker has not called back yet.
#[derive(Debug, Default)]
pub(super) struct Expected {
    /// Held to add or take one.
    calls: Mutex<HashMap<Subject, oneshot::Sender<Line>>>,
    /// Connections that named no call, or one that was answered or given up.
    strangers: AtomicU64,
}

/// A call that waits for its worker. Dropping it makes the subject unknown.
#[derive(Debug)]
pub(super) struct Awaited {
    pub(super) subject: Subject,
    line: oneshot::Receiver<Line>,
    expected: Arc<Expected>,
}

impl Home {
    /// Binds the listener and starts its task on the current runtime.
    pub(super) async fn open(options: &ClientOptions, tasks: &TaskTracker, stop: &CancellationToken) -> io::Result<Self> {
        let listener = net::listen(&options.bind).await?;
        let address = net::advertised(listener.local_addr()?, options.advertised_host.as_deref())?.into();
        let (expected, newcomers) = (Arc::<Expected>::default(), Newcomers::new(options.max_newcomers));
        let reception = Reception {
            expected: expected.clone(),
            newcomers: newcomers.clone(),
            patience: options.handshake_timeout,
            tasks: tasks.clone(),
            stop: stop.clone(),
        };
        let until = stop.clone();
        tasks.spawn(async move { until.run_until_cancelled_owned(reception.run(listener)).await });
        Ok(Self { address, expected, newcomers })
    }

    /// What workers are told to connect to.
    pub(super) fn address(&self) -> &Arc<str> {
        &self.address
    }

    /// Expects one connection.
    pub(super) fn expect(&self) -> Awaited {
        let (arrived, line) = oneshot::channel();
        let subject = Subject::random();
        self.expected.calls.lock().insert(subject, arrived);
        Awaited { subject, line, expected: self.expected.clone() }
    }

    /// Gives up every call that waits.
    pub(super) fn close(&self) {
        self.expected.calls.lock().clear();
    }

    pub(super) fn strangers(&self) -> u64 {
        self.expected.strangers.load(Ordering::Relaxed)
    }

    /// Calls whose worker has not called back, and connections that have not named their call.
    pub(super) fn pending(&self) -> (usize, usize) {
        (self.expected.calls.lock().len(), self.newcomers.waiting())
    }
}

impl Awaited {
    /// The worker's connection; `None` when the client was stopped. Cancel-safe.
    pub(super) async fn line(&mut self) -> Option<Line> {
        (&mut self.line).await.ok()
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.expected.calls.lock().remove(&self.subject);
    }
}

/// The listener's task.
struct Reception {
    expected: Arc<Expected>,
    newcomers: Arc<Newcomers>,
    patience: Duration,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Reception {
    async fn run(self, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let greet = greet(stream, self.newcomers.enter(), self.expected.clone(), self.patience);
                    let until = self.stop.clone();
                    self.tasks.spawn(async move { until.run_until_cancelled_owned(greet).await });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a worker's connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Lets a newcomer say which call it answers.
async fn greet(stream: TcpStream, newcomer: Newcomer, expected: Arc<Expected>, patience: Duration) {
    let mut input = BytesMut::new();
    let subject = tokio::select! {
        subject = timeout(patience, named(&stream, &mut input, patience)) => subject.ok().flatten(),
        () = newcomer.displaced() => None,
    };
    drop(newcomer);
    let Some(subject) = subject else {
        expected.strangers.fetch_add(1, Ordering::Relaxed);
        return;
    };
    // A worker whose call is over is told so when the line is dropped.
    let line = Line::new(stream, input);
    let call = expected.calls.lock().remove(&subject);
    match call {
        Some(call) => drop(call.send(line)),
        None => {
            expected.strangers.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The subject a connection names in its first message; `None` where it does not.
async fn named(stream: &TcpStream, input: &mut BytesMut, patience: Duration) -> Option<Subject> {
    let header = frames::greeting(stream, input, patience).await?;
    let handshake = Handshake::decode(&header).ok()?;
    (handshake.stream_type == StreamType::Response).then(|| Subject::parse(&handshake.subject)).flatten()
}
