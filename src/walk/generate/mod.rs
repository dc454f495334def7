//! The walk of a request to token-level workers: token ids -> legs, each booked and sent on its own -> their outputs, merged
//! into one OpenAI answer.
//!
//! The head of the answer is held until the first output of a leg is there, so that what fails before it is a status. Nothing
//! is spawned: the handler's future awaits the first output, and the body's own polls drive the rest. Dropping the body stops
//! the workers.

mod answering;
mod attempt;
mod body;
mod leg;
mod prefill;
mod shape;
mod work;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Instant, SystemTime},
};

use axum::response::{IntoResponse, Response};
use engine::tokens::{Meaning, RequestFault, TokenClient, TokenFailure, Trouble};
use http::{HeaderValue, StatusCode, header};

pub(crate) use work::Work;

use super::{Call, Labels, Prepared, Waiting, respond, target};
use crate::{app::App, http::ApiError, metrics::Outcome};
use answering::Answering;
use leg::Setback;

/// Becomes the suffix of the answer's id.
const COMPLETION_ID: &str = "x-dynamo-request-id";

/// Headers that workers get: those of tracing, and the request's id, so that their logs can be matched.
const HANDED_ON: [&str; 3] = ["traceparent", "tracestate", "x-dynamo-session-id"];

/// Longest header value that is handed on, in bytes.
const HANDED_ON_BYTES: usize = 1024;

/// What all legs of one answer share.
pub(super) struct Job {
    app: Arc<App>,
    client: TokenClient,
    work: Arc<Work>,
    labels: Labels,
    /// The client's, or one of ours: in logs and heads.
    request_id: String,
    /// Of the completion, without its kind.
    id: String,
    /// What workers call it.
    at_workers: String,
    headers: Vec<(String, String)>,
    started: Instant,
    received: SystemTime,
    /// An output has come.
    begun: AtomicBool,
}

impl Job {
    fn new(app: &Arc<App>, client: TokenClient, (call, work): (&Call, Arc<Work>), waiting: &Waiting) -> Self {
        let random = || uuid(rand::random());
        let text = |name: &str| call.headers.get(name).and_then(|value| value.to_str().ok());
        let given = text(COMPLETION_ID).filter(|id| !id.is_empty() && id.len() <= HANDED_ON_BYTES).map(str::to_owned);
        let at_workers = random();
        Self {
            app: app.clone(),
            client,
            work,
            labels: waiting.labels.clone(),
            request_id: call.request_id.clone(),
            id: given.unwrap_or_else(|| at_workers.clone()),
            at_workers,
            headers: handed_on(call),
            started: waiting.started,
            received: SystemTime::now(),
            begun: AtomicBool::new(false),
        }
    }

    /// What workers call a leg.
    fn leg_id(&self, choice: u32) -> String {
        if self.work.legs() == 1 { self.at_workers.clone() } else { format!("{}-{choice}", self.at_workers) }
    }

    /// True the first time.
    fn begins(&self) -> bool {
        !self.begun.swap(true, Ordering::Relaxed)
    }
}

/// The headers that workers on the request plane get.
pub(super) fn handed_on(call: &Call) -> Vec<(String, String)> {
    let text = |name: &str| call.headers.get(name)?.to_str().ok().filter(|value| value.len() <= HANDED_ON_BYTES);
    let traced = HANDED_ON.iter().filter_map(|name| Some(((*name).to_owned(), text(name)?.to_owned())));
    traced.chain([(respond::REQUEST_ID.as_str().to_owned(), call.request_id.clone())]).collect()
}

