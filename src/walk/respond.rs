//! Heads and bodies of answers: the worker's, with the headers that say how the request was routed.

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use engine::{BytesReply, Failure, SendError};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::observer::Watch;
use crate::{
    fleet::{Member, via::Mark},
    http::ApiError,
};

/// Names a request in logs, here and at the engine.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const WORKER_ID: HeaderName = HeaderName::from_static("x-dynamo-worker-id");
const DP_RANK: HeaderName = HeaderName::from_static("x-dynamo-dp-rank");
const PREFILL_WORKER_ID: HeaderName = HeaderName::from_static("x-dynamo-prefill-worker-id");
const PREFILL_DP_RANK: HeaderName = HeaderName::from_static("x-dynamo-prefill-dp-rank");
const OVERLAP: HeaderName = HeaderName::from_static("x-dynamo-overlap-blocks");

/// How a request was routed, for its answer's head.
#[derive(Clone)]
pub(crate) struct Routed {
    worker: HeaderValue,
    rank: u32,
    overlap_blocks: u64,
    request_id: String,
    /// Who prefilled, where that is another worker.
    prefill: Option<(HeaderValue, u32)>,
}

impl Routed {
    pub(crate) fn new(member: &Member, overlap_blocks: u64, request_id: &str) -> Self {
        let request_id = request_id.to_owned();
        Self { worker: id_of(member), rank: member.rank.dp_rank, overlap_blocks, request_id, prefill: None }
    }

    /// Another worker prefilled the prompt: what that one held is what counts.
    pub(crate) fn prefilled(self, by: &Member, overlap_blocks: u64) -> Self {
        Self { prefill: Some((id_of(by), by.rank.dp_rank)), overlap_blocks, ..self }
    }

    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        if let Some((worker, rank)) = &self.prefill {
            headers.insert(PREFILL_WORKER_ID, worker.clone());
            headers.insert(PREFILL_DP_RANK, (*rank).into());
        }
        headers.insert(WORKER_ID, self.worker.clone());
        headers.insert(DP_RANK, self.rank.into());
        headers.insert(OVERLAP, self.overlap_blocks.into());
        identify(headers, &self.request_id);
    }
}

fn id_of(member: &Member) -> HeaderValue {
    // Ids are checked to be visible ASCII when a worker is added.
    HeaderValue::from_str(member.worker.id()).unwrap_or(HeaderValue::from_static("unprintable"))
}

/// Writes the request's id into a head.
pub(crate) fn identify(headers: &mut HeaderMap, request_id: &str) {
    if let Ok(value) = HeaderValue::from_str(request_id) {
        headers.insert(REQUEST_ID, value);
    }
}

/// The client's headers with the request's id, so that the engine's log can be matched, and with the way the request went.
pub(crate) fn upstream_headers(headers: &HeaderMap, request_id: &str, mark: Mark) -> HeaderMap {
    let mut headers = headers.clone();
    identify(&mut headers, request_id);
    mark.write(&mut headers);
    headers
}

/// The worker's answer.
pub(crate) fn relayed(reply: BytesReply, watch: Watch, routed: &Routed) -> Response {
    let (status, headers, relay) = reply.relay(watch);
    let mut response = Response::new(Body::new(relay));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    routed.write(response.headers_mut());
    response
}

/// What the client is told of a failure, should it be the last one: the engine's own words if it said any.
pub(crate) fn failed(error: &SendError, routed: &Routed) -> Response {
    let mut response = match error.answer() {
        Some(answer) => {
            let mut response = Response::new(Body::from(answer.body.clone()));
            *response.status_mut() = answer.status;
            *response.headers_mut() = answer.headers.clone();
            if answer.body.is_empty() {
                let (ours, body) = ApiError::engine(answer.status, error.to_string()).into_response().into_parts();
                response.headers_mut().extend(ours.headers);
                *response.body_mut() = body;
            }
            response
        }
        None => our_words(error).into_response(),
    };
    routed.write(response.headers_mut());
    response
}

fn our_words(error: &SendError) -> ApiError {
    match &error.failure {
        Failure::NoFirstByte(_) | Failure::Stalled(_) => ApiError::timed_out(error.to_string()),
        Failure::Exhausted(_) | Failure::Stopping => ApiError::unavailable(error.to_string()),
        Failure::Unsendable(_) => ApiError::invalid(error.to_string(), None),
        Failure::Refused
        | Failure::Connect(_)
        | Failure::Tls(_)
        | Failure::Closed(_)
        | Failure::Malformed(_)
        | Failure::WorkerDead(_)
        | Failure::Status(_)
        | Failure::ErrorEvent(_) => ApiError::bad_gateway(error.to_string()),
    }
}

/// The failure in a word, for metrics.
pub(crate) fn failure_name(failure: &Failure) -> &'static str {
    match failure {
        Failure::Refused => "refused",
        Failure::Connect(_) => "connect",
        Failure::Tls(_) => "tls",
        Failure::Closed(_) => "closed",
        Failure::Malformed(_) => "malformed",
        Failure::NoFirstByte(_) => "no_first_byte",
        Failure::Stalled(_) => "stalled",
        Failure::WorkerDead(_) => "worker_dead",
        Failure::Status(_) => "status",
        Failure::ErrorEvent(_) => "error_event",
        Failure::Exhausted(_) => "out_of_descriptors",
        Failure::Stopping => "stopping",
        Failure::Unsendable(_) => "unsendable",
    }
}
