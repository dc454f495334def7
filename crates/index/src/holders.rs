//! Who holds one block, per lane.

use smallvec::SmallVec;

use crate::{
    lane::{Lane, Lanes},
    slots::SlotSet,
    target::Slot,
};

/// Above this many entries a block's holders become bit words, at half of it a list again.
const LIST_LIMIT: usize = 16;

/// One bit of the index: this slot holds a block in this lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) slot: Slot,
    pub(crate) lane: Lane,
}

/// A set of [`Seat`]s: a short list for the many blocks that few hold, bit words for the few that many hold.
#[derive(Debug)]
pub(crate) enum Holders {
    Few(SmallVec<[Seat; 4]>),
    Many(Box<Words>),
}

#[derive(Debug, Default)]
pub(crate) struct Words {
    lanes: [SlotSet; Lane::ALL.len()],
    count: usize,
}

impl Holders {
    pub(crate) fn new() -> Self {
        Self::Few(SmallVec::new())
    }

    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Few(list) => list.is_empty(),
            Self::Many(words) => words.count == 0,
        }
    }

    pub(crate) fn contains(&self, seat: Seat) -> bool {
        match self {
            Self::Few(list) => list.contains(&seat),
            Self::Many(words) => words.lanes[seat.lane.index()].contains(seat.slot),
        }
    }

    /// Whether it was new.
    pub(crate) fn insert(&mut self, seat: Seat) -> bool {
        match self {
            Self::Few(list) => {
                if list.contains(&seat) {
                    return false;
                }
                list.push(seat);
                if list.len() > LIST_LIMIT {
                    let words = Words::from_list(list);
                    *self = Self::Many(Box::new(words));
                }
                true
            }
            Self::Many(words) => {
                let new = words.lanes[seat.lane.index()].insert(seat.slot);
                words.count += usize::from(new);
                new
            }
        }
    }

    /// Whether it was in.
    pub(crate) fn remove(&mut self, seat: Seat) -> bool {
        match self {
            Self::Few(list) => match list.iter().position(|held| *held == seat) {
                Some(at) => {
                    list.swap_remove(at);
                    true
                }
                None => false,
            },
            Self::Many(words) => {
                let was = words.lanes[seat.lane.index()].remove(seat.slot);
                words.count -= usize::from(was);
                if words.count <= LIST_LIMIT / 2 {
                    *self = Self::Few(words.list());
                }
                was
            }
        }
    }

    /// Fills `into` with the slots that hold the block in any of `lanes`.
    pub(crate) fn in_lanes(&self, lanes: Lanes, into: &mut SlotSet) {
        into.clear();
        match self {
            Self::Few(list) => {
                for seat in list.iter().filter(|seat| lanes.contains(seat.lane)) {
                    into.insert(seat.slot);
                }
            }
            Self::Many(words) => {
                for lane in lanes.iter() {
                    into.or(&words.lanes[lane.index()]);
                }
            }
        }
    }
}

impl Words {
    fn from_list(list: &[Seat]) -> Self {
        let mut words = Self { count: list.len(), ..Self::default() };
        for seat in list {
            words.lanes[seat.lane.index()].insert(seat.slot);
        }
        words
    }

    fn list(&self) -> SmallVec<[Seat; 4]> {
        let lanes = Lane::ALL.into_iter().zip(&self.lanes);
        lanes.flat_map(|(lane, slots)| slots.iter().map(move |slot| Seat { slot, lane })).collect()
    }
}
