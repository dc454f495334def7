//! What must hold when all is quiet, and what must hold always.

use std::collections::BTreeSet;

use feed::{Heeds, Observation, RankStatus, StreamStatus, Trust};
use index::{BlockSize, KvIndexer, Lane, Lanes, Levels};
use rand::{Rng, seq::IteratorRandom};

use super::{
    World,
    link::ReplayService,
    publisher::{BLOCK_SIZE, Path},
};

/// What a look at a quiet world asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Must {
    /// What is shown as exact is exact.
    BeSound,
    /// And it is exact, if everything can be replayed.
    BeExact,
}

impl World {
    /// Compares every target with the engine's own cache.
    pub(super) fn check(&mut self, must: Must) -> Result<(), String> {
        let stream = self.feed.status().stream();
        let ranks = self.feed.status().ranks();
        self.check_stream(&stream)?;
        let must = must == Must::BeExact && self.intact && self.link.service() == ReplayService::Sound && self.publisher.reaches_start();
        for (position, status) in ranks.iter().enumerate() {
            self.report.checks += 1;
            match status.trust {
                Trust::Exact => {
                    self.report.exact += 1;
                    self.compare(position, status)?;
                }
                Trust::Blind | Trust::Recovering | Trust::Degraded if must => {
                    return Err(format!(
                        "rank {position} is {:?} ({}) though all can be replayed: {stream:?}",
                        status.trust, status.reason
                    ));
                }
                Trust::Blind | Trust::Recovering | Trust::Degraded => {}
            }
        }
        let report = &mut self.report;
        (report.replayed, report.rebuilt, report.degraded) = (stream.replayed, stream.rebuilt, stream.degraded_gaps);
        (report.restarts, report.duplicates, report.overflows) = (stream.restarts, stream.duplicates, stream.held_overflow);
        report.orphans = ranks.iter().map(|status| status.orphans_total).sum();
        Ok(())
    }

    /// Every gap ended in one way, and nothing is held.
    fn check_stream(&self, stream: &StreamStatus) -> Result<(), String> {
        if stream.gaps != stream.replayed + stream.rebuilt + stream.degraded_gaps {
            return Err(format!("a gap did not end: {stream:?}"));
        }
        if stream.held_bytes > 0 || stream.replay_pending || !stream.connected {
            return Err(format!("not quiet: {stream:?}"));
        }
        Ok(())
    }

    fn compare(&self, position: usize, status: &RankStatus) -> Result<(), String> {
        let cache = &self.publisher.ranks[position];
        let expected = cache.copies.len() + cache.media.len();
        if status.blocks != expected {
            return Err(format!("rank {position} shows {} blocks, the engine holds {expected}", status.blocks));
        }
        let Some(indexer) = self.indexer() else { return Ok(()) };
        let held: BTreeSet<_> = indexer.held(status.target, Lane::Device).into_iter().collect();
        if held.len() != expected {
            return Err(format!("rank {position} has {} blocks in the index, the engine holds {expected}", held.len()));
        }
        for path in &self.publisher.seen {
            let depth = self.overlap(&indexer, position, path);
            let expected = self.publisher.held(position, path);
            if depth != expected {
                return Err(format!("rank {position} overlaps {depth} blocks of {path:?}, the engine holds {expected}"));
            }
        }
        Ok(())
    }

    /// An answer of the engine at this moment, as the self-check sees it.
    pub(super) fn observe(&mut self) {
        let rank = self.rng.random_range(0..self.publisher.ranks.len());
        let Some(path) = self.publisher.seen.iter().choose(&mut self.rng).cloned() else { return };
        let Some(indexer) = self.indexer() else { return };
        let observation = Observation {
            rank: rank as u32,
            chain: path.chain(),
            seed: path.seed(),
            dispatched: self.link.now(),
            predicted_blocks: self.overlap(&indexer, rank, &path) as u32,
            reported_blocks: self.publisher.held(rank, &path) as u32,
        };
        self.feed.observed(self.link.now(), &observation);
    }

    fn overlap(&self, indexer: &KvIndexer, position: usize, path: &Path) -> usize {
        let mut levels = Levels::default();
        indexer.lookup(&path.chain(), Lanes::DEVICE, &mut levels);
        self.config.targets.get(position).map_or(0, |target| levels.depth(target.slot) as usize)
    }

    fn indexer(&self) -> Option<std::sync::Arc<KvIndexer>> {
        Some(self.catalog.indexer(&self.config.model, BlockSize::new(BLOCK_SIZE)?))
    }
}
