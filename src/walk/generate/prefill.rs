//! Disaggregated serving: the prompt is prefilled by one worker and the answer decoded by another.
//!
//! A prefill worker that names a place to meet (its bootstrap endpoint) works while the decode worker is asked already; both are
//! told the same room. Any other is awaited: its answer holds what the decode worker needs. Where no worker prefills, or those
//! that do fail, the decode workers do all of it.

use std::sync::Arc;

use engine::{
    Moves, Verdict,
    tokens::{Meaning, TokenFailure},
};
use rand::Rng;
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{debug, warn};
use wire::{
    discovery::ModelCard,
    generate::{BootstrapInfo, GenerateRequest, PrefillResult},
};

use super::{
    Job,
    attempt::{Attempt, Fall, Missed, Running},
};
use crate::{fleet::Member, metrics::ReasonLabel, walk::Prepared};

/// Who prefilled, and what the decode worker is handed.
pub(super) struct Helper {
    pub(super) member: Member,
    pub(super) overlap_blocks: u64,
    pub(super) handed: Handed,
}

/// What a decode worker is handed.
pub(super) enum Handed {
    /// What the prefill worker's answer held.
    Result(Box<PrefillResult>),
    /// Where the two meet.
    Meeting(Meeting),
}

/// A prefill that goes on while the decode worker is asked. Dropping it stops the prefill.
pub(super) struct Meeting {
    info: BootstrapInfo,
    failed: oneshot::Receiver<TokenFailure>,
    /// It ended well, or its failure was told.
    over: bool,
    _stop: DropGuard,
}

/// Prefill workers that failed on a leg, and how often it may move among them.
#[derive(Default)]
pub(super) struct Prefills {
    tried: Vec<String>,
    moves: Moves,
    /// No further worker is tried.
    given_up: bool,
}

impl Meeting {
    /// The decode worker has what it waited for: what becomes of the prefill now is nobody's concern.
    pub(super) fn met(&mut self) {
        self.over = true;
    }

    /// Resolves when the prefill has failed, and never where it has not. Cancel-safe.
    pub(super) async fn failure(&mut self) -> TokenFailure {
        if !self.over {
            let failed = (&mut self.failed).await;
            self.over = true;
            if let Ok(failure) = failed {
                return failure;
            }
        }
        std::future::pending().await
    }
}

impl Helper {
    /// Tells a decode worker what it is handed.
    pub(super) fn hand_over(&self, request: &mut GenerateRequest) {
        match &self.handed {
            Handed::Result(result) => request.prefill_result = Some((**result).clone()),
            Handed::Meeting(meeting) => request.bootstrap_info = Some(meeting.info.clone()),
        }
        if let Some(routing) = &mut request.routing {
            routing.prefill_worker_id = self.member.worker.id().parse().ok();
            routing.prefill_dp_rank = Some(self.member.rank.dp_rank);
        }
    }
}

impl Prefills {
    /// Has the prompt prefilled. `None`: nobody does that, and the decode workers do all of it.
    ///
    /// # Errors
    /// The request is at fault.
    pub(super) async fn run(
        &mut self,
        job: &Arc<Job>,
        prepared: &Arc<Prepared>,
        (request, id): (&GenerateRequest, &str),
    ) -> Result<Option<Helper>, Box<Fall>> {
        while !self.given_up {
            let mut prefill = Prepared::clone(prepared);
            prefill.look_up(&job.app).await;
            let attempt = Attempt { prepared: &Arc::new(prefill), tried: &self.tried, id, proves: true };
            let mut request = for_prefill(request);
            let fall = match begin(job, attempt, &mut request).await {
                Ok(helper) => return Ok(Some(helper)),
                Err(Missed::Nobody(refusal)) => {
                    debug!(request_id = job.request_id, %refusal, "no worker prefills: the prompt is prefilled where it is decoded");
                    return Ok(None);
                }
                Err(Missed::Failed(fall)) => fall,
            };
            if matches!(fall.failure.meaning(), Meaning::Request(_) | Meaning::Over | Meaning::Ours) {
                return Err(fall);
            }
            self.failed(job, &fall.failure, fall.worker);
        }
        Ok(None)
    }

    /// A prefill worker failed: another one is tried, or none.
    pub(super) fn failed(&mut self, job: &Job, failure: &TokenFailure, worker: String) {
        self.given_up = self.moves.judge_tokens(failure) == Verdict::PassOn;
        let given_up = self.given_up;
        warn!(request_id = job.request_id, worker, error = %failure, given_up, "a prefill worker failed");
        job.app.metrics.retries.get_or_create(&ReasonLabel { reason: "prefill" }).inc();
        self.tried.push(worker);
    }
}

