//! Whom a request names, by its model and by its pins (headers, or `nvext` in the body), and what it is told where that
//! leaves nobody.

use std::{fmt, time::Duration};

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
    /// Reads headers and `nvext`. An unknown worker or rank is the client's error and named, and so are two that differ.
    pub(crate) fn of(headers: &HeaderMap, request: &Request, view: &View, served: &Served) -> Result<Self, ApiError> {
        let pin = &request.pin;
        let worker = worker(headers, &[WORKER_HEADER, WORKER_ALIAS], (pin.worker_param, pin.worker.as_deref()))?;
        let rank = rank(headers, &[RANK_HEADER, RANK_ALIASES[0], RANK_ALIASES[1]], ("nvext.dp_rank", pin.dp_rank))?;
        let Some((worker_param, worker)) = worker else {
            return match rank {
                Some((rank_param, rank)) => Err(ApiError::invalid(
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
            Some((rank_param, rank)) if !has_rank(rank) => {
                Err(ApiError::invalid(format!("worker '{worker}' has no rank {rank}"), Some(rank_param)))
            }
            _ => Ok(Self { worker: Some(worker), rank: rank.map(|(_, rank)| rank) }),
        }
    }

    /// The worker that is to prefill the prompt for another. One that does all of a request may be named as both, as a dry run
    /// tells it.
    pub(crate) fn prefill(&self, headers: &HeaderMap, named: &Targets, (view, served): (&View, &Served)) -> Result<Self, ApiError> {
        let worker = worker(headers, &PREFILL_HEADERS, ("nvext.prefill_worker_id", named.prefill_worker.as_deref()))?;
        let rank = rank(headers, &PREFILL_RANK_HEADERS, ("nvext.prefill_dp_rank", named.prefill_dp_rank))?;
        let Some((worker_param, worker)) = worker else { return Ok(Self::default()) };
        let known = view.worker(&worker).ok_or_else(|| {
            let message = format!("{worker_param} names worker '{worker}', which does not exist; GET /workers lists them");
            ApiError::invalid(message, Some(worker_param))
        })?;
        if served.prefill.is_empty() && self.worker.as_ref() == Some(&worker) {
            return Ok(Self::default());
        }
        if !served.prefill.iter().any(|(worker, _)| worker.id() == known.id()) {
            let message = format!("{worker_param} names worker '{worker}', which does not prefill prompts of '{}' for others", served.name);
            return Err(ApiError::invalid(message, Some(worker_param)));
        }
        let has_rank = |rank| known.serving().is_none_or(|serving| serving.ranks.iter().any(|known| known.dp_rank == rank));
        match rank {
            Some((rank_param, rank)) if !has_rank(rank) => {
                Err(ApiError::invalid(format!("worker '{worker}' has no rank {rank}"), Some(rank_param)))
            }
            _ => Ok(Self { worker: Some(worker), rank: rank.map(|(_, rank)| rank) }),
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

/// Where something is named, and what it is.
type Named<T> = (&'static str, T);

/// The worker that headers or the body name.
fn worker(headers: &HeaderMap, names: &[&'static str], of_body: Named<Option<&str>>) -> Result<Option<Named<String>>, ApiError> {
    let in_headers = texts(headers, names).map(|found| found.map(|(name, worker)| (name, worker.to_owned())));
    one("worker", in_headers, (of_body.0, of_body.1.map(str::to_owned)))
}

fn rank(headers: &HeaderMap, names: &[&'static str], of_body: Named<Option<u32>>) -> Result<Option<Named<u32>>, ApiError> {
    let in_headers = texts(headers, names).map(|found| {
        let (name, rank) = found?;
        let wrong = |_| ApiError::invalid(format!("{name}: '{rank}' is not a rank, a whole number from 0"), Some(name));
        rank.parse().map(|rank| (name, rank)).map_err(wrong)
    });
    one("rank", in_headers, of_body)
}

/// What is named. Where it is named twice, both must be the same.
fn one<T: PartialEq + fmt::Display>(
    what: &str,
    in_headers: impl Iterator<Item = Result<Named<T>, ApiError>>,
    (field, of_body): Named<Option<T>>,
) -> Result<Option<Named<T>>, ApiError> {
    let mut first: Option<Named<T>> = None;
    for next in in_headers.chain(of_body.map(|named| Ok((field, named)))) {
        let (name, named) = next?;
        match &first {
            None => first = Some((name, named)),
            Some((known, other)) if *other != named => {
                let message = format!("{known} names {what} {other} and {name} {what} {named}; give one of them");
                return Err(ApiError::invalid(message, Some(name)));
            }
            Some(_) => {}
        }
    }
    Ok(first)
}

/// The values of those headers that are there.
fn texts<'a>(headers: &'a HeaderMap, names: &[&'static str]) -> impl Iterator<Item = Result<Named<&'a str>, ApiError>> {
    names.iter().filter_map(|&name| {
        let value = headers.get(name)?.to_str();
        Some(value.map(|value| (name, value)).map_err(|_| ApiError::invalid(format!("{name} is not visible ASCII"), Some(name))))
    })
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
