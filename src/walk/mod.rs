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
pub(crate) use generate::Work;
pub(crate) use plan::{Held, Plan};
pub(crate) use query::overlaps;
pub(crate) use respond::{REQUEST_ID, identify};
pub(crate) use tokens::Asks;

use crate::{
    app::App,
    fleet::{Cut, Member, Role, Served, View},
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
    /// What it means to token-level workers, or why they cannot take it; `None` where there are none.
    pub(crate) work: Option<Result<Arc<Work>, String>>,
    /// The same for the workers that prefill prompts for others, where there are any.
    pub(crate) prefill: Option<Arc<Prepared>>,
    /// What part of it is to be done.
    phase: Phase,
    /// The workers it may go to.
    takers: Takers,
    /// One of several legs of a request, which is one answer to one prompt.
    is_leg: bool,
    pinned: Pinned,
}

/// What part of a request a worker is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// All of it.
    Whole,
    /// The prompt.
    Prefill,
    /// The answer, with the prompt prefilled elsewhere.
    Decode,
}

/// Which kind of worker a request may go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takers {
    Any,
    /// OpenAI servers alone.
    Servers,
    /// Those that take token ids alone.
    Tokens,
}

/// Answers one request. Whoever called tells `waiting` what the client gets in the end.
pub(crate) async fn complete(app: &Arc<App>, call: Call, waiting: &mut Waiting) -> Result<Response, ApiError> {
    let prepared = prepare(app, call.endpoint, &call.headers, &call.body, &mut waiting.labels).await?;
    let Some(Ok(work)) = prepared.work.clone() else { return dispatch(app, &call, Arc::new(prepared), waiting).await };
    let servers = prepared.members.iter().any(|member| member.worker.server().is_some());
    match if servers { prepared.preferred(app) } else { Takers::Tokens } {
        Takers::Servers | Takers::Any => dispatch(app, &call, Arc::new(prepared.to(Takers::Servers)), waiting).await,
        Takers::Tokens => match generate::answer(app, &call, Arc::new(prepared.to(Takers::Tokens)), work, waiting).await {
            Ok(response) => Ok(response),
            Err(refused) if refused.retry == generate::Retry::Elsewhere && servers => {
                match dispatch(app, &call, Arc::new(prepared.to(Takers::Servers)), waiting).await {
                    Ok(response) => Ok(response),
                    Err(_) => Ok(refused.response),
                }
            }
            Err(refused) => Ok(refused.response),
        },
    }
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
    let work = work(app, &served, (&request, headers, body)).await?;
    let tokens = match &work {
        Some(Ok(work)) => Some(work.prompts().to_vec()),
        Some(Err(_)) | None if app.config.routes_by_prefix() => tokens::tokens(app, &served, &request).await,
        Some(Err(_)) | None => None,
    };
    let started = Instant::now();
    let helpers: Arc<[Member]> = served.prefill_members().into();
    let plan = match tokens {
        Some(tokens) => {
            let cuts = if helpers.is_empty() { Served::cuts(&members) } else { Served::cuts(&[&members[..], &helpers[..]].concat()) };
            hashed(app, &served, &request, tokens, cuts).await
        }
        None => Plan::unhashed(body.len() / BYTES_PER_TOKEN, request.inputs.count()),
    };
    let (plan, held, takers, is_leg) = (Arc::new(plan), Vec::new(), Takers::Any, false);
    let phase = Phase::Whole;
    let mut prepared = Prepared { request, served, members, plan, held, work, prefill: None, phase, takers, is_leg, pinned };
    prepared.prefill = prefill(&prepared, helpers, headers, &view)?;
    prepared.look_up(app).await;
    app.metrics.routing.observe(started.elapsed().as_secs_f64());
    Ok(prepared)
}

