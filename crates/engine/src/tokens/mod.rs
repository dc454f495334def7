//! Workers that take token ids on the request plane and stream token ids back.
//!
//! A [`TokenClient`] sends one [`GenerateRequest`] to one worker; a [`TokenReply`] is its answer. A [`TokenFailure`] says what
//! a failure means ([`Meaning`]). Each worker has a [`crate::Probe`], whose [`Pulse`] the requests share: a worker that fails is
//! taken out of the choice at once and comes back by its probe, never by a user's request. A worker that takes text is sent the
//! client's body instead; its answer is a [`TextReply`].
//!
//! Left out: text, choosing workers, moving a request to another one.

mod failure;
mod probe;
mod reply;
mod text;
mod watch;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use transport::request::{Call, Cause, Client as Calls};
use wire::{discovery::Endpoint, generate::GenerateRequest, request::Codec};

pub use failure::{Meaning, RequestFault, TokenFailure, Trouble};
pub use probe::limits;
pub use reply::TokenReply;
pub use text::TextReply;

use crate::{probe::Turns, pulse::Pulse};
use reply::State;
use watch::Watch;

/// The client's time-outs.
#[derive(Clone, Debug)]
pub struct TokenOptions {
    /// From the send to the first token. Default 600 s.
    pub first_token: Duration,
    /// Between two outputs. Default 60 s.
    pub between_tokens: Duration,
    /// Cancelled when the process must end: what still runs is then broken off in good form.
    pub stop: CancellationToken,
}

impl Default for TokenOptions {
    fn default() -> Self {
        Self { first_token: Duration::from_secs(600), between_tokens: Duration::from_secs(60), stop: CancellationToken::new() }
    }
}

/// Sends requests to token-level workers. Cheap to clone; clones share connections.
#[derive(Clone, Debug)]
pub struct TokenClient {
    calls: Calls,
    options: Arc<TokenOptions>,
    probes: Turns,
}

/// Where a request goes.
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    /// The worker's endpoint, as its record has it.
    pub endpoint: &'a Endpoint,
    /// Its health: it learns of this request's tokens and end, and ends the request when the worker dies.
    pub pulse: &'a Pulse,
    /// Cancelled when discovery has no record of the worker any more.
    pub gone: &'a CancellationToken,
}

impl TokenClient {
    /// A client over `calls`.
    pub fn new(calls: Calls, options: TokenOptions) -> Self {
        Self { calls, options: Arc::new(options), probes: Turns::default() }
    }

    /// Sends a request and waits until the worker says that there will be an answer. Dropping the future, or the reply, stops
    /// the engine's work.
    ///
    /// # Errors
    /// [`TokenFailure`]; what speaks against the worker has been told to its health.
    pub async fn send(
        &self,
        to: Destination<'_>,
        request: &GenerateRequest,
        id: &str,
        headers: &[(String, String)],
    ) -> Result<TokenReply, TokenFailure> {
        let codec = codec_of(to.endpoint);
        self.call(to, (request.encode(codec), codec), id, headers).await
    }

    async fn call(
        &self,
        to: Destination<'_>,
        (body, codec): (Bytes, Codec),
        id: &str,
        headers: &[(String, String)],
    ) -> Result<TokenReply, TokenFailure> {
        let peer = || Arc::<str>::from(to.endpoint.id.request_path(to.endpoint.instance_id));
        let Some(call) = Call::to(to.endpoint, body) else {
            return Err(reply::failed(&peer(), to.pulse, Trouble::Call(Cause::Address)));
        };
        // The watch's own time-outs are the shorter ones.
        let call =
            call.codec(codec).id(id).item_timeout(self.options.first_token.max(self.options.between_tokens) + Duration::from_secs(1));
        let call = headers.iter().fold(call, |call, (name, value)| call.header(name, value));
        let mut watch = Watch::new(&self.options, to.pulse, to.gone.clone());
        let answer = watch.over(self.calls.call(call)).await;
        match answer {
            Ok(Ok(responses)) => {
                let (peer, pulse) = (responses.peer().into(), to.pulse.clone());
                Ok(TokenReply { peer, responses, codec, watch, pulse, state: State::Open })
            }
            Ok(Err(error)) => Err(reply::failed(&error.peer().into(), to.pulse, reply::trouble(&error))),
            Err(trouble) => Err(reply::failed(&peer(), to.pulse, trouble)),
        }
    }
}

/// As the record says; where it says nothing, JSON.
fn codec_of(endpoint: &Endpoint) -> Codec {
    match endpoint.request_plane_codec.as_deref() {
        Some("msgpack") => Codec::Msgpack,
        Some(_) | None => Codec::Json,
    }
}
