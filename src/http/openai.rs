//! `/v1/completions` and `/v1/chat/completions`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

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
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

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
        Ok(held) => {
            let Held { bytes: body, share } = held;
            let call = Call { endpoint, path, headers: head.headers, body, request_id: request_id.clone() };
            let answered = walk::complete(&app, call, &mut waiting).await;
            drop(share);
            answered
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

/// A whole body, and its share of the bytes that bodies may hold; the share is given back with it.
pub(crate) struct Held {
    pub(crate) bytes: Bytes,
    share: Option<OwnedSemaphorePermit>,
}

/// The whole body of a request to a model.
pub(super) async fn read_prompt(app: &App, body: Body) -> Result<Held, ApiError> {
    read(body, app.config.body_limit, Some(&app.bodies)).await.map_err(|error| {
        if error.is_overload() {
            app.metrics.bodies_refused.inc();
        }
        error.limited_by("--http-body-limit-mb")
    })
}

/// The whole body, at most `limit` bytes, and no more than fits into what `budget` has left.
pub(crate) async fn read(body: Body, limit: usize, budget: Option<&Bodies>) -> Result<Held, ApiError> {
    let mut body = Limited::new(body, limit);
    let (mut frames, mut share, mut pace) = (Vec::new(), None, Pace::begin());
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) if error.is::<LengthLimitError>() => return Err(ApiError::too_large(limit)),
            Err(error) => {
                return Err(match Stalled::find(&*error) {
                    Some(stalled) => ApiError::too_slow(stalled.to_string()),
                    None => ApiError::invalid(format!("the request body broke off: {error}"), None),
                });
            }
        };
        let Ok(bytes) = frame.into_data() else { continue };
        pace.took(bytes.len())?;
        if let Some(budget) = budget {
            let more = budget.take(bytes.len()).ok_or_else(|| ApiError::overloaded("too many request bodies are being held; try again"))?;
            match &mut share {
                None => share = Some(more),
                Some(share) => share.merge(more),
            }
        }
        frames.push(bytes);
    }
    let bytes = match frames.len() {
        1 => frames.remove(0),
        _ => frames.concat().into(),
    };
    Ok(Held { bytes, share })
}

/// The bytes of request bodies that this process may hold at once.
pub(crate) struct Bodies(Arc<Semaphore>);

impl Bodies {
    /// At least a few of the largest bodies that are allowed, else 1 GiB.
    pub(crate) fn new(limit: usize) -> Self {
        Self(Arc::new(Semaphore::new((BODIES_BYTES.max(4 * limit)).div_ceil(BODY_UNIT))))
    }

    fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        // A frame is far below 4 GiB units.
        self.0.clone().try_acquire_many_owned(bytes.div_ceil(BODY_UNIT) as u32).ok()
    }
}

/// Bytes of bodies held at once.
const BODIES_BYTES: usize = 1 << 30;
/// Granularity of the count.
const BODY_UNIT: usize = 1024;
/// A body that takes longer than this must come at [`LEAST_PACE`] on average.
const PACE_AFTER: Duration = Duration::from_secs(30);
/// Bytes per second.
const LEAST_PACE: f64 = 16.0 * 1024.0;

/// How fast a body comes.
struct Pace {
    began: Instant,
    bytes: usize,
}

impl Pace {
    fn begin() -> Self {
        Self { began: Instant::now(), bytes: 0 }
    }

    fn took(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.bytes += bytes;
        let waited = self.began.elapsed();
        if waited > PACE_AFTER && (self.bytes as f64) < LEAST_PACE * waited.as_secs_f64() {
            return Err(ApiError::too_slow(format!("the request body came at less than {LEAST_PACE} bytes a second")));
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bodies_share_a_bound_and_give_their_share_back() {
        let bodies = Bodies(Arc::new(Semaphore::new(10)));
        let body = |bytes: usize| Body::from(vec![0u8; bytes]);
        let held = read(body(8 * BODY_UNIT), usize::MAX, Some(&bodies)).await.expect("there is room");
        let refused = read(body(4 * BODY_UNIT), usize::MAX, Some(&bodies)).await.err().expect("there is none");
        assert!(refused.is_overload());
        drop(held);
        assert!(read(body(10 * BODY_UNIT), usize::MAX, Some(&bodies)).await.is_ok());
    }

    #[test]
    fn a_body_that_only_trickles_is_given_up() {
        let began = Instant::now() - PACE_AFTER - Duration::from_secs(1);
        assert!(Pace { began, bytes: 0 }.took(1000).is_err());
        assert!(Pace { began, bytes: 0 }.took(1_000_000).is_ok());
        assert!(Pace::begin().took(1).is_ok());
    }
}
