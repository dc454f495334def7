//! One prompt and one choice on its way through one or more workers.
//!
//! Until its first token a leg whose worker fails moves under the one retry story (rule 15). After it, it migrates: what was
//! delivered is appended to the prompt, and the most and the least number of tokens are reduced by it.

use std::{sync::Arc, time::Duration};

use engine::{
    Moves, Verdict,
    tokens::{Meaning, TokenFailure},
};
use http::StatusCode;
use sched::NoWorker;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};
use wire::generate::{EngineOutput, FinishReason, GenerateRequest};

use super::{
    Job,
    attempt::{Attempt, Fall, Missed, Running, Whose},
    prefill::Prefills,
};
use crate::{
    metrics::ReasonLabel,
    walk::{MOST_UNSENT, Prepared},
};

/// How long a leg waits where there is a worker that cannot take it just now: probes ask those in quarantine every half second, and a
/// model is loaded in a second or two.
const RECOVERY_WITHIN: Duration = Duration::from_secs(3);
/// How often it looks.
const RECOVERY_LOOKS: Duration = Duration::from_millis(100);

/// One prompt and one choice.
pub(super) struct Leg {
    /// Its number among all choices of the request.
    pub(super) choice: u32,
    pub(super) prepared: Arc<Prepared>,
    /// What a worker is asked; after a migration with what was delivered before.
    pub(super) request: GenerateRequest,
    pub(super) running: Option<Running>,
    /// Workers that failed on it since it last had an output.
    pub(super) tried: Vec<String>,
    /// Delivered since the request was sent last.
    delivered: Vec<u32>,
    moves: Moves,
    /// What became of its prefills at other workers.
    prefills: Prefills,
    /// Workers that could not be reached: they are not counted among its moves.
    unsent: usize,
    /// How often it may still migrate.
    migrations: u32,
    state: State,
    /// The last failure, to be told when nobody is left to try.
    last: Option<Setback>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// No output has come.
    Waiting,
    /// Outputs come.
    Begun,
    /// The last output has come.
    Finished,
}

/// Why a leg does not go on.
pub(super) enum Setback {
    /// Nobody can take it.
    Nobody(NoWorker),
    /// Its worker failed, and it does not move.
    Failed(Box<Fall>),
    /// Its worker sent what makes no answer.
    Unusable(String),
    /// The answer that is wanted whole has grown beyond so many bytes.
    TooLarge(usize),
}

impl Setback {
    /// What a client reads of it in the middle of an answer, for people and for programs.
    pub(super) fn words(&self) -> (String, &'static str) {
        match self {
            Self::Nobody(refusal) => (refusal.to_string(), "no_worker"),
            Self::Unusable(message) => (message.clone(), "worker_error"),
            Self::TooLarge(limit) => (too_large(*limit), "answer_too_large"),
            Self::Failed(fall) => {
                let code = match fall.failure.kind() {
                    "closed" | "connect" | "refused" | "unacknowledged" => "worker_closed",
                    "stalled" | "no_first_byte" => "worker_stalled",
                    "worker_dead" | "left" => "worker_dead",
                    "unfinished" => "worker_unfinished",
                    "stopping" => "frontend_stopping",
                    _ => "worker_error",
                };
                (fall.failure.public(), code)
            }
        }
    }
}

pub(super) fn too_large(limit: usize) -> String {
    format!(
        "the answer has more than {limit} bytes (--http-answer-limit-mb): ask for a stream, or for fewer tokens, choices or log-probabilities"
    )
}

impl Leg {
    pub(super) fn new(job: &Job, choice: u32, prepared: Arc<Prepared>) -> Self {
        let pinned = prepared.pinned.worker.is_some();
        let migrations = if pinned || !job.work.may_migrate() { 0 } else { job.work.model.migration_limit };
        Self {
            choice,
            prepared,
            request: job.work.request(choice),
            running: None,
            tried: Vec::new(),
            delivered: Vec::new(),
            moves: Moves::default(),
            prefills: Prefills::default(),
            unsent: 0,
            migrations,
            state: State::Waiting,
            last: None,
        }
    }

