//! Demands of requests on their way to a driver: one bit each, so that none is ever dropped or waited for.

use std::sync::atomic::{AtomicU8, Ordering};

use feed::{Demand, RankRange};
use tokio::sync::Notify;

/// What was demanded of each rank since the task last looked.
#[derive(Debug)]
pub(crate) struct Demands {
    ranks: RankRange,
    /// In the order of the ranks; the bits are [`bit`].
    made: Box<[AtomicU8]>,
    any: Notify,
}

impl Demands {
    pub(crate) fn new(ranks: RankRange) -> Self {
        Self { ranks, made: (0..ranks.size).map(|_| AtomicU8::new(0)).collect(), any: Notify::new() }
    }

    /// Ignored for a rank that is not the driver's.
    pub(crate) fn make(&self, rank: u32, demand: Demand) {
        let Some(made) = self.ranks.position(rank).and_then(|position| self.made.get(position)) else { return };
        // Where the bit is set already, the task has been told and has not looked yet.
        if made.fetch_or(bit(demand), Ordering::AcqRel) & bit(demand) == 0 {
            self.any.notify_one();
        }
    }

    /// Until there are demands to take, also if they were made before the call. Cancel-safe: what is not taken stays.
    pub(crate) async fn made(&self) {
        self.any.notified().await;
    }

    /// Takes what was demanded.
    pub(crate) fn take(&self) -> impl Iterator<Item = (u32, Demand)> {
        (self.ranks.start..).zip(&self.made).flat_map(|(rank, made)| {
            let bits = if made.load(Ordering::Acquire) == 0 { 0 } else { made.swap(0, Ordering::AcqRel) };
            Demand::ALL.into_iter().filter(move |demand| bits & bit(*demand) != 0).map(move |demand| (rank, demand))
        })
    }
}

const fn bit(demand: Demand) -> u8 {
    1 << demand as u8
}
