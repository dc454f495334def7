//! The walk of one request: body -> tokens -> what each worker holds -> a booked worker -> its answer.
//!
//! Retries follow one story (rule 15): until the first byte of an answer is there, the request may move to another
//! worker; after it, the answer is relayed or broken off in good form by `engine`.

mod count;
mod generate;
mod long;
mod observer;
mod plan;
mod predict;
mod prepared;
mod query;
mod respond;
mod send;
mod target;
mod tokens;

use std::{sync::Arc, time::Instant};

use axum::response::Response;
use bytes::Bytes;
use engine::{Moves, Reply, Verdict};
use http::{HeaderMap, uri::PathAndQuery};
use prompt::Endpoint;
use sched::{NoWorker, Ticket};

pub(crate) use count::{Labels, Waiting};
pub(crate) use generate::Work;
pub(crate) use plan::{Held, Plan};
pub(crate) use prepared::{Prepared, prepare};
pub(crate) use query::overlaps;
pub(crate) use respond::{REQUEST_ID, identify};
pub(crate) use tokens::Asks;

use crate::{app::App, fleet::Member, http::ApiError, metrics::ReasonLabel};
use count::Inflight;
use long::Booked;
use observer::{Check, Watch};
use predict::Predicted;
use prepared::Takers;

/// Most workers in a row that are found gone with a request in hand.
const MOST_UNSENT: usize = 64;

/// One request as it came.
pub(crate) struct Call {
    pub(crate) endpoint: Endpoint,
    pub(crate) path: PathAndQuery,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) request_id: String,
}

/// Answers one request. The parts are boxed, as a handler's future is moved many times before it is awaited. Whoever called tells `waiting` what the client gets in the end.
///
/// Where both kinds of worker can take it, those of the other kind help where those that were chosen fail; if they fail too, the first
/// failure is told.
pub(crate) async fn complete(app: &Arc<App>, call: Call, waiting: &mut Waiting) -> Result<Response, ApiError> {
    let prepared = Box::pin(prepare(app, call.endpoint, &call.headers, &call.body, &mut waiting.labels)).await?;
    let Some(Ok(work)) = prepared.work.clone() else {
        return Box::pin(dispatch(app, &call, Arc::new(prepared), waiting)).await.or_else(Unserved::told);
    };
    let servers = prepared.members.iter().any(|member| member.worker.takes_bodies());
    match if servers { prepared.preferred(app) } else { Takers::Tokens } {
        Takers::Servers | Takers::Any => {
            let unserved = match Box::pin(dispatch(app, &call, Arc::new(prepared.to(Takers::Servers)), waiting)).await {
                Ok(response) => return Ok(response),
                Err(unserved) => unserved,
            };
            let others = Arc::new(prepared.to(Takers::Tokens));
            Box::pin(generate::answer(app, &call, others, work, waiting)).await.or_else(|_| unserved.told())
        }
        Takers::Tokens => match Box::pin(generate::answer(app, &call, Arc::new(prepared.to(Takers::Tokens)), work, waiting)).await {
            Ok(response) => Ok(response),
            Err(refused) if refused.retry == generate::Retry::Elsewhere && servers => {
                let others = Arc::new(prepared.to(Takers::Servers));
                Ok(Box::pin(dispatch(app, &call, others, waiting)).await.unwrap_or(refused.response))
            }
            Err(refused) => Ok(refused.response),
        },
    }
}

/// No worker has answered.
enum Unserved {
    /// There was nobody to ask.
    Nobody(ApiError),
    /// All that were asked failed; what the last one's failure is for the client.
    Failed(Response),
}

impl Unserved {
    /// What the client is told.
    fn told(self) -> Result<Response, ApiError> {
        match self {
            Self::Nobody(error) => Err(error),
            Self::Failed(response) => Ok(response),
        }
    }
}

