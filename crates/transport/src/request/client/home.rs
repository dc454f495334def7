//! Where workers call back: one listener for the answers of all calls. A connection names its call by a subject nobody can
//! guess, valid once; whoever does not is closed and costs one place among the newcomers until then.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use wire::request::{Handshake, StreamType};

use super::super::frames;
use super::super::net;
use super::super::newcomers::{Newcomer, Newcomers};
use super::super::options::ClientOptions;
use super::expected::Expected;
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

impl Home {
    /// Binds the listener and starts its task on the current runtime.
    pub(super) async fn open(options: &ClientOptions, tasks: &TaskTracker, stop: &CancellationToken) -> io::Result<Self> {
        let listener = net::listen(&options.bind).await?;
        let address = net::advertised(listener.local_addr()?, options.advertised_host.as_deref())?.into();
        let (expected, newcomers) = (Arc::<Expected>::default(), Newcomers::new(options.max_newcomers));
        let reception = Reception { expected: expected.clone(), newcomers: newcomers.clone(), patience: options.handshake_timeout };
        let until = stop.clone();
        tasks.spawn(async move { until.run_until_cancelled_owned(reception.run(listener)).await });
        Ok(Self { address, expected, newcomers })
    }

    /// What workers are told to connect to.
    pub(super) fn address(&self) -> &Arc<str> {
        &self.address
    }

    /// The calls that wait for a worker.
    pub(super) fn expected(&self) -> &Arc<Expected> {
        &self.expected
    }

    /// Connections that have not named their call.
    pub(super) fn newcomers(&self) -> &Newcomers {
        &self.newcomers
    }
}

/// The listener's task.
struct Reception {
    expected: Arc<Expected>,
    newcomers: Arc<Newcomers>,
    patience: Duration,
}

impl Reception {
    /// One task receives and greets all: a worker that calls wakes nobody else.
    async fn run(self, listener: TcpListener) {
        let mut greetings = FuturesUnordered::new();
        let mut pause = None;
        loop {
            tokio::select! {
                accepted = accept(&listener, pause) => match accepted {
                    Ok(stream) => {
                        pause = None;
                        greetings.push(greet(stream, self.newcomers.enter(), &self.expected, self.patience));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a worker's connection");
                        pause = Some(Instant::now() + ACCEPT_PAUSE);
                    }
                },
                Some(()) = greetings.next() => {}
            }
        }
    }
}

/// The next connection, from then on. Cancel-safe.
async fn accept(listener: &TcpListener, pause: Option<Instant>) -> io::Result<TcpStream> {
    if let Some(until) = pause {
        sleep_until(until).await;
    }
    Ok(listener.accept().await?.0)
}

/// Lets a newcomer say which call it answers.
async fn greet(mut stream: TcpStream, newcomer: Newcomer, expected: &Expected, patience: Duration) {
    let mut input = BytesMut::new();
    let subject = tokio::select! {
        biased;
        subject = timeout(patience, named(&mut stream, &mut input)) => subject.ok().flatten(),
        () = newcomer.displaced() => None,
    };
    drop(newcomer);
    match subject {
        Some(subject) => expected.arrive(subject, Line::new(stream, input)),
        None => expected.stranger(),
    }
}

/// The subject a connection names in its first message; `None` where it does not.
async fn named(stream: &mut TcpStream, input: &mut BytesMut) -> Option<Subject> {
    let header = frames::greeting(stream, input).await?;
    let handshake = Handshake::decode(&header).ok()?;
    (handshake.stream_type == StreamType::Response).then(|| Subject::parse(&handshake.subject)).flatten()
}
