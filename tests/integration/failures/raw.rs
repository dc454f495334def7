//! A worker that is healthy until it is asked to generate, and then sends the bytes it was given.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::task::AbortOnDropHandle;

/// What happens after the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// The connection is closed.
    Close,
    /// It is left open and silent.
    Hang,
}

/// The worker. It ends when dropped.
pub(super) struct RawWorker {
    address: SocketAddr,
    generations: Arc<AtomicUsize>,
    _task: AbortOnDropHandle<()>,
}

impl RawWorker {
    pub(super) async fn start(bytes: impl Into<Vec<u8>>, then: Then) -> Self {
        let bytes: Arc<[u8]> = bytes.into().into();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let generations = Arc::new(AtomicUsize::new(0));
        let counted = generations.clone();
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(answer(stream, bytes.clone(), then, counted.clone()));
            }
        });
        Self { address, generations, _task: AbortOnDropHandle::new(task) }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How often it was asked to generate.
    pub(super) fn generations(&self) -> usize {
        self.generations.load(Ordering::Relaxed)
    }
}

/// Answers one request. A peer that goes away ends it.
async fn answer(mut stream: TcpStream, bytes: Arc<[u8]>, then: Then, generations: Arc<AtomicUsize>) -> Option<()> {
    let request = request(&mut stream).await?;
    let models = json!({"object": "list", "data": [{"id": "mock-model", "object": "model", "parent": null}]}).to_string();
    if request.starts_with("GET /health ") {
        return head(&mut stream, "200 OK", "").await;
    }
    if request.starts_with("GET /v1/models ") {
        return head(&mut stream, "200 OK", &models).await;
    }
    if !request.starts_with("POST /v1/") {
        return head(&mut stream, "404 Not Found", "{}").await;
    }
    generations.fetch_add(1, Ordering::Relaxed);
    stream.write_all(&bytes).await.ok()?;
    match then {
        Then::Close => stream.shutdown().await.ok(),
        // Until the peer has had enough of it.
        Then::Hang => stream.read(&mut [0; 64]).await.ok().map(drop),
    }
}

async fn head(stream: &mut TcpStream, status: &str, body: &str) -> Option<()> {
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await.ok()?;
    stream.shutdown().await.ok()
}

/// Head and body of a request; the body has a length.
async fn request(stream: &mut TcpStream) -> Option<String> {
    let mut text = String::new();
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let count = stream.read(&mut bytes).await.ok().filter(|count| *count > 0)?;
        text.push_str(&String::from_utf8_lossy(&bytes[..count]));
        let Some(end) = text.find("\r\n\r\n") else { continue };
        let length = text.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse::<usize>().ok());
        if text.len() >= end + 4 + length.unwrap_or(0) {
            return Some(text);
        }
    }
}

/// An answer's bytes in chunks, the last one too if `ended`.
pub(super) fn chunked(content_type: &str, pieces: &[&str], ended: bool) -> Vec<u8> {
    let mut bytes = format!("HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n");
    for piece in pieces {
        bytes.push_str(&format!("{:x}\r\n{piece}\r\n", piece.len()));
    }
    if ended {
        bytes.push_str("0\r\n\r\n");
    }
    bytes.into_bytes()
}
