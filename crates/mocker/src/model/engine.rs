//! The scheduler: which sequences compute how many tokens in a step.

use std::collections::VecDeque;
use std::time::Duration;

use super::blocks::Pool;
use super::request::Request;
use super::{ConfigError, EngineConfig, Finish, NewRequest, Output, RequestId, Step, Style};

/// Unfinished requests an engine holds at most, waiting and running.
pub const MAX_UNFINISHED: usize = 16_384;

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The prompt holds no token.
    #[error("the prompt is empty")]
    Empty,
    /// The prompt leaves no room for one token of output.
    #[error("the prompt has {tokens} tokens, more than fit")]
    TooLong {
        /// Tokens of the prompt.
        tokens: usize,
    },
    /// [`MAX_UNFINISHED`] requests are here already.
    #[error("{MAX_UNFINISHED} requests are waiting or running already")]
    Busy,
}

/// How full the engine is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Sequences in the batch.
    pub running: usize,
    /// Sequences that wait for room.
    pub waiting: usize,
    /// Blocks referred to by some sequence.
    pub used_blocks: usize,
    /// All other blocks.
    pub free_blocks: usize,
}

/// What the engine did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Scheduler steps.
    pub steps: u64,
    /// Prompt tokens of requests that were scheduled.
    pub prompt_tokens: u64,
    /// Those of them found in the cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Sequences that lost their blocks to others and began again.
    pub preemptions: u64,
    /// Sequences that ended by themselves.
    pub finished: u64,
    /// Sequences aborted.
    pub aborted: u64,
}

/// An engine: see the module.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    pool: Pool,
    waiting: VecDeque<Request>,
    running: Vec<Request>,
    next_id: u64,
    totals: Totals,
}

/// Tokens planned in the step at hand.
#[derive(Default)]
struct Plan {
    budget: usize,
    prefill_tokens: usize,
    decodes: usize,
}

