//! Which prompt blocks are active where: a count per (sequence hash, target).
//!
//! A chained hash names a whole prefix, so the targets of a block are always among the targets of the block before it:
//! prompts are added from the front and taken away from the back. The walk over a prompt uses this: where
//! the number of holders is the same at two depths, they are the same holders at every depth between.
//!
//! Memory follows the largest number of blocks that were ever active at once; tables never shrink.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, Hasher, RandomState};

use index::{SequenceHash, Target};
use smallvec::SmallVec;

/// The hash tables the blocks are spread over. When a table grows, it moves all its entries while the lock is held: small tables
/// keep that short.
const TABLES: usize = 256;

/// How often a target holds a block.
#[derive(Clone, Copy, Debug)]
struct Holder {
    target: Target,
    count: u32,
}

/// The holders of one block, in the order of slot and generation.
type Holders = SmallVec<[Holder; 1]>;

/// The active blocks of all targets.
#[derive(Debug)]
pub(crate) struct ActiveBlocks {
    tables: Vec<HashMap<SequenceHash, Holders, Keyed>>,
}

/// A hash for keys that are hashes already, but of text that anyone can send: one product with a secret factor keeps
/// others from aiming at one bucket. A prompt is counted and freed in two thirds of the time that
/// the standard hasher takes.
#[derive(Clone, Copy, Debug)]
struct Keyed {
    start: u64,
    factor: u64,
}

impl Keyed {
    fn new() -> Self {
        let random = RandomState::new();
        Keyed { start: random.hash_one(0_u8), factor: random.hash_one(1_u8) | 1 }
    }
}

impl BuildHasher for Keyed {
    type Hasher = KeyedHasher;

    fn build_hasher(&self) -> KeyedHasher {
        KeyedHasher { state: self.start, factor: self.factor }
    }
}

struct KeyedHasher {
    state: u64,
    factor: u64,
}

impl Hasher for KeyedHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.state ^ word) * u128::from(self.factor);
        self.state = product as u64 ^ (product >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.state
    }
}

impl ActiveBlocks {
    pub(crate) fn new() -> Self {
        let keyed = Keyed::new();
        ActiveBlocks { tables: (0..TABLES).map(|_| HashMap::with_hasher(keyed)).collect() }
    }

    /// Counts each block once more for the target. Returns how many were not active there before.
    pub(crate) fn hold(&mut self, target: Target, blocks: &[SequenceHash]) -> u64 {
        let mut fresh = 0;
        for block in blocks {
            let holders = self.tables[table(*block)].entry(*block).or_default();
            match find(holders, target) {
                Ok(at) => holders[at].count += 1,
                Err(at) => {
                    holders.insert(at, Holder { target, count: 1 });
                    fresh += 1;
                }
            }
        }
        fresh
    }

    /// Counts each block once less for the target, the last block first. Returns how many are no longer active there.
    pub(crate) fn release(&mut self, target: Target, blocks: &[SequenceHash]) -> u64 {
        let mut freed = 0;
        for block in blocks.iter().rev() {
            let Entry::Occupied(mut entry) = self.tables[table(*block)].entry(*block) else { continue };
            let holders = entry.get_mut();
            let Ok(at) = find(holders, target) else { continue };
            holders[at].count -= 1;
            if holders[at].count == 0 {
                holders.remove(at);
                freed += 1;
                if holders.is_empty() {
                    entry.remove();
                }
            }
        }
        freed
    }

    /// Tells `found` each target that holds a leading part of the prompt, with the length of that part in blocks. A target may be told
    /// several times, the longest first. Looks up at most `budget` blocks and takes what it looked up from it; once it
    /// is used up, lengths may come out too short.
    pub(crate) fn walk(&self, prompt: &[SequenceHash], budget: &mut usize, mut found: impl FnMut(Target, u64)) {
        let mut tell = |at: usize, holders: &[Holder]| holders.iter().for_each(|holder| found(holder.target, at as u64 + 1));
        let Some(end) = prompt.len().checked_sub(1) else { return };
        let Some(first) = self.look(&prompt[0], budget).filter(|holders| !holders.is_empty()) else { return };
        let last = if end == 0 { first } else { self.look(&prompt[end], budget).unwrap_or_default() };
        tell(end, last);
        // Ranges of the prompt with the holders at both ends, the deepest on top.
        let mut ranges = vec![(0, first, end, last)];
        while let Some((low, above, high, below)) = ranges.pop() {
            if above.len() == below.len() {
                continue;
            }
            let middle = low + (high - low) / 2;
            let between = if middle == low { None } else { self.look(&prompt[middle], budget) };
            match between {
                Some(holders) => ranges.extend([(low, above, middle, holders), (middle, holders, high, below)]),
                None => tell(low, above),
            }
        }
    }

    /// The holders of one block, or nothing once the budget is used up.
    fn look(&self, block: &SequenceHash, budget: &mut usize) -> Option<&[Holder]> {
        *budget = budget.checked_sub(1)?;
        Some(self.tables[table(*block)].get(block).map_or(&[], |holders| holders.as_slice()))
    }

    /// Distinct blocks active anywhere.
    pub(crate) fn len(&self) -> usize {
        self.tables.iter().map(HashMap::len).sum()
    }
}

fn table(block: SequenceHash) -> usize {
    (block.0 % TABLES as u64) as usize
}

fn find(holders: &Holders, target: Target) -> Result<usize, usize> {
    let key = |target: Target| (target.slot, target.generation);
    holders.binary_search_by_key(&key(target), |holder| key(holder.target))
}
