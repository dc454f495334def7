//! Clients that keep a connection and do not use it. Each test waits for what must happen, not for a time.

use std::future::Future;

use axum::{
    extract::Request,
    routing::{get, post},
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use hyper::client::conn::http2;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
    task::JoinHandle,
};
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::http;

/// A wait no test reaches.
const LONG: Duration = Duration::from_secs(60);
/// A wait that passes.
const SHORT: Duration = Duration::from_millis(200);
const PATIENT: Patience = Patience { head: LONG, body: LONG, reading: LONG };

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.unwrap_or_else(|_| panic!("{what} did not happen in 20 s"))
}

/// A server on a free port, until it is dropped.
struct Server {
    address: SocketAddr,
    _serving: AbortOnDropHandle<usize>,
}

impl Server {
    async fn start(app: Router, patience: Patience) -> Self {
        let listener = bind("127.0.0.1", 0, "--http-port").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let drain = Drain { within: LONG, cut: CancellationToken::new() };
        let serving: JoinHandle<usize> = tokio::spawn(serve(listener, app, CancellationToken::new(), drain, patience));
        Self { address, _serving: AbortOnDropHandle::new(serving) }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("connects")
    }
}

async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset ends the bytes as well as a close does.
    let _ = soon("the end of the connection", stream.read_to_end(&mut bytes)).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads a body as the OpenAI endpoints do.
fn reader() -> Router {
    Router::new().route("/", post(async |request: Request| http::read(request.into_body(), 1024, None).await.map(|held| held.bytes)))
}

/// Answers without an end; tells when the answer is dropped.
fn endless() -> (Router, mpsc::UnboundedReceiver<()>) {
    let (dropped, end) = mpsc::unbounded_channel();
    let answer = move || {
        let dropped = Told(dropped.clone());
        async move {
            Body::from_stream(stream::repeat(Bytes::from(vec![b'x'; 64 * 1024])).map(move |piece| {
                let _held = &dropped;
                Ok::<_, io::Error>(piece)
            }))
        }
    };
    (Router::new().route("/", get(answer)), end)
}

struct Told(mpsc::UnboundedSender<()>);

impl Drop for Told {
    fn drop(&mut self) {
        // The test may be over.
        let _ = self.0.send(());
    }
}

#[tokio::test]
async fn a_client_that_never_sends_a_head_is_closed() {
    let server = Server::start(reader(), Patience { head: SHORT, ..PATIENT }).await;
    // Nothing at all; what may still become either version; half a head.
    for sent in ["", "P", "PRI * HTTP/2.0\r\n", "POST / HTT"] {
        let mut stream = server.connect().await;
        stream.write_all(sent.as_bytes()).await.expect("writes");
        assert_eq!(rest(&mut stream).await, "", "{sent:?}");
    }
}

#[tokio::test]
async fn a_client_that_has_asked_may_wait_longer_than_for_a_head() {
    let slow = || async {
        tokio::time::sleep(3 * SHORT).await;
        "done"
    };
    let server = Server::start(Router::new().route("/", get(slow)), Patience { head: SHORT, ..PATIENT }).await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.expect("writes");
    assert!(rest(&mut stream).await.ends_with("done"));
}

