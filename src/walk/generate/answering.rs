//! Legs on their way, merged into one answer. Whoever awaits a step drives all of them.

use std::{pin::Pin, sync::Arc};

use answer::{Answer, Progress};
use bytes::{Bytes, BytesMut};
use futures_util::stream::{FuturesUnordered, StreamExt};
use wire::generate::EngineOutput;

use super::{
    Job,
    leg::{Leg, Setback},
    shape::{self, Times},
};
use crate::{
    metrics::Outcome,
    walk::{Prepared, count::Inflight, respond::Routed},
};

/// Legs of one request that are at workers at a time; the others wait.
const LEGS_AT_ONCE: usize = 64;

/// A request whose answer comes.
pub(super) struct Answering {
    job: Arc<Job>,
    answer: Answer,
    /// For the client, not handed out yet.
    out: BytesMut,
    legs: Legs,
    /// How the first leg was routed.
    routed: Option<Routed>,
    times: Times,
    /// How it ended; `None` where somebody else counts that.
    outcome: Option<Outcome>,
    /// Given back with it.
    _inflight: Inflight,
}

/// The legs that are not over.
enum Legs {
    /// Nearly always: it is awaited where it stands. `None` once it is over, and while it is awaited.
    One(Option<Box<Leg>>),
    Many(Many),
}

struct Many {
    /// Not begun; the next is the last.
    waiting: Vec<Leg>,
    running: FuturesUnordered<Stepping>,
}

/// A leg together with its next output.
type Stepping = Pin<Box<dyn Future<Output = (Box<Leg>, Next)> + Send>>;
type Next = Option<Result<Box<EngineOutput>, Setback>>;

impl Answering {
    pub(super) fn new(job: Arc<Job>, prepared: Arc<Prepared>) -> Self {
        let mut answer = shape::answer(&job, &prepared);
        let mut out = BytesMut::new();
        shape::annotate(&job, &prepared, &mut answer, &mut out);
        let inflight = Inflight::new(&job.app, &job.labels);
        let legs = Legs::of(&job, prepared);
        Self { job, answer, out, legs, routed: None, times: Times::default(), outcome: None, _inflight: inflight }
    }

    /// Whether an output has come.
    pub(super) fn has_begun(&self) -> bool {
        self.routed.is_some()
    }

    /// How the first leg was routed.
    pub(super) fn routed(&self) -> Option<&Routed> {
        self.routed.as_ref()
    }

    /// Waits for the next output of any leg and takes it. `false`: none comes any more. To be dropped only with all of it.
    pub(super) async fn step(&mut self) -> Result<bool, Setback> {
        let (mut leg, next) = match &mut self.legs {
            Legs::One(slot) => {
                let Some(mut leg) = slot.take() else { return Ok(false) };
                let next = leg.next(&self.job).await;
                (leg, next)
            }
            Legs::Many(many) => {
                many.fill(&self.job);
                let Some(stepped) = many.running.next().await else { return Ok(false) };
                stepped
            }
        };
        let Some(output) = next.transpose()? else { return Ok(true) };
        self.take(&mut leg, &output)?;
        match &mut self.legs {
            Legs::One(slot) => *slot = Some(leg),
            Legs::Many(many) => many.run(&self.job, leg),
        }
        Ok(true)
    }

    fn take(&mut self, leg: &mut Leg, output: &EngineOutput) -> Result<(), Setback> {
        if let Some(running) = &mut leg.running {
            if let Some(workers) = running.introduce() {
                self.answer.served_by(leg.choice, workers);
            }
            if self.routed.is_none() {
                self.routed = Some(running.routed(&self.job));
                self.times = Times::begun(running, &leg.prepared);
            }
        }
        match self.answer.push(leg.choice, output, &mut self.out) {
            Progress::Going => {}
            Progress::ChoiceDone => {
                if output.finish_reason.is_none() {
                    leg.enough();
                }
            }
            Progress::Failed(fault) => return Err(Setback::Unusable(fault.to_string())),
        }
        let limit = self.job.app.config.answer_limit;
        if self.answer.held_bytes() > limit { Err(Setback::TooLarge(limit)) } else { Ok(()) }
    }

    /// What is ready for the client.
    pub(super) fn ready(&mut self) -> Option<Bytes> {
        if self.out.is_empty() { None } else { Some(self.out.split().freeze()) }
    }

    /// It is a stream: from here on a client that leaves is counted here.
    pub(super) fn streams(&mut self) {
        self.outcome = Some(Outcome::client_left);
    }

    /// All legs are over. What is left for the client, or all of it.
    pub(super) fn end(&mut self) -> Bytes {
        self.answer.end(&mut self.out, &self.times.told(&self.job));
        self.outcome = Some(Outcome::success);
        self.out.split().freeze()
    }

    /// It breaks off. What is left for the client.
    pub(super) fn break_off(&mut self, setback: &Setback) -> Bytes {
        let (message, code) = setback.words();
        tracing::warn!(request_id = self.job.request_id, model = &*self.job.labels.model, code, message, "an answer broke off");
        let error = answer::OpenAiError { message: &message, kind: "server_error", param: None, code: Some(code) };
        self.answer.error(&error, &mut self.out);
        self.outcome = Some(Outcome::broken);
        self.out.split().freeze()
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let (app, labels) = (&self.job.app, &self.job.labels);
        if self.has_begun() {
            let (usage, model) = (self.answer.usage(), labels.model());
            app.metrics.input_tokens.get_or_create(&model).inc_by(usage.prompt_tokens);
            app.metrics.output_tokens.get_or_create(&model).inc_by(usage.completion_tokens);
        }
        let Some(outcome) = self.outcome else { return };
        if outcome == Outcome::client_left {
            app.metrics.client_left.inc();
        }
        labels.count(&app.metrics, outcome, self.job.started.elapsed());
    }
}

impl Legs {
    fn of(job: &Job, prepared: Arc<Prepared>) -> Self {
        let (legs, n) = (job.work.legs(), job.work.n());
        if legs == 1 {
            return Self::One(Some(Box::new(Leg::new(job, 0, prepared))));
        }
        let prompts: Vec<_> = (0..job.work.prompts.len()).map(|prompt| Arc::new(prepared.only(prompt))).collect();
        let leg = |choice: u32| Leg::new(job, choice, prompts[(choice / n) as usize].clone());
        Self::Many(Many { waiting: (0..legs).rev().map(leg).collect(), running: FuturesUnordered::new() })
    }
}

impl Many {
    fn fill(&mut self, job: &Arc<Job>) {
        while self.running.len() < LEGS_AT_ONCE
            && let Some(leg) = self.waiting.pop()
        {
            self.run(job, Box::new(leg));
        }
    }

    fn run(&mut self, job: &Arc<Job>, mut leg: Box<Leg>) {
        let job = job.clone();
        self.running.push(Box::pin(async move {
            let next = leg.next(&job).await;
            (leg, next)
        }));
    }
}
