//! Bounded waits, a client and a server with options fit for a test, and peers that do exactly what they are told.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
pub(crate) use testkit::waits::{soon, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use transport::request::{Client, ClientOptions, Handler, Items, Request, Server, ServerOptions};
use wire::request::{Ack, ControlHeader, Handshake, Prologue, RequestFrame, Response, StreamType, TwoPart, TypedError};

pub(crate) const PATH: &str = "1f/dynamo/backend/generate";

/// For waits that are meant to end by themselves.
pub(crate) const SHORT: Duration = Duration::from_millis(500);

pub(crate) fn client_options() -> ClientOptions {
    ClientOptions { ack_timeout: SHORT, call_home_timeout: SHORT, item_timeout: SHORT, ..ClientOptions::default() }
}

pub(crate) async fn client() -> Client {
    Client::new(ClientOptions::default()).await.unwrap()
}

/// A client whose waits are short.
pub(crate) async fn impatient() -> Client {
    Client::new(client_options()).await.unwrap()
}

pub(crate) async fn server(options: ServerOptions) -> Server {
    Server::bind("127.0.0.1:0", options).await.unwrap()
}

/// `host:port/path` of the endpoint of these tests at a server.
pub(crate) fn at(server: &Server) -> String {
    format!("{}/{PATH}", server.address())
}

/// A handler from a plain function.
pub(crate) fn answering(answer: impl Fn(Request) -> Result<Items, TypedError> + Send + Sync + 'static) -> Arc<dyn Handler> {
    let answer = Arc::new(answer);
    Arc::new(move |request| {
        let answer = answer.clone();
        async move { answer(request) }
    })
}

/// Answers with one item: the body.
pub(crate) fn echo() -> Arc<dyn Handler> {
    answering(|request| Ok(transport::request::one(request.body)))
}

/// The MessagePack of a text.
pub(crate) fn text(text: &str) -> Bytes {
    rmp_serde::to_vec(text).unwrap().into()
}

/// The MessagePack of so many bytes.
pub(crate) fn blob(bytes: usize) -> Bytes {
    let mut blob = Vec::with_capacity(bytes + 5);
    rmp::encode::write_bin_len(&mut blob, bytes as u32).unwrap();
    blob.extend((0..bytes).map(|at| (at / 7) as u8));
    blob.into()
}

/// What the worker's side of a script sees of a request.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) connection: TcpStream,
    pub(crate) frame: RequestFrame,
    pub(crate) control: ControlHeader,
    pub(crate) body: Bytes,
}

/// A worker that does what a test says.
pub(crate) struct Scripted {
    listener: TcpListener,
}

impl Scripted {
    pub(crate) async fn new() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").await.unwrap() }
    }

    pub(crate) fn at(&self) -> String {
        format!("{}/{PATH}", self.address())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    pub(crate) async fn accept(&self) -> TcpStream {
        soon("a connection", self.listener.accept()).await.unwrap().0
    }

    /// The first request of the next connection.
    pub(crate) async fn asked(&self) -> Asked {
        Asked::read(self.accept().await).await
    }

    /// The same, acknowledged and called back, up to the prologue.
    pub(crate) async fn answering(&self) -> TcpStream {
        let mut asked = self.asked().await;
        asked.accept().await;
        let mut home = asked.call_home().await;
        home.write_all(&Prologue::default().encode().encode()).await.unwrap();
        home
    }
}

impl Asked {
    pub(crate) async fn read(mut connection: TcpStream) -> Self {
        let mut buffer = BytesMut::new();
        let frame = loop {
            if let Some(frame) = RequestFrame::take(&mut buffer, 1 << 30).unwrap() {
                break frame;
            }
            assert_ne!(soon("a request", connection.read_buf(&mut buffer)).await.unwrap(), 0);
        };
        let TwoPart { header, body } = TwoPart::decode(&frame.payload).unwrap();
        let control = ControlHeader::decode(&header).unwrap();
        Self { connection, frame, control, body }
    }

    pub(crate) async fn accept(&mut self) {
        self.connection.write_all(&Ack::Accepted.encode()).await.unwrap();
    }

    pub(crate) async fn call_home(&self) -> TcpStream {
        let mut home = TcpStream::connect(&self.control.connection.address).await.unwrap();
        home.write_all(&handshake(&self.control.connection.subject)).await.unwrap();
        home
    }
}

pub(crate) fn handshake(subject: &str) -> Bytes {
    Handshake { subject: subject.to_owned(), stream_type: StreamType::Response }.encode().encode()
}

/// An item, or what ends an answer.
pub(crate) fn item(data: &[u8]) -> Bytes {
    Response::item(wire::request::Codec::Msgpack, data)
}

pub(crate) fn finale() -> Bytes {
    Response::finale(wire::request::Codec::Msgpack)
}

/// Everything up to the end; a connection that is reset has ended too.
pub(crate) async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = soon("the end of a connection", stream.read_to_end(&mut bytes)).await;
    bytes
}

/// Exactly so many bytes.
pub(crate) async fn exactly(stream: &mut TcpStream, bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0; bytes];
    soon("bytes", stream.read_exact(&mut buffer)).await.unwrap();
    buffer
}

/// A request frame for a path, whose answer is to go to `address`.
pub(crate) fn frame(path: &str, address: &str, subject: &str, body: &[u8]) -> Bytes {
    let connection = wire::request::ConnectionInfo {
        address: address.to_owned(),
        subject: subject.to_owned(),
        context: "7".to_owned(),
        stream_type: StreamType::Response,
    };
    let header = ControlHeader { id: "7".to_owned(), codec: wire::request::Codec::Msgpack, connection }.encode();
    let payload = TwoPart { header, body: Bytes::copy_from_slice(body) }.encode();
    RequestFrame { path: path.to_owned(), headers: vec![("request-id".to_owned(), "7".to_owned())], payload }.encode().unwrap()
}

/// The acknowledgement next on a connection: its text, empty for yes.
pub(crate) async fn acknowledgement(stream: &mut TcpStream) -> String {
    let length = u32::from_be_bytes(exactly(stream, 4).await.try_into().unwrap());
    String::from_utf8(exactly(stream, length as usize).await).unwrap()
}
