//! A client of a NATS server that says exactly what it is told, and shows exactly what it hears.

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::support::soon;

pub(crate) struct RawNats(BufReader<TcpStream>, u32);

/// A message as it came.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) subject: String,
    pub(crate) reply: Option<String>,
    /// With the line that begins them.
    pub(crate) headers: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

impl Heard {
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let text = String::from_utf8(self.headers.clone()).unwrap();
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ").map(str::to_owned))
    }
}

impl RawNats {
    pub(crate) async fn connect(port: u16) -> Self {
        let stream = soon("a connection to NATS", TcpStream::connect(("127.0.0.1", port))).await.unwrap();
        let mut client = Self(BufReader::new(stream), 0);
        assert!(client.line().await.starts_with("INFO "));
        client.say(b"CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}\r\n").await;
        client
    }

    pub(crate) async fn say(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).await.unwrap();
    }

    /// From then on messages to the subject are heard; with a group as one of it.
    pub(crate) async fn subscribe(&mut self, subject: &str, group: &str) {
        self.1 += 1;
        self.say(format!("SUB {subject} {group} {}\r\nPING\r\n", self.1).as_bytes()).await;
        while self.line().await != "PONG" {}
    }

    pub(crate) async fn publish(&mut self, subject: &str, reply: &str, headers: &[u8], body: &[u8]) {
        let lengths = format!("HPUB {subject} {reply} {} {}\r\n", headers.len(), headers.len() + body.len());
        self.say(&[lengths.as_bytes(), headers, body, b"\r\n"].concat()).await;
    }

    pub(crate) async fn answer(&mut self, to: &str, body: &[u8]) {
        self.say(&[format!("PUB {to} {}\r\n", body.len()).as_bytes(), body, b"\r\n"].concat()).await;
    }

    pub(crate) async fn message(&mut self) -> Heard {
        loop {
            let line = self.line().await;
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let (headers, whole, named) = match words[0].as_str() {
                "HMSG" => (words[words.len() - 2].parse().unwrap(), words[words.len() - 1].parse().unwrap(), words.len() - 3),
                "MSG" => (0, words[words.len() - 1].parse().unwrap(), words.len() - 2),
                "PING" => {
                    self.say(b"PONG\r\n").await;
                    continue;
                }
                _ => continue,
            };
            let mut bytes: Vec<u8> = vec![0; whole];
            soon("a message's body", self.0.read_exact(&mut bytes)).await.unwrap();
            soon("the end of a message", self.0.read_exact(&mut [0; 2])).await.unwrap();
            let body = bytes.split_off(headers);
            // MSG subject sid [reply] ...
            let reply = (named == 3).then(|| words[3].clone());
            return Heard { subject: words[1].clone(), reply, headers: bytes, body };
        }
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        soon("a line of NATS", self.0.read_line(&mut line)).await.unwrap();
        line.trim_end().to_owned()
    }
}
