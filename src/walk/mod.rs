//! The walk of one request: body -> tokens -> what each worker holds -> a booked worker -> its answer.
//!
//! Retries follow one story (rule 15): until the first byte of an answer is there, the request may move to another
//! worker; after it, the answer is relayed or broken off in good form by `engine`.

mod observer;
mod plan;
mod respond;
mod target;
mod tokens;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::response::Response;
use bytes::Bytes;
use engine::{Failure, Moves, Outgoing, Reply, Verdict};
use feed::Demand;
use http::{HeaderMap, Method, uri::PathAndQuery};
use index::Seed;
use prompt::{Endpoint, Inputs, Request, Tokens};
use sched::{Answer, Ask, Candidate, Exclusion, Label, NoWorker, Ticket};

pub(crate) use plan::{Held, Plan};
pub(crate) use respond::{REQUEST_ID, identify};
pub(crate) use tokens::Asks;

use crate::{
    app::App,
    config::Knowledge,
    fleet::{Cut, Member, Served, View},
    http::ApiError,
    metrics::{Metrics, ModelLabel, Outcome, ReasonLabel, RequestLabels, Shape, Surface},
};
use observer::{Check, Watch};
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
pub(crate) struct Prepared {
    pub(crate) request: Arc<Request>,
    pub(crate) served: Arc<Served>,
    pub(crate) members: Vec<Member>,
    pub(crate) plan: Plan,
    pub(crate) held: Vec<Held>,
    pinned: Pinned,
}

/// Who a request is counted for.
#[derive(Clone)]
pub(crate) struct Labels {
    pub(crate) model: String,
    surface: Surface,
    shape: Shape,
}

impl Labels {
    fn of(call: &Call, request: &Request) -> Self {
        let surface = match call.endpoint {
            Endpoint::Completions => Surface::completions,
            Endpoint::Chat => Surface::chat_completions,
        };
        Self { model: request.model.clone(), surface, shape: if request.stream { Shape::stream } else { Shape::unary } }
    }

    pub(crate) fn model(&self) -> ModelLabel {
        ModelLabel { model: self.model.clone() }
    }

    pub(crate) fn count(&self, metrics: &Metrics, status: Outcome, took: Duration) {
        let labels = RequestLabels { model: self.model.clone(), endpoint: self.surface, request_type: self.shape, status };
        metrics.requests.get_or_create(&labels).inc();
        metrics.duration.get_or_create(&self.model()).observe(took.as_secs_f64());
    }
}

/// Answers one request.
pub(crate) async fn complete(app: &Arc<App>, call: Call) -> Result<Response, ApiError> {
    let started = Instant::now();
    let prepared = prepare(app, call.endpoint, &call.headers, &call.body).await?;
    let labels = Labels::of(&call, &prepared.request);
    let waiting = respond::Waiting::new(app, &labels, started);
    let dispatched = dispatch(app, &call, &prepared, &labels, started).await;
    match dispatched {
        // Its end is counted when it has gone by.
        Ok(Dispatched::Relayed(response)) => {
            waiting.begun();
            Ok(response)
        }
        Ok(Dispatched::Failed(response)) => {
            waiting.failed(response.status());
            Ok(response)
        }
        Err(error) => {
            waiting.failed(error.status());
            Err(error)
        }
    }
}

/// What became of a request that could be understood.
enum Dispatched {
    /// An answer has begun.
    Relayed(Response),
    /// No worker gave one; this is what the client is told.
    Failed(Response),
}

/// Everything up to the choice: no side effect, so that `/route` shows just what a request would meet.
pub(crate) async fn prepare(app: &App, endpoint: Endpoint, headers: &HeaderMap, body: &Bytes) -> Result<Prepared, ApiError> {
    let request = Arc::new(app.pool.parse(endpoint, body).await.map_err(|error| ApiError::body(&error))?);
    let view = app.fleet.view();
    let served = view.model(&request.model).cloned().ok_or_else(|| unknown_model(&view, &request.model))?;
    let pinned = Pinned::of(headers, &request, &view)?;
    let members = served.members();
    let tokens = if app.config.routes_by_prefix() { tokens::tokens(app, &served, &request).await } else { None };
    let started = Instant::now();
    let plan = match tokens {
        Some(tokens) => {
            let cuts = Served::cuts(&members);
            hashed(app, &served, &request, tokens, cuts).await
        }
        None => Plan::unhashed(&served, body.len() / BYTES_PER_TOKEN, prompts_of(&request)),
    };
    // A request that reads no cache is worth as much everywhere.
    let held = if request.skips_cache { vec![Held::default(); members.len()] } else { plan.held(&app.fleet.catalog, &members) };
    app.metrics.routing.observe(started.elapsed().as_secs_f64());
    Ok(Prepared { request, served, members, plan, held, pinned })
}

/// Prompts above this are hashed on the tokenizer's threads: about 100 microseconds of work.
const INLINE_TOKENS: usize = 64 * 1024;

async fn hashed(app: &App, served: &Arc<Served>, request: &Arc<Request>, tokens: Vec<Tokens>, cuts: Vec<Cut>) -> Plan {
    let total: usize = tokens.iter().map(|tokens| tokens.ids.len()).sum();
    if total <= INLINE_TOKENS {
        return Plan::of_tokens(served, request.salt.as_deref(), &tokens, &cuts);
    }
    let (of, by, count) = (served.clone(), request.clone(), tokens.len());
    let work = app.pool.run(move || Plan::of_tokens(&of, by.salt.as_deref(), &tokens, &cuts)).await;
    // The queue is full: the request is routed by load, which the pool counts.
    work.unwrap_or_else(|_| Plan::unhashed(served, total, count))
}

