//! Who holds the blocks of one node, per lane.
//!
//! Most holders hold all of a node: they are a set, shared between nodes that have the same one. Who holds only some of
//! its blocks is listed with a bit for each block, so holes are kept exactly.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    lane::{Lane, Lanes},
    mask::Mask,
    slots::SlotSet,
    target::Slot,
};

/// One bit of the index: this slot holds a block in this lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Seat {
    pub(crate) slot: Slot,
    pub(crate) lane: Lane,
}

/// A set of seats.
#[derive(Clone, Debug, Default)]
pub(crate) struct Crowd {
    /// Only lanes with somebody in them.
    lanes: SmallVec<[(Lane, SlotSet); 1]>,
    count: usize,
    /// Never that of a crowd that was another set; 0: no crowd remembers this one.
    id: u64,
    within: Option<Within>,
}

/// That a crowd is a part of another.
#[derive(Clone, Copy, Debug)]
struct Within {
    /// The other's.
    id: u64,
    rest: Rest,
}

/// Who is in a crowd and not in a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    Nobody,
    One(Slot),
    Many,
}

/// The holders of a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cover {
    /// Who holds every block; `None`: nobody.
    full: Option<Arc<Crowd>>,
    /// Who holds some but not all, sorted by seat; `None`: nobody.
    parts: Option<Box<Parts>>,
}

#[derive(Clone, Debug, Default)]
struct Parts {
    list: Vec<(Seat, Mask)>,
}

/// The last change of a shared set, so that the next node with the same set gets the same new one.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    last: Option<(Arc<Crowd>, Option<Arc<Crowd>>)>,
    /// Of crowds, given so far.
    ids: u64,
}

impl Crowd {
    pub(crate) fn alone(seat: Seat) -> Arc<Self> {
        let mut crowd = Self::default();
        crowd.insert(seat);
        Arc::new(crowd)
    }

    pub(crate) fn contains(&self, seat: Seat) -> bool {
        self.lane(seat.lane).is_some_and(|slots| slots.contains(seat.slot))
    }

    fn lane(&self, lane: Lane) -> Option<&SlotSet> {
        self.lanes.iter().find(|(other, _)| *other == lane).map(|(_, slots)| slots)
    }

    fn insert(&mut self, seat: Seat) {
        self.is_another();
        let at = self.lanes.iter().position(|(lane, _)| *lane == seat.lane).unwrap_or_else(|| {
            self.lanes.push((seat.lane, SlotSet::new()));
            self.lanes.len() - 1
        });
        self.count += usize::from(self.lanes[at].1.insert(seat.slot));
    }

    fn remove(&mut self, seat: Seat) {
        self.is_another();
        let Some(at) = self.lanes.iter().position(|(lane, _)| *lane == seat.lane) else { return };
        let slots = &mut self.lanes[at].1;
        self.count -= usize::from(slots.remove(seat.slot));
        if slots.is_empty() {
            self.lanes.remove(at);
        }
    }

    fn is_another(&mut self) {
        (self.id, self.within) = (0, None);
    }

    /// The slots of everybody in it, where all are in one lane of `lanes`.
    pub(crate) fn all_in(&self, lanes: Lanes) -> Option<&SlotSet> {
        match self.lanes.as_slice() {
            [(lane, slots)] if lanes.contains(*lane) => Some(slots),
            _ => None,
        }
    }

    /// Who of `all` is not in it, if it is known to be a part of that.
    pub(crate) fn rest_of(&self, all: &Self) -> Option<Rest> {
        self.within.filter(|within| within.id == all.id).map(|within| within.rest)
    }

    /// Looks whether it is a part of `all`.
    fn compare(&self, all: &Self) -> Option<Within> {
        let ([(lane, slots)], [(other, all_slots)]) = (self.lanes.as_slice(), all.lanes.as_slice()) else { return None };
        if lane != other || self.count > all.count || all.id == 0 {
            return None;
        }
        let first = slots.first_beyond(all_slots).is_none().then(|| all_slots.first_beyond(slots))?;
        let rest = match (first, all.count - self.count) {
            (None, _) => Rest::Nobody,
            (Some(slot), 1) => Rest::One(slot),
            (Some(_), _) => Rest::Many,
        };
        Some(Within { id: all.id, rest })
    }

    /// The slots in any of `lanes`; `union` is for where that takes more than one.
    pub(crate) fn in_lanes<'a>(&'a self, lanes: Lanes, union: &'a mut SlotSet) -> &'a SlotSet {
        if let [(lane, slots)] = self.lanes.as_slice()
            && lanes.contains(*lane)
        {
            return slots;
        }
        let mut asked = self.lanes.iter().filter(|(lane, _)| lanes.contains(*lane)).map(|(_, slots)| slots);
        let (first, second) = (asked.next(), asked.next());
        match (first, second) {
            (Some(only), None) => only,
            (Some(first), Some(second)) => {
                union.copy_from(first);
                union.or(second);
                asked.for_each(|slots| union.or(slots));
                union
            }
            (None, _) => {
                union.clear();
                union
            }
        }
    }

    pub(crate) fn seats(&self) -> impl Iterator<Item = Seat> {
        self.lanes.iter().flat_map(|(lane, slots)| slots.iter().map(|slot| Seat { slot, lane: *lane }))
    }
}

impl Cover {
    /// Held in full by `crowd` and by nobody else.
    pub(crate) fn of(crowd: Arc<Crowd>) -> Self {
        Self { full: Some(crowd), parts: None }
    }

    pub(crate) fn full(&self) -> Option<&Arc<Crowd>> {
        self.full.as_ref()
    }

