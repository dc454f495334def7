//! Targets: one (worker, data-parallel rank) each, numbered densely so that sets of them are bit words.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// The dense number of a target, shared by index and scheduler; reused after the target is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u16);

impl Slot {
    /// How many slots there can be: 65,536 targets in one process.
    pub const LIMIT: usize = 1 << 16;

    /// The slot with this number. [`Targets`] hands them out; this is for tables kept by slot, and tests.
    pub const fn new(index: u16) -> Self {
        Self(index)
    }

    /// The number, below [`Slot::LIMIT`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// One (worker, rank). Two targets that had the same slot one after the other differ in generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// Its place in every per-target table and [`crate::SlotSet`].
    pub slot: Slot,
    /// Grows with each reuse of the slot.
    pub generation: u32,
}

/// Allocates and releases slots. One per process: all indexes and schedulers speak of the same targets.
#[derive(Debug, Default)]
pub struct Targets {
    /// Guards the table of slots; held for a few instructions.
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// By slot: the generation of its present or next target.
    generations: Vec<u32>,
    live: Vec<bool>,
    /// Released, the one released longest ago first.
    free: VecDeque<Slot>,
}

impl Targets {
    /// No target yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A target nobody else has: of the released slots the one released longest ago, else a new one. `None` when all
    /// [`Slot::LIMIT`] slots are taken.
    pub fn allocate(&self) -> Option<Target> {
        let mut table = self.table.lock();
        let slot = match table.free.pop_front() {
            Some(slot) => slot,
            None => {
                let slot = Slot(u16::try_from(table.generations.len()).ok()?);
                table.generations.push(0);
                table.live.push(false);
                slot
            }
        };
        table.live[slot.index()] = true;
        Some(Target { slot, generation: table.generations[slot.index()] })
    }

    /// Gives the slot back; `false` if `target` was not live. Release a target after its writers are dropped: until
    /// then a lookup still shows their blocks under the slot (see [`crate::KvIndexer::writer`]).
    pub fn release(&self, target: Target) -> bool {
        let mut table = self.table.lock();
        if !table.is_live(target) {
            return false;
        }
        let index = target.slot.index();
        table.live[index] = false;
        table.generations[index] = table.generations[index].wrapping_add(1);
        table.free.push_back(target.slot);
        true
    }

    /// Whether `target` is allocated now.
    pub fn is_live(&self, target: Target) -> bool {
        self.table.lock().is_live(target)
    }

    /// How many targets are allocated now.
    pub fn len(&self) -> usize {
        let table = self.table.lock();
        table.generations.len() - table.free.len()
    }

    /// Whether no target is allocated now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Table {
    fn is_live(&self, target: Target) -> bool {
        let index = target.slot.index();
        self.live.get(index) == Some(&true) && self.generations[index] == target.generation
    }
}
