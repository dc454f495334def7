//! Whether a server that was just started answers its clients.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(20);

/// How long one try may take.
const TRY: Duration = Duration::from_secs(1);

/// Asks again until the server answers (true), its process ends or the time is over (false).
pub(super) fn within(time: Duration, port: u16, answers: fn(&mut TcpStream) -> bool, runs: impl FnMut() -> bool) -> bool {
    let mut runs = runs;
    let end = Instant::now() + time;
    while runs() && Instant::now() < end {
        if connect(port).is_some_and(|mut stream| answers(&mut stream)) {
            return true;
        }
        thread::sleep(PAUSE);
    }
    false
}

fn connect(port: u16) -> Option<TcpStream> {
    let stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), TRY).ok()?;
    stream.set_read_timeout(Some(TRY)).ok()?;
    stream.set_write_timeout(Some(TRY)).ok()?;
    Some(stream)
}

/// nats-server speaks first.
pub(super) fn nats(stream: &mut TcpStream) -> bool {
    let mut start = [0; 5];
    stream.read_exact(&mut start).is_ok() && start == *b"INFO "
}

/// etcd says that it is healthy once it has a leader.
pub(super) fn etcd(stream: &mut TcpStream) -> bool {
    let mut answer = Vec::new();
    let asked = stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").is_ok();
    asked && stream.read_to_end(&mut answer).is_ok() && String::from_utf8_lossy(&answer).contains(r#""health":"true""#)
}
