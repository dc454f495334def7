//! Streams of bytes: TCP and Unix sockets behind one type, made ready for long quiet connections.

use std::io;
use std::net::Shutdown;
use std::time::Duration;

use bytes::BytesMut;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{Interest, Ready};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::timeout;

use super::endpoint::Endpoint;
use super::error::Error;
use super::options::Options;

/// Of a name with many addresses, this many are tried.
const MAX_ADDRESSES: usize = 8;

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

    /// Tells the peer that nothing more will come.
    pub(crate) fn finish_writing(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => SockRef::from(stream).shutdown(Shutdown::Write),
            Self::Ipc(stream) => SockRef::from(stream).shutdown(Shutdown::Write),
        }
    }

    /// An accepted or connected TCP stream, tuned; without the tuning it would still work.
    pub(crate) fn tcp(stream: TcpStream, options: &Options) -> Self {
        if let Err(error) = tune(&stream, options.tcp_keepalive_idle) {
            tracing::debug!(%error, "cannot tune a connection");
        }
        Self::Tcp(stream)
    }
}

/// No delay for small events, and a vanished host is noticed within about three times `idle`, sending or not.
fn tune(stream: &TcpStream, idle: Duration) -> io::Result<()> {
    const PROBES: u32 = 4;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let interval = (idle / 2).max(Duration::from_secs(1));
    let keepalive = TcpKeepalive::new().with_time(idle.max(Duration::from_secs(1))).with_interval(interval);
    socket.set_tcp_keepalive(&keepalive.with_retries(PROBES))?;
    // Bytes on their way stop keepalive probes; this bounds the wait for their acknowledgement.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some((idle * 3).max(Duration::from_secs(10))))?;
    Ok(())
}

/// Opens a connection; each address of the name gets the time-out.
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
            let mut last = Error::Io(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
            for address in addresses.take(MAX_ADDRESSES) {
                match timeout(bound, TcpStream::connect(address)).await.map_err(late("connecting")) {
                    Ok(Ok(stream)) => return Ok(Stream::tcp(stream, options)),
                    Ok(Err(error)) => last = error.into(),
                    Err(error) => last = error,
                }
            }
            Err(last)
        }
    }
}
