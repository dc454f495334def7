//! What answers the requests of an endpoint.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use futures_util::Stream;
use tokio_util::sync::CancellationToken;
use wire::request::{ControlHeader, TypedError};

/// One request, as it came.
#[derive(Debug)]
pub struct Request {
    /// Of the frame: `request-id` and what tracing adds.
    pub headers: Vec<(String, String)>,
    /// The request's id, and the codec its body and its items are in.
    pub control: ControlHeader,
    /// The body, not yet decoded.
    pub body: Bytes,
    /// Cancelled when the caller stops, kills, or leaves. What the handler returned is dropped then too; the token is for
    /// work that goes on elsewhere.
    pub cancelled: CancellationToken,
}

/// An answer: each item is encoded in the codec of the request; the server adds what goes round it. An error becomes a
/// typed error item, and the stream goes on to its end.
pub type Items = Pin<Box<dyn Stream<Item = Result<Bytes, TypedError>> + Send>>;

/// What [`Handler::call`] returns. An error before the first item tells the caller that nothing was begun; a body that cannot
/// be decoded is one.
pub type Answer = Pin<Box<dyn Future<Output = Result<Items, TypedError>> + Send>>;

/// What answers the requests of an endpoint. Called on the server's runtime for each request; the stream is polled only as
/// fast as the caller reads.
pub trait Handler: Send + Sync + 'static {
    /// Begins to answer.
    fn call(&self, request: Request) -> Answer;
}

impl<F, A> Handler for F
where
    F: Fn(Request) -> A + Send + Sync + 'static,
    A: Future<Output = Result<Items, TypedError>> + Send + 'static,
{
    fn call(&self, request: Request) -> Answer {
        Box::pin(self(request))
    }
}

/// An answer of one item.
pub fn one(item: Bytes) -> Items {
    Box::pin(futures_util::stream::iter([Ok(item)]))
}