/// As a UUID is written.
pub(super) fn uuid(bits: u128) -> String {
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Answers a request by token-level workers alone.
///
/// # Errors
/// What the client is told where no worker has begun. Whoever called may know servers to try.
pub(super) async fn answer(
    app: &Arc<App>,
    call: &Call,
    prepared: Arc<Prepared>,
    work: Arc<Work>,
    waiting: &mut Waiting,
) -> Result<Response, Refused> {
    let Some(client) = app.fleet.tokens.clone() else {
        // Without a discovery there is no worker of this kind.
        return Err(Refused::new(ApiError::unavailable("no request plane is in use here"), Retry::Elsewhere));
    };
    let stream = work.generation.stream;
    let job = Arc::new(Job::new(app, client, (call, work), waiting));
    if job.work.generation.nvext.dry_run().is_some() {
        let told = shape::dry_run(&job, &prepared).map_err(|error| Refused::new(error, Retry::Never))?;
        waiting.begun();
        job.labels.count(&app.metrics, Outcome::success, job.started.elapsed());
        return Ok(told);
    }
    let mut answering = Answering::new(job.clone(), prepared);
    while !answering.has_begun() {
        answering.step().await.map_err(refused)?;
    }
    let routed = answering.routed().cloned();
    let (body, kind) = if stream {
        waiting.begun();
        (body::of(answering), "text/event-stream")
    } else {
        while answering.step().await.map_err(refused)? {}
        waiting.begun();
        (answering.end().into(), "application/json")
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    if stream {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    }
    if let Some(routed) = routed {
        routed.write(headers);
    }
    Ok(response)
}

/// What a client is told, and whether workers of another kind may do better.
pub(super) struct Refused {
    pub(super) response: Response,
    pub(super) retry: Retry,
}

impl Refused {
    fn new(response: impl IntoResponse, retry: Retry) -> Self {
        Self { response: response.into_response(), retry }
    }
}

/// Whether a refused request may be tried at workers of another kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    /// It was the workers' failure.
    Elsewhere,
    /// It would be refused again, or has been tried long enough.
    Never,
}

fn refused(setback: Setback) -> Refused {
    match setback {
        Setback::Nobody(refusal) => Refused::new(target::refused(&refusal), Retry::Elsewhere),
        Setback::TooLarge(limit) => Refused::new(too_large(limit), Retry::Never),
        Setback::Unusable(message) => Refused::new(ApiError::bad_gateway(message), Retry::Elsewhere),
        Setback::Failed(fall) => {
            let mut response = told(&fall.failure).into_response();
            fall.routed.write(response.headers_mut());
            let retry = match fall.failure.meaning() {
                Meaning::Worker | Meaning::Overloaded | Meaning::Exhausted | Meaning::Internal => Retry::Elsewhere,
                Meaning::Request(_) | Meaning::Over | Meaning::Ours => Retry::Never,
            };
            Refused::new(response, retry)
        }
    }
}

/// For a client that wants an answer whole which has grown beyond so many bytes.
pub(super) fn too_large(limit: usize) -> ApiError {
    ApiError::answer_too_large(leg::too_large(limit))
}

/// The status of a failure, and the words that are for clients.
pub(super) fn told(failure: &TokenFailure) -> ApiError {
    let message = failure.public();
    match failure.meaning() {
        Meaning::Request(fault) => match fault {
            RequestFault::Invalid => ApiError::invalid(message, None),
            RequestFault::NotFound => ApiError::not_found(message),
            RequestFault::Denied => ApiError::forbidden(message),
            RequestFault::TooLarge => ApiError::engine(StatusCode::PAYLOAD_TOO_LARGE, message),
            RequestFault::Conflict => ApiError::conflict(message),
        },
        Meaning::Overloaded | Meaning::Exhausted => ApiError::overloaded(message),
        Meaning::Ours => ApiError::overloaded(message),
        Meaning::Over => ApiError::timed_out(message),
        Meaning::Internal => ApiError::engine(StatusCode::INTERNAL_SERVER_ERROR, message),
        Meaning::Worker => match &failure.trouble {
            Trouble::Stalled(_) | Trouble::NoFirstToken(_) => ApiError::timed_out(message),
            _ => ApiError::bad_gateway(message),
        },
    }
}
