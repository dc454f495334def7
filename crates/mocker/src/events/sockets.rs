//! PUB and ROUTER by either of two implementations.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use transport::zmtp::{self, Endpoint};
use zeromq::{Socket, SocketRecv, SocketSend, ZmqMessage};

use super::buffer::Buffer;
use crate::config::{ServeError, SocketKind};

/// Tries to bind an endpoint that was in use a moment ago, and the time between them.
const REBIND_TRIES: usize = 100;
const REBIND_EVERY: Duration = Duration::from_millis(20);

/// Binds where a socket has just been closed: the system may need a moment to free the port.
pub(super) async fn bind_again<T>(mut bind: impl AsyncFnMut() -> Result<T, ServeError>) -> Result<T, ServeError> {
    for _ in 1..REBIND_TRIES {
        if let Ok(bound) = bind().await {
            return Ok(bound);
        }
        tokio::time::sleep(REBIND_EVERY).await;
    }
    bind().await
}

/// A PUB socket. Sending never waits for subscribers; a slow one loses messages.
pub(super) enum PubSocket {
    Own(zmtp::Pub),
    Zeromq(Box<zeromq::PubSocket>),
}

impl PubSocket {
    pub(super) async fn bind(kind: SocketKind, endpoint: &Endpoint) -> Result<(Self, Endpoint), ServeError> {
        match kind {
            SocketKind::Own => {
                let socket = zmtp::Pub::bind(endpoint, zmtp::Options::default()).await.map_err(|error| refused("PUB", endpoint, error))?;
                let bound = socket.endpoint().clone();
                Ok((Self::Own(socket), bound))
            }
            SocketKind::Zeromq => {
                let mut socket = zeromq::PubSocket::new();
                let bound = socket.bind(&endpoint.to_string()).await.map_err(|error| refused("PUB", endpoint, error))?;
                Ok((Self::Zeromq(Box::new(socket)), parsed(&bound, endpoint)?))
            }
        }
    }

    pub(super) async fn send(&mut self, frames: Vec<Bytes>) {
        match self {
            Self::Own(socket) => socket.send(frames),
            Self::Zeromq(socket) => {
                if let Ok(message) = ZmqMessage::try_from(frames)
                    && let Err(error) = socket.send(message).await
                {
                    tracing::warn!(%error, "event batch not sent");
                }
            }
        }
    }

    pub(super) async fn close(self) {
        match self {
            Self::Own(socket) => drop(socket),
            Self::Zeromq(socket) => close_zeromq(*socket).await,
        }
    }
}

/// A ROUTER socket that answers replay requests.
pub(super) enum RouterSocket {
    Own(zmtp::Router),
    Zeromq(Box<zeromq::RouterSocket>),
}

impl RouterSocket {
    pub(super) async fn bind(kind: SocketKind, endpoint: &Endpoint) -> Result<(Self, Endpoint), ServeError> {
        match kind {
            SocketKind::Own => {
                let socket =
                    zmtp::Router::bind(endpoint, zmtp::Options::default()).await.map_err(|error| refused("ROUTER", endpoint, error))?;
                let bound = socket.endpoint().clone();
                Ok((Self::Own(socket), bound))
            }
            SocketKind::Zeromq => {
                let mut socket = zeromq::RouterSocket::new();
                let bound = socket.bind(&endpoint.to_string()).await.map_err(|error| refused("ROUTER", endpoint, error))?;
                Ok((Self::Zeromq(Box::new(socket)), parsed(&bound, endpoint)?))
            }
        }
    }

    /// Answers from `buffer` until the task is aborted.
    pub(super) async fn answer(self, buffer: Arc<Mutex<Buffer>>) {
        match self {
            Self::Own(socket) => loop {
                let (peer, request) = socket.recv().await;
                let answer = buffer.lock().answer(&request);
                for message in answer {
                    if socket.send(&peer, &message).await.is_err() {
                        break;
                    }
                }
            },
            Self::Zeromq(mut socket) => loop {
                let Ok(request) = socket.recv().await else { return };
                let frames = request.into_vec();
                let Some((peer, request)) = frames.split_first() else { continue };
                let answer = buffer.lock().answer(request);
                for mut message in answer {
                    message.insert(0, peer.clone());
                    let Ok(message) = ZmqMessage::try_from(message) else { break };
                    if socket.send(message).await.is_err() {
                        break;
                    }
                }
            },
        }
    }
}

async fn close_zeromq(socket: impl Socket) {
    for error in socket.close().await {
        tracing::debug!(%error, "event socket closed uncleanly");
    }
}

fn refused(what: &'static str, endpoint: &Endpoint, error: impl std::fmt::Display) -> ServeError {
    ServeError::Bind { what, endpoint: endpoint.to_string(), reason: error.to_string() }
}

fn parsed(bound: &zeromq::Endpoint, wanted: &Endpoint) -> Result<Endpoint, ServeError> {
    bound.to_string().parse().map_err(|error| refused("socket", wanted, error))
}
