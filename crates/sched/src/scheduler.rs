//! Choosing a target for a request, and booking it there, in one step.

use std::sync::Arc;
use std::time::Instant;

use index::{BlockSize, Target};
use parking_lot::Mutex;
use rand::Rng;
use smallvec::SmallVec;

use crate::ask::{Ask, Label, Shape};
use crate::candidate::{Candidate, Exclusion};
use crate::config::{BadWeight, Config, Mode};
use crate::cost::{Burden, Costed, Scale};
use crate::ledger::{Booking, Ledger, Load, Standing};
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

/// One request with its candidates.
struct Round<'a> {
    now: Instant,
    ask: &'a Ask<'a>,
    candidates: &'a [Candidate],
    prompt_tokens: u64,
    /// One for each block size among the candidates.
    shapes: SmallVec<[Shape; 1]>,
    /// The candidates that can be chosen.
    eligible: Vec<Eligible>,
    /// The smallest prefill under way at one of them.
    least_prefill_tokens: u64,
}

/// A candidate that can be chosen.
#[derive(Clone, Copy, Debug)]
struct Eligible {
    /// Its position.
    at: u32,
    /// The position of its shape.
    shape: u32,
    load: Standing,
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
            let costed = round.costed(&round.scale(&self.config), &ledger, &candidates[chosen]);
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
        let scale = round.scale(&self.config);
        let candidates = candidates.iter().map(|candidate| round.costed(&scale, &ledger, candidate)).collect();
        Preview { chosen, candidates }
    }

    /// What is booked on a target.
    pub fn load(&self, now: Instant, target: Target) -> Load {
        let mut ledger = self.ledger.lock();
        if ledger.open(now, target).is_some() { ledger.load(target) } else { Load::default() }
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
        let candidate = |eligible: &Eligible| &round.candidates[eligible.at as usize];
        let requests = || round.eligible.iter().map(|eligible| eligible.load.active_requests).collect::<Vec<_>>();
        let last_choices = || round.eligible.iter().map(|eligible| ledger.last_choice(candidate(eligible).target)).collect::<Vec<_>>();
        let at = match self.config.mode {
            Mode::Kv => pick::softmax(&round.costs(&self.config, ledger), self.config.temperature, rng),
            Mode::RoundRobin => pick::first_lowest(&last_choices()),
            Mode::Random => pick::random(round.eligible.len(), rng),
            Mode::PowerOfTwo => pick::power_of_two(&requests(), rng),
            // A request in mode direct may name a worker and leave its ranks open.
            Mode::LeastLoaded | Mode::Direct => pick::lowest(&requests(), rng),
        };
        Ok(round.eligible[at].at as usize)
    }

    fn booking(&self, round: &Round<'_>, ledger: &Ledger, costed: &Costed) -> Booking {
        let shape = round.shape(costed.block_size);
        Booking {
            prefill_tokens: match round.ask.label {
                Label::Prefill | Label::Decode if self.config.track_prefill => costed.new_prefill_tokens,
                Label::Prefill | Label::Decode | Label::DecodeOnly => 0,
            },
            answer: round.ask.answer,
            active_requests: round.ask.active_requests(),
            private_blocks: shape.private_blocks(),
            expected_blocks: shape.hashed_blocks.saturating_sub(ledger.shared_blocks(costed.target)),
        }
    }
}

impl<'a> Round<'a> {
    fn new(now: Instant, ask: &'a Ask<'a>, candidates: &'a [Candidate]) -> Self {
        let (shapes, eligible) = (SmallVec::new(), Vec::with_capacity(candidates.len()));
        Round { now, ask, candidates, prompt_tokens: ask.prompt_tokens(), shapes, eligible, least_prefill_tokens: 0 }
    }

