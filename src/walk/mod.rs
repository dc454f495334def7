//! The walk of one request: body -> tokens -> what each worker holds -> a booked worker -> its answer.
//!
//! Retries follow one story (rule 15): until the first byte of an answer is there, the request may move to another
//! worker; after it, the answer is relayed or broken off in good form by `engine`.

mod count;
mod long;
mod observer;
mod plan;
mod predict;
mod query;
mod respond;
mod target;
mod tokens;

use std::{sync::Arc, time::Instant};

use axum::response::Response;
use bytes::Bytes;
use engine::{Moves, Outgoing, Reply, Verdict};
use feed::Demand;
use http::{HeaderMap, Method, uri::PathAndQuery};
use prompt::{Endpoint, Request, Tokens};
use sched::{Answer, Ask, Candidate, Exclusion, Label, NoWorker, Ticket};

pub(crate) use count::{Labels, Waiting};
pub(crate) use plan::{Held, Plan};
pub(crate) use query::overlaps;
pub(crate) use respond::{REQUEST_ID, identify};
pub(crate) use tokens::Asks;

use crate::{
    app::App,
    fleet::{Cut, Member, Served},
    http::ApiError,
    metrics::ReasonLabel,
};
use count::Inflight;
use long::Booked;
use observer::{Check, Watch};
use predict::Predicted;
use target::Pinned;

/// One request as it came.
pub(crate) struct Call {
    pub(crate) endpoint: Endpoint,
    pub(crate) path: PathAndQuery,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) request_id: String,
}

/// A request with everything a choice needs.
#[derive(Clone)]
pub(crate) struct Prepared {
    pub(crate) request: Arc<Request>,
    pub(crate) served: Arc<Served>,
    pub(crate) members: Arc<[Member]>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) held: Vec<Held>,
    pinned: Pinned,
}

/// Answers one request. Whoever called tells `waiting` what the client gets in the end.
pub(crate) async fn complete(app: &Arc<App>, call: Call, waiting: &mut Waiting) -> Result<Response, ApiError> {
    let prepared = prepare(app, call.endpoint, &call.headers, &call.body, &mut waiting.labels).await?;
    dispatch(app, &call, Arc::new(prepared), waiting).await
}

/// Everything up to the choice: no side effect, so that `/route` shows just what a request would meet.
pub(crate) async fn prepare(
    app: &App,
    endpoint: Endpoint,
    headers: &HeaderMap,
    body: &Bytes,
    labels: &mut Labels,
) -> Result<Prepared, ApiError> {
    let request = Arc::new(app.pool.parse(endpoint, body).await.map_err(|error| ApiError::body(&error))?);
    labels.reads(&request);
    let view = app.fleet.view();
    let served = view.model(&request.model).cloned().ok_or_else(|| target::unknown_model(&view, &request.model))?;
    labels.serves(&served.name);
    let pinned = Pinned::of(headers, &request, &view, &served)?;
    let members: Arc<[Member]> = served.members().into();
    let tokens = if app.config.routes_by_prefix() { tokens::tokens(app, &served, &request).await } else { None };
    let started = Instant::now();
    let plan = match tokens {
        Some(tokens) => hashed(app, &served, &request, tokens, Served::cuts(&members)).await,
        None => Plan::unhashed(body.len() / BYTES_PER_TOKEN, request.inputs.count()),
    };
    let mut prepared = Prepared { request, served, members, plan: Arc::new(plan), held: Vec::new(), pinned };
    prepared.look_up(app).await;
    app.metrics.routing.observe(started.elapsed().as_secs_f64());
    Ok(prepared)
}

/// Bytes of a body that make a token, roughly: the length of a prompt that was not tokenised, for load alone.
const BYTES_PER_TOKEN: usize = 4;

async fn hashed(app: &App, served: &Arc<Served>, request: &Arc<Request>, tokens: Vec<Tokens>, cuts: Vec<Cut>) -> Plan {
    let total: usize = tokens.iter().map(|tokens| tokens.ids.len()).sum();
    let blocks = cuts.iter().map(|cut| total as u64 / u64::from(cut.size.get())).sum();
    let (of, by, count, recent) = (served.clone(), request.clone(), tokens.len(), app.recent.clone());
    let hashed = long::run(&app.pool, blocks, move || Plan::of_tokens(&of, by.salt.as_deref(), &tokens, &cuts, &recent));
    // Where the pool has no room the request is routed by load.
    hashed.await.unwrap_or_else(|_| Plan::unhashed(total, count))
}

