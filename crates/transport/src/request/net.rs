//! TCP as the request plane needs it: addresses as text, bounded dialling, and connections that notice a vanished host.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};

use crate::tcp::{self, MAX_ADDRESSES};

/// Connections the kernel queues for a listener of ours.
const BACKLOG: i32 = 1024;
/// Idle time after which TCP asks a silent host whether it is there; it is gone after about three times as long.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);

/// Connects to `host:port` within `bound`, name look-up included.
pub(super) async fn dial(address: &str, bound: Duration) -> io::Result<TcpStream> {
    let until = Instant::now() + bound;
    let dialled = match address.parse::<SocketAddr>() {
        Ok(address) => tcp::connect([address].into_iter(), until).await,
        Err(_) => match timeout_at(until, lookup_host(address)).await {
            Ok(addresses) => tcp::connect(addresses?, until).await,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        },
    };
    let stream = dialled.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => io::Error::new(error.kind(), format!("no connection within {} ms", bound.as_millis())),
        _ => error,
    })?;
    tune((&stream).into());
    Ok(stream)
}

/// Listens on the first address of `host:port` that can be bound.
pub(super) async fn listen(address: &str) -> io::Result<TcpListener> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host(address).await?.take(MAX_ADDRESSES) {
        match bind(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    // A restarted process takes its port again while old connections linger.
    socket.set_reuse_address(true)?;
    // What is accepted here inherits it, so that it costs nothing for each connection.
    tune(SockRef::from(&socket));
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// What others are told to connect to: the advertised host, or the bound address itself. All interfaces are nowhere to connect
/// to, so a host must be named where they are bound.
pub(super) fn advertised(bound: SocketAddr, host: Option<&str>) -> io::Result<String> {
    match host {
        Some(host) if host.contains(':') && !host.starts_with('[') => Ok(format!("[{host}]:{}", bound.port())),
        Some(host) => Ok(format!("{host}:{}", bound.port())),
        None if bound.ip().is_unspecified() => {
            let what = format!("{bound} is all interfaces: the host that others are to connect to must be given");
            Err(io::Error::new(io::ErrorKind::InvalidInput, what))
        }
        None => Ok(bound.to_string()),
    }
}

/// Without it a connection still works.
fn tune(socket: SockRef<'_>) {
    if let Err(error) = tcp::tune(&socket, KEEPALIVE_IDLE) {
        tracing::debug!(%error, "cannot tune a connection");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_interfaces_are_nowhere_to_connect_to() {
        let all: SocketAddr = "0.0.0.0:70".parse().unwrap();
        assert_eq!(advertised(all, None).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(advertised(all, Some("gpu1")).unwrap(), "gpu1:70");
        assert_eq!(advertised(all, Some("fd00::1")).unwrap(), "[fd00::1]:70");
        assert_eq!(advertised("[::1]:70".parse().unwrap(), None).unwrap(), "[::1]:70");
    }

    #[tokio::test]
    async fn both_ends_of_a_connection_are_tuned() {
        let listener = listen("localhost:0").await.unwrap();
        let address = format!("localhost:{}", listener.local_addr().unwrap().port());
        let bound = Duration::from_secs(5);
        let (dialled, accepted) = tokio::join!(dial(&address, bound), listener.accept());
        for stream in [dialled.unwrap(), accepted.unwrap().0] {
            let socket = SockRef::from(&stream);
            assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
            assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE_IDLE);
        }
    }
}
