//! Whom a request names, by its model and by its pins (headers, or `nvext` in the body), and what it is told where that
//! leaves nobody.

use std::time::Duration;

use http::HeaderMap;
use prompt::{Request, Targets};
use sched::{Exclusion, NoWorker};

use crate::{
    fleet::{Member, Served, View, Worker},
    http::ApiError,
};

/// Names the worker.
pub(crate) const WORKER_HEADER: &str = "x-dynamo-worker-instance-id";
/// Its older spelling.
const WORKER_ALIAS: &str = "x-worker-instance-id";
/// Names the worker that prefills the prompt for another.
const PREFILL_HEADERS: [&str; 2] = ["x-dynamo-prefill-instance-id", "x-prefill-instance-id"];
/// Names its rank.
const PREFILL_RANK_HEADERS: [&str; 2] = ["x-dynamo-prefill-dp-rank", "x-prefill-dp-rank"];
/// Names the rank of the named worker.
const RANK_HEADER: &str = "x-dynamo-dp-rank";
/// Its other spellings, the engines' own last.
const RANK_ALIASES: [&str; 2] = ["x-dp-rank", "x-data-parallel-rank"];

/// What a request names; empty for most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pinned {
    pub(crate) worker: Option<String>,
    rank: Option<u32>,
}

impl Pinned {
    /// Reads headers first, then `nvext`. An unknown worker or rank is the client's error and named.
    pub(crate) fn of(headers: &HeaderMap, request: &Request, view: &View, served: &Served) -> Result<Self, ApiError> {
        let (worker, worker_param) = match text(headers, &[WORKER_HEADER, WORKER_ALIAS])? {
            Some((name, worker)) => (Some(worker.to_owned()), name),
            None => (request.pin.worker.clone(), "nvext.backend_instance_id"),
        };
        let (rank, rank_param) = match rank(headers, &[RANK_HEADER, RANK_ALIASES[0], RANK_ALIASES[1]])? {
            Some((name, rank)) => (Some(rank), name),
            None => (request.pin.dp_rank, "nvext.dp_rank"),
        };
        let Some(worker) = worker else {
            return match rank {
                Some(rank) => Err(ApiError::invalid(
                    format!("{rank_param} names rank {rank} and nothing names its worker; add {WORKER_HEADER}"),
                    Some(rank_param),
                )),
                None => Ok(Self::default()),
            };
        };
        let known = view.worker(&worker).ok_or_else(|| {
            ApiError::invalid(
                format!("{worker_param} names worker '{worker}', which does not exist; GET /workers lists them"),
                Some(worker_param),
            )
        })?;
        let serving = known.serving();
        // One that has not told yet may serve it; until it has, the request is refused as one that could be repeated.
        if serving.is_some() && !served.workers.iter().any(|(worker, _)| worker.id() == known.id()) {
            let cards = serving.iter().flat_map(|serving| &serving.identity.models);
            let adapter_of = cards.filter(|card| card.name == served.name).map(|card| &card.base).next();
            let reason = match adapter_of {
                _ if known.is_draining() => "takes no new requests".to_owned(),
                Some(base) => format!("lists '{}' as an adapter of '{base}', and the name means another model here", served.name),
                None => format!("does not serve '{}'", served.name),
            };
            return Err(ApiError::invalid(
                format!("{worker_param} names worker '{worker}', which {reason}; GET /workers lists what each serves"),
                Some(worker_param),
            ));
        }
        let has_rank = |rank: u32| serving.as_ref().is_none_or(|serving| serving.ranks.iter().any(|known| known.dp_rank == rank));
        match rank {
            Some(rank) if !has_rank(rank) => Err(ApiError::invalid(format!("worker '{worker}' has no rank {rank}"), Some(rank_param))),
            _ => Ok(Self { worker: Some(worker), rank }),
        }
    }

