//! What all our TCP connections have in common: of a name every address is tried, nothing waits for more bytes before it is sent, and
//! a vanished host is noticed.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

/// Of a name with many addresses, this many are tried.
pub(crate) const MAX_ADDRESSES: usize = 8;
/// Questions of the kernel to a silent host before it is gone.
const KEEPALIVE_PROBES: u32 = 4;

/// Connects to the first address that answers. Each has its share of the time that is left, so that one that swallows packets
/// leaves some for the others.
pub(crate) async fn connect(addresses: impl Iterator<Item = SocketAddr>, until: Instant) -> io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = addresses.take(MAX_ADDRESSES).collect();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for (at, address) in addresses.iter().enumerate() {
        let now = Instant::now();
        let left = u32::try_from(addresses.len() - at).unwrap_or(1);
        let share = until.saturating_duration_since(now) / left;
        match timeout_at(now + share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(_) => last = io::Error::new(io::ErrorKind::TimedOut, format!("{address} did not answer in time")),
        }
    }
    Err(last)
}

/// No delay for small messages, and a host that has vanished is noticed within about three times `idle`. Accepted connections
/// have it from a listener that was tuned before it listened.
pub(crate) fn tune(socket: &SockRef<'_>, idle: Duration) -> io::Result<()> {
    let idle = idle.max(Duration::from_secs(1));
    socket.set_tcp_nodelay(true)?;
    let interval = (idle / 2).max(Duration::from_secs(1));
    let keepalive = TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)?;
    Ok(())
}

/// Ends a connection whose peer acknowledges nothing for this long: bytes on their way stop the probes of [`tune`]. Not for a
/// connection whose reader may rest that long.
pub(crate) fn bound_unacknowledged(socket: &SockRef<'_>, bound: Duration) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(bound))?;
    #[cfg(not(target_os = "linux"))]
    let _ = (socket, bound);
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn an_address_that_refuses_or_swallows_leaves_time_for_the_next() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let refuses = closed.local_addr().unwrap();
        drop(closed);
        // A listener whose queue is full swallows packets.
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        socket.listen(0).unwrap();
        let swallows = socket.local_addr().unwrap().as_socket().unwrap();
        let mut queued = Vec::new();
        while let Ok(Ok(stream)) = tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(swallows)).await {
            queued.push(stream);
        }
        let addresses = [refuses, swallows, listener.local_addr().unwrap()];
        let stream = connect(addresses.into_iter(), Instant::now() + Duration::from_secs(3)).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), addresses[2]);
        let none = connect([refuses].into_iter(), Instant::now() + Duration::from_secs(3)).await.unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::ConnectionRefused);
        let none = connect([].into_iter(), Instant::now() + Duration::from_secs(3)).await.unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
    }
}
