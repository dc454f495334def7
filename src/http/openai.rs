//! `/v1/completions` and `/v1/chat/completions`.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderMap, uri::PathAndQuery};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use prompt::Endpoint;
use rand::Rng;

use super::ApiError;
use crate::{
    app::App,
    server::Stalled,
    walk::{self, Call, Waiting},
};

/// Longest request id that is taken over from a client.
const REQUEST_ID_BYTES: usize = 256;

pub(super) async fn completions(State(app): State<Arc<App>>, request: Request) -> Response {
    answer(app, Endpoint::Completions, request).await
}

pub(super) async fn chat(State(app): State<Arc<App>>, request: Request) -> Response {
    answer(app, Endpoint::Chat, request).await
}

async fn answer(app: Arc<App>, endpoint: Endpoint, request: Request) -> Response {
    let mut waiting = Waiting::new(&app, endpoint);
    let (head, body) = request.into_parts();
    let request_id = request_id(&head.headers);
    let path = head.uri.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
    let answered = match read_prompt(&app, body).await {
        Ok(body) => {
            let call = Call { endpoint, path, headers: head.headers, body, request_id: request_id.clone() };
            walk::complete(&app, call, &mut waiting).await
        }
        Err(error) => Err(error),
    };
    let response = answered.unwrap_or_else(|error| {
        let mut response = error.into_response();
        walk::identify(response.headers_mut(), &request_id);
        response
    });
    waiting.answered(response.status());
    response
}

/// The whole body of a request to a model.
pub(super) async fn read_prompt(app: &App, body: Body) -> Result<Bytes, ApiError> {
    read(body, app.config.body_limit).await.map_err(|error| error.limited_by("--http-body-limit-mb"))
}

/// The whole body, at most `limit` bytes.
pub(crate) async fn read(body: Body, limit: usize) -> Result<Bytes, ApiError> {
    match Limited::new(body, limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ApiError::too_large(limit)),
        Err(error) => Err(match Stalled::find(&*error) {
            Some(stalled) => ApiError::too_slow(stalled.to_string()),
            None => ApiError::invalid(format!("the request body broke off: {error}"), None),
        }),
    }
}

/// The client's own id where it has one, else a random one.
fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get(walk::REQUEST_ID).and_then(|value| value.to_str().ok());
    match given.filter(|id| !id.is_empty() && id.len() <= REQUEST_ID_BYTES) {
        Some(id) => id.to_owned(),
        None => format!("{:032x}", rand::rng().random::<u128>()),
    }
}
