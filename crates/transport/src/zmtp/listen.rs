//! Bound sockets: listening, and turning connections into handshaken ones. A peer that connects and says nothing, or
//! nonsense, costs one pending handshake until its time-out and never disturbs the others.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, UnixListener, UnixStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::connection::Connection;
use super::endpoint::Endpoint;
use super::error::Error;
use super::net::Stream;
use super::options::Options;
use super::session::{Kind, Peer};

/// Handshakes going on at once; further connections wait in the kernel's queue.
const MAX_HANDSHAKES: usize = 256;
/// Connections the kernel queues for us.
const BACKLOG: i32 = 1024;
/// Pause after a failed accept: the usual cause is a lack of file descriptors, which a busy loop does not cure.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listening socket and the handshakes of its new connections.
#[derive(Debug)]
pub(crate) struct Acceptor {
    listener: Listener,
    endpoint: Endpoint,
    kind: Kind,
    topic: Bytes,
    options: Options,
    handshakes: JoinSet<Result<(Connection, Peer), Error>>,
}

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Ipc { listener: UnixListener, _file: Unlink },
}

/// Removes the socket's file when its listener is gone.
#[derive(Debug)]
struct Unlink(PathBuf);

impl Drop for Unlink {
    fn drop(&mut self) {
        // Already removed is as good.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Acceptor {
    pub(crate) async fn bind(endpoint: &Endpoint, kind: Kind, topic: Bytes, options: Options) -> io::Result<Self> {
        let (listener, endpoint) = match endpoint {
            Endpoint::Ipc(path) => {
                let listener = bind_ipc(path, options.connect_timeout).await?;
                (Listener::Ipc { listener, _file: Unlink(path.clone()) }, endpoint.clone())
            }
            Endpoint::Tcp { host, port } => {
                let listener = bind_tcp(host, *port, options.connect_timeout).await?;
                let port = listener.local_addr()?.port();
                (Listener::Tcp(listener), Endpoint::Tcp { host: host.clone(), port })
            }
        };
        Ok(Self { listener, endpoint, kind, topic, options, handshakes: JoinSet::new() })
    }

    /// Where this listens, with the real port.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The next connection whose handshake succeeded. Cancel-safe.
    pub(crate) async fn accept(&mut self) -> (Connection, Peer) {
        loop {
            tokio::select! {
                Some(done) = self.handshakes.join_next() => match done {
                    Ok(Ok(open)) => return open,
                    Ok(Err(error)) => tracing::debug!(endpoint = %self.endpoint, %error, "a connection did not open"),
                    Err(error) => tracing::error!(endpoint = %self.endpoint, %error, "a handshake task failed"),
                },
                stream = self.listener.accept(&self.options), if self.handshakes.len() < MAX_HANDSHAKES => match stream {
                    Ok(stream) => self.shake_hands(stream),
                    Err(error) => {
                        tracing::warn!(endpoint = %self.endpoint, %error, "cannot accept a connection");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }

    fn shake_hands(&mut self, stream: Stream) {
        let (kind, topic, options) = (self.kind, self.topic.clone(), self.options.clone());
        self.handshakes.spawn(async move { Connection::open(stream, kind, &topic, &options).await });
    }
}

impl Listener {
    async fn accept(&self, options: &Options) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => Ok(Stream::tcp(listener.accept().await?.0, options)),
            Self::Ipc { listener, .. } => Ok(Stream::Ipc(listener.accept().await?.0)),
        }
    }
}

async fn bind_tcp(host: &str, port: u16, bound: Duration) -> io::Result<TcpListener> {
    if host == "*" {
        // One socket for IPv6 and IPv4; a machine without IPv6 gets one for IPv4.
        return listen(SocketAddr::from(([0u16; 8], port))).or_else(|_| listen(SocketAddr::from(([0u8; 4], port))));
    }
    let found = timeout(bound, lookup_host((host, port))).await;
    let mut addresses: Vec<_> = found.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match listen(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    // A restarted publisher takes its port again while old connections linger.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Binds a Unix socket, taking over a file that nobody listens behind (left by a process that died).
async fn bind_ipc(path: &Path, bound: Duration) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_dead_socket(path, bound).await => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        result => result,
    }
}

async fn is_dead_socket(path: &Path, bound: Duration) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    is_socket && matches!(timeout(bound, UnixStream::connect(path)).await, Ok(Err(error)) if refused(&error))
}
