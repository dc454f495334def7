//! The other end, byte by byte: a client of a NATS server, and both sides of a ZMTP connection.

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::support::soon;

/// A client of NATS that says what it is told to.
pub(crate) struct RawNats(BufReader<TcpStream>);

impl RawNats {
    pub(crate) async fn connect(port: u16) -> Self {
        let stream = soon("a connection to NATS", TcpStream::connect(("127.0.0.1", port))).await.unwrap();
        let mut client = Self(BufReader::new(stream));
        assert!(client.line().await.starts_with("INFO "));
        client.say(b"CONNECT {\"verbose\":false,\"pedantic\":false,\"user\":\"user\",\"pass\":\"user\"}\r\n").await;
        client.synchronise().await;
        client
    }

    pub(crate) async fn say(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).await.unwrap();
    }

    /// Until the server has obeyed all that was said.
    pub(crate) async fn synchronise(&mut self) {
        self.say(b"PING\r\n").await;
        while self.line().await != "PONG" {}
    }

    pub(crate) async fn subscribe(&mut self, subject: &str) {
        self.say(format!("SUB {subject} 1\r\n").as_bytes()).await;
        self.synchronise().await;
    }

    pub(crate) async fn publish(&mut self, subject: &str, body: &[u8]) {
        self.say(&Self::publication(subject, body)).await;
        self.synchronise().await;
    }

    pub(crate) fn publication(subject: &str, body: &[u8]) -> Vec<u8> {
        [format!("PUB {subject} {}\r\n", body.len()).as_bytes(), body, b"\r\n"].concat()
    }

    /// The next message: its subject and body.
    pub(crate) async fn message(&mut self) -> (String, Vec<u8>) {
        loop {
            let line = self.line().await;
            let words: Vec<&str> = line.split(' ').collect();
            if let ["MSG", subject, _, length] = words[..] {
                let mut body = vec![0; length.parse::<usize>().unwrap() + 2];
                soon("a message's body", self.0.read_exact(&mut body)).await.unwrap();
                body.truncate(body.len() - 2);
                return (subject.to_owned(), body);
            }
            if line == "PING" {
                self.say(b"PONG\r\n").await;
            }
        }
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        soon("a line of NATS", self.0.read_line(&mut line)).await.unwrap();
        line.trim_end().to_owned()
    }
}

/// One side of a ZMTP connection.
pub(crate) struct RawZmtp(TcpStream);

impl RawZmtp {
    pub(crate) async fn accept(listener: &TcpListener) -> Self {
        Self(soon("a connection", listener.accept()).await.unwrap().0)
    }

    pub(crate) async fn connect(port: u16) -> Self {
        Self(soon("a connection", TcpStream::connect(("127.0.0.1", port))).await.unwrap())
    }

    pub(crate) async fn say(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    /// Greeting and READY of a socket of ours. They differ from those of 1.6.1 in a byte without meaning and in an empty
    /// property that names no identity.
    pub(crate) async fn hear_hello(&mut self, kind: &str) {
        let greeting = self.hear(64).await;
        assert_eq!((greeting[0], &greeting[9..12], &greeting[12..17]), (0xff, &[0x7f, 3, 1][..], &b"NULL\0"[..]));
        let header = self.hear(2).await;
        assert_eq!(header[0], 4);
        let ready = self.hear(header[1].into()).await;
        assert!(ready.starts_with(&[b"\x05READY\x0bSocket-Type\0\0\0\x03", kind.as_bytes()].concat()), "{ready:?}");
    }

    /// Exactly so many bytes.
    pub(crate) async fn hear(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        soon("bytes of the other side", self.0.read_exact(&mut bytes)).await.unwrap();
        bytes
    }
}

/// ZMTP frames of one message.
pub(crate) fn zmtp_message(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (at, frame) in frames.iter().enumerate() {
        let more = u8::from(at + 1 < frames.len());
        match u8::try_from(frame.len()) {
            Ok(length) => bytes.extend([more, length]),
            Err(_) => {
                bytes.push(more | 2);
                bytes.extend((frame.len() as u64).to_be_bytes());
            }
        }
        bytes.extend(frame);
    }
    bytes
}
