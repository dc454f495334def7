//! What a target shows: its figures, and how far it can be believed (rule 10).

use std::sync::Arc;

use index::{BlockSize, Lane, Writer};

use super::Rank;
use crate::{
    fold::Fold,
    trust::{Activity, Footing, Trust},
};

impl Rank {
    /// Brings what is shown up to date, which is folded in up to `last_seq`. Returns the trust before, if it changed.
    pub(crate) fn show(&mut self, activity: &Activity, fold: &Fold, last_seq: Option<u64>) -> Option<Trust> {
        self.status.last_seq = last_seq;
        let device = self.lanes.get(Lane::Device);
        self.status.digest = Some(device.map_or(0, |writer| writer.indexer().digest(self.status.target)));
        (self.status.orphans_parked, self.status.orphan_blocks) = self.lanes.parked();
        self.status.orphans_total = self.lanes.orphans();
        self.status.block_size = fold.block_size().map(BlockSize::get);
        self.status.blocks = self.blocks(Lane::Device);
        (self.status.host_blocks, self.status.disk_blocks) = (self.blocks(Lane::Host), self.blocks(Lane::Disk));
        let (trust, reason) = self.judge(activity);
        let reason = (*self.status.reason != *reason).then(|| Arc::from(reason));
        if let Some(reason) = reason {
            self.status.reason = reason;
        }
        let before = std::mem::replace(&mut self.status.trust, trust);
        if before == trust {
            return None;
        }
        self.status.trust_changes += 1;
        Some(before)
    }

    fn judge<'a>(&'a self, activity: &'a Activity) -> (Trust, &'a str) {
        if let Some(conflict) = &self.conflict {
            return (Trust::Blind, conflict);
        }
        if self.footing == Footing::Whole
            && let Some(untold) = self.untold()
        {
            return (Trust::Degraded, untold);
        }
        match (&self.footing, activity) {
            (Footing::Unheard, Activity::Following) => (Trust::Blind, "nothing heard yet"),
            (Footing::Unheard, Activity::Unreadable) => (Trust::Blind, "what comes is no stream of event batches"),
            (Footing::Unheard, Activity::Disconnected) => (Trust::Blind, "not connected"),
            (Footing::Unheard, Activity::Unsure(reason)) => (Trust::Blind, reason),
            (Footing::Lacking(reason) | Footing::Doubtful(reason), _) => (Trust::Degraded, reason),
            (_, Activity::Recovering(awaited)) => (Trust::Recovering, awaited),
            (Footing::Whole, Activity::Unsure(reason)) => (Trust::Degraded, reason),
            (Footing::Whole, Activity::Disconnected) => (Trust::Recovering, "disconnected"),
            (Footing::Whole, Activity::Following | Activity::Unreadable) => self.judge_whole(),
        }
    }

    fn judge_whole(&self) -> (Trust, &'static str) {
        if self.unsaid_clear.is_some() {
            return (Trust::Recovering, "a cache reset was passed on; its event comes with the engine's next step");
        }
        if self.lanes.get(Lane::Device).is_some_and(|device| device.parked().stores > 0) {
            return (Trust::Degraded, "stores wait for a parent that no event has named");
        }
        (Trust::Exact, self.mismatches.contradiction())
    }

    /// Blocks held in a lane.
    pub(crate) fn blocks(&self, lane: Lane) -> usize {
        self.lanes.get(lane).map_or(0, Writer::blocks)
    }
}
