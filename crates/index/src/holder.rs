//! A hand on one lane of one target that needs no names: for what no engine tells of, where whoever holds blocks keeps what it
//! was handed and gives that back.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    hash::{LocalHash, Seed, SequenceHash},
    hold::{Branch, Unplaced},
    indexer::KvIndexer,
    lane::Lane,
    names::Known,
    node::{BlockId, StripId},
    seats::Owner,
    steps::Steps,
    store::Refusal,
};

/// Holds blocks in one lane of one target. Like a [`crate::Writer`], it is superseded by a newer hand on the lane.
///
/// Each block is to be held once: of what overlaps, only what is not held yet is asked for. Dropped while something is held
/// it finds that by walking the whole index; whoever still has the [`Held`] gives it to [`Holder::clear`] first.
#[derive(Debug)]
pub struct Holder {
    indexer: Arc<KvIndexer>,
    owner: Owner,
}

/// Blocks in a row that are held; what to give back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Their places, in a row each.
    spans: SmallVec<[Span; 2]>,
}

/// Blocks in a row of one strip, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    first: BlockId,
    len: u32,
}

impl Span {
    fn blocks(self) -> impl DoubleEndedIterator<Item = BlockId> {
        (0..self.len as usize).map(move |at| self.first.plus(at))
    }
}

impl Held {
    /// How many blocks they are.
    pub fn blocks(&self) -> usize {
        self.spans.iter().map(|span| span.len as usize).sum()
    }

    /// Keeps the first `at` blocks, and hands out the others.
    pub fn split_off(&mut self, at: usize) -> Self {
        let mut before = 0;
        for index in 0..self.spans.len() {
            let Span { first, len } = self.spans[index];
            let keep = at - before;
            if keep < len as usize {
                let mut rest: SmallVec<[Span; 2]> = self.spans.drain(index..).collect();
                if keep > 0 {
                    self.spans.push(Span { first, len: keep as u32 });
                    rest[0] = Span { first: first.plus(keep), len: len - keep as u32 };
                }
                return Self { spans: rest };
            }
            before += len as usize;
        }
        Self::default()
    }

    fn last(&self) -> Option<BlockId> {
        self.spans.last().and_then(|span| span.blocks().next_back())
    }
}

impl Holder {
    pub(crate) fn new(indexer: Arc<KvIndexer>, owner: Owner) -> Self {
        Self { indexer, owner }
    }

    /// The lane it writes.
    pub fn lane(&self) -> Lane {
        self.owner.seat.lane
    }

    /// Holds blocks that are not held yet: told by their local hashes and, as many, their chained hashes; they follow the last
    /// of `after`, which is held (`None`: they begin a prompt).
    ///
    /// # Errors
    /// The index has no room, or another hand took the lane over. Then nothing more is held than before.
    pub fn hold(&mut self, after: Option<&Held>, locals: &[LocalHash], sequences: &[SequenceHash]) -> Result<Held, Refusal> {
        let from = match after {
            None => None,
            Some(held) => {
                let last = held.last().and_then(|last| self.indexer.place(self.owner, Known::Held(last, None)));
                Some(last.and_then(|place| place.block).ok_or(Refusal::Superseded)?)
            }
        };
        let mut steps = Steps::default();
        steps.set(locals, sequences);
        // The seed of a strip matters only to children that are stored by their tokens, and these have none.
        let branch = Branch { from, steps: &steps, seed: Seed::BASE, fresh: steps.len() };
        let mut runs = Vec::new();
        match self.indexer.extend(self.owner, branch, &mut runs) {
            Ok(()) => Ok(Held { spans: runs.iter().map(|run| Span { first: run.first.id, len: run.len as u32 }).collect() }),
            // What it goes on from is held, so that it is gone only with all the rest.
            Err(Unplaced::Gone) => Err(Refusal::Superseded),
            Err(Unplaced::Refused(refusal)) => Err(refusal),
        }
    }

    /// Gives blocks up: the first of the list first, and each from its end on.
    pub fn give_back(&mut self, held: &[Held]) {
        let mut queue = Vec::with_capacity(held.iter().map(Held::blocks).sum());
        // It is worked off from its end.
        queue.extend(held.iter().rev().flat_map(|held| &held.spans).flat_map(|span| span.blocks()));
        if !queue.is_empty() {
            self.indexer.release(self.owner, &mut queue);
        }
    }

