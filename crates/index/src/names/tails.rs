//! The ends of a writer's latest stores: what an engine stores next most often follows one of them.

use crate::{
    hash::{EngineHash, Seed, SequenceHash},
    node::BlockId,
};

/// The ends, a line of the memory for each two whose names have some bits in common; no line until there is an end.
#[derive(Debug, Default)]
pub(super) struct Tails {
    lines: Box<[Line]>,
    /// Ends that were asked for and not known any more, since there are so many lines.
    missed: usize,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line([End; 2]);

/// The last block of a store, while its name is held. Flat, so that a new one is written word by word where it stays: one that
/// is put together elsewhere and copied in wider pieces at once would have to wait for its own words.
#[derive(Clone, Copy, Debug)]
struct End {
    name: EngineHash,
    sequence: SequenceHash,
    seed: Seed,
    /// `None`: there is no end here.
    block: Option<BlockId>,
}

/// The last block of a store, for what follows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tail {
    /// Where it is remembered, until another is; `None`: it is not.
    pub(crate) at: Option<EndAt>,
    pub(crate) block: BlockId,
    pub(crate) sequence: SequenceHash,
    pub(crate) seed: Seed,
}

/// The place of an end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndAt {
    line: usize,
    way: usize,
}

impl Tails {
    /// Lines at first, and at most: there are as many ends as an engine has requests running.
    const FEWEST: usize = 32;
    const MOST: usize = 512;

    /// The end of this name.
    #[inline]
    pub(super) fn find(&self, name: EngineHash) -> Option<Tail> {
        let line = self.line(name);
        let ends = &self.lines.get(line)?.0;
        // Which of the two it is nobody can foresee: so it is counted out, without a jump.
        let way = usize::from(ends[0].name != name);
        let end = &ends[way];
        let block = end.block.filter(|_| end.name == name)?;
        Some(Tail { at: Some(EndAt { line, way }), block, sequence: end.sequence, seed: end.seed })
    }

    /// Something follows it now.
    #[inline]
    pub(super) fn forget_at(&mut self, at: EndAt) {
        self.lines[at.line].0[at.way].block = None;
    }

    pub(super) fn forget(&mut self, name: EngineHash) {
        let line = self.line(name);
        if let Some(line) = self.lines.get_mut(line) {
            // An end that was forgotten keeps its name until another takes its place.
            line.0.iter_mut().filter(|end| end.name == name).for_each(|end| end.block = None);
        }
    }

    /// Notes the end of a name that has none.
    #[inline(always)]
    pub(super) fn put(&mut self, name: EngineHash, block: BlockId, (sequence, seed): (SequenceHash, Seed)) {
        if self.lines.is_empty() {
            self.lines = vec![Line::NONE; Self::FEWEST].into();
        }
        let line = self.line(name);
        let ends = &mut self.lines[line].0;
        // Where both are ends, one goes, by a bit that says nothing else.
        let (first, second) = (usize::from(ends[0].block.is_some()), usize::from(ends[1].block.is_some()));
        let way = first & ((second ^ 1) | (block.0 >> 1 & 1) as usize);
        let end = &mut ends[way];
        (end.name, end.sequence, end.seed, end.block) = (name, sequence, seed, Some(block));
    }

    /// An end was asked for that is one and is not known any more: if that is often so, more are remembered.
    #[cold]
    pub(super) fn missed(&mut self) {
        self.missed += 1;
        if self.missed > self.lines.len() && self.lines.len() < Self::MOST {
            let lines = vec![Line::NONE; (2 * self.lines.len()).max(Self::FEWEST)].into();
            let old = std::mem::replace(self, Self { lines, missed: 0 });
            for end in old.lines.iter().flat_map(|line| line.0) {
                if let Some(block) = end.block {
                    self.put(end.name, block, (end.sequence, end.seed));
                }
            }
        }
    }

    #[inline]
    fn line(&self, name: EngineHash) -> usize {
        // Engines' names may be anything, small counts too. There are a power of two, or none.
        (name.0 ^ name.0 >> 32) as usize & self.lines.len().wrapping_sub(1)
    }
}

impl Line {
    const NONE: Self = Self([End { name: EngineHash(0), sequence: SequenceHash(0), seed: Seed::BASE, block: None }; 2]);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: Seed = Seed::BASE;

    /// Each of some sequences goes on in turn, as those of an engine do; how many of them were found in the last round.
    fn found(tails: &mut Tails, sequences: u64) -> usize {
        let mut found = 0;
        for round in 0..20 {
            found = 0;
            for sequence in 0..sequences {
                let name = |round: u64| EngineHash(crate::indexer::mixed(SequenceHash(round * sequences + sequence)));
                match tails.find(name(round)) {
                    Some(Tail { at: Some(at), block, .. }) => {
                        assert_eq!(u64::from(block.0), sequence);
                        tails.forget_at(at);
                        found += 1;
                    }
                    Some(_) | None => tails.missed(),
                }
                tails.put(name(round + 1), BlockId(sequence as u32), (SequenceHash(sequence), SEED));
            }
        }
        found
    }

    #[test]
    fn as_many_ends_are_remembered_as_sequences_run() {
        let mut few = Tails::default();
        assert_eq!(found(&mut few, 8), 8);
        assert_eq!(few.lines.len(), Tails::FEWEST);
        let mut many = Tails::default();
        assert!(found(&mut many, 400) > 300);
        let mut too_many = Tails::default();
        found(&mut too_many, 20_000);
        assert_eq!(too_many.lines.len(), Tails::MOST);
    }

    #[test]
    fn of_three_ends_in_one_line_the_last_stays_and_a_forgotten_one_makes_room() {
        let mut tails = Tails::default();
        let names = [1, 2, 3].map(|n| EngineHash(n * Tails::FEWEST as u64));
        for name in names {
            tails.put(name, BlockId(7), (SequenceHash(1), SEED));
        }
        assert!(tails.find(names[2]).is_some());
        assert_eq!(names.iter().filter(|name| tails.find(**name).is_some()).count(), 2);
        tails.forget(names[2]);
        tails.put(names[2], BlockId(8), (SequenceHash(1), SEED));
        assert_eq!(names.iter().filter(|name| tails.find(**name).is_some()).count(), 2);
        names.iter().for_each(|name| tails.forget(*name));
        assert!(names.iter().all(|name| tails.find(*name).is_none()));
    }
}
