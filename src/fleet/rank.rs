//! One data-parallel rank of a worker: its target, its events, and what is predicted and confirmed of it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use feed::{Added, RankStatus, StreamStatus, Trust};
use index::{BlockSize, Lane, LocalHash, Target, Window};

use super::{
    leased::{Indexes, Leased},
    source::Source,
};

/// How long an engine's word about a prefix is believed without an event (rule 11).
const CONFIRMED_TTL: Duration = Duration::from_secs(600);

/// One data-parallel rank of a worker.
pub(crate) struct Rank {
    pub(crate) dp_rank: u32,
    /// Sent upstream; `None` for a worker without ranks.
    pub(crate) header: Option<u32>,
    pub(crate) target: Target,
    /// Its events, where there are any.
    pub(crate) source: Option<Source>,
    /// Tokens per block as the operator or the engine says; 0: neither does.
    told: AtomicU32,
    /// Tokens per block as the stream has it; 0: it does not know yet.
    heard: AtomicU32,
    eagle: AtomicBool,
    emptied: AtomicU64,
    predicted: Arc<Leased>,
    confirmed: Arc<Leased>,
}

impl Rank {
    pub(crate) fn new(dp_rank: u32, header: Option<u32>, target: Target, source: Option<Source>) -> Self {
        Self {
            dp_rank,
            header,
            target,
            source,
            told: AtomicU32::new(0),
            heard: AtomicU32::new(0),
            eagle: AtomicBool::new(false),
            emptied: AtomicU64::new(0),
            predicted: Leased::new(target, Lane::Predicted),
            confirmed: Leased::new(target, Lane::Confirmed),
        }
    }

    /// Takes the operator's or the engine's word for the block size.
    pub(crate) fn tell(&self, size: Option<BlockSize>) {
        self.told.store(size.map_or(0, BlockSize::get), Ordering::Relaxed);
    }

    /// What its stream has, which is what the operator configured or else what the events say; before there are any, what
    /// the engine told.
    pub(crate) fn block_size(&self) -> Option<BlockSize> {
        let heard = || BlockSize::new(self.heard.load(Ordering::Relaxed));
        let shown = || self.status()?.block_size.and_then(BlockSize::new);
        heard().or_else(shown).or_else(|| BlockSize::new(self.told.load(Ordering::Relaxed)))
    }

    /// What a block's hash covers, as its events show.
    pub(crate) fn window(&self) -> Window {
        if self.eagle.load(Ordering::Relaxed) { Window::Eagle } else { Window::Plain }
    }

    /// How often its cache was emptied, as far as was noticed: by a restart, a clear, a reset.
    pub(crate) fn emptied(&self) -> u64 {
        self.emptied.load(Ordering::Acquire)
    }

    /// Takes over what the stream has noticed. What was predicted and confirmed of a cache that was emptied is void.
    pub(crate) fn follow(&self) {
        let Some(status) = self.status() else { return };
        self.eagle.store(status.eagle, Ordering::Relaxed);
        self.heard.store(status.block_size.unwrap_or(0), Ordering::Relaxed);
        self.take_over_emptied(status.emptied);
    }

    /// Readers come in any order: one with an older status changes nothing.
    fn take_over_emptied(&self, emptied: u64) {
        if self.emptied.fetch_max(emptied, Ordering::AcqRel) < emptied {
            self.forget();
        }
    }

    /// State and counters of its events, where it has a stream.
    pub(crate) fn status(&self) -> Option<RankStatus> {
        self.source.as_ref()?.reins().status().rank(self.dp_rank)
    }

    /// Whether what its events told before is being asked for.
    pub(crate) fn is_arriving(&self) -> bool {
        let told = self.standing().map(|(stream, rank)| (rank.trust, stream.connected));
        match told {
            Some((Trust::Recovering, _) | (Trust::Blind, false)) => true,
            Some((Trust::Blind, true) | (Trust::Exact | Trust::Degraded, _)) => false,
            // Its task has not begun.
            None => self.source.is_some(),
        }
    }

    /// Books a dispatched prompt as held for `ttl` (rule 12). Returns what that added.
    pub(crate) fn predict(&self, indexes: Indexes<'_>, ttl: Duration, chain: &[LocalHash]) -> Option<Added> {
        self.predicted.hold(indexes, ttl, chain)
    }

    /// Takes back what a prediction of `chain` added: the worker never took the prompt.
    pub(crate) fn unpredict(&self, chain: &[LocalHash], added: Added) {
        self.predicted.give_back(chain, added);
    }

    /// Takes the engine's word that it holds these leading blocks (rule 11).
    pub(crate) fn confirm(&self, indexes: Indexes<'_>, chain: &[LocalHash]) {
        self.confirmed.hold(indexes, CONFIRMED_TTL, chain);
    }

    /// Lets go of a few blocks that were held long enough; false where there is none.
    pub(crate) fn expire_step(&self, now: Instant) -> bool {
        self.predicted.expire(now) + self.confirmed.expire(now) > 0
    }

    /// Forgets what was predicted and confirmed, soon: the cache was reset or the engine is another one.
    pub(crate) fn forget(&self) {
        self.predicted.forget();
        self.confirmed.forget();
    }

    /// The same; once this returns nothing of before is in the index.
    pub(crate) async fn forget_wholly(&self) {
        for gone in [self.predicted.forget(), self.confirmed.forget()].into_iter().flatten() {
            gone.cancelled().await;
        }
    }

    /// Ends its stream and empties its lanes, for good. Its target may then be another rank's.
    pub(crate) async fn close(&self) {
        if let Some(source) = &self.source {
            source.reins().stop().await;
        }
        self.predicted.close().await;
        self.confirmed.close().await;
    }

    /// The state of its stream, and its own, which is not older.
    pub(crate) fn standing(&self) -> Option<(StreamStatus, RankStatus)> {
        let status = self.source.as_ref()?.reins().status();
        let stream = status.stream();
        Some((stream, status.rank(self.dp_rank)?))
    }

    /// Blocks in the predicted and confirmed lanes.
    pub(crate) fn leased_blocks(&self) -> usize {
        self.predicted.blocks() + self.confirmed.blocks()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use index::{Catalog, Targets};

    use super::*;

    #[test]
    fn a_reader_with_an_older_status_voids_nothing() {
        let rank = Rank::new(0, None, Targets::new().allocate().unwrap(), None);
        let (catalog, size) = (Catalog::default(), BlockSize::new(16).unwrap());
        let indexes = Indexes { catalog: &catalog, base: "m", block_size: size, capacity: NonZeroUsize::MAX };
        rank.take_over_emptied(2);
        rank.predict(indexes, Duration::from_secs(60), &[LocalHash(1)]);
        rank.take_over_emptied(1);
        rank.take_over_emptied(2);
        assert_eq!((rank.emptied(), rank.leased_blocks()), (2, 1));
        rank.take_over_emptied(3);
        assert_eq!((rank.emptied(), rank.leased_blocks()), (3, 0));
    }

    #[test]
    fn a_block_size_that_is_told_anew_counts() {
        let rank = Rank::new(0, None, Targets::new().allocate().unwrap(), None);
        assert_eq!(rank.block_size(), None);
        for size in [16, 32] {
            rank.tell(BlockSize::new(size));
            assert_eq!(rank.block_size().map(BlockSize::get), Some(size));
        }
    }
}
