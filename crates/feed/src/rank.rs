//! One target: its lanes of the index, and what its events do to them.

mod check;
mod lanes;
mod raw;
mod router;
mod show;
mod unsaid;

use std::{sync::Arc, time::Instant};

use index::{Copies, EngineHash, Lane, Refusal, Stored as Outcome, Target, Writer};

use crate::{
    demand::{Demand, Demands},
    fold::Fold,
    fresh::{Fresh, Prepared},
    relay::{self, Relayed},
    status::RankStatus,
    trust::{Footing, Reason},
};
use check::Mismatches;
use lanes::Lanes;
use unsaid::{Answer, UnsaidClear};

#[derive(Debug)]
pub(crate) struct Rank {
    status: RankStatus,
    lanes: Lanes,
    footing: Footing,
    /// How often something was found missing.
    lacks: u64,
    /// What a second store of a hash means on the stream.
    counting: Copies,
    /// The block size of the events is not the configured one.
    conflict: Option<Reason>,
    /// A reset passed through us, and the engine's own clear event has not come yet.
    unsaid_clear: Option<UnsaidClear>,
    /// What requests asked for that events may not tell.
    demands: Demands,
    /// Kept while the footing is not whole, and while events do not tell what was demanded.
    fresh: Option<Fresh>,
    mismatches: Mismatches,
    /// In place of writers, where the stream is passed on: what was not taken yet.
    relayed: Option<Vec<Relayed>>,
}

/// How a batch came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// By the live socket, folded in at once.
    Live,
    /// By a replay, or held while one was pending.
    Late,
}

/// What the index did with a store, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    /// It holds it, or has parked it.
    Kept,
    Refused,
}

impl Rank {
    pub(crate) fn new(rank: u32, target: Target) -> Self {
        Self {
            status: RankStatus::new(rank, target),
            lanes: Lanes::new(target),
            footing: Footing::Unheard,
            lacks: 0,
            counting: Copies::Counted,
            conflict: None,
            unsaid_clear: None,
            demands: Demands::default(),
            fresh: None,
            mismatches: Mismatches::default(),
            relayed: None,
        }
    }

    /// Its events are passed on from now on, and not indexed.
    pub(crate) fn relay(&mut self) {
        self.relayed = Some(Vec::new());
    }

    /// The rank's number, and what is to be published.
    pub(crate) fn relayed(&mut self) -> (u32, Vec<Relayed>) {
        (self.status.rank, self.relayed.as_mut().map(std::mem::take).unwrap_or_default())
    }

    fn pass_on(&mut self, relayed: Relayed) {
        if let Some(passed) = &mut self.relayed {
            passed.push(relayed);
        }
    }

    /// What is in its lanes is of no event until it is shown again.
    pub(crate) fn hide_digest(&mut self) {
        self.status.digest = None;
    }

    pub(crate) fn status(&self) -> &RankStatus {
        &self.status
    }

    pub(crate) fn is_lacking(&self) -> bool {
        matches!(self.footing, Footing::Lacking(_))
    }

    pub(crate) fn is_doubtful(&self) -> bool {
        matches!(self.footing, Footing::Doubtful(_))
    }

    /// The stream is whole from the start of the engine's life.
    pub(crate) fn begin_whole(&mut self) {
        self.footing = Footing::Whole;
        if self.untold().is_none() {
            self.fresh = None;
        }
    }

    /// It is the same life, and nothing was missed.
    pub(crate) fn verified(&mut self) {
        if self.is_doubtful() {
            self.begin_whole();
        }
    }

    /// Whether anything was missed could not be found out.
    pub(crate) fn doubt(&mut self, now: Instant, reason: &Reason) {
        if self.footing == Footing::Whole {
            self.footing = Footing::Doubtful(reason.clone());
            self.fresh = Some(Fresh::new(now));
            self.pass_on(Relayed::Missed);
        }
    }

    /// Something is missing. The first reason stays.
    pub(crate) fn lack(&mut self, now: Instant, reason: &Reason) {
        self.lacks += 1;
        self.pass_on(Relayed::Missed);
        if !self.is_lacking() {
            self.footing = Footing::Lacking(reason.clone());
            self.fresh.get_or_insert_with(|| Fresh::new(now));
        }
    }

    /// A request with this demand is dispatched to the engine. Where that makes its events ambiguous, the target is degraded
    /// until its cache is emptied: a replay would bring the same events.
    pub(crate) fn demanded(&mut self, now: Instant, demand: Demand) {
        self.demands.made(now, demand);
        if self.copies() == Copies::Set {
            self.lanes.each(Writer::count_as_set);
        }
        self.keep_untold(now);
    }

