//! Ports for servers that will be restarted on them.

use std::net::TcpListener;

use rand::Rng;

/// Below the range the system takes ports of outgoing connections from: while a server is down, one of those could take its
/// port, or connect to itself there.
const RANGE: std::ops::Range<u16> = 15_000..32_000;

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