impl Engine {
    /// An idle engine with an empty cache.
    pub fn new(config: EngineConfig) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            pool: Pool::new(config.style, config.blocks),
            config,
            waiting: VecDeque::new(),
            running: Vec::new(),
            next_id: 0,
            totals: Totals::default(),
        })
    }

    /// Queues a request.
    pub fn submit(&mut self, new: NewRequest) -> Result<RequestId, Refused> {
        let tokens = new.prompt.len();
        if tokens == 0 {
            return Err(Refused::Empty);
        }
        if tokens >= self.config.max_model_len as usize {
            return Err(Refused::TooLong { tokens });
        }
        if self.waiting.len() + self.running.len() >= MAX_UNFINISHED {
            return Err(Refused::Busy);
        }
        let id = RequestId(self.next_id);
        self.next_id += 1;
        self.waiting.push_back(Request::new(id, new, self.config.hash_seed, self.config.max_model_len as usize));
        Ok(id)
    }

    /// Drops a request; what it stored stays cached. Does nothing for one that has ended.
    pub fn abort(&mut self, id: RequestId) {
        if let Some(at) = self.waiting.iter().position(|request| request.id == id) {
            self.waiting.remove(at);
        } else if let Some(at) = self.running.iter().position(|request| request.id == id) {
            let request = self.running.remove(at);
            self.retire(request);
        } else {
            return;
        }
        self.totals.aborted += 1;
    }

    /// Empties the cache; its event leaves with the next step. Says false, and does nothing, while a sequence runs.
    pub fn reset_cache(&mut self) -> bool {
        self.pool.reset()
    }

    /// Plans and runs one step. `None` if there is nothing to compute: events of an idle engine wait, as real ones do.
    pub fn step(&mut self) -> Option<Step> {
        if self.waiting.is_empty() && self.running.is_empty() {
            return None;
        }
        let mut plan = Plan { budget: self.config.max_batched_tokens as usize, ..Plan::default() };
        let preempted = self.plan_running(&mut plan);
        if !preempted {
            self.plan_waiting(&mut plan);
        }
        let outputs = self.sample();
        self.totals.steps += 1;
        Some(Step { duration: self.duration(&plan), events: self.pool.take_events(), outputs })
    }

    /// How full the engine is now.
    pub fn gauges(&self) -> Gauges {
        Gauges { running: self.running.len(), waiting: self.waiting.len(), used_blocks: self.pool.used(), free_blocks: self.pool.free() }
    }

    /// What the engine did so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Every cached block hash with its number of copies, in no order: the truth that the events describe.
    pub fn contents(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        self.pool.contents()
    }

    /// Gives each running sequence its next tokens. Says whether one had to be preempted.
    fn plan_running(&mut self, plan: &mut Plan) -> bool {
        let block_size = self.block_size();
        let mut preempted = false;
        let mut at = 0;
        while at < self.running.len() && plan.budget > 0 {
            let request = &self.running[at];
            let tokens = request.computed + (request.len() - request.computed).min(plan.budget);
            if self.running[at].grow(tokens, &mut self.pool, block_size) {
                self.compute(at, tokens, plan);
                at += 1;
                continue;
            }
            preempted = true;
            self.preempt_last();
        }
        preempted
    }

    /// Starts waiting sequences, oldest first, until one does not fit.
    fn plan_waiting(&mut self, plan: &mut Plan) {
        let block_size = self.block_size();
        while plan.budget > 0 && self.running.len() < self.config.max_sequences as usize {
            let Some(request) = self.waiting.front_mut() else { return };
            let hits = request.hits(&self.pool, block_size);
            let hit_tokens = hits.len() * block_size;
            let tokens = if request.prefilled { request.len() } else { hit_tokens + (request.len() - hit_tokens).min(plan.budget) };
            if !self.pool.has_room(&hits, tokens.div_ceil(block_size) - hits.len()) {
                return;
            }
            let Some(mut request) = self.waiting.pop_front() else { return };
            request.start_on(&hits, &mut self.pool, block_size);
            request.grow(tokens, &mut self.pool, block_size);
            // Preempted, it has to compute everything itself.
            if std::mem::take(&mut request.prefilled) {
                request.computed = tokens - 1;
            }
            if request.cached_tokens.is_none() {
                request.cached_tokens = Some(hit_tokens as u32);
                self.totals.prompt_tokens += request.prompt_tokens as u64;
                self.totals.cached_tokens += hit_tokens as u64;
            }
            self.running.push(request);
            self.compute(self.running.len() - 1, tokens, plan);
        }
    }

    /// Computes a running sequence up to `tokens` and publishes the blocks this fills.
    fn compute(&mut self, at: usize, tokens: usize, plan: &mut Plan) {
        let block_size = self.block_size();
        let request = &mut self.running[at];
        let new = tokens - request.computed;
        plan.budget -= new;
        let prefill = request.computed < request.prompt_tokens;
        if prefill || new > 1 {
            plan.prefill_tokens += new;
        } else {
            plan.decodes += 1;
        }
        request.computed = tokens;
        match self.config.style {
            Style::Sglang if !prefill => {}
            Style::Vllm | Style::Sglang => request.publish(&mut self.pool, block_size),
        }
    }

    /// One token for every sequence whose tokens are all computed.
    fn sample(&mut self) -> Vec<Output> {
        let mut outputs = Vec::new();
        let mut at = 0;
        while at < self.running.len() {
            let request = &mut self.running[at];
            if request.computed < request.len() {
                at += 1;
                continue;
            }
            let token = self.config.vocabulary.token(request.answer, request.generated() as u32);
            request.push(token);
            let finish = if Some(token) == self.config.vocabulary.eos && !request.answer.ignore_eos {
                Some(Finish::Stop)
            } else {
                (request.len() >= request.limit).then_some(Finish::Length)
            };
            outputs.push(Output { request: request.id, token, cached_tokens: request.cached_tokens.unwrap_or(0), finish });
            self.totals.generated_tokens += 1;
            if finish.is_some() {
                let request = self.running.remove(at);
                self.retire(request);
                self.totals.finished += 1;
            } else {
                at += 1;
            }
        }
        outputs
    }

    fn preempt_last(&mut self) {
        let Some(mut request) = self.running.pop() else { return };
        request.release(&mut self.pool);
        self.totals.preemptions += 1;
        self.waiting.push_front(request);
    }

    fn retire(&mut self, mut request: Request) {
        request.publish(&mut self.pool, self.config.block_size.get() as usize);
        request.release(&mut self.pool);
    }

    fn duration(&self, plan: &Plan) -> Duration {
        let prefill = plan.prefill_tokens as f64 / self.config.prefill_tokens_per_s;
        let decode = if plan.decodes > 0 { 1.0 / self.config.decode_tokens_per_s } else { 0.0 };
        // Rates are positive and finite by `EngineConfig::check`; a duration that overflows is cut.
        Duration::try_from_secs_f64(prefill + decode).unwrap_or(Duration::MAX)
    }

    fn block_size(&self) -> usize {
        self.config.block_size.get() as usize
    }
}
