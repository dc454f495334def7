//! One request to one worker: chosen, booked, sent, and what its first output proves.

use std::{sync::Arc, time::Instant};

use answer::Workers;
use engine::{
    Usage,
    tokens::{Destination, TokenFailure, TokenReply},
};
use sched::{NoWorker, Ticket};
use wire::generate::{EngineOutput, GenerateRequest};

use super::{
    Job,
    prefill::{Handed, Helper},
    shape,
};
use crate::{
    fleet::Member,
    metrics::PhaseLabel,
    walk::{Prepared, book, log_choice, long::Booked, observer::Check, predict::Predicted, respond::Routed},
};

/// What is to be sent, and to whom it may go.
pub(super) struct Attempt<'a> {
    pub(super) prepared: &'a Arc<Prepared>,
    /// Workers that failed on it.
    pub(super) tried: &'a [String],
    /// What the worker calls it.
    pub(super) id: &'a str,
    /// Whether its first output shows what the worker had of a prompt.
    pub(super) proves: bool,
}

/// Why an attempt did not begin.
pub(super) enum Missed {
    /// Nobody can take it.
    Nobody(NoWorker),
    /// The worker failed.
    Failed(Box<Fall>),
}

/// A worker's failure, and who it was.
pub(super) struct Fall {
    pub(super) failure: TokenFailure,
    pub(super) worker: String,
    pub(super) routed: Routed,
}

/// A request at a worker.
pub(super) struct Running {
    pub(super) reply: TokenReply,
    pub(super) member: Member,
    pub(super) overlap_blocks: u64,
    /// When it was sent.
    pub(super) sent: Instant,
    /// Who prefilled the prompt, where that is another worker.
    pub(super) helper: Option<Helper>,
    /// Whether the client's answer knows who works for it.
    is_introduced: bool,
    ticket: Booked,
    /// What the first output is compared with; `None` where it proves nothing.
    check: Option<Check>,
    /// Given back should the worker never begin.
    predicted: Option<Predicted>,
}

/// Whose failure ended the wait for an output.
pub(super) enum Whose {
    Own,
    /// The worker's that prefilled.
    Helper,
}

impl Attempt<'_> {
    /// Chooses a worker, books the request there and sends it.
    pub(super) async fn send(self, job: &Job, request: &mut GenerateRequest) -> Result<Running, Missed> {
        let ticket = book(&job.app, self.prepared, self.tried).await.map_err(Missed::Nobody)?;
        self.send_to(job, ticket, request).await
    }

    /// The same, where it is chosen and booked.
    pub(super) async fn send_to(self, job: &Job, ticket: Ticket, request: &mut GenerateRequest) -> Result<Running, Missed> {
        let (app, prepared) = (&job.app, self.prepared);
        let at = prepared.position(&ticket);
        let (member, held) = (prepared.members[at].clone(), &prepared.held[at]);
        // OpenAI servers are excluded from the choice.
        let worker = member.worker.tokens().expect("a chosen worker is a token-level worker");
        let overlap_blocks = held.overlap.device_blocks();
        log_choice(&job.request_id, prepared, &member, (held, &ticket));
        let announced = app.replicas.as_ref().and_then(|replicas| replicas.booked(&prepared.plan.prompts, &member, &ticket));
        let ticket = Booked::new(ticket, prepared.plan.blocks(), announced);
        let sent = Instant::now();
        // As for byte replies: only what empties the cache from here on voids the comparison.
        member.rank.follow();
        let check = if self.proves { Check::of(prepared, &member, held, sent) } else { None };
        let predicted = Predicted::at(app, prepared, &member).await;
        member.demand(prepared.demands(&member));
        if let Some(routing) = &mut request.routing {
            routing.dp_rank = Some(member.rank.dp_rank);
        }
        let gone = worker.gone();
        let to = Destination { endpoint: worker.endpoint(), pulse: worker.pulse(), gone: &gone };
        job.app.metrics.legs.get_or_create(&PhaseLabel { model: job.labels.model.clone(), phase: prepared.phase.as_str() }).inc();
        match job.client.send(to, request, self.id, &job.headers).await {
            Ok(reply) => {
                let (helper, is_introduced, predicted) = (None, false, Some(predicted));
                Ok(Running { reply, member, overlap_blocks, sent, helper, is_introduced, ticket, check, predicted })
            }
            Err(failure) => {
                predicted.take_back(app).await;
                let routed = Routed::new(&member, overlap_blocks, &job.request_id);
                Err(Missed::Failed(Box::new(Fall { failure, worker: member.worker.id().to_owned(), routed })))
            }
        }
    }
}

impl Running {
    /// The next output; `None` after the last. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Result<Box<EngineOutput>, (TokenFailure, Whose)>> {
        let Some(Helper { handed: Handed::Meeting(meeting), .. }) = &mut self.helper else {
            return self.reply.next().await.map(|next| next.map_err(|failure| (failure, Whose::Own)));
        };
        // Both branches are cancel-safe. A decode worker waits for its prefill, so that the failure of that must end the wait.
        tokio::select! {
            biased;
            next = self.reply.next() => next.map(|next| next.map_err(|failure| (failure, Whose::Own))),
            failure = meeting.failure() => Some(Err((failure, Whose::Helper))),
        }
    }

    /// An output came.
    pub(super) fn took(&mut self, job: &Job, output: &EngineOutput) {
        if self.predicted.take().is_some() {
            // The first of this worker: the prefill is over.
            self.ticket.first_event(Instant::now());
            if let Some(Helper { handed: Handed::Meeting(meeting), .. }) = &mut self.helper {
                meeting.met();
            }
        }
        let Some(usage) = output.completion_usage.filter(|usage| usage.cached_tokens.is_some()) else { return };
        if let Some(check) = self.check.take() {
            let usage = Usage {
                prompt_tokens: usage.prompt_tokens.into(),
                completion_tokens: usage.completion_tokens.into(),
                cached_tokens: usage.cached_tokens.map(u64::from),
            };
            check.judge(&job.app, &self.member, &usage, &job.labels.model());
        }
    }

    /// Who works for it, as the client is told; the first time only.
    pub(super) fn introduce(&mut self) -> Option<Workers> {
        let is_introduced = std::mem::replace(&mut self.is_introduced, true);
        (!is_introduced).then(|| shape::workers(&self.member, self.helper.as_ref()))
    }

    /// How it was routed, for the answer's head.
    pub(super) fn routed(&self, job: &Job) -> Routed {
        let routed = Routed::new(&self.member, self.overlap_blocks, &job.request_id);
        match &self.helper {
            Some(helper) => routed.prefilled(&helper.member, helper.overlap_blocks),
            None => routed,
        }
    }

    /// It failed. A prediction is taken back where the worker never began.
    pub(super) async fn give_up(self, job: &Job) -> Routed {
        let routed = self.routed(job);
        if let Some(predicted) = self.predicted {
            predicted.take_back(&job.app).await;
        }
        routed
    }
}
