//! Serving generation: a handler takes a request and gives its answer as a stream, whoever asks and in whatever codec.

use std::{pin::Pin, sync::Arc};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use transport::request::{Answer, Handler, Items, Request};
use wire::{
    generate::{EngineOutput, GenerateRequest},
    request::{Codec, TypedError},
};

use crate::failure::Failure;

/// An answer: tokens as they come, the last item with a finish reason. Dropped when the asker stops, kills or leaves. An error ends
/// the answer.
pub type Outputs = Pin<Box<dyn Stream<Item = Result<EngineOutput, TypedError>> + Send>>;

/// What a handler knows of a request beside its body.
#[derive(Clone, Debug)]
pub struct Context {
    /// The request's id; both legs of a disaggregated request have the same.
    pub id: String,
    /// Of the request's frame: what tracing and the like add.
    pub headers: Vec<(String, String)>,
    /// Cancelled when the asker stops, kills or leaves, or when the answer is complete: for work that goes on elsewhere.
    pub cancelled: CancellationToken,
}

/// What answers requests for generation. A closure from request and context to a stream is one. It is called on the runtime's threads
/// and must not block; its stream is polled as fast as the asker reads.
pub trait GenerateHandler: Send + Sync + 'static {
    /// Begins to answer.
    fn generate(&self, request: GenerateRequest, context: Context) -> Outputs;
}

impl<F, S> GenerateHandler for F
where
    F: Fn(GenerateRequest, Context) -> S + Send + Sync + 'static,
    S: Stream<Item = Result<EngineOutput, TypedError>> + Send + 'static,
{
    fn generate(&self, request: GenerateRequest, context: Context) -> Outputs {
        Box::pin(self(request, context))
    }
}

/// An answer to a request that came as text: OpenAI's chunks as they come.
pub type Chunks = Pin<Box<dyn Stream<Item = Result<Value, TypedError>> + Send>>;

/// What answers requests of a model that takes text ([`ModelInput::Text`](crate::ModelInput)): routers hand on what clients sent, and what
/// comes back. As [`GenerateHandler`] otherwise.
pub trait TextHandler: Send + Sync + 'static {
    /// Begins to answer a request for a completion or a chat.
    fn answer(&self, request: Value, context: Context) -> Chunks;
}

/// Bodies and chunks, in either codec.
pub(crate) struct Chatting(Arc<dyn TextHandler>);

impl Chatting {
    pub(crate) fn new(handler: impl TextHandler) -> Self {
        Self(Arc::new(handler))
    }

    fn begin(&self, request: Request) -> Result<Items, TypedError> {
        let Request { headers, control, cancelled, body } = request;
        let codec = control.codec;
        let body = match codec {
            Codec::Json => serde_json::from_slice(&body).map_err(|error| error.to_string()),
            Codec::Msgpack => rmp_serde::from_slice(&body).map_err(|error| error.to_string()),
        };
        let body = body.map_err(|error| Failure::InvalidArgument.error(format!("the request cannot be read: {error}")))?;
        let chunks = self.0.answer(body, Context { id: control.id, headers, cancelled });
        Ok(Box::pin(until_error(chunks).map(move |chunk| chunk.and_then(|chunk| item(&json!({"data": chunk}), codec)))))
    }
}

impl Handler for Chatting {
    fn call(&self, request: Request) -> Answer {
        let begun = self.begin(request);
        Box::pin(std::future::ready(begun))
    }
}

fn item(item: &Value, codec: Codec) -> Result<Bytes, TypedError> {
    match codec {
        Codec::Json => Ok(item.to_string().into()),
        Codec::Msgpack => rmp_serde::to_vec(item).map(Bytes::from).map_err(|error| Failure::Internal.error(error.to_string())),
    }
}

/// An error ends an answer.
fn until_error<T: Send>(answer: impl Stream<Item = Result<T, TypedError>> + Send) -> impl Stream<Item = Result<T, TypedError>> + Send {
    let mut failed = false;
    answer.take_while(move |output| {
        let goes_on = !failed;
        failed |= output.is_err();
        std::future::ready(goes_on)
    })
}

/// Bodies to requests, outputs to items.
pub(crate) struct Generating(Arc<dyn GenerateHandler>);

impl Generating {
    pub(crate) fn new(handler: impl GenerateHandler) -> Self {
        Self(Arc::new(handler))
    }

    fn begin(&self, request: Request) -> Result<Items, TypedError> {
        let codec = request.control.codec;
        // 1.6.1 accepts what it cannot read and never answers; here the asker learns why.
        let body = GenerateRequest::decode(&request.body, codec)
            .map_err(|error| Failure::InvalidArgument.error(format!("the request cannot be read: {error}")))?;
        let Request { headers, control, cancelled, body: _ } = request;
        let outputs = self.0.generate(body, Context { id: control.id, headers, cancelled });
        Ok(Box::pin(until_error(outputs).map(move |output| output.map(|output| output.encode_item(codec)))))
    }
}

impl Handler for Generating {
    fn call(&self, request: Request) -> Answer {
        let begun = self.begin(request);
        Box::pin(std::future::ready(begun))
    }
}
