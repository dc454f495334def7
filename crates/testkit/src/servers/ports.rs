//! Ports for servers that will be restarted on them.

use std::{
    io::{self, ErrorKind},
    net::TcpListener,
    time::{Duration, Instant},
};

use rand::Rng;

/// Below the range the system takes ports of outgoing connections from: while a server is down, one of those could take its
/// port, or connect to itself there.
const RANGE: std::ops::Range<u16> = 15_000..32_000;

/// How long an address that was let go of may stay in use.
const IN_USE: Duration = Duration::from_secs(20);

/// Binds where something of this process listened until now. The address may stay in use for a moment: while another test
/// starts a child, that has every socket of this process until it runs its own program; and a connection may have got the
/// free port as its own.
///
/// # Panics
/// Where it stays in use, and where binding fails otherwise.
pub async fn bind_again<T>(mut bind: impl AsyncFnMut() -> io::Result<T>) -> T {
    let deadline = Instant::now() + IN_USE;
    loop {
        match bind().await {
            Ok(bound) => return bound,
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Err(error) => panic!("cannot bind again: {error}"),
        }
    }
}

/// Two ports nobody listens on now.
pub(super) fn free() -> [u16; 2] {
    let one = draw();
    loop {
        let other = draw();
        if other != one {
            return [one, other];
        }
    }
}

fn draw() -> u16 {
    let mut random = rand::rng();
    loop {
        let port = random.random_range(RANGE);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
