//! The blocks of one store on their way into the tree.

use crate::{
    hash::{LocalHash, SequenceHash},
    mask::Mask,
    trie::CHUNK_BLOCKS,
};

/// Consecutive blocks: their local hashes, their identities, and which of them the writer holds.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    locals: Vec<LocalHash>,
    identities: Vec<SequenceHash>,
    /// Per block: not held, only what comes after it. Empty: all are held.
    holes: Vec<bool>,
}

impl Steps {
    /// Becomes `locals`, all held, after the block `parent`.
    pub(crate) fn fill(&mut self, parent: Option<SequenceHash>, locals: &[LocalHash]) {
        self.locals.clear();
        self.locals.extend_from_slice(locals);
        self.identities.clear();
        self.identities.reserve(locals.len());
        self.holes.clear();
        let mut before = parent;
        for local in locals {
            let identity = SequenceHash::after(before, *local);
            self.identities.push(identity);
            before = Some(identity);
        }
    }

    /// Becomes these blocks, all held.
    pub(crate) fn set(&mut self, locals: &[LocalHash], identities: &[SequenceHash]) {
        self.locals.clear();
        self.locals.extend_from_slice(locals);
        self.identities.clear();
        self.identities.extend_from_slice(identities);
        self.holes.clear();
    }

    /// Of the blocks filled in, these are not held: one `bool` each.
    pub(crate) fn leave_out(&mut self, holes: impl Iterator<Item = bool>) {
        self.holes.clear();
        self.holes.extend(holes);
        if !self.holes.contains(&true) {
            self.holes.clear();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.locals.len()
    }

    pub(crate) fn locals(&self) -> &[LocalHash] {
        &self.locals
    }

    pub(crate) fn identities(&self) -> &[SequenceHash] {
        &self.identities
    }

    pub(crate) fn is_held(&self, at: usize) -> bool {
        self.holes.get(at).is_none_or(|hole| !hole)
    }

    /// Whether all of the `len` blocks from `from` on are held.
    pub(crate) fn all_held(&self, from: usize, len: usize) -> bool {
        self.holes.is_empty() || !self.holes[from..from + len].contains(&true)
    }

    /// Which of the `len` blocks from `from` on are held.
    pub(crate) fn held(&self, from: usize, len: usize) -> Mask {
        if self.holes.is_empty() {
            return Mask::first(len);
        }
        let holes = self.holes[from..from + len].iter().enumerate();
        let mut held = Mask::NONE;
        holes.filter(|(_, hole)| !**hole).for_each(|(at, _)| held.add(at));
        held
    }

    /// Where to stop under one hold of the lock that begins at block `from`: after the last one held, so that what the
    /// next hold starts from is kept alive by this writer.
    pub(crate) fn chunk(&self, from: usize) -> usize {
        let most = self.len().min(from + CHUNK_BLOCKS);
        if self.holes.is_empty() {
            return most;
        }
        self.holes[from..most].iter().rposition(|hole| !hole).map_or(most, |last| from + last + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_ends_at_a_block_that_is_held_where_there_is_one() {
        let steps = |blocks: usize, hole: &dyn Fn(usize) -> bool| {
            let mut steps = Steps::default();
            steps.fill(None, &vec![LocalHash(0); blocks]);
            steps.leave_out((0..blocks).map(hole));
            steps
        };
        assert_eq!(steps(1000, &|_| false).chunk(0), CHUNK_BLOCKS);
        assert_eq!(steps(1000, &|_| false).chunk(900), 1000);
        assert_eq!(steps(7, &|_| false).chunk(0), 7);
        let holed = steps(1000, &|at| (300..900).contains(&at));
        assert_eq!((holed.chunk(0), holed.held(298, 4)), (300, Mask::first(2)));
        assert_eq!(steps(1000, &|at| at < 900).chunk(0), CHUNK_BLOCKS);
    }
}
