//! What other frontends have in flight, booked here as if it had been sent from here.
//!
//! As Dynamo 1.6.1 does: best effort, by local receive time, never told on. A request is booked until it is freed, its frontend
//! is gone, or nothing was told of it for [`FORGOTTEN_AFTER`](super::booked::FORGOTTEN_AFTER).

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use index::{BlockSize, SequenceHash};
use parking_lot::Mutex;
use sched::{Answer, Ask, Candidate, Chain, Depths, Label, Overlap, Prompt, Scheduler, Ticket};
use wire::load::{ActiveSequenceEvent, AddRequest, LoadError, SequenceData, decode_sequences};

use super::booked::{Booked, Request};
use crate::{
    fleet::{Directory, Rank},
    planes::listeners::Hear,
};

/// The publishers of this frontend, which need not be followed. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Own(Arc<Mutex<BTreeSet<u64>>>);

impl Own {
    pub(super) fn add(&self, publisher: u64) {
        self.0.lock().insert(publisher);
    }

    pub(super) fn remove(&self, publisher: u64) {
        self.0.lock().remove(&publisher);
    }

    pub(super) fn holds(&self, publisher: u64) -> bool {
        self.0.lock().contains(&publisher)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

/// Hears of others' requests.
pub(crate) struct Heard {
    /// This frontend, whose own events are none of others'.
    router_id: u64,
    directory: Directory,
    scheduler: Arc<Scheduler>,
    /// Held for one look-up or insertion.
    booked: Mutex<Booked>,
    pub(super) counters: HeardCounters,
}

/// What came of the events.
#[derive(Debug, Default)]
pub(crate) struct HeardCounters {
    pub(crate) applied: AtomicU64,
    /// Of a worker or a rank not known here, of a request not known here, too many at once, or with too long an id.
    pub(crate) dropped: AtomicU64,
    pub(crate) unreadable: AtomicU64,
}

impl Heard {
    pub(super) fn new(router_id: u64, directory: Directory, scheduler: Arc<Scheduler>) -> Self {
        Self { router_id, directory, scheduler, booked: Mutex::default(), counters: HeardCounters::default() }
    }

    /// Requests of others that are booked now.
    pub(crate) fn len(&self) -> usize {
        self.booked.lock().len()
    }

    /// Lets go of what its frontend has forgotten.
    pub(super) fn expire(&self, now: Instant) {
        let gone = self.booked.lock().forgotten(now);
        // Their load is freed outside of the lock.
        drop(gone);
    }

    fn apply(&self, publisher: u64, event: ActiveSequenceEvent) -> Option<()> {
        match event.data {
            SequenceData::AddRequest(ref add) => {
                let blocks = add.token_sequence.as_ref().map_or(0, Vec::len);
                {
                    let booked = self.booked.lock();
                    if booked.holds(&event.request_id) {
                        return Some(());
                    }
                    if !booked.has_room(&event.request_id, blocks) {
                        return None;
                    }
                }
                let ticket = self.book(&event, add)?;
                let request = Request { ticket, blocks, worker_id: event.worker_id, publisher, told: Instant::now() };
                // Dropped only after the lock is free.
                let refused = self.booked.lock().hold(event.request_id, request);
                if refused.is_some() {
                    return None;
                }
            }
            SequenceData::MarkPrefillCompleted => {
                self.booked.lock().prefilled(&event.request_id, event.worker_id, Instant::now())?;
            }
            SequenceData::Free => {
                let freed = self.booked.lock().free(&event.request_id, event.worker_id);
                drop(freed?);
            }
        }
        Some(())
    }

    /// Books the request at the one rank it was sent to.
    fn book(&self, event: &ActiveSequenceEvent, add: &AddRequest) -> Option<Ticket> {
        let serving = self.directory.worker(event.worker_id)?.serving()?;
        let rank: &Rank = serving.ranks.iter().find(|rank| rank.dp_rank == event.dp_rank)?;
        let block_size = rank.block_size()?;
        let hashes: Arc<[SequenceHash]> = add.token_sequence.iter().flatten().map(|hash| SequenceHash(*hash)).collect();
        let prefill = match add.prefill_load_hint {
            _ if !add.track_prefill_tokens => 0,
            Some(hint) => hint.initial_effective_prefill_tokens,
            None => hashes.len() as u64 * u64::from(block_size.get()),
        };
        let (tokens, held) = shape(hashes.len(), prefill, block_size);
        let prompts = [Prompt { tokens, chains: vec![Chain { block_size, hashes }] }];
        let mut overlap = Overlap::default();
        overlap.add(tokens, block_size, Depths { device: held, near: held, host: held, disk: held, shared: 0 });
        let ask = Ask { prompts: &prompts, answers_per_prompt: 1, answer: Answer::Stream, label: Label::Decode, pinned: true };
        let candidate = Candidate { target: rank.target, block_size, overlap, preference: 0.0, excluded: None };
        let ticket = self.scheduler.reserve(Instant::now(), &ask, &[candidate], &mut rand::rng()).ok()?;
        if prefill == 0 {
            ticket.first_event(Instant::now());
        }
        Some(ticket)
    }
}

/// How many tokens a prompt of `blocks` whole blocks has, and how many of its blocks are held, for `prefill` tokens to be left
/// to do.
fn shape(blocks: usize, prefill: u64, block_size: BlockSize) -> (u32, u32) {
    let size = u64::from(block_size.get());
    let tokens = (blocks as u64 * size + prefill % size).max(prefill).min(u64::from(u32::MAX));
    (tokens as u32, (tokens.saturating_sub(prefill) / size) as u32)
}

impl Hear for Heard {
    const LEISURE: Option<Duration> = None;

    fn hear(&self, publisher: u64, payload: &[u8]) -> Result<(), LoadError> {
        for event in decode_sequences(payload)? {
            if event.router_id == self.router_id {
                continue;
            }
            let counter = match self.apply(publisher, event) {
                Some(()) => &self.counters.applied,
                None => &self.counters.dropped,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn malformed(&self) {
        self.counters.unreadable.fetch_add(1, Ordering::Relaxed);
    }

    fn left(&self, publisher: u64) {
        let gone = self.booked.lock().take(|request| request.publisher == publisher);
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefill_that_is_told_is_what_is_left_to_do() {
        let size = BlockSize::new(16).unwrap();
        for (blocks, prefill) in [(4, 70), (4, 6), (4, 22), (0, 5), (4, 64), (2, 1000), (0, 0)] {
            let (tokens, held) = shape(blocks, prefill, size);
            assert_eq!(u64::from(tokens) - u64::from(held) * 16, prefill, "{blocks} {prefill}");
            assert!(tokens as usize >= blocks * 16);
        }
    }
}
