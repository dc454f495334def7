//! A request's place at a target, from the choice to the end of the answer.

use std::sync::Arc;
use std::time::Instant;

use index::{SequenceHash, Target};

use crate::ask::Ask;
use crate::cost::Costed;
use crate::ledger::{BLOCKS_PER_LOCK, Booking};
use crate::prefill::PrefillKey;
use crate::scheduler::Scheduler;

/// A booking. Dropping it frees all it has booked, once; also if its target was removed meanwhile.
#[must_use = "the load of a request counts only while its ticket lives"]
#[derive(Debug)]
pub struct Ticket {
    scheduler: Arc<Scheduler>,
    costed: Costed,
    prefill: Option<PrefillKey>,
    booking: Booking,
    /// The chains counted as active on the target.
    held: Vec<Arc<[SequenceHash]>>,
}

impl Ticket {
    /// The ticket of a choice just booked.
    pub(crate) fn new(scheduler: Arc<Scheduler>, costed: Costed, prefill: Option<PrefillKey>, booking: Booking) -> Self {
        Ticket { scheduler, costed, prefill, booking, held: Vec::new() }
    }

    /// Counts the blocks of the request, in pieces, so that a long prompt holds the lock no longer than a short one (rule 16).
    pub(crate) fn hold_blocks(&mut self, ask: &Ask<'_>) {
        let target = self.target();
        let mut expected = self.booking.expected_blocks;
        for chain in ask.prompts.iter().filter_map(|prompt| prompt.chain(self.costed.block_size)) {
            for piece in chain.hashes.chunks(BLOCKS_PER_LOCK) {
                self.scheduler.ledger.lock().hold(target, piece, &mut expected);
            }
            self.held.push(Arc::clone(&chain.hashes));
        }
        if expected > 0 {
            self.scheduler.ledger.lock().settle(target, expected);
        }
    }

    /// Where the request goes.
    pub fn target(&self) -> Target {
        self.costed.target
    }

    /// What the choice saw of the target, this request's own load not included.
    pub fn costed(&self) -> &Costed {
        &self.costed
    }

    /// The first event of the answer has come: the prefill is over. Later calls do nothing.
    pub fn first_event(&self, now: Instant) {
        if let Some(prefill) = self.prefill {
            self.scheduler.ledger.lock().first_event(now, self.target(), prefill);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let target = self.target();
        self.scheduler.ledger.lock().unbook(target, self.prefill, &self.booking);
        // From the back to the front, so that what is held of a prompt is a leading part of it at all times.
        for chain in self.held.iter().rev() {
            for piece in chain.chunks(BLOCKS_PER_LOCK).rev() {
                self.scheduler.ledger.lock().release(target, piece);
            }
        }
    }
}
