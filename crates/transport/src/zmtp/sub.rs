//! SUB: one publisher's messages, for as long as the socket lives. Its task connects again for ever and notices a lost
//! connection whether or not anybody reads; whatever the reader must know comes through [`Sub::next`] in order.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::backoff::Backoff;
use super::connection::Connection;
use super::endpoint::Endpoint;
use super::error::Error;
use super::inbox::Inbox;
use super::listen::Acceptor;
use super::net::dial;
use super::options::Options;
use super::queue::ByteQueue;
use super::session::{Event, Kind, Peer};

/// A libzmq publisher that has a subscription looks at it with its next message, but no more often than about every millisecond.
const LOOK: Duration = Duration::from_millis(10);

/// A subscribing socket. Dropping it ends its task and its connection.
#[derive(Debug)]
pub struct Sub {
    endpoint: Endpoint,
    inbox: Arc<ByteQueue<SubEvent>>,
    task: JoinHandle<Option<()>>,
    stop: DropGuard,
}

/// What happened at a [`Sub`], in the order it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubEvent {
    /// A publisher is connected and was sent the subscription. What it published before is lost.
    Connected {
        /// Minor version of ZMTP 3 the publisher greets with. From 1 on it is pinged when idle; below, a vanished
        /// publisher and an idle one look alike.
        zmtp_minor: u8,
    },
    /// The connection that was told as `Connected` is gone; another is being tried.
    Disconnected {
        /// Why, for operators.
        reason: String,
    },
    /// There is still no connection. Told once per distinct reason.
    Failed {
        /// Why, for operators.
        reason: String,
    },
    /// The frames of one message that begins with the topic; never empty.
    Message(Vec<Bytes>),
    /// So many messages were thrown away here, because the queue to the reader was full.
    Dropped {
        /// How many.
        messages: u64,
    },
}

impl Sub {
    /// Connects to a publisher, and again whenever the connection is lost. Returns at once; must be called within a
    /// tokio runtime.
    pub fn connect(endpoint: Endpoint, topic: &[u8], options: Options) -> Self {
        let topic = Bytes::copy_from_slice(topic);
        Self::spawn(endpoint.clone(), &options, |inbox| connect(inbox, endpoint, topic, options.clone()))
    }

    /// Listens for one publisher that connects to us. A later one replaces an earlier one: it is the same publisher
    /// come back before we noticed that it was gone.
    pub async fn bind(endpoint: &Endpoint, topic: &[u8], options: Options) -> io::Result<Self> {
        let topic = Bytes::copy_from_slice(topic);
        let acceptor = Acceptor::bind(endpoint, Kind::Sub, topic.clone(), options.clone()).await?;
        Ok(Self::spawn(acceptor.endpoint().clone(), &options, |inbox| listen(inbox, acceptor, topic, options.rest)))
    }

    fn spawn<F>(endpoint: Endpoint, options: &Options, run: impl FnOnce(Inbox) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let inbox = Arc::new(ByteQueue::new(options.queue_bytes));
        let stop = CancellationToken::new();
        let run = run(Inbox::new(inbox.clone()));
        let task = tokio::spawn(stop.clone().run_until_cancelled_owned(run));
        Self { endpoint, inbox, task, stop: stop.drop_guard() }
    }

    /// Where this connects to or, with the real port, listens.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// What happened next; waits for it. Cancel-safe.
    pub async fn next(&mut self) -> SubEvent {
        match self.inbox.pop().await {
            Some(event) => event,
            // The task only ends when this socket is dropped, or by a panic that the runtime reported.
            None => std::future::pending().await,
        }
    }

    /// Ends the task and waits until its connection is closed.
    pub async fn close(self) {
        drop(self.stop);
        // A panic in it has been reported by the runtime; there is nothing left to undo.
        let _ = self.task.await;
    }
}

async fn connect(mut inbox: Inbox, endpoint: Endpoint, topic: Bytes, options: Options) {
    let mut backoff = Backoff::new(options.reconnect_min, options.reconnect_max);
    let mut last_failure = String::new();
    loop {
        match attend(&mut inbox, open(&endpoint, &topic, &options)).await {
            Ok((connection, peer)) => {
                last_failure.clear();
                inbox.push(SubEvent::Connected { zmtp_minor: peer.minor });
                let since = Instant::now();
                let error = pump(&mut inbox, connection, &topic, options.rest).await;
                inbox.push(SubEvent::Disconnected { reason: error.to_string() });
                // One that hangs up right after each handshake is not asked again at full speed.
                if since.elapsed() >= options.reconnect_max {
                    backoff.reset();
                }
            }
            Err(error) => {
                let reason = error.to_string();
                if reason != last_failure {
                    last_failure.clone_from(&reason);
                    inbox.push(SubEvent::Failed { reason });
                }
            }
        }
        let delay = backoff.delay(&mut rand::rng());
        attend(&mut inbox, sleep(delay)).await;
    }
}

async fn open(endpoint: &Endpoint, topic: &Bytes, options: &Options) -> Result<(Connection, Peer), Error> {
    let stream = dial(endpoint, options).await?;
    let open = Connection::open(stream, Kind::Sub, topic, options).await?;
    if options.confirm_subscription {
        sleep(LOOK).await;
    }
    Ok(open)
}

async fn listen(mut inbox: Inbox, mut acceptor: Acceptor, topic: Bytes, rest: Option<Duration>) {
    let mut next = attend(&mut inbox, acceptor.accept()).await;
    loop {
        let (connection, peer) = next;
        inbox.push(SubEvent::Connected { zmtp_minor: peer.minor });
        let newer = tokio::select! {
            newer = acceptor.accept() => Ok(newer),
            error = pump(&mut inbox, connection, &topic, rest) => Err(error),
        };
        next = match newer {
            Ok(newer) => {
                inbox.push(SubEvent::Disconnected { reason: "a newer connection took its place".to_owned() });
                newer
            }
            Err(error) => {
                inbox.push(SubEvent::Disconnected { reason: error.to_string() });
                attend(&mut inbox, acceptor.accept()).await
            }
        };
    }
}

/// Passes messages on until the connection ends. Cancel-safe up to the connection, which is lost.
async fn pump(inbox: &mut Inbox, mut connection: Connection, topic: &Bytes, rest: Option<Duration>) -> Error {
    let mut read = false;
    loop {
        let waited = match connection.heard() {
            // Every SUB filters: a publisher may send more than it was asked for.
            Ok(Some(Event::Message(frames))) if frames.first().is_some_and(|first| first.starts_with(topic)) => {
                inbox.push(SubEvent::Message(frames));
                read = true;
                continue;
            }
            Ok(Some(Event::Message(_) | Event::Open(_) | Event::Subscribe(_) | Event::Cancel(_))) => continue,
            Ok(None) => match rest.filter(|_| std::mem::take(&mut read)) {
                Some(rest) => match attend(inbox, connection.rest(rest)).await {
                    Ok(rested) => {
                        connection = rested;
                        attend(inbox, connection.exchange()).await
                    }
                    Err(error) => return error,
                },
                None => attend(inbox, connection.exchange()).await,
            },
            Err(error) => return error,
        };
        if let Err(error) = waited {
            return error;
        }
    }
}

/// Awaits `work` and meanwhile tells the reader about a hole as soon as it has made room.
async fn attend<T>(inbox: &mut Inbox, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = inbox.drained() => inbox.tell_hole(),
        }
    }
}
