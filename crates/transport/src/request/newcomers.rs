//! Connections that have not yet shown what they want. They are bounded in number and in time, and a flood of them
//! displaces its own oldest ones: who knows the protocol proves it with the first packet and is through.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
pub(super) struct Newcomers {
    limit: usize,
    /// By arrival; held to add or remove one.
    waiting: Mutex<BTreeMap<u64, CancellationToken>>,
    arrivals: AtomicU64,
    displaced: AtomicU64,
}

/// One connection on trial; it is off the list once dropped.
#[derive(Debug)]
pub(super) struct Newcomer {
    arrival: u64,
    displaced: CancellationToken,
    list: Arc<Newcomers>,
}

impl Newcomers {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        let waiting = Mutex::new(BTreeMap::new());
        Arc::new(Self { limit, waiting, arrivals: AtomicU64::new(0), displaced: AtomicU64::new(0) })
    }

    /// Takes in one more; beyond the limit the one that has waited longest goes.
    pub(super) fn enter(self: &Arc<Self>) -> Newcomer {
        let arrival = self.arrivals.fetch_add(1, Ordering::Relaxed);
        let displaced = CancellationToken::new();
        let mut waiting = self.waiting.lock();
        if waiting.len() >= self.limit
            && let Some((_, oldest)) = waiting.pop_first()
        {
            oldest.cancel();
            self.displaced.fetch_add(1, Ordering::Relaxed);
        }
        waiting.insert(arrival, displaced.clone());
        Newcomer { arrival, displaced, list: self.clone() }
    }

    /// How many had to make room for later ones.
    pub(super) fn displaced(&self) -> u64 {
        self.displaced.load(Ordering::Relaxed)
    }

    /// How many are on trial now.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.lock().len()
    }
}

impl Newcomer {
    /// Ends when this one has to make room.
    pub(super) async fn displaced(&self) {
        self.displaced.cancelled().await;
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        self.list.waiting.lock().remove(&self.arrival);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_displaces_its_own_oldest_ones() {
        let list = Newcomers::new(2);
        let (first, second) = (list.enter(), list.enter());
        let third = list.enter();
        assert!(first.displaced.is_cancelled() && !second.displaced.is_cancelled() && !third.displaced.is_cancelled());
        drop(second);
        let fourth = list.enter();
        assert!(!third.displaced.is_cancelled() && !fourth.displaced.is_cancelled());
        drop((first, third, fourth));
        assert_eq!((list.waiting(), list.displaced()), (0, 1));
    }
}
