//! What a lookup answers: who holds how much of the prompt, as disjoint sets by depth.

use crate::{slots::SlotSet, target::Slot};

/// The answer of [`crate::KvIndexer::lookup`], and its scratch: keep one per thread or request and pass it again, and
/// lookups do not allocate once it is warm.
#[derive(Clone, Debug, Default)]
pub struct Levels {
    found: Found,
    /// While a lookup runs: who holds every block seen so far.
    active: SlotSet,
    scratch: SlotSet,
}

/// Depths ascending in `levels[..used]`; what lies beyond is kept for its memory.
#[derive(Clone, Debug, Default)]
struct Found {
    levels: Vec<(u32, SlotSet)>,
    used: usize,
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
        self.found.used = 0;
        self.active.clear();
        self.scratch.clear();
    }

    pub(crate) fn nobody_left(&self) -> bool {
        self.active.is_empty()
    }

    /// To be filled with the holders of a first block.
    pub(crate) fn active_mut(&mut self) -> &mut SlotSet {
        &mut self.active
    }

    /// To be filled for [`Levels::narrow`] or [`Levels::cut`].
    pub(crate) fn scratch_mut(&mut self) -> &mut SlotSet {
        &mut self.scratch
    }

    /// The active targets, and the scratch.
    pub(crate) fn active_and_scratch(&mut self) -> (&SlotSet, &mut SlotSet) {
        (&self.active, &mut self.scratch)
    }

    /// The scratch holds who has the next block: the active ones that do not have it end at `depth`.
    pub(crate) fn narrow(&mut self, depth: u32) {
        self.scratch.and(&self.active);
        if self.scratch != self.active {
            self.active.and_not(&self.scratch);
            self.found.push(depth, &self.active);
            std::mem::swap(&mut self.active, &mut self.scratch);
        }
    }

    /// The scratch holds active targets that end at `depth`.
    pub(crate) fn cut(&mut self, depth: u32) {
        self.found.push(depth, &self.scratch);
        self.active.and_not(&self.scratch);
    }

    /// All that are still active end at `depth`.
    pub(crate) fn end(&mut self, depth: u32) {
        self.found.push(depth, &self.active);
        self.active.clear();
    }
}

impl Found {
    /// Adds `slots` at `depth`, which is at least the depth of the last level added.
    fn push(&mut self, depth: u32, slots: &SlotSet) {
        if slots.is_empty() {
            return;
        }
        if let Some((last, set)) = self.levels[..self.used].last_mut()
            && *last == depth
        {
            set.or(slots);
            return;
        }
        if self.used == self.levels.len() {
            self.levels.push((0, SlotSet::new()));
        }
        let (level, set) = &mut self.levels[self.used];
        *level = depth;
        set.copy_from(slots);
        self.used += 1;
    }
}
