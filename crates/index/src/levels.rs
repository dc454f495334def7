//! What a lookup answers: who holds how much of the prompt, as disjoint sets by depth.

use crate::{slots::SlotSet, target::Slot};

/// The answer of [`crate::KvIndexer::lookup`], and its scratch: keep one per thread or request and pass it again, and
/// lookups do not allocate once it is warm.
#[derive(Clone, Debug, Default)]
pub struct Levels {
    /// Depths ascending in `..used`; what lies beyond is kept for its memory.
    levels: Vec<(u32, SlotSet)>,
    used: usize,
    /// Who holds every block seen so far.
    pub(crate) active: SlotSet,
    /// Who holds the block looked at, then who dropped out at it.
    pub(crate) scratch: SlotSet,
}

impl Levels {
    /// No answer yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// (leading blocks held, exactly the slots that hold so many), deepest first; depths are above zero and differ,
    /// the sets are disjoint and not empty.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &SlotSet)> {
        self.levels[..self.used].iter().rev().map(|(depth, slots)| (*depth, slots))
    }

    /// Leading blocks `slot` holds.
    pub fn depth(&self, slot: Slot) -> u32 {
        self.iter().find(|(_, slots)| slots.contains(slot)).map_or(0, |(depth, _)| depth)
    }

    /// Whether nobody holds the first block.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Forgets the answer and keeps the memory.
    pub fn clear(&mut self) {
        self.used = 0;
        self.active.clear();
        self.scratch.clear();
    }

    /// Adds `slots` at `depth`, which is at least the depth of the last level added.
    pub(crate) fn push(&mut self, depth: u32, slots: &SlotSet) {
        if depth == 0 || slots.is_empty() {
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
