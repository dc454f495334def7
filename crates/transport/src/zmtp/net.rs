//! Streams of bytes: TCP and Unix sockets behind one type, made ready for long quiet connections.

use std::io;
use std::net::Shutdown;
use std::time::Duration;

use bytes::BytesMut;
use socket2::SockRef;
use tokio::io::{Interest, Ready};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{Instant, sleep, timeout};

use crate::tcp;

use super::endpoint::Endpoint;
use super::error::Error;
use super::options::Options;

/// Least time a peer has to acknowledge bytes.
const MIN_UNACKNOWLEDGED: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Ipc(UnixStream),
}

impl Stream {
    pub(crate) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        match self {
            Self::Tcp(stream) => stream.ready(interest).await,
            Self::Ipc(stream) => stream.ready(interest).await,
        }
    }

    /// Reads into the room `input` has; zero bytes mean the peer is done writing.
    pub(crate) fn try_read(&self, input: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read_buf(input),
            Self::Ipc(stream) => stream.try_read_buf(input),
        }
    }

    pub(crate) fn try_write(&self, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write_vectored(parts),
            Self::Ipc(stream) => stream.try_write_vectored(parts),
        }
    }

    /// The same after a rest, in which what arrives wakes nobody and stays with the kernel.
    pub(crate) async fn rest(self, time: Duration) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(stream) => {
                let resting = stream.into_std()?;
                sleep(time).await;
                Self::Tcp(TcpStream::from_std(resting)?)
            }
            Self::Ipc(stream) => {
                let resting = stream.into_std()?;
                sleep(time).await;
                Self::Ipc(UnixStream::from_std(resting)?)
            }
        })
    }

    /// Tells the peer that nothing more will come.
    pub(crate) fn finish_writing(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => SockRef::from(stream).shutdown(Shutdown::Write),
            Self::Ipc(stream) => SockRef::from(stream).shutdown(Shutdown::Write),
        }
    }

    /// An accepted or connected TCP stream, tuned; without the tuning it would still work.
    pub(crate) fn tcp(stream: TcpStream, options: &Options) -> Self {
        let (socket, idle) = (SockRef::from(&stream), options.tcp_keepalive_idle);
        let tuned = tcp::tune(&socket, idle).and_then(|()| tcp::bound_unacknowledged(&socket, (idle * 3).max(MIN_UNACKNOWLEDGED)));
        if let Err(error) = tuned {
            tracing::debug!(%error, "cannot tune a connection");
        }
        Self::Tcp(stream)
    }
}

/// Opens a connection; the addresses of a name share the time-out.
pub(crate) async fn dial(endpoint: &Endpoint, options: &Options) -> Result<Stream, Error> {
    let bound = options.connect_timeout;
    let late = |what| move |_| Error::TimedOut { what, after: bound };
    match endpoint {
        _ if endpoint.is_wildcard() => Err(Error::Wildcard),
        Endpoint::Tcp { port: 0, .. } => Err(Error::Wildcard),
        Endpoint::Ipc(path) => {
            let stream = timeout(bound, UnixStream::connect(path)).await.map_err(late("connecting"))??;
            Ok(Stream::Ipc(stream))
        }
        Endpoint::Tcp { host, port } => {
            let look_up = lookup_host((host.as_str(), *port));
            let addresses = timeout(bound, look_up).await.map_err(late("the name look-up"))??;
            match tcp::connect(addresses, Instant::now() + bound).await {
                Ok(stream) => Ok(Stream::tcp(stream, options)),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(Error::TimedOut { what: "connecting", after: bound }),
                Err(error) => Err(error.into()),
            }
        }
    }
}
