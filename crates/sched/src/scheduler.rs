//! Choosing a target for a request, and booking it there, in one step.

use std::sync::Arc;
use std::time::Instant;

use index::{BlockSize, Target};
use parking_lot::Mutex;
use rand::Rng;
use smallvec::SmallVec;

use crate::ask::{Ask, Shape};
use crate::candidate::{Candidate, Exclusion};
use crate::config::{BadWeight, Config, Mode};
use crate::cost::{Burden, Costed, Scale};
use crate::ledger::{Booking, Ledger, Load};
use crate::pick;
use crate::refusal::NoWorker;
use crate::ticket::Ticket;

/// Chooses targets and knows what is booked on each. One per process: its ledger covers all models.
#[derive(Debug)]
pub struct Scheduler {
    config: Config,
    /// Guards all load. A choice and its booking happen under it, in one hold; blocks are counted right after in holds of their own.
    pub(crate) ledger: Mutex<Ledger>,
}

/// What `/route` shows.
#[derive(Clone, Debug)]
pub struct Preview {
    /// What [`Scheduler::reserve`] would choose now; modes and ties that draw at random may draw otherwise next time.
    pub chosen: Result<Target, NoWorker>,
    /// Every candidate, excluded ones too, in the order given.
    pub candidates: Vec<Costed>,
}

/// Counters and sizes of the scheduler as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Distinct prompt blocks active on any target.
    pub active_blocks: usize,
    /// Requests whose blocks were not all looked up because their number reached the bound of one lock hold.
    pub short_walks: u64,
}

/// One request with its candidates, measured before the lock is taken.
struct Round<'a> {
    now: Instant,
    ask: &'a Ask<'a>,
    candidates: &'a [Candidate],
    prompt_tokens: u64,
    /// One for each block size among the candidates.
    shapes: SmallVec<[Shape; 1]>,
    /// Positions of the candidates that can be chosen.
    eligible: Vec<usize>,
}

impl Scheduler {
    /// A scheduler with nothing booked.
    pub fn new(config: Config) -> Result<Arc<Scheduler>, BadWeight> {
        config.check()?;
        Ok(Arc::new(Scheduler { config, ledger: Mutex::new(Ledger::new()) }))
    }

    /// The mode and weights in use.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Chooses a target and books the request there until the ticket is dropped.
    ///
    /// Choice and booking are one step: two requests at the same time see each other, whatever their order. The
    /// request's blocks are counted right after the choice, in pieces; until then the number of blocks it was expected
    /// to add stands in for them.
    pub fn reserve(
        self: &Arc<Self>,
        now: Instant,
        ask: &Ask<'_>,
        candidates: &[Candidate],
        rng: &mut impl Rng,
    ) -> Result<Ticket, NoWorker> {
        let mut round = Round::new(now, ask, candidates);
        let mut ticket = {
            let mut ledger = self.ledger.lock();
            let chosen = self.choose(&mut ledger, &mut round, rng)?;
            let costed = round.costed(&round.scale(&self.config, &ledger), &ledger, &candidates[chosen]);
            let booking = self.booking(&round, &ledger, &costed);
            let prefill = ledger.book(now, costed.target, &booking);
            drop(ledger);
            Ticket::new(Arc::clone(self), costed, prefill, booking)
        };
        ticket.hold_blocks(ask);
        Ok(ticket)
    }

    /// What [`Scheduler::reserve`] would choose and what each candidate would cost, without booking anything.
    pub fn preview(&self, now: Instant, ask: &Ask<'_>, candidates: &[Candidate], rng: &mut impl Rng) -> Preview {
        let mut round = Round::new(now, ask, candidates);
        let mut ledger = self.ledger.lock();
        let chosen = self.choose(&mut ledger, &mut round, rng).map(|at| candidates[at].target);
        let scale = round.scale(&self.config, &ledger);
        let candidates = candidates.iter().map(|candidate| round.costed(&scale, &ledger, candidate)).collect();
        Preview { chosen, candidates }
    }

    /// What is booked on a target.
    pub fn load(&self, now: Instant, target: Target) -> Load {
        let mut ledger = self.ledger.lock();
        if ledger.open(now, target) { ledger.load(target) } else { Load::default() }
    }

    /// The target is gone: its bookings are dropped, and nothing can be booked on it any more. Tickets that still live free nothing else.
    pub fn remove_target(&self, now: Instant, target: Target) {
        self.ledger.lock().remove(now, target);
    }

    /// Counters and sizes for metrics.
    pub fn counters(&self) -> Counters {
        let ledger = self.ledger.lock();
        Counters { active_blocks: ledger.block_count(), short_walks: ledger.short_walks() }
    }