/// The same prompt for one token, which is what a prefill worker answers.
fn for_prefill(request: &GenerateRequest) -> GenerateRequest {
    let mut request = request.clone();
    request.stop_conditions.max_tokens = Some(1);
    request.stop_conditions.min_tokens = None;
    request
}

async fn begin(job: &Arc<Job>, attempt: Attempt<'_>, request: &mut GenerateRequest) -> Result<Helper, Missed> {
    // Where to meet is the chosen worker's: it is told with the request, so that it must be known before.
    let ticket = crate::walk::book(&job.app, attempt.prepared, attempt.tried).await.map_err(Missed::Nobody)?;
    let member = attempt.prepared.members[attempt.prepared.position(&ticket)].clone();
    let info = member.worker.tokens().and_then(|worker| meeting_place(&worker.card(), member.rank.dp_rank));
    request.bootstrap_info = info.clone();
    let mut running = attempt.send_to(job, ticket, request).await?;
    let (member, overlap_blocks) = (running.member.clone(), running.overlap_blocks);
    let handed = match info {
        Some(info) => Handed::Meeting(meet(job.clone(), running, info)),
        None => match result(job, &mut running).await {
            Ok(result) => Handed::Result(Box::new(result)),
            Err(failure) => {
                let worker = member.worker.id().to_owned();
                let routed = running.give_up(job).await;
                return Err(Missed::Failed(Box::new(Fall { failure, worker, routed })));
            }
        },
    };
    Ok(Helper { member, overlap_blocks, handed })
}

/// Where a worker's card says that decode workers meet it. Engines choose the rank by the room.
fn meeting_place(card: &ModelCard, dp_rank: u32) -> Option<BootstrapInfo> {
    let endpoint = card.disaggregated_endpoint()?;
    let mut rng = rand::rng();
    let room = room(rng.random::<u64>() >> 1, card.ranks(), dp_rank);
    Some(BootstrapInfo { host: endpoint.host.to_owned(), port: endpoint.port, room, handoff_id: Some(rng.random()) })
}

/// The number next below `random` that is `rank` modulo `ranks`, in 63 bits.
fn room(random: u64, ranks: u32, rank: u32) -> u64 {
    let (ranks, rank) = (u64::from(ranks.max(1)), u64::from(rank));
    let base = random - random % ranks;
    let room = base + rank % ranks;
    if room > u64::MAX >> 1 { room - ranks } else { room }
}

/// Waits for what the prefill worker hands over.
async fn result(job: &Job, running: &mut Running) -> Result<PrefillResult, TokenFailure> {
    let mut found = PrefillResult::default();
    while let Some(output) = running.reply.next().await {
        let output = output?;
        running.took(job, &output);
        if let Some(params) = output.disaggregated_params {
            found.disaggregated_params = params;
        }
        found.cached_tokens = found.cached_tokens.or(output.completion_usage.and_then(|usage| usage.cached_tokens));
    }
    Ok(found)
}

/// Lets the prefill go on beside the decode worker's wait for it.
fn meet(job: Arc<Job>, mut running: Running, info: BootstrapInfo) -> Meeting {
    let (told, failed) = oneshot::channel();
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    tokio::spawn(async move {
        let work = async {
            while let Some(output) = running.reply.next().await {
                match output {
                    Ok(output) => running.took(&job, &output),
                    Err(failure) => return Some(failure),
                }
            }
            None
        };
        // Dropping it stops the worker. Nobody waits for the failure of a prefill that is not needed any more.
        if let Some(Some(failure)) = stopped.run_until_cancelled(work).await {
            let _ = told.send(failure);
        }
    });
    Meeting { info, failed, over: false, _stop: stop.drop_guard() }
}

#[cfg(test)]
mod tests {
    use super::room;

    #[test]
    fn a_room_names_the_rank_and_stays_in_63_bits() {
        for random in [0, 1, 7, 12_345, u64::MAX >> 1, (u64::MAX >> 1) - 3] {
            for ranks in [1, 2, 3, 8] {
                for rank in 0..ranks {
                    let room = room(random, ranks, rank);
                    assert_eq!(room % u64::from(ranks), u64::from(rank), "{random} {ranks}");
                    assert!(room <= u64::MAX >> 1);
                }
            }
        }
    }
}