    /// The next output, from whichever worker; `None` after the last. Dropping the leg stops its worker.
    pub(super) async fn next(&mut self, job: &Arc<Job>) -> Option<Result<Box<EngineOutput>, Setback>> {
        loop {
            if self.state == State::Finished && self.running.is_none() {
                return None;
            }
            let running = match &mut self.running {
                Some(running) => running,
                // Boxed, so that what is awaited for each token stays small.
                None => match Box::pin(self.start(job)).await {
                    Ok(running) => self.running.insert(running),
                    Err(setback) => return Some(Err(setback)),
                },
            };
            match running.next().await {
                Some(Ok(output)) => {
                    self.took(job, &output);
                    return Some(Ok(output));
                }
                None => {
                    self.running = None;
                    self.state = State::Finished;
                    return None;
                }
                Some(Err((failure, whose))) => {
                    let Some(running) = self.running.take() else { continue };
                    if let (Whose::Helper, Some(helper)) = (whose, &running.helper) {
                        self.prefills.failed(job, &failure, helper.member.worker.id().to_owned());
                        running.give_up(job).await;
                        continue;
                    }
                    let worker = running.member.worker.id().to_owned();
                    let routed = running.give_up(job).await;
                    let fall = Box::new(Fall { failure, worker, routed });
                    if let Err(setback) = self.set_back(job, fall).await {
                        return Some(Err(setback));
                    }
                    if let Some(output) = self.resume() {
                        return Some(Ok(Box::new(output)));
                    }
                }
            }
        }
    }

