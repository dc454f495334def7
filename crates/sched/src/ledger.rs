//! The load of every target: what live tickets have booked, by slot.
//!
//! Everything here happens under the scheduler's lock. A row belongs to one generation of its slot: a
//! later target that gets the slot starts from zero, and what a ticket of an earlier one gives back is ignored.

use std::time::Instant;

use index::{SequenceHash, Target};

use crate::ask::{Answer, Ask};
use crate::blocks::ActiveBlocks;
use crate::prefill::{PrefillKey, Prefills};

/// How many blocks are looked up or counted while the lock is held once (rule 16).
pub(crate) const BLOCKS_PER_LOCK: usize = 512;

/// The load of one target. All zero for one nothing is booked on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Prompt tokens being prefilled.
    pub active_prefill_tokens: u64,
    /// Prompt blocks of running requests; blocks that requests share are counted once.
    pub active_blocks: u64,
    /// Sequences: each prompt of a list counts, times the answers wanted for it.
    pub active_requests: u64,
    /// Bodies sent and not over.
    pub in_flight: u64,
    /// The prefill speed learned from streams; not load, and kept when all is quiet.
    pub prefill_tokens_per_second: Option<f64>,
}

/// What a choice reads of a target's load.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Standing {
    pub(crate) prefill_tokens: u64,
    pub(crate) active_blocks: u64,
    pub(crate) active_requests: u64,
}

/// What a ticket books besides blocks that can be shared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Booking {
    pub(crate) prefill_tokens: u64,
    pub(crate) answer: Answer,
    pub(crate) active_requests: u64,
    /// Full blocks that nothing can share.
    pub(crate) private_blocks: u64,
    /// Blocks expected to become active, until [`Ledger::hold`] has counted those that did.
    pub(crate) expected_blocks: u64,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Open,
    Removed,
}

/// What a choice reads comes first and lies in one cache line, which is what its time goes by in a large fleet.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Row {
    generation: u32,
    state: State,
    /// Distinct blocks in [`ActiveBlocks`], and private ones.
    active_blocks: u64,
    /// Blocks of tickets just made, not yet in `active_blocks`.
    expected_blocks: u64,
    active_requests: u64,
    prefills: Prefills,
    in_flight: u64,
    /// The number of the choice that was made last for this target; zero for none.
    last_choice: u64,
}

/// The rows of all targets and the blocks active on them.
#[derive(Debug)]
pub(crate) struct Ledger {
    rows: Vec<Row>,
    blocks: ActiveBlocks,
    /// Choices made so far; also numbers bookings.
    choices: u64,
    /// Walks that ended early at [`BLOCKS_PER_LOCK`].
    short_walks: u64,
    shared: Shared,
}

