//! The publishing side: one topic of one publisher, on a ZMQ socket of its own or on the shared NATS connection.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use async_nats::Subject;
use bytes::Bytes;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use wire::discovery::{ChannelTransport, EventChannel, Scope};
use wire::envelope::{self, Envelope};

use crate::hosts;
use crate::nats::{Nats, Refused};
use crate::zmtp::{self, Endpoint, Pub};

use super::outbox::Outbox;

/// What a publisher publishes on.
#[derive(Clone, Debug)]
pub enum PlaneSocket {
    /// A PUB socket of its own, on a free port.
    Zmq {
        /// The interface to listen on, by name or address. Anybody who reaches it can read the events: 1.6.1 listens on
        /// all; here it is what the operator says, and loopback otherwise.
        bind_host: String,
        /// The host others reach it at, where that is not `bind_host`.
        advertise_host: Option<String>,
    },
    /// Subjects of a NATS server.
    Nats(Nats),
}

impl PlaneSocket {
    /// A ZMQ socket on loopback.
    pub fn loopback() -> Self {
        Self::zmq(None)
    }

    /// A ZMQ socket that others reach at `host`; on loopback, for this host alone, where none is given.
    pub fn zmq(host: Option<&str>) -> Self {
        Self::Zmq { bind_host: hosts::interface_for(host), advertise_host: host.map(str::to_owned) }
    }
}

/// What a publisher may spend.
#[derive(Clone, Debug)]
pub struct PublisherOptions {
    /// Bytes that wait for one ZMQ subscriber, or for NATS (32 MiB). One message always fits.
    pub queue_bytes: usize,
    /// Most ZMQ subscribers (256).
    pub max_subscribers: usize,
    /// The rest of the socket's options.
    pub sockets: zmtp::Options,
}

impl Default for PublisherOptions {
    fn default() -> Self {
        Self { queue_bytes: 32 << 20, max_subscribers: 256, sockets: zmtp::Options::default() }
    }
}

/// Why there is no publisher.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The port could not be had.
    #[error("cannot listen on {host}: {error}")]
    Bind {
        /// The interface.
        host: String,
        /// Why.
        error: io::Error,
    },
    /// Nothing tells others where to connect.
    #[error("listening on all interfaces ({0}) needs a host that others reach this one at; set the advertised host")]
    Unreachable(String),
}

/// One topic of one publisher. Dropping it loses what is queued; [`shutdown`](Self::shutdown) delivers it first.
#[derive(Debug)]
pub struct PlanePublisher {
    channel: EventChannel,
    /// The number of the next message. Held while one message is queued, so that numbers and messages have one order.
    next: Mutex<u64>,
    published: AtomicU64,
    dropped: Arc<AtomicU64>,
    socket: Socket,
}

#[derive(Debug)]
enum Socket {
    Zmq(Pub),
    Nats { outbox: Arc<Outbox>, nats: Nats, task: AbortOnDropHandle<()> },
}

/// What became of what was published. A message that is lost between us and a subscriber is in neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishCounters {
    /// Messages published.
    pub published: u64,
    /// Messages dropped for lack of room, summed over subscribers where each has a queue, or too large for NATS.
    pub dropped: u64,
}

impl PlanePublisher {
    /// Opens the channel of this publisher for this topic. On NATS it does not wait for the server.
    pub async fn open(
        socket: PlaneSocket,
        scope: Scope,
        topic: &str,
        publisher_id: u64,
        options: PublisherOptions,
    ) -> Result<Self, OpenError> {
        let dropped = Arc::new(AtomicU64::new(0));
        let (socket, transport) = match socket {
            PlaneSocket::Zmq { bind_host, advertise_host } => {
                let socket = bind(&bind_host, options).await?;
                let endpoint = advertised(&socket, &bind_host, advertise_host)?.to_string();
                (Socket::Zmq(socket), ChannelTransport::Zmq { endpoint })
            }
            PlaneSocket::Nats(nats) => {
                let subject_prefix = scope.subject_prefix();
                let subject = Subject::from(envelope::subject(&subject_prefix, topic));
                let outbox = Arc::new(Outbox::new(options.queue_bytes));
                let task = tokio::spawn(send(nats.clone(), subject, outbox.clone(), dropped.clone()));
                (Socket::Nats { outbox, nats, task: AbortOnDropHandle::new(task) }, ChannelTransport::Nats { subject_prefix })
            }
        };
        let channel = EventChannel { scope, topic: topic.to_owned(), instance_id: publisher_id, transport };
        Ok(Self { channel, next: Mutex::new(0), published: AtomicU64::new(0), dropped, socket })
    }