/// Answers by workers that take the client's body.
async fn dispatch(app: &Arc<App>, call: &Call, mut prepared: Arc<Prepared>, waiting: &mut Waiting) -> Result<Response, Unserved> {
    let mut tried = Vec::new();
    let mut moves = Moves::default();
    let mut last: Option<Response> = None;
    loop {
        let ticket = match (book(app, &prepared, &tried).await, last) {
            (Ok(ticket), _) => ticket,
            (Err(_), Some(failed)) => return Err(Unserved::Failed(failed)),
            (Err(refusal), None) => return Err(Unserved::Nobody(target::refused(&refusal))),
        };
        let at = prepared.position(&ticket);
        let (member, held) = (prepared.members[at].clone(), &prepared.held[at]);
        log_choice(&call.request_id, &prepared, &member, (held, &ticket));
        let routed = respond::Routed::new(&member, held.overlap.device_blocks(), &call.request_id);
        let announced = app.replicas.as_ref().and_then(|replicas| replicas.booked(&prepared.plan.prompts, &member, &ticket));
        let ticket = Booked::new(ticket, prepared.plan.blocks(), announced);
        let dispatched = Instant::now();
        // A clear that came before this dispatch must not void what is predicted and compared from here on; one that comes
        // while the answer is awaited must.
        member.rank.follow();
        let check = Check::of(&prepared, &member, held, dispatched);
        let predicted = Predicted::at(app, &prepared, &member).await;
        member.demand(prepared.demands(&member));
        let inflight = Inflight::new(app, &waiting.labels);
        match send::send(app, call, &prepared, &member).await {
            Ok(Reply::Bytes(reply)) => {
                moves.answered(reply.status);
                waiting.begun();
                let watch = Watch {
                    app: app.clone(),
                    labels: waiting.labels.clone(),
                    ticket,
                    inflight,
                    member,
                    started: waiting.started,
                    client_error: reply.status.is_client_error(),
                    check: check.filter(|_| reply.status.is_success()),
                };
                return Ok(respond::relayed(reply, watch, &routed));
            }
            Err(fallen) => {
                tracing::warn!(worker = member.worker.id(), error = %fallen, "a request failed before its first byte");
                predicted.take_back(app).await;
                let failed = fallen.response(&routed);
                if fallen.judge(&mut moves, tried.len()) == Verdict::PassOn {
                    return Ok(failed);
                }
                app.metrics.retries.get_or_create(&ReasonLabel { reason: fallen.name() }).inc();
                tried.push(member.worker.id().to_owned());
                last = Some(failed);
                // A first byte may have been awaited for minutes: what the others hold is another matter by now.
                let mut again = Prepared::clone(&prepared);
                again.look_up(app).await;
                prepared = Arc::new(again);
            }
        }
    }
}

/// Chooses a worker and books the request there.
async fn book(app: &App, prepared: &Arc<Prepared>, tried: &[String]) -> Result<Ticket, NoWorker> {
    let candidates = prepared.candidates(tried);
    let (scheduler, of) = (app.fleet.scheduler.clone(), prepared.clone());
    let reserve = move || scheduler.reserve(Instant::now(), &of.ask(), &candidates, &mut rand::rng());
    let booked = long::run(&app.pool, prepared.plan.blocks(), reserve).await;
    // A request cannot go unbooked for want of room in the pool.
    booked.unwrap_or_else(|_| app.fleet.scheduler.reserve(Instant::now(), &prepared.ask(), &prepared.candidates(tried), &mut rand::rng()))
}

fn log_choice(request_id: &str, prepared: &Prepared, member: &Member, (held, ticket): (&Held, &Ticket)) {
    tracing::debug!(
        target: "route",
        request_id,
        phase = prepared.phase.as_str(),
        worker = member.worker.id(),
        dp_rank = member.rank.dp_rank,
        overlap_blocks = held.overlap.device_blocks(),
        prompt_blocks = ticket.costed().prompt_blocks,
        cost = ticket.costed().cost,
        "routed"
    );
}
