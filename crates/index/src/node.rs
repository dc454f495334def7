//! The parts of the index's tree: nodes, the strips their blocks are numbered in, and the blocks themselves.

use std::sync::Arc;

use smallvec::SmallVec;
use zerocopy::IntoBytes;

use crate::{
    cover::Cover,
    hash::{LocalHash, Seed, SequenceHash},
    kids::Kids,
    mask::Mask,
    near::LINE,
};

/// Most blocks of a node, and of a strip: as many as a [`Mask`] has bits.
pub(crate) const NODE_BLOCKS: usize = Mask::BITS;
/// Most blocks of a new strip. Of so many each array begins a line of the memory, in the prompt as well where it follows
/// others of its kind; with what is left free for that, and the counts of an `Arc`, they fill 4 KiB.
pub(crate) const STRIP_BLOCKS: usize = 31 * LINE;
/// Free words before the hashes of [`STRIP_BLOCKS`] blocks, which with the counts of an `Arc` fill a line.
const LEAD: usize = LINE - 2 * size_of::<usize>() / size_of::<u64>();
/// Strips are numbered with what a [`BlockId`] leaves for them.
pub(crate) const MOST_STRIPS: usize = (u32::MAX as usize - 1) / NODE_BLOCKS;
/// An open end grows by a quarter, to one less than a multiple of this, for the same reason.
const GROWTH_BLOCKS: usize = 16;

/// Names a node while it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct NodeId(pub(crate) u32);

/// Names a strip while it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct StripId(pub(crate) u32);

/// Names a block while it lives, whatever becomes of the nodes around it: its strip, and its place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockId(pub(crate) u32);

/// Names a block for good: it never means a later block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRef {
    pub(crate) id: BlockId,
    /// The strip's.
    pub(crate) birth: u64,
}

impl BlockId {
    pub(crate) fn new(strip: StripId, place: usize) -> Self {
        Self(strip.0 * NODE_BLOCKS as u32 + place as u32)
    }

    pub(crate) fn strip(self) -> StripId {
        StripId(self.0 / NODE_BLOCKS as u32)
    }

    pub(crate) fn place(self) -> usize {
        self.0 as usize % NODE_BLOCKS
    }

    /// The block `blocks` further on in its strip.
    pub(crate) fn plus(self, blocks: usize) -> Self {
        Self(self.0 + blocks as u32)
    }
}

/// Consecutive blocks after which nothing forks, but after the last. One line of the memory.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Node {
    pub(crate) blocks: Blocks,
    pub(crate) cover: Cover,
    pub(crate) kids: Kids,
    pub(crate) parent: NodeId,
    pub(crate) strip: StripId,
}

/// Numbers given to the blocks of one store, in order. The nodes that the store became may be split and cut; the numbers
/// stay, and none is given twice in the strip's life.
#[derive(Debug)]
pub(crate) struct Strip {
    pub(crate) birth: u64,
    /// The seed under which its blocks were stored first.
    pub(crate) seed: Seed,
    /// Numbers given.
    pub(crate) given: u8,
    /// The nodes that have its blocks, with the place of their first, ascending.
    pub(crate) nodes: SmallVec<[(u8, NodeId); 2]>,
}

impl Strip {
    /// Which of `nodes` has the block at `place`, if any has.
    pub(crate) fn index(&self, place: usize) -> Option<usize> {
        self.nodes.iter().rposition(|(first, _)| usize::from(*first) <= place)
    }
}

/// The hashes of a node's blocks: all local hashes, then all identities. Nodes that were one share the memory.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    words: Arc<[u64]>,
    /// Blocks of the chain before the first.
    pub(crate) depth: u32,
    /// The place of the first in its strip.
    pub(crate) place: u8,
    at: u8,
    len: u8,
}

impl Blocks {
    pub(crate) fn none() -> Self {
        Self { words: Arc::from([]), depth: 0, place: 0, at: 0, len: 0 }
    }

