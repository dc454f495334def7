//! Workers that do exactly what a test says, and a small frontend that relays.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body, extract::Request, response::Response};
use bytes::Bytes;
use engine::{BaseUrl, Client, Observer, Options, Outgoing, Pulse, Reply, SendError, Summary};
use http::{HeaderMap, Method, uri::PathAndQuery};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinHandle,
};

/// No test waits longer than this for what must happen.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), future).await.unwrap_or_else(|_| panic!("{what} did not happen in 10 s"))
}

/// A worker made of raw bytes.
pub(crate) struct Worker {
    pub(crate) url: BaseUrl,
    accepts: Arc<AtomicU32>,
    listening: JoinHandle<()>,
}

impl Worker {
    /// Runs the handler on each connection; it gets the connection's number, from 1.
    pub(crate) async fn start<F>(handler: impl Fn(u32, TcpStream) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound")).parse().expect("an address");
        let accepts = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&accepts);
        let listening = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("accepts");
                let number = count.fetch_add(1, Ordering::SeqCst) + 1;
                tokio::spawn(handler(number, stream));
            }
        });
        Self { url, accepts, listening }
    }

    /// Answers each connection's first request with these bytes, then closes.
    pub(crate) async fn saying(answer: impl Into<Bytes>) -> Self {
        let answer = answer.into();
        Self::start(move |_, mut stream| {
            let answer = answer.clone();
            async move {
                read_request(&mut stream).await;
                // The client may hang up first; the test looks at the client.
                let _ = stream.write_all(&answer).await;
            }
        })
        .await
    }

    pub(crate) fn accepts(&self) -> u32 {
        self.accepts.load(Ordering::SeqCst)
    }

    /// Closes the port; connections stay.
    pub(crate) async fn close_port(self) {
        self.listening.abort();
        let _ = self.listening.await;
    }
}

/// An address where nothing listens.
pub(crate) async fn nowhere() -> BaseUrl {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    format!("http://{}", listener.local_addr().expect("bound")).parse().expect("an address")
}

/// Reads one request with a `Content-Length` body (or none); empty when the client has left.
pub(crate) async fn read_request(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = stream.read(&mut buffer).await.unwrap_or(0);
        bytes.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0usize) {
                return text.into_owned();
            }
        }
        if read == 0 {
            return String::new();
        }
    }
}

/// Waits for the other side to close.
pub(crate) async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset ends the bytes as well as a close does.
    let _ = stream.read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(crate) const SSE_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
pub(crate) const LAST_CHUNK: &str = "0\r\n\r\n";

/// One chunk of a chunked body.
pub(crate) fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

/// A token of a stream.
pub(crate) fn token(text: &str) -> String {
    format!("data: {{\"choices\":[{{\"text\":\"{text}\",\"finish_reason\":null}}]}}\n\n")
}

/// The last token of a stream, then `[DONE]`.
pub(crate) fn finish() -> String {
    "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n".to_owned()
}

/// A whole plain answer.
pub(crate) fn plain(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Time-outs short enough for tests that wait for them, long enough for a busy machine not to meet the others.
pub(crate) fn options() -> Options {
    Options { first_byte: Duration::from_secs(20), between_tokens: Duration::from_secs(20), ..Options::default() }
}

pub(crate) fn client() -> Client {
    Client::new(options()).expect("a client")
}

/// A small completion request.
pub(crate) fn outgoing() -> Outgoing {
    Outgoing {
        method: Method::POST,
        path_and_query: PathAndQuery::from_static("/v1/completions"),
        headers: HeaderMap::new(),
        body: Bytes::from_static(b"{\"prompt\":\"x\"}"),
        rank: None,
        pulse: None,
    }
}

pub(crate) async fn send(client: &Client, url: &BaseUrl) -> Result<Reply, SendError> {
    soon("the send", client.send(url, outgoing())).await
}

/// What an observer was told.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Told {
    FirstEvent,
    Ended(Summary),
}

/// Passes on what it is told.
pub(crate) struct Witness(mpsc::UnboundedSender<Told>);

impl Observer for Witness {
    fn first_event(&mut self) {
        self.0.send(Told::FirstEvent).expect("the test listens");
    }

    fn ended(self, summary: Summary) {
        self.0.send(Told::Ended(summary)).expect("the test listens");
    }
}

/// What a witness saw, in order.
pub(crate) struct Testimony(mpsc::UnboundedReceiver<Told>);

impl Testimony {
    pub(crate) async fn next(&mut self) -> Told {
        soon("a call of the observer", self.0.recv()).await.expect("the witness lives")
    }

    pub(crate) async fn end(&mut self) -> Summary {
        loop {
            if let Told::Ended(summary) = self.next().await {
                return summary;
            }
        }
    }
}

pub(crate) fn witness() -> (Witness, Testimony) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Witness(sender), Testimony(receiver))
}

/// A frontend on a real HTTP server that relays everything to one worker.
pub(crate) struct Front {
    address: std::net::SocketAddr,
    pub(crate) testimony: Testimony,
    serving: JoinHandle<()>,
}

impl Front {
    pub(crate) async fn start(client: Client, url: BaseUrl, pulse: Option<Pulse>) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let app = Router::new().fallback(move |request: Request| {
            let (client, url, pulse, witness) = (client.clone(), url.clone(), pulse.clone(), Witness(sender.clone()));
            async move {
                let (head, body) = request.into_parts();
                let body = axum::body::to_bytes(body, 1 << 20).await.expect("a small body");
                let outgoing = Outgoing {
                    method: head.method,
                    path_and_query: head.uri.path_and_query().expect("a path").clone(),
                    headers: head.headers,
                    body,
                    rank: None,
                    pulse,
                };
                match client.send(&url, outgoing).await {
                    Ok(Reply::Bytes(reply)) => {
                        let (status, headers, relay) = reply.relay(witness);
                        let mut response = Response::new(Body::new(relay));
                        *response.status_mut() = status;
                        *response.headers_mut() = headers;
                        response
                    }
                    Err(error) => Response::builder().status(502).body(Body::from(error.to_string())).expect("an answer"),
                }
            }
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.expect("serves") });
        Self { address, testimony: Testimony(receiver), serving }
    }

    /// A client's connection with its only request on it.
    pub(crate) async fn ask(&self) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.expect("connects");
        let request = "POST /v1/completions HTTP/1.1\r\nhost: front\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
        stream.write_all(request.as_bytes()).await.expect("writes");
        stream
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Splits a raw answer into head and body, and takes a chunked body apart; tells whether its end was there.
pub(crate) fn take_apart(raw: &str) -> (String, String, bool) {
    let (head, mut rest) = raw.split_once("\r\n\r\n").expect("a head");
    if !head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        return (head.to_owned(), rest.to_owned(), true);
    }
    let mut body = String::new();
    while let Some((length, after)) = rest.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).expect("a chunk's length");
        if length == 0 {
            return (head.to_owned(), body, true);
        }
        body.push_str(&after[..length]);
        rest = &after[length + 2..];
    }
    (head.to_owned(), body, false)
}
