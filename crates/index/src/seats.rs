//! What the index knows per target: which writer is in force in each lane, how much it holds, its digest, and when it
//! last lost a block.

use std::sync::Arc;

use crate::{
    cover::{Crowd, Seat},
    hash::SequenceHash,
    indexer::{digest_of, mixed},
    lane::{Lane, Lanes},
    mask::Mask,
    slots::SlotSet,
    target::Target,
};

/// Which writer acts, and for which seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) seat: Seat,
    id: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Seats {
    by_slot: Vec<Row>,
    /// Per lane: targets that are being emptied. Lookups do not see them at all, so emptying is one step to a reader.
    hidden: [SlotSet; Lane::ALL.len()],
    /// How many are hidden in all lanes: mostly nobody.
    hiding: usize,
    /// Per lane: blocks held by all targets.
    totals: [usize; Lane::ALL.len()],
    /// Counts losses of blocks.
    clock: u64,
    owners: u64,
}

#[derive(Clone, Debug, Default)]
struct Row {
    generation: u32,
    digest: u64,
    lanes: [LaneRow; Lane::ALL.len()],
}

#[derive(Clone, Debug, Default)]
struct LaneRow {
    owner: Option<u64>,
    blocks: usize,
    /// The set of this one seat, for the many nodes that nobody else holds.
    alone: Option<Arc<Crowd>>,
    /// The clock at its last loss.
    lost_at: u64,
}

impl Seats {
    /// Puts a new writer in force. Also the lanes of the slot that still hold blocks of a writer that is in force no
    /// more: they are hidden now, and to be swept. A target older than the slot's newest gets a writer that never is.
    pub(crate) fn claim(&mut self, target: Target, lane: Lane) -> (Owner, Lanes) {
        let slot = target.slot;
        if self.by_slot.len() <= slot.index() {
            self.by_slot.resize(slot.index() + 1, Row::default());
        }
        self.owners += 1;
        let owner = Owner { seat: Seat { slot, lane }, id: self.owners };
        let row = &mut self.by_slot[slot.index()];
        if target.generation < row.generation {
            return (owner, Lanes::NONE);
        }
        let replaced = if target.generation > row.generation { Lanes::ALL } else { lane.into() };
        row.generation = target.generation;
        let mut sweep = Lanes::NONE;
        for lane in replaced.iter() {
            row.lanes[lane.index()].owner = None;
            if row.lanes[lane.index()].blocks > 0 {
                sweep = sweep | lane.into();
            } else {
                // Its writer may have been about to show it again.
                self.hiding -= usize::from(self.hidden[lane.index()].remove(slot));
            }
        }
        row.lanes[lane.index()].owner = Some(owner.id);
        for lane in sweep.iter() {
            self.hide(Seat { slot, lane });
        }
        (owner, sweep)
    }

    pub(crate) fn in_force(&self, owner: Owner) -> bool {
        self.lane(owner.seat).is_some_and(|lane| lane.owner == Some(owner.id))
    }

    /// Whether the owner is in force and has blocks.
    pub(crate) fn holds(&self, owner: Owner) -> bool {
        self.lane(owner.seat).is_some_and(|lane| lane.owner == Some(owner.id) && lane.blocks > 0)
    }

    pub(crate) fn leave(&mut self, owner: Owner) {
        if self.in_force(owner) {
            let lane = self.lane_mut(owner.seat);
            (lane.owner, lane.alone) = (None, None);
        }
    }

    pub(crate) fn hide(&mut self, seat: Seat) {
        self.hiding += usize::from(self.hidden[seat.lane.index()].insert(seat.slot));
        if seat.lane == Lane::Device {
            self.by_slot[seat.slot.index()].digest = 0;
        }
        self.clock += 1;
        let clock = self.clock;
        self.lane_mut(seat).lost_at = clock;
    }

    pub(crate) fn show(&mut self, seat: Seat) {
        self.hiding -= usize::from(self.hidden[seat.lane.index()].remove(seat.slot));
    }

    /// The seat has a block with this identity, which it had not.
    #[inline(always)]
    pub(crate) fn gained_one(&mut self, seat: Seat, identity: SequenceHash) {
        self.totals[seat.lane.index()] += 1;
        let row = &mut self.by_slot[seat.slot.index()];
        row.lanes[seat.lane.index()].blocks += 1;
        if seat.lane == Lane::Device {
            row.digest = row.digest.wrapping_add(mixed(identity));
        }
    }

    /// The seat has blocks with these identities, all of which it had not.
    pub(crate) fn gained_all(&mut self, seat: Seat, identities: &[SequenceHash]) {
        self.totals[seat.lane.index()] += identities.len();
        let row = &mut self.by_slot[seat.slot.index()];
        row.lanes[seat.lane.index()].blocks += identities.len();
        if seat.lane == Lane::Device {
            row.digest = row.digest.wrapping_add(digest_of(identities.iter().copied()));
        }
    }

    /// The seat has those of a node's blocks, whose identities these are, that it had not.
    pub(crate) fn gained(&mut self, seat: Seat, identities: &[u64], gained: Mask) {
        let blocks = gained.count();
        self.totals[seat.lane.index()] += blocks;
        self.lane_mut(seat).blocks += blocks;
        if seat.lane == Lane::Device {
            let digest = &mut self.by_slot[seat.slot.index()].digest;
            *digest = digest.wrapping_add(digest_of_part(identities, gained));
        }
    }

