//! The requests of other frontends that are booked here, within bounds: what others name must not grow without end.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use sched::Ticket;

/// Requests of others that are booked at once.
pub(super) const MOST_REQUESTS: usize = 100_000;
/// Prompt blocks of all of them together: each is some 50 bytes here and in the ledger.
pub(super) const MOST_BLOCKS: usize = 1 << 22;
/// Longest id of a request, in bytes.
pub(super) const MOST_ID_BYTES: usize = 256;
/// A request of which nothing is told within this time is assumed lost, as in 1.6.1.
pub(super) const FORGOTTEN_AFTER: Duration = Duration::from_secs(300);

/// One request.
pub(super) struct Request {
    pub(super) ticket: Ticket,
    /// Prompt blocks.
    pub(super) blocks: usize,
    pub(super) worker_id: u64,
    pub(super) publisher: u64,
    /// When something was last told of it.
    pub(super) told: Instant,
}

/// All of them, by id.
#[derive(Default)]
pub(super) struct Booked {
    requests: HashMap<String, Request>,
    blocks: usize,
}

impl Booked {
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn holds(&self, id: &str) -> bool {
        self.requests.contains_key(id)
    }

    /// Whether one more request with so many blocks may be held.
    pub(super) fn has_room(&self, id: &str, blocks: usize) -> bool {
        id.len() <= MOST_ID_BYTES && self.requests.len() < MOST_REQUESTS && blocks <= MOST_BLOCKS.saturating_sub(self.blocks)
    }

    /// Holds a request. One that cannot be held comes back, to be dropped outside of any lock.
    #[must_use]
    pub(super) fn hold(&mut self, id: String, request: Request) -> Option<Request> {
        if self.holds(&id) || !self.has_room(&id, request.blocks) {
            return Some(request);
        }
        self.blocks += request.blocks;
        self.requests.insert(id, request);
        None
    }

    /// The first token of a request came.
    pub(super) fn prefilled(&mut self, id: &str, worker_id: u64, now: Instant) -> Option<()> {
        let request = self.requests.get_mut(id).filter(|request| request.worker_id == worker_id)?;
        request.told = now;
        request.ticket.first_event(now);
        Some(())
    }

    /// A request is over.
    pub(super) fn free(&mut self, id: &str, worker_id: u64) -> Option<Request> {
        self.requests.get(id).filter(|request| request.worker_id == worker_id)?;
        let freed = self.requests.remove(id)?;
        self.blocks -= freed.blocks;
        Some(freed)
    }

    /// Takes out those that `which` picks.
    pub(super) fn take(&mut self, which: impl Fn(&Request) -> bool) -> Vec<Request> {
        let taken: Vec<Request> = self.requests.extract_if(|_, request| which(request)).map(|(_, request)| request).collect();
        self.blocks -= taken.iter().map(|request| request.blocks).sum::<usize>();
        taken
    }

    /// Takes out those that are assumed lost.
    pub(super) fn forgotten(&mut self, now: Instant) -> Vec<Request> {
        self.take(|request| now.saturating_duration_since(request.told) >= FORGOTTEN_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use index::{BlockSize, Targets};
    use sched::{Answer, Ask, Candidate, Config, Label, Overlap, Prompt, Scheduler};

    use super::*;

    fn request(scheduler: &Arc<Scheduler>, blocks: usize, told: Instant) -> Request {
        let prompts = [Prompt { tokens: 16, chains: Vec::new() }];
        let ask = Ask { prompts: &prompts, answers_per_prompt: 1, answer: Answer::Stream, label: Label::Decode, pinned: true };
        let (target, block_size) = (Targets::new().allocate().unwrap(), BlockSize::new(16).unwrap());
        let candidate = Candidate { target, block_size, overlap: Overlap::default(), preference: 0.0, excluded: None };
        let ticket = scheduler.reserve(told, &ask, &[candidate], &mut rand::rng()).unwrap();
        Request { ticket, blocks, worker_id: 1, publisher: 2, told }
    }

    #[test]
    fn what_others_name_is_bounded_in_ids_and_blocks_and_its_room_comes_back() {
        let (scheduler, now) = (Scheduler::new(Config::default()).unwrap(), Instant::now());
        let mut booked = Booked::default();
        let long = "x".repeat(MOST_ID_BYTES + 1);
        assert!(booked.hold(long, request(&scheduler, 1, now)).is_some());
        assert!(booked.hold("x".repeat(MOST_ID_BYTES), request(&scheduler, MOST_BLOCKS - 1, now)).is_none());
        assert!(booked.has_room("b", 1) && !booked.has_room("b", 2));
        assert!(booked.hold("b".to_owned(), request(&scheduler, 2, now)).is_some());
        assert!(booked.hold("b".to_owned(), request(&scheduler, 1, now)).is_none());
        assert!(booked.hold("c".to_owned(), request(&scheduler, 1, now)).is_some());
        assert!(booked.free("b", 9).is_none(), "another worker's");
        assert_eq!(booked.free("b", 1).map(|freed| freed.blocks), Some(1));
        assert_eq!(booked.take(|request| request.publisher == 2).len(), 1);
        assert!(booked.hold("c".to_owned(), request(&scheduler, MOST_BLOCKS, now)).is_none());
    }

    #[test]
    fn a_request_is_forgotten_five_minutes_after_something_was_last_told_of_it() {
        let (scheduler, start) = (Scheduler::new(Config::default()).unwrap(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut booked = Booked::default();
        for id in ["told again", "silent"] {
            assert!(booked.hold(id.to_owned(), request(&scheduler, 1, start)).is_none());
        }
        assert_eq!(booked.prefilled("told again", 1, at(200)), Some(()));
        assert_eq!(booked.forgotten(at(299)).len(), 0);
        assert_eq!(booked.forgotten(at(300)).len(), 1);
        assert!(booked.holds("told again"));
        assert_eq!(booked.forgotten(at(499)).len(), 0);
        assert_eq!(booked.forgotten(at(500)).len(), 1);
    }
}
