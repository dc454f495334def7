//! One target: its lanes of the index, and what its events do to them.

mod router;

use std::{sync::Arc, time::Instant};

use index::{BlockSize, Copies, EngineHash, Lane, LocalHash, Parent, Stored as Outcome, Target, Window, Writer};
use wire::{Batch, Event, EventError, Removed, Stored, Tokens};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    demand::{Demand, Demands, ON_ITS_WAY},
    fold::{Admitted, Fold, Size},
    fresh::{Content, Fresh, Prepared},
    observation::Observation,
    relay::{self, Relayed},
    status::{Ignored, RankStatus},
    trust::{Activity, Footing, Reason, Trust},
};

/// Answers in a row that contradict the index the same way before the contradiction is named.
const LASTING_MISMATCH: u32 = 16;

/// Seed of the stand-in local hashes of blocks with media.
const MEDIA: u64 = u64::from_be_bytes(*b"\0\0\0media");

#[derive(Debug)]
pub(crate) struct Rank {
    status: RankStatus,
    /// Device, host, disk; each made with its first event.
    writers: [Option<Writer>; 3],
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
    /// Stores parked by writers that are gone.
    orphans_before: u64,
    /// Parked stores dropped, as far as they were noticed.
    orphans_dropped: u64,
    /// In place of writers, where the stream is passed on: what was not taken yet.
    relayed: Option<Vec<Relayed>>,
}

/// A reset whose clear event was not seen to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UnsaidClear {
    reset: Instant,
    /// It may have come unseen: a replay brought a clear event of unknown age, or the engine restarted about then and the
    /// cache that was reset was its last life's.
    perhaps_said: bool,
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

/// A run of answers that contradict the index the same way.
#[derive(Debug, Default)]
struct Mismatches {
    over: u32,
    under: u32,
}

impl Rank {
    pub(crate) fn new(rank: u32, target: Target) -> Self {
        Self {
            status: RankStatus::new(rank, target),
            writers: [None, None, None],
            footing: Footing::Unheard,
            lacks: 0,
            counting: Copies::Counted,
            conflict: None,
            unsaid_clear: None,
            demands: Demands::default(),
            fresh: None,
            mismatches: Mismatches::default(),
            orphans_before: 0,
            orphans_dropped: 0,
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
            self.writers.iter_mut().flatten().for_each(Writer::count_as_set);
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
            self.drop_writers();
        }
    }

    /// The engine restarted, so whatever was known of its cache is void.
    pub(crate) fn restarted(&mut self, now: Instant) {
        self.status.emptied += 1;
        self.status.carries = None;
        self.unsaid_clear = self.unsaid_clear.filter(|unsaid| now < unsaid.reset + ON_ITS_WAY);
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
            self.drop_writers();
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
        self.unsaid_clear = Some(UnsaidClear { reset: now, perhaps_said: false });
    }

    /// A batch of this target.
    pub(crate) fn apply(&mut self, now: Instant, batch: Batch, arrival: Arrival, fold: &mut Fold) {
        self.status.last_timestamp = batch.timestamp.or(self.status.last_timestamp);
        let clears = batch.events.iter().any(|event| matches!(event, Ok(Event::Cleared)));
        self.match_reset(now, clears, arrival);
        for event in batch.events {
            self.apply_event(now, event, arrival, fold);
        }
    }

    /// The batch named a rank outside of the stream's.
    pub(crate) fn mismatched(&mut self) {
        self.status.rank_mismatches += 1;
    }

    /// Looks whether the batch answers a reset. The engine says its clear at the head of the first batch after it; what comes
    /// late may have been published before. Long after the reset, a live batch without one tells that there will be none.
    fn match_reset(&mut self, now: Instant, clears: bool, arrival: Arrival) {
        let Some(unsaid) = &mut self.unsaid_clear else { return };
        match (arrival, clears) {
            (Arrival::Live, true) => self.unsaid_clear = None,
            (Arrival::Late, true) => unsaid.perhaps_said = true,
            (Arrival::Live, false) if now >= unsaid.reset + ON_ITS_WAY => {
                let perhaps_said = unsaid.perhaps_said;
                self.unsaid_clear = None;
                if !perhaps_said {
                    self.lack(now, &Arc::from("no clear event followed a cache reset that was passed on"));
                }
            }
            (Arrival::Live | Arrival::Late, false) => {}
        }
    }

