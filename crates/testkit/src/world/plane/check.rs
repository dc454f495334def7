//! What must hold at any time, and what must hold when all is quiet.

use std::{collections::BTreeSet, sync::Arc};

use feed::{Heeds, Observation, RankStatus, Trust, plane::PlaneFeed};
use index::{BlockSize, Catalog, KvIndexer, Lane, Lanes, Levels, SequenceHash, Target, sequence_hashes};
use rand::seq::IteratorRandom;

use super::{
    PlaneWorld,
    process::{Process, RANK},
};
use crate::world::publisher::{BLOCK_SIZE, Path};

/// A target that is exact holds what a process held when it published the last event that was folded in.
pub(super) fn always(
    feed: &PlaneFeed,
    processes: &[Process],
    (catalog, target): (&Arc<Catalog>, Target),
    comparisons: &mut u64,
) -> Result<(), String> {
    let shared = feed.status();
    let Some(status) = shared.rank(RANK).filter(|status| status.trust == Trust::Exact) else { return Ok(()) };
    let Some(last) = shared.stream().last_seq else { return Err("exact, and nothing was folded in".to_owned()) };
    *comparisons += 1;
    let held = (status.blocks, indexer(catalog).digest(target));
    let mut then = processes.iter().filter_map(|process| process.history.get(&last)).peekable();
    // Between the events of one call the cache has no state of its own.
    if then.peek().is_none() || then.any(|then| *then == held) {
        return Ok(());
    }
    Err(format!("exact at event {last} with {} blocks, as no process was: {:?}", status.blocks, shared.stream()))
}

impl PlaneWorld {
    /// Compares the target with the newest process.
    pub(super) fn check(&mut self) -> Result<(), String> {
        let Some(newest) = self.processes.last() else { return Ok(()) };
        let shared = self.feed.status();
        let (stream, Some(status)) = (shared.stream(), shared.rank(RANK)) else { return Err("no rank is shown".to_owned()) };
        let state = || format!("{:?} ({}): {stream:?}", status.trust, status.reason);
        if stream.gaps != stream.replayed + stream.rebuilt + stream.degraded_gaps {
            return Err(format!("a gap did not end; {}", state()));
        }
        if stream.held_bytes > 0 || !stream.connected {
            return Err(format!("not quiet; {}", state()));
        }
        match status.trust {
            Trust::Exact => self.compare(newest, &status).map_err(|wrong| format!("{wrong}; {}", state()))?,
            Trust::Blind | Trust::Recovering | Trust::Degraded if newest.recoverable && !newest.has_holes => {
                return Err(format!("all can be recovered, and it is {}", state()));
            }
            Trust::Blind | Trust::Recovering | Trust::Degraded => {}
        }
        let report = &mut self.report;
        report.checks += 1;
        report.exact += u64::from(status.trust == Trust::Exact);
        (report.replayed, report.rebuilt, report.degraded) = (stream.replayed, stream.rebuilt, stream.degraded_gaps);
        (report.dumps, report.restarts, report.failures) = (stream.dumps, stream.restarts, stream.replay_failures);
        (report.overflows, report.duplicates, report.queries) = (stream.held_overflow, stream.duplicates, self.link.queries);
        if stream.replay_requests != self.link.queries {
            return Err(format!("{} queries were asked; {}", self.link.queries, state()));
        }
        Ok(())
    }

    fn compare(&self, newest: &Process, status: &RankStatus) -> Result<(), String> {
        let expected = newest.held();
        if held(&self.catalog, self.target) != identities(&expected) {
            return Err(format!("shows {} blocks, the process holds {}", status.blocks, expected.len()));
        }
        for path in &newest.seen {
            let (depth, expected) = (self.overlap(path), newest.overlap(path));
            if depth != expected {
                return Err(format!("overlaps {depth} blocks of {path:?}, the process holds {expected}"));
            }
        }
        Ok(())
    }

    /// An answer of the newest engine at this moment, as the self-check sees it.
    pub(super) fn observe(&mut self) {
        let Some(newest) = self.processes.last() else { return };
        let Some(path) = newest.seen.iter().choose(&mut self.rng) else { return };
        let observation = Observation {
            rank: RANK,
            chain: path.chain(),
            seed: path.seed(),
            dispatched: self.link.now(),
            predicted_blocks: self.overlap(path) as u32,
            reported_blocks: newest.overlap(path) as u32,
        };
        self.feed.observed(self.link.now(), &observation);
    }

    fn overlap(&self, path: &Path) -> usize {
        let mut levels = Levels::default();
        indexer(&self.catalog).lookup(&path.chain(), Lanes::DEVICE, &mut levels);
        levels.depth(self.target.slot) as usize
    }
}

fn indexer(catalog: &Catalog) -> Arc<KvIndexer> {
    catalog.indexer("model", size())
}

fn size() -> BlockSize {
    BlockSize::new(BLOCK_SIZE).unwrap_or_else(|| unreachable!("a constant above zero"))
}

fn held(catalog: &Catalog, target: Target) -> BTreeSet<SequenceHash> {
    indexer(catalog).held(target, Lane::Device).into_iter().collect()
}

/// What a router calls these blocks.
fn identities(paths: &BTreeSet<Path>) -> BTreeSet<SequenceHash> {
    paths.iter().filter_map(identity).collect()
}

/// What a router calls the last block.
pub(super) fn identity(path: &Path) -> Option<SequenceHash> {
    let mut sequences = Vec::new();
    sequence_hashes(&path.chain(), &mut sequences);
    sequences.last().copied()
}