    /// Why events do not tell what came of the demands, if so.
    fn untold(&self) -> Option<&'static str> {
        self.demands.untold_by(self.status.carries)
    }

    /// The self-check corrects what is not told, and needs the stores from here on.
    fn keep_untold(&mut self, now: Instant) {
        if self.untold().is_some() {
            self.fresh.get_or_insert_with(|| Fresh::new(now));
        }
    }

    /// Rule 4: raw streams count copies, unless what was hit is reported as stored.
    fn copies(&self) -> Copies {
        if self.demands.has(Demand::FullReports) { Copies::Set } else { self.counting }
    }

    /// The engine's cache was emptied then or later, so demands made before have no effect any more, and copies are counted again.
    pub(crate) fn settle_demands(&mut self, emptied: Instant) {
        let before = self.copies();
        self.demands.emptied(emptied);
        if before != self.copies() {
            self.lanes.drop_writers();
        }
    }

    /// The engine restarted, so whatever was known of its cache is void.
    pub(crate) fn restarted(&mut self, now: Instant) {
        self.status.emptied += 1;
        self.status.carries = None;
        self.unsaid_clear = self.unsaid_clear.filter(|unsaid| unsaid.is_on_its_way(now));
        self.perhaps_restarted();
    }

    /// The engine may have restarted without our noticing, as nothing of its last life was heard.
    pub(crate) fn perhaps_restarted(&mut self) {
        if let Some(unsaid) = &mut self.unsaid_clear {
            unsaid.perhaps_said = true;
        }
    }

    /// The stream is folded anew from its start.
    pub(crate) fn begin_life(&mut self, fold: &Fold) {
        self.clear_lanes();
        if !fold.keeps_writers() {
            self.lanes.drop_writers();
        }
        self.footing = Footing::Unheard;
        self.conflict = None;
        self.fresh = self.untold().map(|_| Fresh::default());
    }

    /// Rule 5: a reset passed through us. The engine's caches are empty now; its event comes with its next step, in front of
    /// that step's stores. Messages from before the reset that are still on their way may add blocks again until then, so
    /// the target is not exact until the event is here.
    pub(crate) fn reset(&mut self, now: Instant) {
        self.status.resets += 1;
        self.status.emptied += 1;
        self.clear_lanes();
        self.unsaid_clear = Some(UnsaidClear::new(now));
    }

    /// The batch named a rank outside of the stream's.
    pub(crate) fn mismatched(&mut self) {
        self.status.rank_mismatches += 1;
    }

    /// A batch of the target begins, with a clear event in it or without.
    fn match_reset(&mut self, now: Instant, clears: bool, arrival: Arrival) {
        match self.unsaid_clear.as_mut().map_or(Answer::Open, |unsaid| unsaid.batch(now, clears, arrival)) {
            Answer::Open => {}
            Answer::Said => self.unsaid_clear = None,
            Answer::Missing => {
                self.unsaid_clear = None;
                self.lack(now, &Arc::from("no clear event followed a cache reset that was passed on"));
            }
        }
    }

    fn write(&mut self, now: Instant, lane: Lane, prepared: Prepared, fold: &Fold) -> Written {
        let Some(writer) = self.writer(lane, fold) else { return Written::Refused };
        match prepared.write(writer) {
            Outcome::Applied { .. } | Outcome::Parked => {
                if lane == Lane::Device
                    && let Some(fresh) = &mut self.fresh
                {
                    fresh.stored(now, prepared);
                }
                Written::Kept
            }
            Outcome::Refused(refusal) => {
                self.refused(now, lane, refusal);
                Written::Refused
            }
        }
    }

    fn refused(&mut self, now: Instant, lane: Lane, refusal: Refusal) {
        self.status.refused += 1;
        if lane == Lane::Device {
            self.lack(now, &Arc::from(format!("a store was refused: {refusal}")));
        }
    }

    fn give_up(&mut self, lane: Lane, hashes: &[EngineHash], fold: &Fold) {
        self.status.removals += 1;
        if let Some(passed) = &mut self.relayed {
            passed.push(Relayed::Removed { hashes: hashes.iter().map(|hash| hash.0).collect(), tier: relay::tier(lane) });
            return;
        }
        let unknown = match self.writer(lane, fold) {
            Some(writer) => writer.remove(hashes).unknown,
            None => hashes.len(),
        };
        self.status.unknown_removals += unknown as u64;
        if lane == Lane::Device
            && let Some(fresh) = &mut self.fresh
        {
            fresh.removed(hashes);
        }
    }

    /// Rule 5 and rule 10: the target is empty, whatever was missing, and its index is exact from here on.
    fn cleared(&mut self, now: Instant, arrival: Arrival) {
        self.status.clears += 1;
        self.status.emptied += 1;
        self.clear_lanes();
        match arrival {
            Arrival::Live => self.settle_demands(now),
            // It may be older than any of them.
            Arrival::Late => {}
        }
        self.conflict = None;
        self.begin_whole();
    }

    /// A parked store that is dropped for lack of room is lost (rule 6).
    fn notice_dropped_orphans(&mut self, now: Instant) {
        if self.lanes.dropped_orphans() {
            self.lack(now, &Arc::from("too many stores waited for their parents, some were dropped"));
        }
    }

    /// Everything is gone, and with it what answers contradicted.
    fn clear_lanes(&mut self) {
        self.pass_on(Relayed::Cleared);
        self.mismatches = Mismatches::default();
        self.lanes.each(Writer::clear);
        if self.fresh.is_some() {
            self.fresh = Some(Fresh::default());
        }
    }

    /// `None` before the block size is known.
    fn writer(&mut self, lane: Lane, fold: &Fold) -> Option<&mut Writer> {
        self.lanes.writer(lane, self.copies(), fold)
    }
}