    fn apply_event(&mut self, now: Instant, event: Result<Event, EventError>, arrival: Arrival, fold: &mut Fold) {
        match event {
            Ok(Event::Stored(stored)) => {
                fold.groups.learn(&stored.group);
                self.status.learn(stored.carries);
                if let Err(reason) = self.store(now, stored, fold) {
                    self.status.ignored.count(reason);
                }
                self.keep_untold(now);
            }
            Ok(Event::Removed(removed)) => {
                if let Err(reason) = self.remove(&removed, fold) {
                    self.status.ignored.count(reason);
                }
            }
            Ok(Event::Cleared) => self.cleared(now, arrival),
            Ok(Event::Unknown(_)) => self.status.ignored.count(Ignored::UnknownType),
            Err(error) => {
                self.status.event_errors += 1;
                self.lack(now, &Arc::from(format!("an event could not be read: {error}")));
            }
        }
    }

    fn store(&mut self, now: Instant, stored: Stored, fold: &mut Fold) -> Result<(), Ignored> {
        let Admitted { lane, group } = fold.admit(&stored.medium, stored.locality, &stored.group)?;
        let (Tokens::Plain(tokens) | Tokens::Pairs(tokens)) = &stored.tokens;
        let size = BlockSize::new(stored.block_size).ok_or(Ignored::Placeholder)?;
        if tokens.is_empty() || stored.block_hashes.is_empty() {
            return Err(Ignored::Placeholder);
        }
        match fold.size(lane, size) {
            Size::Fits => {}
            Size::Partial => return Err(Ignored::PartialBlock),
            Size::Other => return Err(Ignored::BlockSize),
            Size::Conflicts { expected } => {
                let reason = || Arc::from(format!("events have blocks of {size} tokens, expected {expected}"));
                self.conflict.get_or_insert_with(reason);
                return Err(Ignored::BlockSize);
            }
        }
        self.status.eagle = matches!(stored.tokens, Tokens::Pairs(_));
        self.status.stores += 1;
        if let Some(passed) = &mut self.relayed {
            passed.push(Relayed::Stored(relay::stored(stored, relay::tier(lane), group, size, fold)));
            return Ok(());
        }
        for part in prepare(stored, group, size, fold).into_iter().flatten() {
            if self.write(now, lane, part, fold) == Written::Refused {
                break;
            }
        }
        self.notice_dropped_orphans(now);
        Ok(())
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
                self.status.refused += 1;
                if lane == Lane::Device {
                    self.lack(now, &Arc::from(format!("a store was refused: {refusal}")));
                }
                Written::Refused
            }
        }
    }

    fn remove(&mut self, removed: &Removed, fold: &Fold) -> Result<(), Ignored> {
        let Admitted { lane, group } = fold.admit(&removed.medium, removed.locality, &removed.group)?;
        self.give_up(lane, &in_group(&removed.block_hashes, group), fold);
        Ok(())
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

    /// Rule 11, see [`Observation`].
    pub(crate) fn observed(&mut self, now: Instant, seen: &Observation) {
        let (predicted, reported) = (seen.predicted_blocks, seen.reported_blocks);
        let accuracy = &mut self.status.accuracy;
        accuracy.observations += 1;
        match predicted.cmp(&reported) {
            std::cmp::Ordering::Equal => {
                accuracy.equal += 1;
                self.mismatches = Mismatches::default();
            }
            std::cmp::Ordering::Greater => {
                accuracy.over += 1;
                self.mismatches = Mismatches { over: self.mismatches.over.saturating_add(1), under: 0 };
                self.retract(seen);
            }
            std::cmp::Ordering::Less => {
                accuracy.under += 1;
                self.mismatches = Mismatches { over: 0, under: self.mismatches.under.saturating_add(1) };
                self.adopt(now, seen);
            }
        }
    }

    /// A target that lacks events believed in blocks the engine did not have when the request reached it.
    fn retract(&mut self, seen: &Observation) {
        let Some(fresh) = self.fresh.as_ref().filter(|fresh| fresh.covers(seen.dispatched)) else { return };
        let [Some(device), _, _] = &mut self.writers else { return };
        let gone = device.retract(&seen.chain, seen.reported_blocks as usize);
        fresh.restore(device, seen.dispatched);
        self.status.accuracy.retracted_blocks += gone as u64;
    }

    fn adopt(&mut self, now: Instant, seen: &Observation) {
        let [Some(device), _, _] = &mut self.writers else { return };
        let adopted = device.adopt(&seen.chain, seen.reported_blocks as usize, seen.seed);
        self.status.accuracy.adopted_blocks += adopted as u64;
        self.notice_dropped_orphans(now);
    }

    /// Brings what is shown up to date, which is folded in up to `last_seq`. Returns the trust before, if it changed.
    pub(crate) fn show(&mut self, activity: &Activity, fold: &Fold, last_seq: Option<u64>) -> Option<Trust> {
        self.status.last_seq = last_seq;
        let device = self.writers[0].as_ref();
        self.status.digest = Some(device.map_or(0, |writer| writer.indexer().digest(self.status.target)));
        let parked = self.writers.iter().flatten().map(Writer::parked);
        (self.status.orphans_parked, self.status.orphan_blocks) =
            parked.fold((0, 0), |(stores, blocks), parked| (stores + parked.stores, blocks + parked.blocks));
        self.status.orphans_total = self.orphans_total();
        self.status.block_size = fold.block_size().map(BlockSize::get);
        let [device, host, disk] = self.writers.each_ref().map(|writer| writer.as_ref().map_or(0, Writer::blocks));
        (self.status.blocks, self.status.host_blocks, self.status.disk_blocks) = (device, host, disk);
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
        if self.writers[0].as_ref().is_some_and(|device| device.parked().stores > 0) {
            return (Trust::Degraded, "stores wait for a parent that no event has named");
        }
        let contradiction = if self.mismatches.over >= LASTING_MISMATCH {
            "answers keep reporting fewer cached tokens than predicted"
        } else if self.mismatches.under >= LASTING_MISMATCH {
            "answers keep reporting more cached tokens than predicted"
        } else {
            ""
        };
        (Trust::Exact, contradiction)
    }

    /// A parked store that is dropped for lack of room is lost (rule 6).
    fn notice_dropped_orphans(&mut self, now: Instant) {
        let dropped = self.writers[0].as_ref().map_or(0, |device| device.parked().dropped);
        if dropped > self.orphans_dropped {
            self.orphans_dropped = dropped;
            self.lack(now, &Arc::from("too many stores waited for their parents, some were dropped"));
        }
    }

    fn orphans_total(&self) -> u64 {
        self.orphans_before + self.writers.iter().flatten().map(|writer| writer.parked().total).sum::<u64>()
    }

    /// Everything is gone, and with it what answers contradicted.
    fn clear_lanes(&mut self) {
        self.pass_on(Relayed::Cleared);
        self.mismatches = Mismatches::default();
        for writer in self.writers.iter_mut().flatten() {
            writer.clear();
        }
        if self.fresh.is_some() {
            self.fresh = Some(Fresh::default());
        }
    }

    fn drop_writers(&mut self) {
        self.orphans_before = self.orphans_total();
        self.orphans_dropped = 0;
        self.writers = [None, None, None];
    }

    /// `None` before the block size is known.
    fn writer(&mut self, lane: Lane, fold: &Fold) -> Option<&mut Writer> {
        let at = match lane {
            Lane::Device => 0,
            Lane::Host => 1,
            Lane::Disk => 2,
            Lane::Predicted | Lane::Confirmed => return None,
        };
        let copies = self.copies();
        let writer = &mut self.writers[at];
        if writer.is_none() {
            *writer = fold.writer(self.status.target, lane, copies);
        }
        writer.as_mut()
    }
}

