//! What passes through us, as it concerns a rank on the event plane.

use std::time::Instant;

use super::PlaneFeed;
use crate::{demand::Demand, heeds::Heeds, observation::Observation};

impl Heeds for PlaneFeed {
    fn reset(&mut self, now: Instant) {
        self.rank.reset(now);
        self.show(now);
    }

    fn observed(&mut self, now: Instant, observation: &Observation) {
        if observation.rank == self.config.dp_rank {
            let before = self.rank.status().accuracy.retracted_blocks;
            self.rank.observed(now, observation);
            if self.rank.status().accuracy.retracted_blocks > before {
                self.retracted();
            }
        }
        self.show(now);
    }

    /// Adapters and salts are in the hashes of these events, so only full reports are a demand that they cannot tell.
    fn demanded(&mut self, now: Instant, rank: u32, demand: Demand) {
        if rank == self.config.dp_rank {
            self.rank.demanded(now, demand);
        }
        self.show(now);
    }
}

impl PlaneFeed {
    /// Blocks went that no event takes away, so the events of a hole would not make the target whole again: it takes a dump.
    fn retracted(&mut self) {
        let Some(at) = self.serving.and_then(|id| self.position(id)) else { return };
        let incarnation = &mut self.incarnations[at];
        if let Some(hole) = &mut incarnation.hole {
            hole.alone = None;
            incarnation.resync = true;
        }
    }
}
