//! Rule 11: what answers report is compared with what was predicted, see [`Observation`].

use std::{cmp::Ordering, time::Instant};

use index::Lane;

use super::Rank;
use crate::observation::Observation;

/// Answers in a row that contradict the index the same way before the contradiction is named.
const LASTING_MISMATCH: u32 = 16;

/// A run of answers that contradict the index the same way.
#[derive(Debug, Default)]
pub(super) struct Mismatches {
    over: u32,
    under: u32,
}

impl Mismatches {
    /// In words, once it lasts; else nothing.
    pub(super) fn contradiction(&self) -> &'static str {
        if self.over >= LASTING_MISMATCH {
            "answers keep reporting fewer cached tokens than predicted"
        } else if self.under >= LASTING_MISMATCH {
            "answers keep reporting more cached tokens than predicted"
        } else {
            ""
        }
    }
}

impl Rank {
    /// An answer came.
    pub(crate) fn observed(&mut self, now: Instant, seen: &Observation) {
        let (predicted, reported) = (seen.predicted_blocks, seen.reported_blocks);
        let accuracy = &mut self.status.accuracy;
        accuracy.observations += 1;
        match predicted.cmp(&reported) {
            Ordering::Equal => {
                accuracy.equal += 1;
                self.mismatches = Mismatches::default();
            }
            Ordering::Greater => {
                accuracy.over += 1;
                self.mismatches = Mismatches { over: self.mismatches.over.saturating_add(1), under: 0 };
                self.retract(seen);
            }
            Ordering::Less => {
                accuracy.under += 1;
                self.mismatches = Mismatches { over: 0, under: self.mismatches.under.saturating_add(1) };
                self.adopt(now, seen);
            }
        }
    }

    /// A target that lacks events believed in blocks the engine did not have when the request reached it.
    fn retract(&mut self, seen: &Observation) {
        let Some(fresh) = self.fresh.as_ref().filter(|fresh| fresh.covers(seen.dispatched)) else { return };
        let Some(device) = self.lanes.get_mut(Lane::Device) else { return };
        let gone = device.retract(&seen.chain, seen.reported_blocks as usize);
        fresh.restore(device, seen.dispatched);
        self.status.accuracy.retracted_blocks += gone as u64;
    }

    fn adopt(&mut self, now: Instant, seen: &Observation) {
        let Some(device) = self.lanes.get_mut(Lane::Device) else { return };
        let adopted = device.adopt(&seen.chain, seen.reported_blocks as usize, seen.seed);
        self.status.accuracy.adopted_blocks += adopted as u64;
        self.notice_dropped_orphans(now);
    }
}