    /// The position of the chosen candidate.
    fn choose(&self, ledger: &mut Ledger, round: &mut Round<'_>, rng: &mut impl Rng) -> Result<usize, NoWorker> {
        round.find_eligible(ledger);
        ledger.find_shared(round.ask);
        if self.config.mode == Mode::Direct && !round.ask.pinned {
            return Err(NoWorker::TargetRequired);
        }
        if round.eligible.is_empty() {
            return Err(round.refusal(ledger));
        }
        let requests = || round.eligible_values(|candidate| ledger.load(candidate.target).active_requests);
        let at = match self.config.mode {
            Mode::Kv => pick::softmax(&round.costs(&self.config, ledger), self.config.temperature, rng),
            Mode::RoundRobin => pick::first_lowest(&round.eligible_values(|candidate| ledger.last_choice(candidate.target))),
            Mode::Random => pick::random(round.eligible.len(), rng),
            Mode::PowerOfTwo => pick::power_of_two(&requests(), rng),
            // A request in mode direct may name a worker and leave its ranks open.
            Mode::LeastLoaded | Mode::Direct => pick::lowest(&requests(), rng),
        };
        Ok(round.eligible[at])
    }

    fn booking(&self, round: &Round<'_>, ledger: &Ledger, costed: &Costed) -> Booking {
        let shape = round.shape(costed.block_size);
        Booking {
            prefill_tokens: if self.config.track_prefill { costed.new_prefill_tokens } else { 0 },
            answer: round.ask.answer,
            active_requests: round.ask.active_requests(),
            private_blocks: shape.private_blocks(),
            expected_blocks: shape.hashed_blocks.saturating_sub(ledger.shared_blocks(costed.target)),
        }
    }
}

impl<'a> Round<'a> {
    fn new(now: Instant, ask: &'a Ask<'a>, candidates: &'a [Candidate]) -> Self {
        let mut shapes: SmallVec<[Shape; 1]> = SmallVec::new();
        for candidate in candidates {
            if shapes.iter().all(|shape| shape.block_size != candidate.block_size) {
                shapes.push(Shape::of(ask, candidate.block_size));
            }
        }
        let eligible = Vec::with_capacity(candidates.len());
        Round { now, ask, candidates, prompt_tokens: ask.prompt_tokens(), shapes, eligible }
    }

    fn find_eligible(&mut self, ledger: &mut Ledger) {
        for (at, candidate) in self.candidates.iter().enumerate() {
            let is_open = ledger.open(self.now, candidate.target);
            if is_open && candidate.excluded.is_none() {
                self.eligible.push(at);
            }
        }
    }

    fn refusal(&self, ledger: &Ledger) -> NoWorker {
        if self.candidates.is_empty() {
            return NoWorker::NoCandidates;
        }
        NoWorker::AllExcluded(self.candidates.iter().filter_map(|candidate| exclusion(ledger, candidate)).collect())
    }

    fn eligible_values<T>(&self, value: impl Fn(&Candidate) -> T) -> Vec<T> {
        self.eligible.iter().map(|at| value(&self.candidates[*at])).collect()
    }

    /// The costs of the eligible candidates.
    fn costs(&self, config: &Config, ledger: &Ledger) -> Vec<f64> {
        let scale = self.scale(config, ledger);
        self.eligible_values(|candidate| {
            let shape = self.shape(candidate.block_size);
            scale.cost(candidate, shape.prompt_blocks, &burden(ledger, candidate, shape))
        })
    }

    fn costed(&self, scale: &Scale<'_>, ledger: &Ledger, candidate: &Candidate) -> Costed {
        let shape = self.shape(candidate.block_size);
        let costed = scale.costed(candidate, shape, &burden(ledger, candidate, shape));
        Costed { excluded: exclusion(ledger, candidate), ..costed }
    }

    fn scale<'c>(&self, config: &'c Config, ledger: &Ledger) -> Scale<'c> {
        let prefill_tokens = |at: &usize| ledger.load(self.candidates[*at].target).active_prefill_tokens;
        Scale {
            config,
            label: self.ask.label,
            prompt_tokens: self.prompt_tokens,
            least_prefill_tokens: self.eligible.iter().map(prefill_tokens).min().unwrap_or(0),
            pinned: self.ask.pinned,
        }
    }

    fn shape(&self, block_size: BlockSize) -> &Shape {
        let found = self.shapes.iter().find(|shape| shape.block_size == block_size);
        // `new` measured the request for the block size of every candidate.
        found.expect("a shape for each block size")
    }
}

/// Why the candidate is out: what the caller says, or that it was removed since the caller listed it.
fn exclusion(ledger: &Ledger, candidate: &Candidate) -> Option<Exclusion> {
    candidate.excluded.or_else(|| (!ledger.is_open(candidate.target)).then_some(Exclusion::Removed))
}

fn burden(ledger: &Ledger, candidate: &Candidate, shape: &Shape) -> Burden {
    let load = ledger.load(candidate.target);
    let added = shape.full_blocks.saturating_sub(ledger.shared_blocks(candidate.target));
    Burden { prefill_tokens: load.active_prefill_tokens, decode_blocks: load.active_blocks + added, active_requests: load.active_requests }
}