    /// The worker that is to prefill the prompt for another. Where no worker does that, naming one changes nothing.
    pub(crate) fn prefill(headers: &HeaderMap, named: &Targets, view: &View, served: &Served) -> Result<Self, ApiError> {
        let (worker, worker_param) = match text(headers, &PREFILL_HEADERS)? {
            Some((name, worker)) => (Some(worker.to_owned()), name),
            None => (named.prefill_worker.clone(), "nvext.prefill_worker_id"),
        };
        let (rank, rank_param) = match rank(headers, &PREFILL_RANK_HEADERS)? {
            Some((name, rank)) => (Some(rank), name),
            None => (named.prefill_dp_rank, "nvext.prefill_dp_rank"),
        };
        let Some(worker) = worker else { return Ok(Self::default()) };
        let known = view.worker(&worker).ok_or_else(|| {
            let message = format!("{worker_param} names worker '{worker}', which does not exist; GET /workers lists them");
            ApiError::invalid(message, Some(worker_param))
        })?;
        if served.prefill.is_empty() {
            return Ok(Self::default());
        }
        if !served.prefill.iter().any(|(worker, _)| worker.id() == known.id()) {
            let message = format!("{worker_param} names worker '{worker}', which does not prefill prompts of '{}' for others", served.name);
            return Err(ApiError::invalid(message, Some(worker_param)));
        }
        let has_rank = |rank| known.serving().is_none_or(|serving| serving.ranks.iter().any(|known| known.dp_rank == rank));
        match rank {
            Some(rank) if !has_rank(rank) => Err(ApiError::invalid(format!("worker '{worker}' has no rank {rank}"), Some(rank_param))),
            _ => Ok(Self { worker: Some(worker), rank }),
        }
    }

    /// Why `member` is not what was named, if so.
    pub(crate) fn exclusion(&self, member: &Member) -> Option<Exclusion> {
        if self.worker.as_deref().is_some_and(|worker| worker != member.worker.id()) {
            return Some(Exclusion::NotPinned);
        }
        self.rank.filter(|rank| *rank != member.rank.dp_rank).map(|_| Exclusion::RankNotPinned)
    }
}

fn rank(headers: &HeaderMap, names: &[&'static str]) -> Result<Option<(&'static str, u32)>, ApiError> {
    let Some((name, rank)) = text(headers, names)? else { return Ok(None) };
    let wrong = |_| ApiError::invalid(format!("{name}: '{rank}' is not a rank, a whole number from 0"), Some(name));
    rank.parse().map(|rank| Some((name, rank))).map_err(wrong)
}

fn text<'a>(headers: &'a HeaderMap, names: &[&'static str]) -> Result<Option<(&'static str, &'a str)>, ApiError> {
    for &name in names {
        if let Some(value) = headers.get(name) {
            let value = value.to_str().map_err(|_| ApiError::invalid(format!("{name} is not visible ASCII"), Some(name)))?;
            return Ok(Some((name, value)));
        }
    }
    Ok(None)
}

/// A worker that never answered and has been down for longer is no longer taken for one that loads its model.
const LOADING: Duration = Duration::from_secs(600);

/// 404, unless a worker that has not told its models yet may serve this one: then a later try can succeed.
pub(crate) fn unknown_model(view: &View, model: &str) -> ApiError {
    if view.workers.iter().all(|worker| worker.is_draining()) {
        return ApiError::unavailable(format!("no worker serves the model '{model}': there is none"));
    }
    match view.workers.iter().filter(|worker| may_come_to_serve(worker, model)).count() {
        0 => ApiError::unknown_model(model),
        untold => ApiError::unavailable(format!(
            "no worker is known to serve the model '{model}', and {untold} could not be asked yet; GET /workers shows the state of each"
        )),
    }
}

fn may_come_to_serve(worker: &Worker, model: &str) -> bool {
    let Some(server) = worker.server() else { return false };
    let health = server.pulse().status();
    let awaited = health.state.is_routable() || health.since.elapsed() < LOADING;
    awaited && worker.serving().is_none() && server.spec.model.as_deref().is_none_or(|configured| configured == model)
}

/// Nobody could be chosen.
pub(crate) fn refused(refusal: &NoWorker) -> ApiError {
    match refusal {
        NoWorker::TargetRequired => {
            ApiError::invalid(format!("{refusal}: header {WORKER_HEADER} or nvext.backend_instance_id"), Some(WORKER_HEADER))
        }
        NoWorker::NoCandidates | NoWorker::AllExcluded(_) => {
            ApiError::unavailable(format!("{refusal}; GET /workers shows the state of each"))
        }
    }
}
