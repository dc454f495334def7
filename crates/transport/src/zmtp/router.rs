//! ROUTER: messages from many peers, each with the identity to answer to. Frames are passed as they come: a REQ's
//! empty delimiter is the first of them, and answers must bring their own.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use super::endpoint::Endpoint;
use super::error::Error;
use super::frame::encode;
use super::inbox::message_bytes;
use super::listen::Acceptor;
use super::options::Options;
use super::publisher::{WRITE_AHEAD_BYTES, drain};
use super::queue::ByteQueue;
use super::server::Server;
use super::session::{Event, Kind};

/// Names one connected peer of a [`Router`]. Unique among those connected: a peer that brings none, one that is
/// taken, or one of the reserved kind (first byte zero) is given another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity(Bytes);

impl Identity {
    /// The bytes of it.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A ROUTER socket, bound. Dropping it closes every connection at once; [`shutdown`](Self::shutdown) first delivers
/// what is queued.
#[derive(Debug)]
pub struct Router {
    server: Server,
    shared: Arc<Shared>,
    send_timeout: Duration,
}

#[derive(Debug)]
struct Shared {
    /// Guards the queues to the connected peers; held for one look-up.
    peers: Mutex<HashMap<Identity, Arc<ByteQueue<Bytes>>>>,
    next_peer: AtomicU64,
    /// From all peers; a full one stops reading from them.
    incoming: ByteQueue<(Identity, Vec<Bytes>)>,
    queue_bytes: usize,
}

impl Router {
    /// Listens on `endpoint`.
    pub async fn bind(endpoint: &Endpoint, options: Options) -> io::Result<Self> {
        let Options { queue_bytes, send_timeout, max_connections, .. } = options;
        let acceptor = Acceptor::bind(endpoint, Kind::Router, Bytes::new(), options).await?;
        let shared =
            Arc::new(Shared { peers: Mutex::default(), next_peer: AtomicU64::new(0), incoming: ByteQueue::new(queue_bytes), queue_bytes });
        let serving = shared.clone();
        let server = Server::spawn(acceptor, max_connections, move |connection, peer, closing| {
            serve(serving.clone(), connection, peer.identity, closing)
        });
        Ok(Self { server, shared, send_timeout })
    }

    /// Where this listens, with the real port.
    pub fn endpoint(&self) -> Endpoint {
        self.server.endpoint().clone()
    }

    /// Connections closed because `max_connections` were open.
    pub fn refused(&self) -> u64 {
        self.server.refused()
    }

    /// The next message and who sent it; waits for one. Cancel-safe.
    pub async fn recv(&self) -> (Identity, Vec<Bytes>) {
        match self.shared.incoming.pop().await {
            Some(message) => message,
            // Never closed while `self` lives.
            None => std::future::pending().await,
        }
    }

    /// Queues a message for one peer; waits, at most the send time-out, for room in its queue.
    pub async fn send(&self, identity: &Identity, frames: &[Bytes]) -> Result<(), Error> {
        let outbox = self.shared.peers.lock().get(identity).cloned().ok_or(Error::NoPeer)?;
        let bytes = encode(frames);
        match timeout(self.send_timeout, outbox.push(bytes.len(), bytes)).await {
            Ok(pushed) => pushed.map_err(|_| Error::NoPeer),
            Err(_) => Err(Error::TimedOut { what: "a peer that does not read", after: self.send_timeout }),
        }
    }

    /// Accepts nobody any more, delivers what is queued, and closes; what is undelivered after `within` is lost.
    pub async fn shutdown(self, within: Duration) {
        self.server.shutdown(within).await;
    }
}

/// Takes a peer off the list however its task ends.
struct Membership {
    shared: Arc<Shared>,
    identity: Identity,
    outbox: Arc<ByteQueue<Bytes>>,
}

impl Membership {
    fn new(shared: Arc<Shared>, wished: Bytes) -> Self {
        let outbox = Arc::new(ByteQueue::new(shared.queue_bytes));
        let mut peers = shared.peers.lock();
        // A copy: what arrived shares the connection's input buffer.
        let mut identity = Identity(Bytes::copy_from_slice(&wished));
        let reserved = wished.first().is_none_or(|first| *first == 0);
        if reserved || peers.contains_key(&identity) {
            let number = shared.next_peer.fetch_add(1, Ordering::Relaxed);
            identity = Identity([&[0], &number.to_be_bytes()[..]].concat().into());
        }
        peers.insert(identity.clone(), outbox.clone());
        drop(peers);
        Self { shared, identity, outbox }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.outbox.close();
        self.shared.peers.lock().remove(&self.identity);
    }
}

async fn serve(shared: Arc<Shared>, mut connection: Connection, wished: Bytes, closing: CancellationToken) {
    let member = Membership::new(shared, wished);
    loop {
        tokio::select! {
            event = connection.advance() => match event {
                Ok(Some(Event::Message(frames))) => {
                    let received = deliver(&member, &mut connection, frames);
                    tokio::select! {
                        done = received => if let Err(error) = done {
                            tracing::debug!(%error, "a peer of a router is gone");
                            return;
                        },
                        () = closing.cancelled() => break,
                    }
                }
                Ok(None | Some(Event::Open(_) | Event::Subscribe(_) | Event::Cancel(_))) => {}
                Err(error) => {
                    tracing::debug!(%error, "a peer of a router is gone");
                    return;
                }
            },
            bytes = member.outbox.pop(), if connection.backlog() < WRITE_AHEAD_BYTES => match bytes {
                Some(bytes) => connection.send(bytes),
                None => break,
            },
            () = closing.cancelled() => break,
        }
    }
    drain(&member.outbox, connection).await;
}

/// Hands a message to the user, waiting for room, and goes on writing meanwhile: the user may make room only after
/// its own answers are taken.
async fn deliver(member: &Membership, connection: &mut Connection, frames: Vec<Bytes>) -> Result<(), Error> {
    let delivered = member.shared.incoming.push(message_bytes(&frames), (member.identity.clone(), frames));
    let mut delivered = std::pin::pin!(delivered);
    loop {
        tokio::select! {
            // Only refused by a closed queue, which ends this task soon.
            _ = &mut delivered => return Ok(()),
            bytes = member.outbox.pop() => match bytes {
                Some(bytes) => {
                    connection.send(bytes);
                    connection.flush().await?;
                }
                None => return Ok(()),
            },
        }
    }
}
