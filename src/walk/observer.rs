//! What is learned and freed as an answer goes by: load, metrics, and the self-check of rule 11.

use std::{sync::Arc, time::Instant};

use engine::{End, Observer, Summary, Usage};
use feed::{Observation, Trust};
use index::{LocalHash, Seed};
use tracing::warn;

use super::{Held, Labels, Prepared, count::Inflight, long::Booked};
use crate::{app::App, fleet::Member, metrics::Outcome};

/// Watches one answer. Dropping it with the answer frees its load.
pub(crate) struct Watch {
    pub(crate) app: Arc<App>,
    pub(crate) labels: Labels,
    pub(crate) ticket: Booked,
    pub(crate) inflight: Inflight,
    pub(crate) member: Member,
    pub(crate) started: Instant,
    pub(crate) client_error: bool,
    /// What the answer can be compared with; `None` where it proves nothing.
    pub(crate) check: Option<Check>,
}

/// One prompt as it was when the request was dispatched.
pub(crate) struct Check {
    chain: Arc<[LocalHash]>,
    seed: Seed,
    prompt_tokens: u64,
    dispatched: Instant,
    /// In the device lane, usable (rule 3).
    predicted_blocks: u32,
    /// How often the rank's cache had been emptied by then.
    emptied: u64,
}

impl Observer for Watch {
    fn first_event(&mut self) {
        self.ticket.first_event(Instant::now());
        self.app.metrics.first_event.get_or_create(&self.labels.model()).observe(self.started.elapsed().as_secs_f64());
    }

    fn ended(self, summary: Summary) {
        let Self { app, labels, ticket, inflight, member, started, client_error, check } = self;
        drop(ticket);
        drop(inflight);
        let outcome = match &summary.end {
            End::Complete if client_error => Outcome::client_error,
            End::Complete => Outcome::success,
            End::Broken(broken) => {
                warn!(worker = member.worker.id(), model = &*labels.model, %broken, "an answer broke off");
                Outcome::broken
            }
            End::ClientLeft => {
                app.metrics.client_left.inc();
                Outcome::client_left
            }
        };
        labels.count(&app.metrics, outcome, started.elapsed());
        if let Some(usage) = summary.usage.filter(|usage| is_plausible(usage, &app)) {
            let model = labels.model();
            app.metrics.input_tokens.get_or_create(&model).inc_by(usage.prompt_tokens);
            app.metrics.output_tokens.get_or_create(&model).inc_by(usage.completion_tokens);
            if let Some(check) = check {
                check.compare(&app, &member, &usage, &model);
            }
        }
    }
}

/// Most tokens one answer can speak of: far above any context, and so few that a counter cannot wrap by a lie.
const MOST_TOKENS: u64 = 1 << 32;

/// Counts what an engine reports and cannot be.
fn is_plausible(usage: &Usage, app: &App) -> bool {
    let plausible = usage.prompt_tokens <= MOST_TOKENS
        && usage.completion_tokens <= MOST_TOKENS
        && usage.cached_tokens.is_none_or(|cached| cached <= usage.prompt_tokens);
    if !plausible {
        app.metrics.implausible_usage.inc();
    }
    plausible
}

impl Check {
    /// What the answer to a request will be compared with. A list of prompts, or more than one choice, proves nothing
    /// (rule 11).
    pub(crate) fn of(prepared: &Prepared, member: &Member, held: &Held, dispatched: Instant) -> Option<Self> {
        let request = &prepared.request;
        if prepared.is_leg || request.n > 1 || request.best_of.is_some_and(|best_of| best_of > 1) || request.skips_cache {
            return None;
        }
        Some(Self {
            chain: prepared.plan.only_chain(member.cut())?.clone(),
            seed: Seed::new(prepared.served.adapter.as_deref(), request.salt.as_deref()),
            prompt_tokens: prepared.plan.tokens(),
            dispatched,
            predicted_blocks: held.overlap.device_usable_blocks() as u32,
            emptied: member.rank.emptied(),
        })
    }

    /// The same for a word that may be wrong.
    pub(super) fn judge(self, app: &App, member: &Member, usage: &Usage, model: &crate::metrics::ModelLabel) {
        if is_plausible(usage, app) {
            self.compare(app, member, usage, model);
        }
    }

    /// Rule 11: what the engine reports against what was predicted.
    fn compare(self, app: &App, member: &Member, usage: &Usage, model: &crate::metrics::ModelLabel) {
        let Some(cached) = usage.cached_tokens else { return };
        let size = u64::from(member.block_size.get());
        app.metrics.cached_tokens.get_or_create(model).inc_by(cached);
        app.metrics.predicted_tokens.get_or_create(model).inc_by(u64::from(self.predicted_blocks) * size);
        if usage.prompt_tokens != self.prompt_tokens {
            // Other tokens than the engine's make other blocks: nothing follows for the index.
            member.worker.count_mismatch(self.prompt_tokens, usage.prompt_tokens);
            return;
        }
        member.rank.follow();
        if member.rank.emptied() != self.emptied {
            // The answer tells of a cache that is gone.
            return;
        }
        // Without events the engine's word is no better than what was predicted, which has a time of its own.
        let (Some(source), Some(status)) = (&member.rank.source, member.rank.status()) else { return };
        let reported_blocks = (cached / size) as u32;
        let known = self.chain.len().min(reported_blocks as usize);
        match status.trust {
            // Its own events have told of the blocks meanwhile, and will tell when they go; a burst hits what is on its way.
            Trust::Exact => {}
            Trust::Blind | Trust::Recovering | Trust::Degraded => {
                if reported_blocks > self.predicted_blocks {
                    member.rank.confirm(app.fleet.indexes(member.base(), member.block_size), &self.chain[..known]);
                }
            }
        }
        source.reins().observe(Observation {
            rank: member.rank.dp_rank,
            chain: self.chain.to_vec(),
            seed: self.seed,
            dispatched: self.dispatched,
            predicted_blocks: self.predicted_blocks,
            reported_blocks,
        });
    }
}
