//! What a lookup answers: who holds how much of the prompt, as disjoint sets by depth.

use std::sync::Arc;

use crate::{
    cover::{Cover, Crowd},
    lane::Lanes,
    mask::Mask,
    slots::SlotSet,
    target::Slot,
};

/// The answer of [`crate::KvIndexer::lookup`], and its scratch: keep one per thread or request and pass it again, and
/// lookups do not allocate once it is warm.
#[derive(Clone, Debug, Default)]
pub struct Levels {
    found: Found,
    /// While a lookup runs: who holds every block seen so far.
    active: SlotSet,
    scratch: SlotSet,
    union: SlotSet,
    /// Within one node: (leading blocks of it held, by whom).
    ends: Vec<(u32, Slot)>,
}

/// Depths ascending in `levels[..used]`; what lies beyond is kept for its memory.
#[derive(Clone, Debug, Default)]
struct Found {
    levels: Vec<(u32, SlotSet)>,
    used: usize,
    /// The depth of the last level; 0 where there is none.
    deepest: u32,
}

impl Levels {
    /// No answer yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// (leading blocks held, exactly the slots that hold so many), deepest first; depths are above zero and differ,
    /// the sets are disjoint and not empty.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &SlotSet)> {
        self.found.levels[..self.found.used].iter().rev().map(|(depth, slots)| (*depth, slots))
    }

    /// Leading blocks `slot` holds.
    pub fn depth(&self, slot: Slot) -> u32 {
        self.iter().find(|(_, slots)| slots.contains(slot)).map_or(0, |(depth, _)| depth)
    }

    /// Whether nobody holds the first block.
    pub fn is_empty(&self) -> bool {
        self.found.used == 0
    }

    /// Forgets the answer and keeps the memory.
    pub fn clear(&mut self) {
        (self.found.used, self.found.deepest) = (0, 0);
        self.active.clear();
    }

    pub(crate) fn nobody_left(&self) -> bool {
        self.active.is_empty()
    }

    pub(crate) fn active_mut(&mut self) -> &mut SlotSet {
        &mut self.active
    }

    /// The active targets, and the scratch, to be filled for [`Levels::cut`].
    pub(crate) fn active_and_scratch(&mut self) -> (&SlotSet, &mut SlotSet) {
        (&self.active, &mut self.scratch)
    }

    /// Whoever holds the first block of a first node is active.
    pub(crate) fn start(&mut self, cover: &Cover, lanes: Lanes) {
        match cover.full() {
            Some(crowd) => self.active.copy_from(crowd.in_lanes(lanes, &mut self.union)),
            None => self.active.clear(),
        }
        for (seat, mask) in cover.parts() {
            if mask.contains(0) && lanes.contains(seat.lane) {
                self.active.insert(seat.slot);
            }
        }
    }

    /// Exactly `slots` are active.
    pub(crate) fn settle(&mut self, slots: &SlotSet) {
        self.active.copy_from(slots);
    }

    /// Whether exactly `slots` are active.
    pub(crate) fn are(&self, slots: &SlotSet) -> bool {
        self.active == *slots
    }

    /// An active target ends at `depth`. The set of those that are is not changed: that is up to who knows them all.
    #[inline]
    pub(crate) fn end_one(&mut self, slot: Slot, depth: u32) {
        self.found.add_one(depth, slot);
    }

    /// `slots`, which are all that are active and not nobody, end at `depth`.
    pub(crate) fn end_all(&mut self, slots: &SlotSet, depth: u32) {
        self.found.next().copy_from(slots);
        self.found.keep(depth);
        self.active.clear();
    }

    /// Only `crowd` holds what follows `depth`: the active ones that are not in it end there.
    pub(crate) fn pass(&mut self, crowd: Option<&Arc<Crowd>>, lanes: Lanes, depth: u32) {
        let Some(crowd) = crowd else { return self.end(depth) };
        let Self { found, active, union, .. } = self;
        if active.narrow(crowd.in_lanes(lanes, union), found.next()) {
            found.keep(depth);
        }
    }

    /// As [`Levels::pass`], where some hold only part of the node after `depth`; of its blocks `same` are asked for.
    pub(crate) fn pass_in_part(&mut self, cover: &Cover, lanes: Lanes, depth: u32, same: usize) {
        let full = match cover.full() {
            Some(crowd) => crowd.in_lanes(lanes, &mut self.union),
            None => {
                self.union.clear();
                &self.union
            }
        };
        self.ends.clear();
        let mut parts = cover.parts().filter(|(seat, _)| lanes.contains(seat.lane)).peekable();
        self.scratch.copy_from(full);
        while let Some((seat, mut mask)) = parts.next() {
            // Several lanes together may hold what none holds alone.
            while let Some((_, more)) = parts.next_if(|(other, _)| other.slot == seat.slot) {
                mask = mask | more;
            }
            let asked = Mask::first(same);
            if mask.contains(0) && self.active.contains(seat.slot) && !full.contains(seat.slot) {
                self.scratch.insert(seat.slot);
                if mask & asked != asked {
                    self.ends.push((mask.leading() as u32, seat.slot));
                }
            }
        }
        // The union is not needed any more; it takes those that hold nothing of the node.
        let Self { found, active, scratch, union, ends } = self;
        if active.narrow(scratch, union) {
            found.push(depth, union);
        }
        ends.sort_unstable();
        for (blocks, slot) in ends.drain(..) {
            active.remove(slot);
            scratch.clear();
            scratch.insert(slot);
            found.push(depth + blocks, scratch);
        }
    }

    /// The scratch holds active targets that end at `depth`.
    pub(crate) fn cut(&mut self, depth: u32) {
        self.found.push(depth, &self.scratch);
        self.active.and_not(&self.scratch);
    }

    /// All that are still active end at `depth`.
    pub(crate) fn end(&mut self, depth: u32) {
        if !self.active.is_empty() {
            std::mem::swap(self.found.next(), &mut self.active);
            self.found.keep(depth);
        }
        self.active.clear();
    }
}

impl Found {
    /// Adds `slots` at `depth`, which is at least the depth of the last level added.
    fn push(&mut self, depth: u32, slots: &SlotSet) {
        if slots.is_empty() {
            return;
        }
        self.next().copy_from(slots);
        self.keep(depth);
    }

    /// As [`Found::push`], of one slot.
    #[inline]
    fn add_one(&mut self, depth: u32, slot: Slot) {
        match self.levels.get_mut(self.used) {
            Some((next, set)) if self.deepest != depth => {
                *next = depth;
                set.become_one(slot);
                self.deepest = depth;
                self.used += 1;
            }
            Some(_) | None => {
                self.next().become_one(slot);
                self.keep(depth);
            }
        }
    }

    /// The set of a level that is not one yet.
    fn next(&mut self) -> &mut SlotSet {
        if self.used == self.levels.len() {
            self.levels.push((0, SlotSet::new()));
        }
        &mut self.levels[self.used].1
    }

    /// Makes the next set, which is not empty, the level `depth`.
    fn keep(&mut self, depth: u32) {
        let (levels, next) = self.levels.split_at_mut(self.used);
        match levels.last_mut() {
            Some((last, set)) if *last == depth => set.or(&next[0].1),
            Some(_) | None => {
                next[0].0 = depth;
                self.deepest = depth;
                self.used += 1;
            }
        }
    }
}