    /// Gives up `held`, which is all there is: to a lookup in one step.
    pub fn clear(&mut self, held: impl Iterator<Item = Held>) {
        let mut strips: Vec<StripId> = held.flat_map(|held| held.spans).map(|span| span.first.strip()).collect();
        strips.sort_unstable();
        strips.dedup();
        if !strips.is_empty() && self.indexer.hide(self.owner) {
            self.indexer.vacate(self.owner, strips);
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.indexer.abandon(self.owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        hash::{BlockSize, sequence_hashes},
        lane::Lanes,
        levels::Levels,
        limits::Limits,
        target::{Target, Targets},
    };

    /// More than two strips have.
    const LONG: usize = 600;

    struct World {
        indexer: Arc<KvIndexer>,
        targets: Targets,
        target: Target,
        chain: Vec<LocalHash>,
        sequences: Vec<SequenceHash>,
    }

    impl World {
        fn new() -> Self {
            let chain: Vec<_> = (0..LONG as u64).map(LocalHash).collect();
            let mut sequences = Vec::new();
            sequence_hashes(&chain, &mut sequences);
            let indexer = KvIndexer::new(BlockSize::new(16).unwrap(), Limits::default());
            let targets = Targets::new();
            Self { indexer, target: targets.allocate().unwrap(), targets, chain, sequences }
        }

        fn holder(&self) -> Holder {
            self.indexer.holder(self.target, Lane::Predicted)
        }

        fn hold(&self, holder: &mut Holder, after: Option<&Held>, from: usize, to: usize) -> Result<Held, Refusal> {
            holder.hold(after, &self.chain[from..to], &self.sequences[from..to])
        }

        /// (Blocks the target is known to have, leading blocks a lookup sees.)
        fn seen(&self) -> (usize, usize) {
            let mut levels = Levels::default();
            self.indexer.lookup(&self.chain, Lanes::PREDICTED, &mut levels);
            (self.indexer.blocks(self.target, Lane::Predicted), levels.depth(self.target.slot) as usize)
        }
    }

    #[test]
    fn what_is_held_can_be_parted_anywhere_and_given_back_from_the_end() {
        for at in 1..LONG {
            let world = World::new();
            let mut holder = world.holder();
            let first = world.hold(&mut holder, None, 0, 100).unwrap();
            let mut held = world.hold(&mut holder, Some(&first), 100, LONG).unwrap();
            assert_eq!((first.blocks(), held.blocks(), world.seen()), (100, LONG - 100, (LONG, LONG)));
            let rest = held.split_off(at);
            let kept = at.min(LONG - 100);
            assert_eq!((held.blocks(), rest.blocks()), (kept, LONG - 100 - kept));
            holder.give_back(&[rest]);
            assert_eq!(world.seen(), (100 + kept, 100 + kept));
            holder.give_back(&[held, first]);
            assert_eq!((world.seen(), world.indexer.distinct_blocks()), ((0, 0), 0));
        }
    }

    #[test]
    fn places_last_while_others_part_the_nodes() {
        let world = World::new();
        let mut holder = world.holder();
        let held = world.hold(&mut holder, None, 0, LONG).unwrap();
        let mut hands = Vec::new();
        for end in (1..LONG).step_by(7) {
            let mut hand = world.indexer.holder(world.targets.allocate().unwrap(), Lane::Predicted);
            let theirs = world.hold(&mut hand, None, 0, end).unwrap();
            hands.push((hand, theirs));
        }
        holder.give_back(&[held]);
        assert_eq!(world.seen(), (0, 0));
        hands.into_iter().for_each(|(mut hand, theirs)| hand.clear([theirs].into_iter()));
        assert_eq!(world.indexer.distinct_blocks(), 0);
    }

    #[test]
    fn a_holder_that_is_dropped_or_taken_over_leaves_nothing() {
        let world = World::new();
        let mut holder = world.holder();
        world.hold(&mut holder, None, 0, LONG).unwrap();
        drop(holder);
        assert_eq!((world.seen(), world.indexer.distinct_blocks()), ((0, 0), 0));
        let mut old = world.holder();
        let held = world.hold(&mut old, None, 0, LONG).unwrap();
        let mut new = world.holder();
        assert_eq!(world.seen(), (0, 0));
        assert_eq!(world.hold(&mut old, None, 0, 9), Err(Refusal::Superseded));
        assert_eq!(world.hold(&mut old, Some(&held), 0, 9), Err(Refusal::Superseded));
        let ours = world.hold(&mut new, None, 0, 9).unwrap();
        old.give_back(std::slice::from_ref(&held));
        old.clear([held].into_iter());
        drop(old);
        assert_eq!(world.seen(), (9, 9));
        new.clear([ours].into_iter());
        assert_eq!(world.indexer.distinct_blocks(), 0);
    }

    #[test]
    fn nothing_is_held_where_there_is_no_room() {
        let limits = Limits { chain_blocks: 10, ..Limits::default() };
        let world = World { indexer: KvIndexer::new(BlockSize::new(16).unwrap(), limits), ..World::new() };
        let mut holder = world.holder();
        let held = world.hold(&mut holder, None, 0, 10).unwrap();
        assert_eq!(world.hold(&mut holder, Some(&held), 10, 11), Err(Refusal::ChainTooLong { limit: 10 }));
        assert_eq!(world.seen(), (10, 10));
    }
}
