//! Which prompt blocks are active where: a count per (piece of a prompt, target).
//!
//! Prompts are added from the front and taken away from the back, so the targets of a block are always among the targets
//! of the block before it. The walk over a prompt uses this: where the number of holders is the same in
//! two pieces in a row, they are the same holders.

use index::{Prefixes, SequenceHash, Target};
use smallvec::SmallVec;

/// How often a target holds a piece.
#[derive(Clone, Copy, Debug)]
struct Holder {
    target: Target,
    count: u32,
}

/// The holders of one piece, in the order of slot and generation.
type Holders = SmallVec<[Holder; 1]>;

/// Hash tables for the pieces of all prompts.
const TABLES: usize = 256;

/// The active blocks of all targets.
#[derive(Debug)]
pub(crate) struct ActiveBlocks {
    pieces: Prefixes<Holders>,
}

impl ActiveBlocks {
    pub(crate) fn new() -> Self {
        Self { pieces: Prefixes::new(TABLES) }
    }

    /// Counts each block once more for the target. Returns how many were not active there before.
    pub(crate) fn hold(&mut self, target: Target, mut blocks: &[SequenceHash]) -> u64 {
        let mut fresh = 0;
        while let Some(first) = blocks.first() {
            let Some(known) = self.pieces.get(*first).map(|piece| piece.agrees(blocks)) else {
                // Nothing of the rest is active anywhere.
                self.pieces.insert(blocks, SmallVec::from_buf([Holder { target, count: 1 }]));
                return fresh + blocks.len() as u64;
            };
            self.pieces.part(*first, known);
            if let Some(piece) = self.pieces.get_mut(*first) {
                match find(&piece.value, target) {
                    Ok(at) => piece.value[at].count += 1,
                    Err(at) => {
                        piece.value.insert(at, Holder { target, count: 1 });
                        fresh += known as u64;
                    }
                }
            }
            blocks = &blocks[known.max(1)..];
        }
        fresh
    }

    /// Counts each of the blocks of one [`hold`](Self::hold) once less for the target. Returns how many are no longer active there.
    pub(crate) fn release(&mut self, target: Target, mut blocks: &[SequenceHash]) -> u64 {
        let mut freed = 0;
        while let Some(first) = blocks.first() {
            // Pieces end where a hold of theirs ended, so these make up the blocks.
            let Some(piece) = self.pieces.get_mut(*first) else { break };
            let len = piece.blocks().len();
            if let Ok(at) = find(&piece.value, target) {
                piece.value[at].count -= 1;
                if piece.value[at].count == 0 {
                    piece.value.remove(at);
                    freed += len as u64;
                }
            }
            if piece.value.is_empty() {
                self.pieces.remove(*first);
            }
            blocks = blocks.get(len..).unwrap_or_default();
        }
        freed
    }

    /// Tells `found` each target that holds a leading part of the prompt, once, with the length of that part in blocks. Looks up
    /// at most `budget` pieces and takes what it looked up from it; once it is used up, lengths may come out too short.
    pub(crate) fn walk(&self, prompt: &[SequenceHash], budget: &mut usize, mut found: impl FnMut(Target, u64)) {
        let (mut above, mut length): (&[Holder], _) = (&[], 0);
        while length < prompt.len()
            && let Some(left) = budget.checked_sub(1)
        {
            *budget = left;
            let Some(piece) = self.pieces.get(prompt[length]) else { break };
            let here = &piece.value[..];
            if here.len() < above.len() {
                let ends = above.iter().filter(|holder| find(here, holder.target).is_err());
                ends.for_each(|holder| found(holder.target, length as u64));
            }
            above = here;
            let known = piece.agrees(&prompt[length..]);
            length += known;
            if known < piece.blocks().len() {
                break;
            }
        }
        above.iter().for_each(|holder| found(holder.target, length as u64));
    }

    /// Distinct blocks active anywhere.
    pub(crate) fn len(&self) -> usize {
        self.pieces.blocks()
    }
}

fn find(holders: &[Holder], target: Target) -> Result<usize, usize> {
    let key = |target: Target| (target.slot, target.generation);
    holders.binary_search_by_key(&key(target), |holder| key(holder.target))
}
