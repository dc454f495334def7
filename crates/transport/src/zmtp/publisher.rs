//! PUB: messages to whoever subscribed. Sending never waits: each subscriber has a queue bounded in bytes, and a
//! subscriber whose queue is full misses the newest messages, counted.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use super::endpoint::Endpoint;
use super::error::Error;
use super::frame::encode;
use super::listen::Acceptor;
use super::options::Options;
use super::queue::{ByteQueue, Refusal};
use super::server::Server;
use super::session::{Event, Kind};
use super::topics::Topics;

/// Bytes taken from a peer's queue ahead of what the kernel accepted.
pub(crate) const WRITE_AHEAD_BYTES: usize = 256 << 10;

/// A publishing socket, bound. Dropping it closes every connection at once and loses what is queued:
/// [`shutdown`](Self::shutdown) delivers it first.
#[derive(Debug)]
pub struct Pub {
    server: Server,
    shared: Arc<Shared>,
    subscribers: watch::Receiver<usize>,
}

#[derive(Debug)]
struct Shared {
    /// Guards the connected peers; held while one message is put in their queues.
    peers: Mutex<HashMap<u64, Arc<Subscriber>>>,
    next_peer: AtomicU64,
    dropped: AtomicU64,
    /// How many peers have at least one subscription.
    subscribers: watch::Sender<usize>,
    options: Options,
}

#[derive(Debug)]
struct Subscriber {
    /// Guards what the peer subscribed to; held for one look-up.
    topics: Mutex<Topics>,
    outbox: ByteQueue<Bytes>,
}

impl Pub {
    /// Listens on `endpoint`.
    pub async fn bind(endpoint: &Endpoint, options: Options) -> io::Result<Self> {
        let acceptor = Acceptor::bind(endpoint, Kind::Pub, Bytes::new(), options.clone()).await?;
        let (sender, subscribers) = watch::channel(0);
        let max_connections = options.max_connections;
        let shared = Arc::new(Shared {
            peers: Mutex::default(),
            next_peer: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            subscribers: sender,
            options,
        });
        let serving = shared.clone();
        let server = Server::spawn(acceptor, max_connections, move |connection, _, closing| serve(serving.clone(), connection, closing));
        Ok(Self { server, shared, subscribers })
    }

    /// Where this listens, with the real port.
    pub fn endpoint(&self) -> Endpoint {
        self.server.endpoint().clone()
    }

    /// Queues one message for every peer subscribed to a prefix of its first frame; never blocks. A message without
    /// frames is nothing.
    pub fn send(&self, frames: Vec<Bytes>) {
        let Some(subject) = frames.first() else {
            return;
        };
        let mut encoded: Option<Bytes> = None;
        for subscriber in self.shared.peers.lock().values() {
            if !subscriber.topics.lock().matches(subject) {
                continue;
            }
            let bytes = encoded.get_or_insert_with(|| encode(&frames)).clone();
            if let Err((Refusal::Full, _)) = subscriber.outbox.try_push(bytes.len(), bytes) {
                self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Messages lost to full queues, summed over subscribers.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Connections closed because `max_connections` were open.
    pub fn refused(&self) -> u64 {
        self.server.refused()
    }

    /// How many peers have at least one subscription now.
    pub fn subscribers(&self) -> usize {
        *self.subscribers.borrow()
    }

    /// Waits until `count` peers, or more, are subscribed: what is sent from then on reaches them.
    pub async fn subscribed(&self, count: usize) {
        let mut subscribers = self.subscribers.clone();
        // An error means that every task is gone, which ends with `self` only.
        let _ = subscribers.wait_for(|now| *now >= count).await;
    }

    /// Accepts nobody any more, delivers what is queued, and closes; what is undelivered after `within` is lost.
    pub async fn shutdown(self, within: Duration) {
        self.server.shutdown(within).await;
    }
}

/// Takes a peer off the list however its task ends.
struct Membership {
    shared: Arc<Shared>,
    id: u64,
    subscriber: Arc<Subscriber>,
}

impl Membership {
    fn new(shared: Arc<Shared>) -> Self {
        let Options { max_subscriptions, max_subscription_bytes, queue_bytes, .. } = shared.options;
        let subscriber = Arc::new(Subscriber {
            topics: Mutex::new(Topics::new(max_subscriptions, max_subscription_bytes)),
            outbox: ByteQueue::new(queue_bytes),
        });
        let id = shared.next_peer.fetch_add(1, Ordering::Relaxed);
        shared.peers.lock().insert(id, subscriber.clone());
        Self { shared, id, subscriber }
    }

    /// Changes the peer's topics and keeps the number of subscribers right.
    fn change<T>(&self, change: impl FnOnce(&mut Topics) -> T) -> T {
        let mut topics = self.subscriber.topics.lock();
        let before = usize::from(!topics.is_empty());
        let result = change(&mut topics);
        let after = usize::from(!topics.is_empty());
        drop(topics);
        if before != after {
            self.shared.subscribers.send_modify(|count| *count = *count + after - before);
        }
        result
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.shared.peers.lock().remove(&self.id);
        self.change(Topics::clear);
    }
}

async fn serve(shared: Arc<Shared>, mut connection: Connection, closing: CancellationToken) {
    let member = Membership::new(shared);
    let outbox = &member.subscriber.outbox;
    loop {
        tokio::select! {
            event = connection.advance() => {
                if let Err(error) = event.and_then(|event| event.map_or(Ok(()), |event| obey(&member, event))) {
                    tracing::debug!(%error, "a subscriber is gone");
                    return;
                }
            }
            bytes = outbox.pop(), if connection.backlog() < WRITE_AHEAD_BYTES => match bytes {
                Some(bytes) => connection.send(bytes),
                None => break,
            },
            () = closing.cancelled() => break,
        }
    }
    drain(outbox, connection).await;
}

fn obey(member: &Membership, event: Event) -> Result<(), Error> {
    match event {
        Event::Subscribe(topic) => member.change(|topics| topics.subscribe(&topic)),
        Event::Cancel(topic) => {
            member.change(|topics| topics.cancel(&topic));
            Ok(())
        }
        Event::Message(_) | Event::Open(_) => Ok(()),
    }
}

/// Delivers what is queued and closes in order. The server bounds the wait.
pub(crate) async fn drain(outbox: &ByteQueue<Bytes>, mut connection: Connection) {
    outbox.close();
    while let Some(bytes) = outbox.pop().await {
        connection.send(bytes);
        if let Err(error) = connection.flush().await {
            tracing::debug!(%error, "a peer is gone with messages undelivered");
            return;
        }
    }
    if let Err(error) = connection.finish().await {
        tracing::debug!(%error, "a peer did not take all that was queued for it");
    }
}
