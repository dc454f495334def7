//! A request to one worker that takes the client's body: an OpenAI server, or one that takes text on the request plane. Both answer in
//! the client's own protocol.

use std::sync::Arc;

use answer::Whole;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use engine::{
    BytesReply, Moves, Outgoing, Reply, SendError, Verdict,
    tokens::{Destination, TokenFailure},
};
use http::Method;

use super::{
    Call, MOST_UNSENT, Prepared, generate,
    respond::{self, Routed},
};
use crate::{
    app::App,
    fleet::{Member, Reach, TokenWorker},
    http::ApiError,
};

/// Why a worker gave no answer to relay.
pub(super) enum Fallen {
    /// An OpenAI server failed.
    Server(SendError),
    /// A worker that takes text failed.
    Text(TokenFailure),
    /// The answer that is wanted whole has grown beyond so many bytes.
    TooLarge(usize),
}

/// Sends it, and waits until the answer has begun.
pub(super) async fn send(app: &Arc<App>, call: &Call, prepared: &Prepared, member: &Member) -> Result<Reply, Fallen> {
    match &member.worker.reach {
        Reach::OpenAi(server) => {
            let outgoing = Outgoing {
                method: Method::POST,
                path_and_query: call.path.clone(),
                headers: respond::upstream_headers(&call.headers, &call.request_id, server.mark),
                body: call.body.clone(),
                rank: member.rank.header,
                pulse: Some(server.pulse().clone()),
            };
            app.fleet.client.send(&server.spec.url, outgoing).await.map_err(Fallen::Server)
        }
        Reach::Tokens(worker) => text(app, call, prepared, worker).await.map(Reply::Bytes),
    }
}

/// The body goes as it came. Chunks come back whatever it asks for; for a client that wants no stream they are put together.
async fn text(app: &App, call: &Call, prepared: &Prepared, worker: &TokenWorker) -> Result<BytesReply, Fallen> {
    // Discovery found the worker, and whoever takes part in one has a request plane.
    let client = app.fleet.tokens.as_ref().expect("a request plane");
    let gone = worker.gone();
    let to = Destination { endpoint: worker.endpoint(), pulse: worker.pulse(), gone: &gone };
    let (id, headers) = (generate::uuid(rand::random()), generate::handed_on(call));
    let mut reply = client.send_text(to, call.body.clone(), &id, &headers).await.map_err(Fallen::Text)?;
    let mut whole = Whole::new(prepared.request.endpoint);
    while let Some(chunk) = reply.next().await {
        let chunk: Bytes = chunk.map_err(Fallen::Text)?;
        if prepared.request.stream {
            return Ok(reply.events(&chunk));
        }
        whole.push(&chunk).map_err(|error| Fallen::Text(reply.unusable(error.to_string())))?;
        if whole.held_bytes() > app.config.answer_limit {
            return Err(Fallen::TooLarge(app.config.answer_limit));
        }
    }
    Ok(BytesReply::json(whole.end().into()))
}

impl Fallen {
    /// Whether another worker is tried, of which so many were already.
    pub(super) fn judge(&self, moves: &mut Moves, tried: usize) -> Verdict {
        match self {
            Self::Server(error) => moves.judge(error),
            // Nobody has seen it there, and the worker is out of the choice by now.
            Self::Text(failure) if failure.was_not_sent() && tried < MOST_UNSENT => Verdict::Elsewhere,
            Self::Text(failure) => moves.judge_tokens(failure),
            Self::TooLarge(_) => Verdict::PassOn,
        }
    }

    /// What the client is told, should it be the last one.
    pub(super) fn response(&self, routed: &Routed) -> Response {
        let ours: ApiError = match self {
            Self::Server(error) => return respond::failed(error, routed),
            Self::Text(failure) => generate::told(failure),
            Self::TooLarge(limit) => generate::too_large(*limit),
        };
        let mut response = ours.into_response();
        routed.write(response.headers_mut());
        response
    }

    /// In a word, for metrics.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Server(error) => respond::failure_name(&error.failure),
            Self::Text(failure) => failure.kind(),
            Self::TooLarge(_) => "too_large",
        }
    }
}

impl std::fmt::Display for Fallen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Server(error) => error.fmt(f),
            Self::Text(failure) => failure.fmt(f),
            Self::TooLarge(limit) => write!(f, "the answer has more than {limit} bytes"),
        }
    }
}