    /// Opens the rows of all candidates, measures the request in the block size of each, and reads those that can be
    /// chosen. Once each: this is where the time goes in a large fleet.
    fn find_eligible(&mut self, ledger: &mut Ledger) {
        let mut least = u64::MAX;
        // The block size of the candidate before, and the position of its shape.
        let mut last = None;
        for (at, candidate) in (0..).zip(self.candidates) {
            let shape = match last {
                Some((block_size, shape)) if block_size == candidate.block_size => shape,
                Some(_) | None => self.shape_of(candidate.block_size),
            };
            last = Some((candidate.block_size, shape));
            let standing = ledger.open(self.now, candidate.target);
            if let (Some(load), None) = (standing, candidate.excluded) {
                least = least.min(load.prefill_tokens);
                self.eligible.push(Eligible { at, shape, load });
            }
        }
        self.least_prefill_tokens = if self.eligible.is_empty() { 0 } else { least };
    }

    /// The position of the shape for this block size; measures it if it is new.
    fn shape_of(&mut self, block_size: BlockSize) -> u32 {
        let known = self.shapes.iter().position(|shape| shape.block_size == block_size);
        let position = known.unwrap_or_else(|| {
            self.shapes.push(Shape::of(self.ask, block_size));
            self.shapes.len() - 1
        });
        position as u32
    }

    fn refusal(&self, ledger: &Ledger) -> NoWorker {
        if self.candidates.is_empty() {
            return NoWorker::NoCandidates;
        }
        NoWorker::AllExcluded(self.candidates.iter().filter_map(|candidate| exclusion(ledger, candidate)).collect())
    }

    /// The costs of the eligible candidates.
    fn costs(&self, config: &Config, ledger: &Ledger) -> Vec<f64> {
        let scale = self.scale(config);
        let tariffs: SmallVec<[_; 1]> =
            self.shapes.iter().map(|shape| (shape, scale.tariff(shape.block_size, shape.prompt_blocks))).collect();
        let tariffs = tariffs.as_slice();
        let cost = |eligible: &Eligible| {
            let candidate = &self.candidates[eligible.at as usize];
            let (shape, tariff) = &tariffs[eligible.shape as usize];
            tariff.cost(candidate, &burden(&eligible.load, ledger, candidate, shape))
        };
        self.eligible.iter().map(cost).collect()
    }

    fn costed(&self, scale: &Scale<'_>, ledger: &Ledger, candidate: &Candidate) -> Costed {
        let shape = self.shape(candidate.block_size);
        let burden = match ledger.standing(candidate.target) {
            Some(load) => burden(&load, ledger, candidate, shape),
            None => Burden { decode_blocks: shape.full_blocks, ..Burden::default() },
        };
        let costed = scale.costed(candidate, shape, &burden);
        Costed { excluded: exclusion(ledger, candidate), ..costed }
    }

    fn scale<'c>(&self, config: &'c Config) -> Scale<'c> {
        Scale {
            config,
            label: self.ask.label,
            prompt_tokens: self.prompt_tokens,
            least_prefill_tokens: self.least_prefill_tokens,
            pinned: self.ask.pinned,
        }
    }

    fn shape(&self, block_size: BlockSize) -> &Shape {
        let found = self.shapes.iter().find(|shape| shape.block_size == block_size);
        // `find_eligible` measured the request for the block size of every candidate.
        found.expect("a shape for each block size")
    }
}

/// Why the candidate is out: what the caller says, or that it was removed since the caller listed it.
fn exclusion(ledger: &Ledger, candidate: &Candidate) -> Option<Exclusion> {
    candidate.excluded.or_else(|| (!ledger.is_open(candidate.target)).then_some(Exclusion::Removed))
}

#[inline]
fn burden(load: &Standing, ledger: &Ledger, candidate: &Candidate, shape: &Shape) -> Burden {
    let added = shape.full_blocks.saturating_sub(ledger.shared_blocks(candidate.target));
    Burden { prefill_tokens: load.prefill_tokens, decode_blocks: load.active_blocks + added, active_requests: load.active_requests }
}