#[tokio::test]
async fn a_body_that_does_not_go_on_is_answered_408_in_openais_form() {
    let server = Server::start(reader(), Patience { body: SHORT, ..PATIENT }).await;
    for sent in ["content-length: 10\r\n\r\n", "content-length: 10\r\n\r\n{\"a\"", "transfer-encoding: chunked\r\n\r\n4\r\n{\"a\"\r\n"] {
        let mut stream = server.connect().await;
        stream.write_all(format!("POST / HTTP/1.1\r\nhost: x\r\n{sent}").as_bytes()).await.expect("writes");
        let answer = rest(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{sent:?}: {answer}");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
        let error = &serde_json::from_str::<serde_json::Value>(body).expect("JSON")["error"];
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(error["message"], "no byte of the request body for 200ms");
    }
}

#[tokio::test]
async fn a_body_that_keeps_coming_is_never_too_slow() {
    let server = Server::start(reader(), Patience { body: 4 * SHORT, ..PATIENT }).await;
    let mut stream = server.connect().await;
    stream.write_all(b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 6\r\n\r\n").await.expect("writes");
    for byte in b"slowly" {
        tokio::time::sleep(SHORT).await;
        stream.write_all(&[*byte]).await.expect("writes");
    }
    assert!(rest(&mut stream).await.ends_with("slowly"));
}

#[tokio::test]
async fn a_client_that_does_not_read_is_one_that_left() {
    let (app, mut dropped) = endless();
    let server = Server::start(app, Patience { reading: SHORT, ..PATIENT }).await;
    let mut stream = server.connect().await;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("writes");
    soon("the answer is given up", dropped.recv()).await;
    rest(&mut stream).await;
}

#[tokio::test]
async fn a_client_that_reads_slowly_or_waits_for_its_answer_has_not_left() {
    let (app, mut dropped) = endless();
    let waiting = async || Body::from_stream(stream::iter([Ok::<_, io::Error>(Bytes::from("first"))]).chain(stream::pending()));
    let app = app.route("/waiting", get(waiting));
    let server = Server::start(app, Patience { reading: 5 * SHORT, ..PATIENT }).await;
    let mut waits = server.connect().await;
    waits.write_all(b"GET /waiting HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("writes");
    let mut reads = server.connect().await;
    reads.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("writes");
    let mut buffer = vec![0; 8 << 20];
    // Twice the limit in all, a quarter of it each time.
    for _ in 0..8 {
        tokio::time::sleep(5 * SHORT / 4).await;
        soon("more of the answer", reads.read_exact(&mut buffer)).await.expect("reads");
    }
    assert!(dropped.try_recv().is_err(), "an answer that was read was given up");
    let mut byte = [0; 1];
    while byte != *b"f" {
        soon("the first piece", waits.read_exact(&mut byte)).await.expect("reads");
    }
    let ended = tokio::time::timeout(SHORT, rest(&mut waits)).await;
    assert!(ended.is_err(), "an answer that is not ready was given up");
}

#[tokio::test]
async fn over_http_2_only_the_answer_that_is_not_read_ends() {
    let (app, mut dropped) = endless();
    let app = app.route("/small", get(async || "small"));
    let server = Server::start(app, Patience { reading: SHORT, ..PATIENT }).await;
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(server.connect().await)).await.expect("a handshake");
    let _connection = AbortOnDropHandle::new(tokio::spawn(async move { drop(connection.await) }));
    let mut ask = async |path: &str| {
        let request = Request::builder().uri(format!("http://x{path}")).body(Body::empty()).expect("a request");
        soon("an answer", sender.send_request(request)).await.expect("an answer")
    };
    let unread = ask("/").await;
    soon("the answer is given up", dropped.recv()).await;
    let small = axum::body::to_bytes(Body::new(ask("/small").await.into_body()), 100).await.expect("whole");
    assert_eq!(small, "small");
    drop(unread);
}

#[tokio::test]
async fn an_accepted_socket_notices_a_host_that_vanished() {
    let listener = bind("127.0.0.1", 0, "--http-port").await.expect("a free port");
    let client = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connects");
    let (accepted, peer) = listener.accept().await.expect("accepts");
    settle(&accepted, peer, PATIENT);
    let socket = SockRef::from(&accepted);
    assert!(socket.keepalive().expect("an option") && socket.tcp_nodelay().expect("an option"));
    assert_eq!(socket.tcp_keepalive_time().expect("an option"), KEEPALIVE_IDLE);
    #[cfg(target_os = "linux")]
    assert_eq!(socket.tcp_user_timeout().expect("an option"), Some(LONG));
    drop(client);
}