    /// As [`Seats::gained`], the other way.
    pub(crate) fn lost(&mut self, seat: Seat, identities: &[u64], lost: Mask) {
        let blocks = lost.count();
        self.totals[seat.lane.index()] -= blocks;
        self.clock += 1;
        let clock = self.clock;
        let lane = self.lane_mut(seat);
        lane.blocks -= blocks;
        lane.lost_at = clock;
        // What is hidden is out of the digest as a whole.
        if seat.lane == Lane::Device && !self.hidden[seat.lane.index()].contains(seat.slot) {
            let digest = &mut self.by_slot[seat.slot.index()].digest;
            *digest = digest.wrapping_sub(digest_of_part(identities, lost));
        }
    }

    /// The set of this seat alone.
    pub(crate) fn alone(&mut self, seat: Seat) -> Arc<Crowd> {
        self.lane_mut(seat).alone.get_or_insert_with(|| Crowd::alone(seat)).clone()
    }

    /// Whether these are the holders of all that this seat alone holds: no look at who they are is needed. `false` says nothing.
    #[inline]
    pub(crate) fn is_alone(&self, seat: Seat, crowd: &Arc<Crowd>) -> bool {
        self.lane(seat).and_then(|lane| lane.alone.as_ref()).is_some_and(|alone| Arc::ptr_eq(alone, crowd))
    }

    pub(crate) fn clock(&self) -> u64 {
        self.clock
    }

    /// Fills `into` with those of `slots` that lost a block in any of `lanes` since the clock stood at `since`.
    pub(crate) fn lost_since(&self, since: u64, lanes: Lanes, slots: &SlotSet, into: &mut SlotSet) {
        into.clear();
        for slot in slots.iter() {
            let Some(row) = self.by_slot.get(slot.index()) else { continue };
            if lanes.iter().any(|lane| row.lanes[lane.index()].lost_at > since) {
                into.insert(slot);
            }
        }
    }

    /// Takes out of `slots` those that are hidden in any of `lanes`.
    pub(crate) fn without_hidden(&self, lanes: Lanes, slots: &mut SlotSet) {
        if self.hiding > 0 {
            lanes.iter().for_each(|lane| slots.and_not(&self.hidden[lane.index()]));
        }
    }

    /// Whether no target is being emptied.
    pub(crate) fn nobody_hidden(&self) -> bool {
        self.hiding == 0
    }

    pub(crate) fn lanes_in_use(&self) -> Lanes {
        let used = Lane::ALL.into_iter().filter(|lane| self.totals[lane.index()] > 0);
        used.fold(Lanes::NONE, |lanes, lane| lanes | lane.into())
    }

    pub(crate) fn blocks(&self, target: Target, lane: Lane) -> usize {
        self.row(target).map_or(0, |row| row.lanes[lane.index()].blocks)
    }

    pub(crate) fn digest(&self, target: Target) -> u64 {
        self.row(target).map_or(0, |row| row.digest)
    }

    /// Per lane: targets that are being emptied.
    pub(crate) fn hidden(&self) -> &[SlotSet; Lane::ALL.len()] {
        &self.hidden
    }

    /// (number of a slot, generation of its newest target).
    pub(crate) fn generations(&self) -> impl Iterator<Item = (u32, u32)> {
        (0..).zip(&self.by_slot).map(|(slot, row)| (slot, row.generation))
    }

    /// The row of exactly this target, not of an earlier or later one in its slot.
    fn row(&self, target: Target) -> Option<&Row> {
        self.by_slot.get(target.slot.index()).filter(|row| row.generation == target.generation)
    }

    fn lane(&self, seat: Seat) -> Option<&LaneRow> {
        self.by_slot.get(seat.slot.index()).map(|row| &row.lanes[seat.lane.index()])
    }

    fn lane_mut(&mut self, seat: Seat) -> &mut LaneRow {
        &mut self.by_slot[seat.slot.index()].lanes[seat.lane.index()]
    }
}

/// The digest of those of a node's blocks.
fn digest_of_part(identities: &[u64], part: Mask) -> u64 {
    if part == Mask::first(identities.len()) {
        return digest_of(identities.iter().map(|identity| SequenceHash(*identity)));
    }
    let bits = identities.iter().enumerate().filter(|(at, _)| part.contains(*at));
    bits.map(|(_, identity)| mixed(SequenceHash(*identity))).fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Slot;

    #[test]
    fn a_take_over_in_the_middle_of_a_clear_hides_nothing_for_good() {
        let mut seats = Seats::default();
        let target = Target { slot: Slot::new(3), generation: 0 };
        let (first, _) = seats.claim(target, Lane::Device);
        seats.gained(first.seat, &[1], Mask::first(1));
        seats.hide(first.seat);
        seats.lost(first.seat, &[1], Mask::first(1));
        let (second, sweep) = seats.claim(target, Lane::Device);
        assert!(sweep.is_empty() && seats.in_force(second) && !seats.in_force(first));
        let mut slots = SlotSet::from_iter([target.slot]);
        seats.without_hidden(Lanes::ALL, &mut slots);
        assert!(slots.contains(target.slot));
    }
}