    /// The record that tells others where this publishes.
    pub fn channel(&self) -> &EventChannel {
        &self.channel
    }

    /// Publishes one message; never blocks. Returns false if a message was dropped for lack of room: this one, or on NATS an
    /// older one. True does not mean delivered.
    pub fn publish(&self, payload: Bytes) -> bool {
        let published_at_ms = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |age| {
            // Milliseconds fit for half a billion years.
            u64::try_from(age.as_millis()).unwrap_or(u64::MAX)
        });
        let mut next = self.next.lock();
        let envelope = Envelope {
            publisher_id: self.channel.instance_id,
            sequence: *next,
            published_at_ms,
            topic: self.channel.topic.clone(),
            payload,
        };
        *next += 1;
        self.published.fetch_add(1, Ordering::Relaxed);
        match &self.socket {
            Socket::Zmq(socket) => {
                let before = socket.dropped();
                socket.send(envelope.zmq_frames());
                socket.dropped() == before
            }
            Socket::Nats { outbox, .. } => {
                let dropped = outbox.push(envelope.encode());
                self.dropped.fetch_add(dropped, Ordering::Relaxed);
                dropped == 0
            }
        }
    }

    /// What became of what was published.
    pub fn counters(&self) -> PublishCounters {
        let sockets = match &self.socket {
            Socket::Zmq(socket) => socket.dropped(),
            Socket::Nats { .. } => 0,
        };
        PublishCounters { published: self.published.load(Ordering::Relaxed), dropped: sockets + self.dropped.load(Ordering::Relaxed) }
    }

    /// How many subscribe now, where that can be known: on NATS it cannot.
    pub fn subscribers(&self) -> Option<usize> {
        match &self.socket {
            Socket::Zmq(socket) => Some(socket.subscribers()),
            Socket::Nats { .. } => None,
        }
    }

    /// Delivers what is queued and closes; what is undelivered after `within` is lost.
    pub async fn shutdown(self, within: Duration) {
        match self.socket {
            Socket::Zmq(socket) => socket.shutdown(within).await,
            Socket::Nats { outbox, nats, task } => {
                outbox.close();
                let drain = async {
                    // A panic in it has been reported by the runtime; there is nothing left to undo.
                    let _ = task.await;
                    nats.flush().await;
                };
                if timeout(within, drain).await.is_err() {
                    tracing::debug!(topic = self.channel.topic, "NATS did not take all that was queued for it");
                }
            }
        }
    }
}

async fn bind(host: &str, options: PublisherOptions) -> Result<Pub, OpenError> {
    let unbracketed = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let sockets = zmtp::Options { queue_bytes: options.queue_bytes, max_connections: options.max_subscribers, ..options.sockets };
    let bound = Pub::bind(&Endpoint::Tcp { host: unbracketed, port: 0 }, sockets).await;
    bound.map_err(|error| OpenError::Bind { host: host.to_owned(), error })
}

fn advertised(socket: &Pub, bind_host: &str, advertise_host: Option<String>) -> Result<Endpoint, OpenError> {
    match (socket.endpoint(), advertise_host) {
        (Endpoint::Tcp { port, .. }, Some(host)) => {
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            Ok(Endpoint::Tcp { host, port })
        }
        (endpoint, None) if endpoint.is_wildcard() => Err(OpenError::Unreachable(bind_host.to_owned())),
        (endpoint, _) => Ok(endpoint),
    }
}

async fn send(nats: Nats, subject: Subject, outbox: Arc<Outbox>, dropped: Arc<AtomicU64>) {
    let mut complained = false;
    while let Some(message) = outbox.pop().await {
        if let Err(refused) = nats.publish(&subject, &message).await {
            dropped.fetch_add(1, Ordering::Relaxed);
            if !complained {
                complained = true;
                let bytes = message.len();
                tracing::warn!(%subject, bytes, reason = %refused_text(refused), "a message cannot be published; further ones are counted");
            }
        }
    }
}

fn refused_text(refused: Refused) -> String {
    refused.to_string()
}
