//! A request that names its worker: headers, or `nvext` in the body.

use http::HeaderMap;
use prompt::Request;
use sched::Exclusion;

use crate::{
    fleet::{Member, View},
    http::ApiError,
};

/// Names the worker.
pub(crate) const WORKER_HEADER: &str = "x-dynamo-worker-instance-id";
/// Its older spelling.
const WORKER_ALIAS: &str = "x-worker-instance-id";
/// Names the rank of the named worker.
const RANK_HEADER: &str = "x-dynamo-dp-rank";
/// Its other spellings, the engines' own last.
const RANK_ALIASES: [&str; 2] = ["x-dp-rank", "x-data-parallel-rank"];

/// What a request names; empty for most.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Pinned {
    pub(crate) worker: Option<String>,
    rank: Option<u32>,
}

impl Pinned {
    /// Reads headers first, then `nvext`. An unknown worker or rank is the client's error and named.
    pub(crate) fn of(headers: &HeaderMap, request: &Request, view: &View) -> Result<Self, ApiError> {
        let (worker, worker_param) = match text(headers, &[WORKER_HEADER, WORKER_ALIAS])? {
            Some((name, worker)) => (Some(worker.to_owned()), name),
            None => (request.pin.worker.clone(), "nvext.backend_instance_id"),
        };
        let (rank, rank_param) = match text(headers, &[RANK_HEADER, RANK_ALIASES[0], RANK_ALIASES[1]])? {
            Some((name, rank)) => {
                let wrong = || ApiError::invalid(format!("{name}: '{rank}' is not a rank, a whole number from 0"), Some(name));
                (Some(rank.parse().map_err(|_| wrong())?), name)
            }
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
        let has_rank = |rank: u32| serving.as_ref().is_none_or(|serving| serving.ranks.iter().any(|known| known.dp_rank == rank));
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

fn text<'a>(headers: &'a HeaderMap, names: &[&'static str]) -> Result<Option<(&'static str, &'a str)>, ApiError> {
    for &name in names {
        if let Some(value) = headers.get(name) {
            let value = value.to_str().map_err(|_| ApiError::invalid(format!("{name} is not visible ASCII"), Some(name)))?;
            return Ok(Some((name, value)));
        }
    }
    Ok(None)
}