    /// Who holds some of the blocks: sorted by slot, then lane.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (Seat, Mask)> {
        self.list().iter().copied()
    }

    pub(crate) fn has_parts(&self) -> bool {
        self.parts.is_some()
    }

    /// Whether `seat` holds every block and nobody else holds any.
    pub(crate) fn is_all_of(&self, seat: Seat) -> bool {
        self.parts.is_none() && self.full.as_ref().is_some_and(|crowd| crowd.count == 1 && crowd.contains(seat))
    }

    /// What `seat` holds of a node of `len` blocks.
    pub(crate) fn held(&self, seat: Seat, len: usize) -> Mask {
        if self.full.as_ref().is_some_and(|crowd| crowd.contains(seat)) {
            return Mask::first(len);
        }
        self.part(seat).map_or(Mask::NONE, |at| self.list()[at].1)
    }

    /// Remembers that whoever holds all of this node holds all of the one above, if it is so and nobody else remembers
    /// anything of this set.
    pub(crate) fn compare(&mut self, above: &Self) {
        if let (Some(own), Some(all)) = (&mut self.full, &above.full)
            && !Arc::ptr_eq(own, all)
            && own.within.is_none_or(|within| within.id != all.id)
            && let Some(own) = Arc::get_mut(own)
        {
            own.within = own.compare(all);
        }
    }

    /// Makes `mask` what `seat` holds of a node of `len` blocks.
    pub(crate) fn set(&mut self, seat: Seat, mask: Mask, len: usize, memo: &mut Memo) {
        let (was_full, is_full) = (self.full.as_ref().is_some_and(|crowd| crowd.contains(seat)), mask == Mask::first(len));
        if was_full != is_full {
            self.full = memo.changed(self.full.take(), seat, is_full);
        }
        let rest = if is_full { Mask::NONE } else { mask };
        match self.part(seat) {
            Some(at) if rest.is_empty() => self.change_parts(|list| {
                list.remove(at);
            }),
            Some(at) => self.change_parts(|list| list[at].1 = rest),
            None if rest.is_empty() => {}
            None => self.change_parts(|list| {
                let at = list.partition_point(|(other, _)| *other < seat);
                if list.is_empty() {
                    list.reserve_exact(1);
                }
                list.insert(at, (seat, rest));
            }),
        }
    }

    fn list(&self) -> &[(Seat, Mask)] {
        self.parts.as_ref().map(|parts| parts.list.as_slice()).unwrap_or_default()
    }

    fn change_parts(&mut self, change: impl FnOnce(&mut Vec<(Seat, Mask)>)) {
        let parts = self.parts.get_or_insert_default();
        change(&mut parts.list);
        if parts.list.is_empty() {
            self.parts = None;
        }
    }

    /// How many leading blocks there are up to the last that anyone holds, of `len`.
    pub(crate) fn reach(&self, len: usize) -> usize {
        if self.full.is_some() {
            return len;
        }
        self.list().iter().map(|(_, mask)| mask.reach()).max().unwrap_or(0)
    }

    /// The node is cut to its first `len` blocks, up to [`Cover::reach`]: who holds all that is left holds it in full.
    pub(crate) fn cut(&mut self, len: usize) {
        let all = Mask::first(len);
        let mut crowd = Crowd::default();
        self.change_parts(|list| {
            list.retain(|(seat, mask)| {
                let full = *mask == all;
                if full {
                    crowd.insert(*seat);
                }
                !full
            });
        });
        if crowd.count > 0 {
            self.full = Some(Arc::new(crowd));
        }
    }

    /// Keeps what is held of the blocks from `at` of `len` on, and returns what is held of those before.
    pub(crate) fn split(&mut self, at: usize, len: usize) -> Self {
        let mut upper = Self { full: self.full.clone(), parts: None };
        for (seat, mask) in self.parts.take().map(|parts| parts.list).unwrap_or_default() {
            upper.place(seat, mask & Mask::first(at), at);
            self.place(seat, mask.down(at), len - at);
        }
        upper
    }

    /// Adds a seat that comes after all others, with what it holds of `len` blocks.
    fn place(&mut self, seat: Seat, mask: Mask, len: usize) {
        if mask == Mask::first(len) {
            Arc::make_mut(self.full.get_or_insert_default()).insert(seat);
        } else if !mask.is_empty() {
            self.change_parts(|list| list.push((seat, mask)));
        }
    }

    fn part(&self, seat: Seat) -> Option<usize> {
        self.list().binary_search_by_key(&seat, |(other, _)| *other).ok()
    }
}

impl Memo {
    /// What follows is about another seat, or another change.
    pub(crate) fn forget(&mut self) {
        self.last = None;
    }

    /// `crowd` with `seat`, or without.
    fn changed(&mut self, crowd: Option<Arc<Crowd>>, seat: Seat, with: bool) -> Option<Arc<Crowd>> {
        let Some(mut crowd) = crowd else { return with.then(|| Crowd::alone(seat)) };
        if let Some((from, to)) = &self.last
            && Arc::ptr_eq(from, &crowd)
        {
            return to.clone();
        }
        if !with && crowd.count == 1 {
            self.last = Some((crowd, None));
            return None;
        }
        if let Some(own) = Arc::get_mut(&mut crowd) {
            own.change(seat, with, self.next());
            return Some(crowd);
        }
        let mut changed = (*crowd).clone();
        changed.change(seat, with, self.next());
        let changed = Arc::new(changed);
        self.last = Some((crowd, Some(changed.clone())));
        Some(changed)
    }

    fn next(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }
}

impl Crowd {
    fn change(&mut self, seat: Seat, with: bool, id: u64) {
        if with {
            self.insert(seat)
        } else {
            self.remove(seat)
        }
        self.id = id;
    }
}
