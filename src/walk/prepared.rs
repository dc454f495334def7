//! A request with everything a choice needs: what it asks, who could take it, what each holds. Nothing here has a side effect.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use feed::Demand;
use http::HeaderMap;
use prompt::{Endpoint, Request, Tokens};
use sched::{Answer, Ask, Candidate, Exclusion, Label, Ticket};

use super::{
    Held, Labels, Plan, Work, long,
    target::{self, Pinned},
    tokens,
};
use crate::{
    app::App,
    fleet::{Cut, Member, Role, Served, View},
    http::ApiError,
};

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
    pub(super) phase: Phase,
    /// The workers it may go to.
    pub(super) takers: Takers,
    /// One of several legs of a request, which is one answer to one prompt.
    pub(super) is_leg: bool,
    pub(super) pinned: Pinned,
}

/// What part of a request a worker is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// All of it.
    Whole,
    /// The prompt.
    Prefill,
    /// The answer, with the prompt prefilled elsewhere.
    Decode,
}

impl Phase {
    /// In logs and metrics.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Whole => "aggregated",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// Which kind of worker a request may go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takers {
    Any,
    /// Those that take bodies alone: OpenAI servers, and workers that take text.
    Servers,
    /// Those that take token ids alone.
    Tokens,
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
    let work = work(app, &served, (&request, headers)).await?;
    if !members.is_empty() && members.iter().all(|member| !member.worker.fits(&request)) {
        return Err(ApiError::invalid(UNFIT, None));
    }
    // Of workers that take text nobody knows the tokens.
    let has_servers = members.iter().any(|member| member.worker.server().is_some());
    let tokens = match &work {
        Some(Ok(work)) => Some(work.prompts().to_vec()),
        Some(Err(_)) | None if app.config.routes_by_prefix() && has_servers => tokens::tokens(app, &served, &request).await,
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

/// What a client is told whose request no worker of the model takes, all of which take text.
const UNFIT: &str = "the model's workers take text: one prompt a request, at an endpoint that their cards name";

/// What the request means to token-level workers, where there are any. Where there are only those, what they cannot take is
/// the client's error.
async fn work(
    app: &App,
    served: &Served,
    (request, headers): (&Arc<Request>, &HeaderMap),
) -> Result<Option<Result<Arc<Work>, String>>, ApiError> {
    let Some(model) = served.token_model() else { return Ok(None) };
    let servers = served.workers.iter().any(|(worker, _)| worker.takes_bodies());
    match Work::of(app, served, model, (request, headers)).await {
        Ok(work) => Ok(Some(Ok(Arc::new(work)))),
        Err(error) if servers => Ok(Some(Err(error.to_string()))),
        Err(error) => Err(error),
    }
}

/// The same request for the workers that prefill prompts for others.
fn prefill(whole: &Prepared, members: Arc<[Member]>, headers: &HeaderMap, view: &View) -> Result<Option<Arc<Prepared>>, ApiError> {
    let Some(Ok(work)) = &whole.work else { return Ok(None) };
    let pinned = whole.pinned.prefill(headers, work.targets(), (view, &whole.served))?;
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
    pub(super) async fn look_up(&mut self, app: &App) {
        let nothing = vec![Held::default(); self.members.len()];
        self.held = if self.request.skips_cache {
            // A request that reads no cache is worth as much everywhere.
            nothing
        } else {
            let (plan, catalog, members) = (self.plan.clone(), app.fleet.catalog.clone(), self.members.clone());
            long::run(&app.pool, self.plan.blocks(), move || plan.held(&catalog, &members)).await.unwrap_or(nothing)
        };
    }

    /// The same among the workers of now, with what they hold now: an answer may take minutes.
    pub(super) async fn renewed(&self, app: &App) -> Self {
        let mut new = self.clone();
        if let Some(served) = app.fleet.view().model(&self.request.model) {
            new.served = served.clone();
            new.members = served.members().into();
            let helpers: Arc<[Member]> = served.prefill_members().into();
            new.prefill = self.prefill.as_ref().filter(|_| !helpers.is_empty()).map(|prefill| {
                let held = vec![Held::default(); helpers.len()];
                Arc::new(Self { members: helpers, held, served: served.clone(), ..Self::clone(prefill) })
            });
        }
        new.look_up(app).await;
        new
    }

    /// As it would be worked on: by one worker, or prefilled by one (the first) and decoded by another.
    pub(crate) async fn split(self, app: &App) -> (Option<Self>, Self) {
        let (Some(prefill), Some(decode)) = (&self.prefill, self.decode_only(&[])) else { return (None, self) };
        let mut prefill = Self::clone(prefill);
        prefill.look_up(app).await;
        let is_there = prefill.candidates(&[]).iter().any(|candidate| candidate.excluded.is_none());
        if is_there { (Some(prefill), decode) } else { (Some(prefill), self) }
    }

    /// Why token-level workers cannot take it, where there are other workers too.
    pub(crate) fn unfit(&self) -> Option<&str> {
        self.work.as_ref()?.as_ref().err().map(String::as_str)
    }

    /// Tokens of all prompts; an estimate where they were not tokenised.
    pub(crate) fn prompt_tokens(&self) -> u64 {
        self.plan.tokens()
    }

    /// Whether the prompts were tokenised.
    pub(crate) fn is_tokenized(&self) -> bool {
        matches!(self.work, Some(Ok(_))) || self.plan.is_hashed()
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
        match (member.worker.takes_bodies(), self.takers) {
            (true, Takers::Tokens) | (false, Takers::Servers) => return Some(Exclusion::NotAllowed),
            (true, Takers::Any | Takers::Servers) if member.worker.fits(&self.request) => {}
            (true, Takers::Any | Takers::Servers) => return Some(Exclusion::Unfit),
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

    /// Whether somebody who cannot be sent it now may be in a moment.
    pub(super) fn may_be_taken_soon(&self, tried: &[String]) -> bool {
        self.members.iter().any(|member| match self.exclusion(member, tried) {
            Some(Exclusion::BreakerOpen | Exclusion::NotReady) => member.worker.may_be_back_soon(),
            Some(
                Exclusion::Draining
                | Exclusion::ModelNotServed
                | Exclusion::AlreadyTried
                | Exclusion::NotPinned
                | Exclusion::RankNotPinned
                | Exclusion::NotAllowed
                | Exclusion::Unfit
                | Exclusion::Removed,
            )
            | None => false,
        })
    }

    /// The same for workers of one kind.
    pub(super) fn to(&self, takers: Takers) -> Self {
        Self { takers, ..self.clone() }
    }

    /// One of its prompts, for one answer. What workers hold of it is looked up when it is sent.
    pub(super) fn only(&self, prompt: usize) -> Self {
        let plan = if self.plan.prompts.len() == 1 { self.plan.clone() } else { Arc::new(self.plan.only(prompt)) };
        let prefill = self.prefill.as_ref().map(|prefill| Arc::new(Self { plan: plan.clone(), is_leg: true, ..Self::clone(prefill) }));
        Self { plan, prefill, is_leg: true, ..self.clone() }
    }

    /// Which kind of worker would be chosen now, of a request that both may take.
    pub(super) fn preferred(&self, app: &App) -> Takers {
        let preview = app.fleet.scheduler.preview(Instant::now(), &self.ask(), &self.candidates(&[]), &mut rand::rng());
        let chosen = preview.chosen.ok().and_then(|target| self.members.iter().find(|member| member.target() == target));
        match chosen {
            Some(member) if !member.worker.takes_bodies() => Takers::Tokens,
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

    pub(super) fn position(&self, ticket: &Ticket) -> usize {
        let found = self.members.iter().position(|member| member.target() == ticket.target());
        // The scheduler chooses among the candidates, which are made of the members one by one.
        found.expect("the chosen target is a member")
    }
}

impl Prepared {
    /// The same for workers that only decode, as the prompt is prefilled elsewhere: chosen by load alone. `None` where there is
    /// no such worker that could be sent it.
    pub(super) fn decode_only(&self, tried: &[String]) -> Option<Self> {
        let decode = Self {
            phase: Phase::Decode,
            plan: Arc::new(Plan::unhashed(self.plan.tokens() as usize, 1)),
            held: vec![Default::default(); self.members.len()],
            ..self.clone()
        };
        let is_there = decode.candidates(tried).iter().any(|candidate| candidate.excluded.is_none());
        is_there.then_some(decode)
    }
}
