//! What the tests share: bounded waits, endpoints of both transports, and a peer scripted byte by byte.

use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;
pub(crate) use testkit::waits::soon;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use transport::zmtp::{Endpoint, Options, Pub, Sub, SubEvent};

/// Options with delays fit for a test. Peers have as long as in production to answer a ping: on a busy machine they
/// need it.
pub(crate) fn quick() -> Options {
    Options {
        handshake_timeout: Duration::from_millis(500),
        reconnect_min: Duration::from_millis(5),
        reconnect_max: Duration::from_millis(50),
        ..Options::default()
    }
}

/// The same, for tests of a peer that falls silent.
pub(crate) fn impatient() -> Options {
    Options { heartbeat_idle: Duration::from_millis(200), heartbeat_timeout: Duration::from_millis(200), ..quick() }
}

/// One endpoint of each transport to bind to; the folder must outlive the sockets.
pub(crate) fn endpoints() -> (TempDir, [Endpoint; 2]) {
    let dir = tempfile::tempdir().unwrap();
    let ipc = Endpoint::Ipc(dir.path().join("socket"));
    (dir, [loopback(0), ipc])
}

pub(crate) fn loopback(port: u16) -> Endpoint {
    Endpoint::Tcp { host: "127.0.0.1".into(), port }
}

pub(crate) fn port_of(endpoint: &Endpoint) -> u16 {
    match endpoint {
        Endpoint::Tcp { port, .. } => *port,
        Endpoint::Ipc(path) => panic!("{} has no port", path.display()),
    }
}

/// A message with its number in the second frame, as engines number theirs.
pub(crate) fn numbered(topic: &str, number: u64, payload: usize) -> Vec<Bytes> {
    vec![Bytes::copy_from_slice(topic.as_bytes()), Bytes::copy_from_slice(&number.to_be_bytes()), Bytes::from(vec![b'x'; payload])]
}

/// The number in the second frame from the end.
pub(crate) fn number(frames: &[Bytes]) -> u64 {
    u64::from_be_bytes(frames[frames.len() - 2][..].try_into().unwrap())
}

pub(crate) async fn next(sub: &mut Sub) -> SubEvent {
    soon("an event of the subscriber", sub.next()).await
}

/// Passes over other events until the subscriber is connected.
pub(crate) async fn connected(sub: &mut Sub) -> u8 {
    loop {
        if let SubEvent::Connected { zmtp_minor } = next(sub).await {
            return zmtp_minor;
        }
    }
}

/// Passes over other events until the subscriber says that it lost its connection.
pub(crate) async fn disconnected(sub: &mut Sub) -> String {
    loop {
        if let SubEvent::Disconnected { reason } = next(sub).await {
            return reason;
        }
    }
}

/// Passes over other events until an attempt to connect failed.
pub(crate) async fn failed(sub: &mut Sub) -> String {
    loop {
        if let SubEvent::Failed { reason } = next(sub).await {
            return reason;
        }
    }
}

/// The next event, which must be a message.
pub(crate) async fn message(sub: &mut Sub) -> Vec<Bytes> {
    match next(sub).await {
        SubEvent::Message(frames) => frames,
        other => panic!("a message was expected, not {other:?}"),
    }
}

/// Sends until the subscriber, which may still be connecting again, has got one message.
pub(crate) async fn proves_alive(publisher: &Pub, sub: &mut Sub) {
    let exchange = async {
        loop {
            publisher.send(numbered("kv", 4711, 3));
            while let Ok(event) = timeout(Duration::from_millis(20), sub.next()).await {
                if let SubEvent::Message(frames) = event {
                    assert_eq!(frames, numbered("kv", 4711, 3));
                    return;
                }
            }
        }
    };
    soon("a message", exchange).await;
}

/// A peer that sends exactly the bytes it is told to.
pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
}

impl Raw {
    pub(crate) async fn accept(listener: &TcpListener) -> Self {
        Self { stream: soon("a connection", listener.accept()).await.unwrap().0 }
    }

    pub(crate) async fn connect(port: u16) -> Self {
        Self { stream: TcpStream::connect(("127.0.0.1", port)).await.unwrap() }
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        // The other side may have hung up already; what it does then is what the test looks at.
        let _ = self.stream.write_all(bytes).await;
    }

    /// Greets as ZMTP 3.`minor` and says READY as `kind`; reads both of the other side.
    pub(crate) async fn shake_hands(&mut self, minor: u8, kind: &str) {
        self.write(&greeting(minor)).await;
        let mut theirs = [0; 64];
        soon("a greeting", self.stream.read_exact(&mut theirs)).await.unwrap();
        assert_eq!((theirs[0], theirs[9], theirs[10], theirs[11]), (0xff, 0x7f, 3, 1));
        assert_eq!(&theirs[12..17], b"NULL\0");
        self.write(&ready(kind)).await;
        let (flags, body) = self.frame().await;
        assert_eq!((flags, &body[..6]), (4, &b"\x05READY"[..]));
    }

    /// One short frame: flags and body.
    pub(crate) async fn frame(&mut self) -> (u8, Vec<u8>) {
        let mut header = [0; 2];
        soon("a frame", self.stream.read_exact(&mut header)).await.unwrap();
        let mut body = vec![0; usize::from(header[1])];
        soon("a frame's body", self.stream.read_exact(&mut body)).await.unwrap();
        (header[0], body)
    }

    /// Waits until the other side has hung up, discarding what it still says.
    pub(crate) async fn hung_up(&mut self) {
        let mut waste = vec![0; 4096];
        while !matches!(soon("the end of a connection", self.stream.read(&mut waste)).await, Ok(0) | Err(_)) {}
    }
}

pub(crate) fn greeting(minor: u8) -> [u8; 64] {
    let mut bytes = [0; 64];
    (bytes[0], bytes[9], bytes[10], bytes[11]) = (0xff, 0x7f, 3, minor);
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}

pub(crate) fn ready(kind: &str) -> Vec<u8> {
    let mut body = b"\x05READY\x0bSocket-Type\0\0\0".to_vec();
    body.push(u8::try_from(kind.len()).unwrap());
    body.extend_from_slice(kind.as_bytes());
    let mut frame = vec![4, u8::try_from(body.len()).unwrap()];
    frame.extend(body);
    frame
}