/// Scratch of [`Ledger::find_shared`]: for each slot, how many of the request's blocks are active there; empty where none is anywhere.
#[derive(Debug, Default)]
struct Shared {
    blocks: Vec<u64>,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Ledger { rows: Vec::new(), blocks: ActiveBlocks::new(), choices: 0, short_walks: 0, shared: Shared::default() }
    }

    /// Makes sure the target has a row, ends the prefills whose time has come, and reads it. `None` where the target was
    /// removed.
    #[inline]
    pub(crate) fn open(&mut self, now: Instant, target: Target) -> Option<Standing> {
        if let Some(row) = self.rows.get(target.slot.index())
            && row.generation == target.generation
            && !row.prefills.has_due(now)
        {
            return row.is_open_to(target).then(|| row.standing());
        }
        self.refresh(now, target);
        self.standing(target)
    }

    /// The rare part of [`Ledger::open`].
    #[cold]
    fn refresh(&mut self, now: Instant, target: Target) {
        let at = target.slot.index();
        if at >= self.rows.len() {
            self.rows.resize_with(at + 1, Row::default);
        }
        let row = &mut self.rows[at];
        if is_later(target.generation, row.generation) {
            *row = Row { generation: target.generation, ..Row::default() };
        }
        row.prefills.expire(now);
    }

    /// What [`Ledger::open`] read last.
    #[inline]
    pub(crate) fn standing(&self, target: Target) -> Option<Standing> {
        self.row(target).map(Row::standing)
    }

    /// Forgets the load of a target. What its tickets give back later is ignored.
    pub(crate) fn remove(&mut self, now: Instant, target: Target) {
        if self.open(now, target).is_some() {
            self.rows[target.slot.index()] = Row { generation: target.generation, state: State::Removed, ..Row::default() };
        }
    }

    /// Looks up, for all targets at once, how many blocks of the request are active there. Bounded by [`BLOCKS_PER_LOCK`]: beyond so
    /// many pieces of its prompts blocks count as not active, which makes a target look busier than it will be.
    pub(crate) fn find_shared(&mut self, ask: &Ask<'_>) {
        let Shared { blocks } = &mut self.shared;
        blocks.clear();
        let mut budget = BLOCKS_PER_LOCK;
        for chain in ask.prompts.iter().flat_map(|prompt| &prompt.chains) {
            self.blocks.walk(&chain.hashes, &mut budget, |target, length| {
                let at = target.slot.index();
                // Blocks of a removed target stay in the table until its tickets are gone.
                let is_current = self.rows.get(at).is_some_and(|row| row.generation == target.generation);
                if is_current {
                    if blocks.is_empty() {
                        blocks.resize(self.rows.len(), 0);
                    }
                    blocks[at] += length;
                }
            });
            if budget == 0 {
                self.short_walks += 1;
                break;
            }
        }
    }

    /// How many blocks of the request last looked up are active on the target, which is open.
    #[inline]
    pub(crate) fn shared_blocks(&self, target: Target) -> u64 {
        self.shared.blocks.get(target.slot.index()).copied().unwrap_or(0)
    }

    /// The load of a target, as of the last [`Ledger::open`] of it.
    pub(crate) fn load(&self, target: Target) -> Load {
        let Some(row) = self.row(target) else { return Load::default() };
        Load {
            active_prefill_tokens: row.prefills.tokens(),
            active_blocks: row.active_blocks + row.expected_blocks,
            active_requests: row.active_requests,
            in_flight: row.in_flight,
            prefill_tokens_per_second: row.prefills.tokens_per_second(),
        }
    }

    /// When the target was last chosen, as a number that grows with every choice.
    pub(crate) fn last_choice(&self, target: Target) -> u64 {
        self.row(target).map_or(0, |row| row.last_choice)
    }

    /// Books a choice. The target was opened under the same lock.
    pub(crate) fn book(&mut self, now: Instant, target: Target, booking: &Booking) -> Option<PrefillKey> {
        self.choices += 1;
        let number = self.choices;
        let row = self.row_mut(target)?;
        row.last_choice = number;
        row.in_flight += 1;
        row.active_requests += booking.active_requests;
        row.active_blocks += booking.private_blocks;
        row.expected_blocks += booking.expected_blocks;
        (booking.prefill_tokens > 0).then(|| row.prefills.begin(now, number, booking.prefill_tokens, booking.answer))
    }

    /// Counts blocks as active, at most [`BLOCKS_PER_LOCK`] of them; those that are new there come out of `expected`.
    pub(crate) fn hold(&mut self, target: Target, blocks: &[SequenceHash], expected: &mut u64) {
        let fresh = self.blocks.hold(target, blocks);
        let arrived = fresh.min(*expected);
        *expected -= arrived;
        if let Some(row) = self.row_mut(target) {
            row.active_blocks += fresh;
            row.expected_blocks -= arrived;
        }
    }

    /// Ends the expectation of a ticket whose blocks are all counted.
    pub(crate) fn settle(&mut self, target: Target, expected: u64) {
        if let Some(row) = self.row_mut(target) {
            row.expected_blocks -= expected;
        }
    }

    /// Takes blocks back that one [`Ledger::hold`] has counted.
    pub(crate) fn release(&mut self, target: Target, blocks: &[SequenceHash]) {
        let freed = self.blocks.release(target, blocks);
        if let Some(row) = self.row_mut(target) {
            row.active_blocks -= freed;
        }
    }

    /// The first event of a stream: its prefill is over.
    pub(crate) fn first_event(&mut self, now: Instant, target: Target, prefill: PrefillKey) {
        if let Some(row) = self.row_mut(target) {
            row.prefills.first_event(now, prefill);
        }
    }

    /// Takes a booking back, except for blocks that can be shared.
    pub(crate) fn unbook(&mut self, target: Target, prefill: Option<PrefillKey>, booking: &Booking) {
        let Some(row) = self.row_mut(target) else { return };
        if let Some(prefill) = prefill {
            row.prefills.abandon(prefill);
        }
        row.in_flight -= 1;
        row.active_requests -= booking.active_requests;
        row.active_blocks -= booking.private_blocks;
    }

    /// Distinct blocks active anywhere.
    pub(crate) fn block_count(&self) -> usize {
        self.blocks.len()
    }

    pub(crate) fn short_walks(&self) -> u64 {
        self.short_walks
    }

    /// Whether something can be booked on the target, as of the last [`Ledger::open`] of it.
    pub(crate) fn is_open(&self, target: Target) -> bool {
        self.row(target).is_some()
    }

    #[inline]
    fn row(&self, target: Target) -> Option<&Row> {
        self.rows.get(target.slot.index()).filter(|row| row.is_open_to(target))
    }

    fn row_mut(&mut self, target: Target) -> Option<&mut Row> {
        let row = self.rows.get_mut(target.slot.index())?;
        row.is_open_to(target).then_some(row)
    }
}

impl Row {
    #[inline]
    fn is_open_to(&self, target: Target) -> bool {
        self.generation == target.generation && matches!(self.state, State::Open)
    }

    #[inline]
    fn standing(&self) -> Standing {
        Standing {
            prefill_tokens: self.prefills.tokens(),
            active_blocks: self.active_blocks + self.expected_blocks,
            active_requests: self.active_requests,
        }
    }
}

/// Generations wrap around, so the nearer way round decides.
fn is_later(generation: u32, than: u32) -> bool {
    generation != than && generation.wrapping_sub(than) < u32::MAX / 2
}