/// A store as the index takes it: its text, and behind it in the same chain what begins with media. Blocks from there on get
/// stand-in local hashes made of the engine's own hash: the chain through them exists, and what follows finds its parent, but
/// no text prompt can reach it (rule 9).
fn prepare(stored: Stored, group: u32, size: BlockSize, fold: &Fold) -> [Option<Prepared>; 2] {
    let mut parent = match stored.parent {
        Some(hash) => Parent::Block(EngineHash(hash).in_group(group)),
        None => Parent::Root(fold.seed(&stored.adapter, stored.salt.as_deref())),
    };
    let mut hashes = in_group(&stored.block_hashes, group);
    // Blocks of pairs take one token of the block behind them.
    let (mut tokens, window, more) = match stored.tokens {
        Tokens::Plain(tokens) => (tokens, Window::Plain, 0),
        Tokens::Pairs(tokens) => (tokens, Window::Eagle, 1),
    };
    let Some(from) = stored.media_from.map(|from| from.min(hashes.len())) else {
        return [Some(Prepared { parent, hashes, content: Content::Tokens { tokens, window } }), None];
    };
    let behind = hashes.split_off(from);
    let stand_in = |hash: &u64| LocalHash(xxh3_64_with_seed(&hash.to_le_bytes(), MEDIA));
    let locals = stored.block_hashes[from..].iter().map(stand_in).collect();
    let text = hashes.last().copied().map(|last| {
        tokens.truncate(from.saturating_mul(size.get() as usize).saturating_add(more));
        let text = Prepared { parent, hashes, content: Content::Tokens { tokens, window } };
        parent = Parent::Block(last);
        text
    });
    [text, Some(Prepared { parent, hashes: behind, content: Content::Locals(locals) })]
}

fn in_group(hashes: &[u64], group: u32) -> Vec<EngineHash> {
    hashes.iter().map(|hash| EngineHash(*hash).in_group(group)).collect()
}