impl Prepared {
    /// Looks what each worker holds now.
    async fn look_up(&mut self, app: &App) {
        let nothing = vec![Held::default(); self.members.len()];
        self.held = if self.request.skips_cache {
            // A request that reads no cache is worth as much everywhere.
            nothing
        } else {
            let (plan, catalog, members) = (self.plan.clone(), app.fleet.catalog.clone(), self.members.clone());
            long::run(&app.pool, self.plan.blocks(), move || plan.held(&catalog, &members)).await.unwrap_or(nothing)
        };
    }

    /// The request as the scheduler sees it.
    pub(crate) fn ask(&self) -> Ask<'_> {
        Ask {
            prompts: &self.plan.prompts,
            answers_per_prompt: self.request.n.max(self.request.best_of.unwrap_or(1)),
            answer: if self.request.stream { Answer::Stream } else { Answer::Plain },
            label: Label::Decode,
            pinned: self.pinned.worker.is_some(),
        }
    }

    /// Every rank of every worker of the model, with why it may not be chosen.
    pub(crate) fn candidates(&self, tried: &[String]) -> Vec<Candidate> {
        let candidate = |(member, held): (&Member, &Held)| Candidate {
            target: member.target(),
            block_size: member.block_size,
            overlap: held.overlap,
            preference: 0.0,
            excluded: self.exclusion(member, tried),
        };
        self.members.iter().zip(&self.held).map(candidate).collect()
    }

    fn exclusion(&self, member: &Member, tried: &[String]) -> Option<Exclusion> {
        if let Some(excluded) = self.pinned.exclusion(member) {
            return Some(excluded);
        }
        if tried.iter().any(|tried| tried == member.worker.id()) {
            return Some(Exclusion::AlreadyTried);
        }
        member.worker.exclusion()
    }

    /// What the events of `member` may not tell of the request, once it is sent there (rules 4 and 13).
    pub(crate) fn demands(&self, member: &Member) -> impl Iterator<Item = Demand> {
        let adapter = self.served.adapter.as_deref().map(|name| {
            let mapped = member.worker.server().map_or(&[][..], |server| &server.spec.lora);
            let numbered = mapped.iter().any(|(_, mapped)| mapped == name);
            if numbered { Demand::NumberedAdapter } else { Demand::Adapter }
        });
        let reports = self.request.full_reports.then_some(Demand::FullReports);
        let salt = self.request.salt.as_ref().map(|_| Demand::Salt);
        [reports, salt, adapter].into_iter().flatten()
    }

    fn position(&self, ticket: &Ticket) -> usize {
        let found = self.members.iter().position(|member| member.target() == ticket.target());
        // The scheduler chooses among the candidates, which are made of the members one by one.
        found.expect("the chosen target is a member")
    }
}

async fn dispatch(app: &Arc<App>, call: &Call, mut prepared: Arc<Prepared>, waiting: &mut Waiting) -> Result<Response, ApiError> {
    let mut tried = Vec::new();
    let mut moves = Moves::default();
    let mut last: Option<Response> = None;
    loop {
        let ticket = match (book(app, &prepared, &tried).await, last) {
            (Ok(ticket), _) => ticket,
            (Err(_), Some(failed)) => return Ok(failed),
            (Err(refusal), None) => return Err(target::refused(&refusal)),
        };
        let at = prepared.position(&ticket);
        let (member, held) = (prepared.members[at].clone(), &prepared.held[at]);
        // Workers that are no servers are excluded from the choice.
        let server = member.worker.server().expect("a chosen worker is an OpenAI server");
        log_choice(call, &member, held, &ticket);
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
        let outgoing = Outgoing {
            method: Method::POST,
            path_and_query: call.path.clone(),
            headers: respond::upstream_headers(&call.headers, &call.request_id, server.mark),
            body: call.body.clone(),
            rank: member.rank.header,
            pulse: Some(server.pulse().clone()),
        };
        match app.fleet.client.send(&server.spec.url, outgoing).await {
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
            Err(error) => {
                tracing::warn!(worker = member.worker.id(), %error, "a request failed before its first byte");
                predicted.take_back(app).await;
                let failed = respond::failed(&error, &routed);
                if moves.judge(&error) == Verdict::PassOn {
                    return Ok(failed);
                }
                app.metrics.retries.get_or_create(&ReasonLabel { reason: respond::failure_name(&error.failure) }).inc();
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

fn log_choice(call: &Call, member: &Member, held: &Held, ticket: &Ticket) {
    tracing::debug!(
        target: "route",
        request_id = call.request_id,
        worker = member.worker.id(),
        dp_rank = member.rank.dp_rank,
        overlap_blocks = held.overlap.device_blocks(),
        prompt_blocks = ticket.costed().prompt_blocks,
        cost = ticket.costed().cost,
        "routed"
    );
}