impl Prepared {
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
            let numbered = member.worker.spec.lora.iter().any(|(_, mapped)| mapped == name);
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

async fn dispatch(app: &Arc<App>, call: &Call, prepared: &Prepared, labels: &Labels, started: Instant) -> Result<Dispatched, ApiError> {
    let mut tried = Vec::new();
    let mut moves = Moves::default();
    let mut last: Option<Response> = None;
    loop {
        let candidates = prepared.candidates(&tried);
        let booked = app.fleet.scheduler.reserve(Instant::now(), &prepared.ask(), &candidates, &mut rand::rng());
        let ticket = match (booked, last) {
            (Ok(ticket), _) => ticket,
            (Err(_), Some(failed)) => return Ok(Dispatched::Failed(failed)),
            (Err(refusal), None) => return Err(refused(&refusal)),
        };
        let member = prepared.members[prepared.position(&ticket)].clone();
        let held = &prepared.held[prepared.position(&ticket)];
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
        let routed = respond::Routed::new(&member, held.overlap.device_blocks(), &call.request_id);
        let dispatched = Instant::now();
        // A clear that came before this dispatch must not void what is predicted and compared from here on.
        member.rank.follow();
        predict(app, prepared, &member);
        member.demand(prepared.demands(&member));
        let inflight = respond::Inflight::new(app, labels);
        let outgoing = Outgoing {
            method: Method::POST,
            path_and_query: call.path.clone(),
            headers: respond::upstream_headers(&call.headers, &call.request_id),
            body: call.body.clone(),
            rank: member.rank.header,
            pulse: Some(member.worker.pulse().clone()),
        };
        match app.fleet.client.send(&member.worker.spec.url, outgoing).await {
            Ok(Reply::Bytes(reply)) => {
                moves.answered(reply.status);
                let check = check(prepared, &member, held, dispatched, reply.status.is_success());
                let client_error = reply.status.is_client_error();
                let watch = Watch { app: app.clone(), labels: labels.clone(), ticket, inflight, member, started, client_error, check };
                return Ok(Dispatched::Relayed(respond::relayed(reply, watch, &routed)));
            }
            Err(error) => {
                tracing::warn!(worker = member.worker.id(), %error, "a request failed before its first byte");
                let failed = respond::failed(&error, &routed);
                if moves.judge(&error) == Verdict::PassOn {
                    return Ok(Dispatched::Failed(failed));
                }
                app.metrics.retries.get_or_create(&ReasonLabel { reason: failure_name(&error.failure) }).inc();
                tried.push(member.worker.id().to_owned());
                last = Some(failed);
            }
        }
    }
}

/// 404, unless a worker that has not told its models yet may serve this one: then a later try can succeed.
fn unknown_model(view: &View, model: &str) -> ApiError {
    match view.untold() {
        0 if !view.workers.is_empty() => ApiError::unknown_model(model),
        0 => ApiError::unavailable(format!("no worker serves the model '{model}': there is none yet")),
        untold => ApiError::unavailable(format!(
            "no worker is known to serve the model '{model}', and {untold} could not be asked yet; GET /workers shows the state of each"
        )),
    }
}

/// The failure in a word, for metrics.
fn failure_name(failure: &Failure) -> &'static str {
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
        Failure::Stopping => "stopping",
        Failure::Unsendable(_) => "unsendable",
    }
}

/// Rule 12: a burst of one prompt sticks together before its events arrive.
fn predict(app: &App, prepared: &Prepared, member: &Member) {
    let ttl = match app.config.knowledge {
        Knowledge::Events { predicted } => predicted,
        Knowledge::Predicted { ttl } => ttl,
    };
    if ttl.is_zero() || prepared.request.skips_cache {
        return;
    }
    for chain in prepared.plan.all_chains(member.cut()) {
        member.rank.predict(app.fleet.indexes(&prepared.served.base), ttl, chain);
    }
}

/// What the answer will be compared with. A list of prompts, or more than one choice, proves nothing (rule 11).
fn check(prepared: &Prepared, member: &Member, held: &Held, dispatched: Instant, succeeded: bool) -> Option<Check> {
    let request = &prepared.request;
    if !succeeded || request.n > 1 || request.best_of.is_some_and(|best_of| best_of > 1) || request.skips_cache {
        return None;
    }
    let chain = prepared.plan.only_chain(member.cut())?;
    Some(Check {
        chain: chain.to_vec(),
        seed: Seed::new(prepared.served.adapter.as_deref(), request.salt.as_deref()),
        prompt_tokens: prepared.plan.tokens(),
        dispatched,
        predicted_blocks: held.overlap.device_usable_blocks() as u32,
        base: prepared.served.base.clone(),
        emptied: member.rank.emptied(),
    })
}

/// Bytes of a body that make a token, roughly: the length of a prompt that was not tokenised, for load alone.
const BYTES_PER_TOKEN: usize = 4;

fn prompts_of(request: &Request) -> usize {
    match &request.inputs {
        Inputs::Prompts(prompts) => prompts.len(),
        Inputs::Chat(_) | Inputs::Opaque => 1,
    }
}

/// Nobody could be chosen.
fn refused(refusal: &NoWorker) -> ApiError {
    match refusal {
        NoWorker::TargetRequired => ApiError::invalid(
            format!("{refusal}: header {} or nvext.backend_instance_id", target::WORKER_HEADER),
            Some(target::WORKER_HEADER),
        ),
        NoWorker::NoCandidates | NoWorker::AllExcluded(_) => {
            ApiError::unavailable(format!("{refusal}; GET /workers shows the state of each"))
        }
    }
}