    /// Nothing more is wanted of it: its worker is told to stop, as one that has answered.
    pub(super) fn enough(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.reply.enough();
        }
        self.state = State::Finished;
    }

    /// Whether an output has come.
    pub(super) fn has_begun(&self) -> bool {
        self.state != State::Waiting
    }

    fn took(&mut self, job: &Arc<Job>, output: &EngineOutput) {
        if let Some(running) = &mut self.running {
            running.took(job, output);
        }
        if self.state == State::Waiting {
            if job.begins() {
                job.app.metrics.first_event.get_or_create(&job.labels.model()).observe(job.started.elapsed().as_secs_f64());
            }
            self.moves.answered(StatusCode::OK);
            // Told once, with the first output.
            self.request.output_options.prompt_logprobs = None;
        }
        self.tried.clear();
        self.unsent = 0;
        self.last = None;
        if self.migrations > 0 {
            self.delivered.extend_from_slice(&output.token_ids);
        }
        self.state = if output.finish_reason.is_some() { State::Finished } else { State::Begun };
    }

    /// Sends it to a worker, and to others while that fails.
    async fn start(&mut self, job: &Arc<Job>) -> Result<Running, Setback> {
        let began = Instant::now();
        loop {
            match self.attempt(job).await {
                Ok(running) => return Ok(running),
                Err(Missed::Failed(fall)) => self.set_back(job, fall).await?,
                Err(Missed::Nobody(refusal)) if self.may_wait(&refusal) && began.elapsed() < RECOVERY_WITHIN => {
                    sleep(RECOVERY_LOOKS).await;
                    self.prepared = Arc::new(self.prepared.renewed(&job.app).await);
                }
                Err(Missed::Nobody(refusal)) => return Err(self.last.take().unwrap_or(Setback::Nobody(refusal))),
            }
        }
    }

    /// Sends it to one worker; where others prefill, with the prompt prefilled by one of those.
    async fn attempt(&mut self, job: &Arc<Job>) -> Result<Running, Missed> {
        let id = job.leg_id(self.choice);
        if let (Some(prefill), Some(decode)) = (self.prepared.prefill.clone(), self.prepared.decode_only(&self.tried)) {
            let helper = Box::pin(self.prefills.run(job, &prefill, (&self.request, &id))).await.map_err(Missed::Failed)?;
            if let Some(helper) = helper {
                let mut request = self.request.clone();
                helper.hand_over(&mut request);
                let attempt = Attempt { prepared: &Arc::new(decode), tried: &self.tried, id: &id, proves: false };
                let mut running = attempt.send(job, &mut request).await?;
                running.helper = Some(helper);
                return Ok(running);
            }
        }
        let proves = !self.has_begun();
        Attempt { prepared: &self.prepared, tried: &self.tried, id: &id, proves }.send(job, &mut self.request).await
    }

    /// Judges a failure: `Ok` where the leg may be sent elsewhere.
    async fn set_back(&mut self, job: &Arc<Job>, fall: Box<Fall>) -> Result<(), Setback> {
        let Fall { failure, worker, .. } = &*fall;
        let moves = match self.state {
            // Nobody has seen it there. Each of these is out of the choice by now.
            State::Waiting | State::Begun if failure.was_not_sent() && self.unsent < MOST_UNSENT && self.may_move_at_all() => {
                self.unsent += 1;
                true
            }
            State::Waiting => self.moves.judge_tokens(failure) == Verdict::Elsewhere,
            State::Begun => self.may_migrate(failure),
            State::Finished => false,
        };
        let begun = self.has_begun();
        warn!(request_id = job.request_id, worker, error = %failure, begun, moves, "a token-level worker failed");
        if !moves {
            return Err(Setback::Failed(fall));
        }
        let label = ReasonLabel { reason: failure.kind() };
        if begun {
            info!(request_id = job.request_id, worker, delivered = self.delivered.len(), "the answer goes on at another worker");
            job.app.metrics.migrations.get_or_create(&label).inc();
        } else {
            job.app.metrics.retries.get_or_create(&label).inc();
        }
        self.tried.push(worker.clone());
        self.last = Some(Setback::Failed(fall));
        self.prepared = Arc::new(self.prepared.renewed(&job.app).await);
        Ok(())
    }

    /// An answer that has begun is moved only where that was right before.
    fn may_move_at_all(&self) -> bool {
        self.state == State::Waiting || self.last.is_some()
    }

    /// Books a migration, if it is allowed.
    fn may_migrate(&mut self, failure: &TokenFailure) -> bool {
        let movable = match failure.meaning() {
            Meaning::Worker | Meaning::Overloaded => true,
            // Perhaps the request's doing, so that it may take down one other worker and no more.
            Meaning::Internal => {
                self.migrations = self.migrations.min(1);
                true
            }
            Meaning::Request(_) | Meaning::Exhausted | Meaning::Over | Meaning::Ours => false,
        };
        if !movable || self.migrations == 0 {
            return false;
        }
        self.migrations -= 1;
        true
    }

    /// Whether there is somebody to wait for. Whoever has failed on it is nobody, and neither is a worker that is yet to be started:
    /// that takes longer.
    fn may_wait(&self, refusal: &NoWorker) -> bool {
        match refusal {
            NoWorker::AllExcluded(_) => self.prepared.may_be_taken_soon(&self.tried),
            NoWorker::NoCandidates | NoWorker::TargetRequired => false,
        }
    }

    /// Makes the request one for the rest of the answer. Where there is no rest, it is the end of the answer: its worker died
    /// between the last token and saying so.
    fn resume(&mut self) -> Option<EngineOutput> {
        let delivered = std::mem::take(&mut self.delivered);
        let count = delivered.len() as u32;
        self.request.token_ids.extend_from_slice(&delivered);
        let stops = &mut self.request.stop_conditions;
        stops.max_tokens = stops.max_tokens.map(|most| most.saturating_sub(count));
        stops.min_tokens = stops.min_tokens.map(|least| least.saturating_sub(count));
        if stops.max_tokens != Some(0) {
            return None;
        }
        self.state = State::Finished;
        Some(EngineOutput { finish_reason: Some(FinishReason::Length), ..EngineOutput::default() })
    }
}