    /// After `depth` blocks, on a strip of their own; `scratch` is kept for its memory only.
    pub(crate) fn new(depth: u32, locals: &[LocalHash], identities: &[SequenceHash], scratch: &mut Vec<u64>) -> Self {
        let at = lead(locals.len());
        scratch.clear();
        scratch.resize(at, 0);
        scratch.extend(locals.iter().map(|local| local.0));
        scratch.resize(scratch.len() + at, 0);
        scratch.extend(identities.iter().map(|identity| identity.0));
        Self { words: Arc::from(scratch.as_slice()), depth, place: 0, at: at as u8, len: locals.len() as u8 }
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Blocks of the chain up to and including the last.
    pub(crate) fn end(&self) -> usize {
        self.depth as usize + self.len()
    }

    pub(crate) fn locals(&self) -> &[u64] {
        &self.words[usize::from(self.at)..][..self.len()]
    }

    pub(crate) fn identities(&self) -> &[u64] {
        &self.words[self.room() + usize::from(self.at)..][..self.len()]
    }

    fn room(&self) -> usize {
        self.words.len() / 2
    }

    /// Adds a block, as [`Blocks::extend`] does.
    #[inline(always)]
    pub(crate) fn push(&mut self, local: LocalHash, identity: SequenceHash, scratch: &mut Vec<u64>) {
        let (at, room) = (usize::from(self.at) + self.len(), self.room());
        if at < room
            && let Some(words) = Arc::get_mut(&mut self.words)
        {
            (words[at], words[room + at]) = (local.0, identity.0);
            self.len += 1;
        } else {
            self.extend(&[local], &[identity], scratch);
        }
    }

    /// Adds blocks; there may be no more than [`STRIP_BLOCKS`] then.
    pub(crate) fn extend(&mut self, locals: &[LocalHash], identities: &[SequenceHash], scratch: &mut Vec<u64>) {
        let (at, len) = (usize::from(self.at), self.len() + locals.len());
        let room = self.room();
        if let Some(words) = Arc::get_mut(&mut self.words)
            && at + len <= room
        {
            let from = at + usize::from(self.len);
            for (index, (local, identity)) in locals.iter().zip(identities).enumerate() {
                words[from + index] = local.0;
                words[room + from + index] = identity.0;
            }
        } else {
            let room = ((len + len / 4 + 1).next_multiple_of(GROWTH_BLOCKS) - 1).min(STRIP_BLOCKS);
            let (at, room) = (lead(room), lead(room) + room);
            scratch.clear();
            scratch.resize(at, 0);
            scratch.extend(self.locals().iter().copied().chain(locals.iter().map(|local| local.0)));
            scratch.resize(room + at, 0);
            scratch.extend(self.identities().iter().copied().chain(identities.iter().map(|identity| identity.0)));
            scratch.resize(2 * room, 0);
            (self.words, self.at) = (Arc::from(scratch.as_slice()), at as u8);
        }
        self.len = len as u8;
    }

    /// Keeps the first `len`.
    pub(crate) fn cut(&mut self, len: usize) {
        self.len = len as u8;
        if len * 2 <= self.room() {
            self.own();
        }
    }

    /// Keeps the blocks from `at` on and returns those before.
    pub(crate) fn split(&mut self, at: usize) -> Self {
        let mut upper = Self { words: self.words.clone(), len: at as u8, ..*self };
        self.depth += at as u32;
        self.place += at as u8;
        self.at += at as u8;
        self.len -= at as u8;
        for part in [&mut upper, self] {
            if part.len() * 4 <= part.room() {
                part.own();
            }
        }
        upper
    }

    fn own(&mut self) {
        let words = self.locals().iter().chain(self.identities()).copied();
        (self.words, self.at) = (words.collect(), 0);
    }
}

/// Free words before the hashes of so many blocks: a long node is compared faster where it begins a line of the memory.
fn lead(blocks: usize) -> usize {
    if blocks == STRIP_BLOCKS { LEAD } else { 0 }
}

/// How many leading blocks are the same.
#[inline]
pub(crate) fn common(blocks: &[u64], chain: &[LocalHash]) -> usize {
    const LANES: usize = 8;
    if blocks.len() < LANES {
        return blocks.iter().zip(chain).take_while(|(ours, theirs)| **ours == theirs.0).count();
    }
    let most = blocks.len().min(chain.len());
    let (blocks, chain) = (&blocks[..most], &chain[..most]);
    if blocks.as_bytes() == chain.as_bytes() {
        return most;
    }
    let mut same = 0;
    for (ours, theirs) in blocks.chunks_exact(LANES).zip(chain.chunks_exact(LANES)) {
        if ours.iter().zip(theirs).fold(0, |all, (ours, theirs)| all | (ours ^ theirs.0)) != 0 {
            break;
        }
        same += LANES;
    }
    same + blocks[same..].iter().zip(&chain[same..]).take_while(|(ours, theirs)| **ours == theirs.0).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_one_line() {
        assert_eq!(size_of::<Option<Node>>(), 64);
    }

    #[test]
    fn common_ends_at_the_first_difference() {
        let chain: Vec<_> = (0..40).map(LocalHash).collect();
        for len in 0..40 {
            for differs in 0..=len {
                let mut blocks: Vec<u64> = (0..len as u64).collect();
                if let Some(block) = blocks.get_mut(differs) {
                    *block += 100;
                }
                assert_eq!((common(&blocks, &chain), common(&blocks, &chain[..len / 2])), (differs, differs.min(len / 2)));
            }
        }
    }
}
