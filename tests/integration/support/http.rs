//! A small HTTP client: one connection per request, so that dropping an answer is a client that leaves.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// A header that must be there.
    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", self.headers));
        value.to_str().unwrap()
    }

    /// The worker that answered.
    pub(crate) fn worker(&self) -> &str {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text());
        self.header("x-dynamo-worker-id")
    }
}

/// An answer whose head is here. Dropping it hangs up.
pub(crate) struct Open {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    body: Incoming,
    _connection: AbortOnDropHandle<()>,
}

impl Open {
    /// The next bytes of the body; `None` at its end.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Ok(data) = self.body.frame().await?.unwrap().into_data() {
                return Some(data);
            }
        }
    }

    /// The same where the connection may break.
    pub(crate) async fn piece(&mut self) -> Option<hyper::Result<Bytes>> {
        loop {
            match self.body.frame().await? {
                Ok(frame) => {
                    if let Ok(data) = frame.into_data() {
                        return Some(Ok(data));
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    pub(crate) async fn whole(self) -> Answer {
        let body = self.body.collect().await.unwrap().to_bytes();
        Answer { status: self.status, headers: self.headers, body }
    }

    /// What comes until the answer ends, well or not.
    pub(crate) async fn ending(mut self) -> Ending {
        let mut body = BytesMut::new();
        let whole = loop {
            match self.body.frame().await {
                Some(Ok(frame)) => body.extend(frame.into_data()),
                Some(Err(_)) => break false,
                None => break true,
            }
        };
        Ending { answer: Answer { status: self.status, headers: self.headers, body: body.freeze() }, whole }
    }
}

/// An answer with the way it ended.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) answer: Answer,
    /// False where the connection was closed before the end of the body.
    pub(crate) whole: bool,
}

/// Sends a request and waits for the head of its answer.
pub(crate) async fn open(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Open {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = AbortOnDropHandle::new(tokio::spawn(async move {
        // How a connection ends shows in the answer.
        let _ = connection.await;
    }));
    let mut request = Request::builder().method(method).uri(path).header("host", address.to_string());
    if !body.is_null() {
        request = request.header("content-type", "application/json");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
    let (head, body) = sender.send_request(request.body(Full::new(body)).unwrap()).await.unwrap().into_parts();
    Open { status: head.status, headers: head.headers, body, _connection: connection }
}