/// What the request means to token-level workers, where there are any. Where there are only those, what they cannot take is
/// the client's error.
async fn work(
    app: &App,
    served: &Served,
    (request, headers, body): (&Arc<Request>, &HeaderMap, &Bytes),
) -> Result<Option<Result<Arc<Work>, String>>, ApiError> {
    let Some(model) = served.tokens.clone() else { return Ok(None) };
    let servers = served.workers.iter().any(|(worker, _)| worker.server().is_some());
    match Work::of(app, served, model, (request, headers, body)).await {
        Ok(work) => Ok(Some(Ok(Arc::new(work)))),
        Err(error) if servers => Ok(Some(Err(error.to_string()))),
        Err(error) => Err(error),
    }
}

/// The same request for the workers that prefill prompts for others.
fn prefill(whole: &Prepared, members: Arc<[Member]>, headers: &HeaderMap, view: &View) -> Result<Option<Arc<Prepared>>, ApiError> {
    let Some(Ok(work)) = &whole.work else { return Ok(None) };
    let pinned = Pinned::prefill(headers, work.targets(), view, &whole.served)?;
    if members.is_empty() {
        return Ok(None);
    }
    let held = vec![Held::default(); members.len()];
    let (phase, takers) = (Phase::Prefill, Takers::Tokens);
    Ok(Some(Arc::new(Prepared { members, held, pinned, phase, takers, ..whole.clone() })))
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
            answers_per_prompt: if self.is_leg { 1 } else { self.request.n.max(self.request.best_of.unwrap_or(1)) },
            // Of a token-level worker every token is seen.
            answer: if self.request.stream || self.takers == Takers::Tokens { Answer::Stream } else { Answer::Plain },
            label: match self.phase {
                Phase::Whole => Label::Decode,
                Phase::Prefill => Label::Prefill,
                Phase::Decode => Label::DecodeOnly,
            },
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
        match (member.worker.server().is_some(), self.takers) {
            (true, Takers::Tokens) | (false, Takers::Servers) => return Some(Exclusion::NotAllowed),
            (true, Takers::Any | Takers::Servers) => {}
            (false, Takers::Any | Takers::Tokens) => match &self.work {
                Some(Ok(_)) => {}
                Some(Err(_)) => return Some(Exclusion::Unfit),
                // The model of no such worker was loaded when the request came.
                None => return Some(member.worker.exclusion().unwrap_or(Exclusion::NotReady)),
            },
        }
        let role = member.worker.tokens().map(|worker| worker.role());
        if self.phase == Phase::Decode && role != Some(Role::Decode) {
            return Some(Exclusion::NotAllowed);
        }
        if tried.iter().any(|tried| tried == member.worker.id()) {
            return Some(Exclusion::AlreadyTried);
        }
        member.worker.exclusion()
    }

    /// The same for workers of one kind.
    fn to(&self, takers: Takers) -> Self {
        Self { takers, ..self.clone() }
    }

    /// One of its prompts, for one answer. What workers hold of it is looked up when it is sent.
    fn only(&self, prompt: usize) -> Self {
        let plan = if self.plan.prompts.len() == 1 { self.plan.clone() } else { Arc::new(self.plan.only(prompt)) };
        let prefill = self.prefill.as_ref().map(|prefill| Arc::new(Self { plan: plan.clone(), is_leg: true, ..Self::clone(prefill) }));
        Self { plan, prefill, is_leg: true, ..self.clone() }
    }

    /// Which kind of worker would be chosen now, of a request that both may take.
    fn preferred(&self, app: &App) -> Takers {
        let preview = app.fleet.scheduler.preview(Instant::now(), &self.ask(), &self.candidates(&[]), &mut rand::rng());
        let chosen = preview.chosen.ok().and_then(|target| self.members.iter().find(|member| member.target() == target));
        match chosen {
            Some(member) if member.worker.server().is_none() => Takers::Tokens,
            Some(_) | None => Takers::Servers,
        }
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
        log_choice(&call.request_id, &member, held, &ticket);
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

fn log_choice(request_id: &str, member: &Member, held: &Held, ticket: &Ticket) {
    tracing::debug!(
        target: "route",
        request_id,
        worker = member.worker.id(),
        dp_rank = member.rank.dp_rank,
        overlap_blocks = held.overlap.device_blocks(),
        prompt_blocks = ticket.costed().prompt_blocks,
        cost = ticket.costed().cost,
        "routed"
    );
}
