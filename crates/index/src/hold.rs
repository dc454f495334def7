//! What writers do to the index: taking holds on blocks and giving them up, in steps that let readers in between.

use parking_lot::RwLockWriteGuard;

use crate::{
    arena::PAGE,
    cover::Seat,
    hash::{LocalHash, Seed, SequenceHash},
    indexer::KvIndexer,
    names::{Known, Place},
    node::{BlockId, BlockRef, StripId},
    seats::Owner,
    steps::Steps,
    store::Refusal,
    trie::{CHUNK_BLOCKS, Onward, Run, Trie},
};

/// Blocks to put into the trie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Branch<'a> {
    /// What they follow; `None`: they start a prompt.
    pub(crate) from: Option<BlockRef>,
    pub(crate) steps: &'a Steps,
    pub(crate) seed: Seed,
    /// How many of them the owner does not hold yet.
    pub(crate) fresh: usize,
}

/// Why blocks could not be put into the trie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unplaced {
    /// The block they follow is gone.
    Gone,
    Refused(Refusal),
}

impl KvIndexer {
    /// Puts one block, told by its local hash and its identity, after `from`, which the owner holds, if it is an end: with
    /// the next number of the strip, whose seed is returned. `None`, and nothing is changed: it takes [`KvIndexer::extend`].
    #[inline]
    pub(crate) fn go_on(&self, owner: Owner, from: BlockId, step: (LocalHash, SequenceHash)) -> Option<Seed> {
        let mut trie = self.writing();
        if !trie.seats.in_force(owner) || trie.len() >= self.limits.index_blocks {
            return None;
        }
        trie.go_on(from, step, owner.seat, self.limits.chain_blocks)
    }

    /// Puts `branch` into the trie, head first, and says where the steps led: all of them, unless others pruned the way
    /// meanwhile. Nothing was changed if this fails, except by being superseded on the way.
    pub(crate) fn extend(&self, owner: Owner, branch: Branch<'_>, runs: &mut Vec<Run>) -> Result<(), Unplaced> {
        runs.clear();
        let Branch { from, steps, seed, .. } = branch;
        let onward = Onward { steps, seat: owner.seat, seed };
        let mut trie = self.writing();
        self.check_room(&trie, owner, branch)?;
        let (mut at, mut done) = (from, 0);
        while done < steps.len() {
            if done > 0 {
                RwLockWriteGuard::bump(&mut trie);
                if !trie.seats.in_force(owner) {
                    return Err(Unplaced::Refused(Refusal::Superseded));
                }
                // A chunk ends at a block the writer holds where it can; where it cannot, others may have pruned it.
                if at.is_some_and(|at| !trie.is_alive(at)) {
                    return Ok(());
                }
            }
            let to = steps.chunk(done);
            trie.extend(at.map(|at| at.id), onward, (done, to), runs);
            at = runs.last().map(|run| run.block(run.len - 1));
            done = to;
        }
        Ok(())
    }

    /// Whether [`KvIndexer::extend`] could be done now.
    pub(crate) fn has_room(&self, owner: Owner, branch: Branch<'_>) -> Result<(), Unplaced> {
        self.check_room(&self.trie.read(), owner, branch)
    }

    fn check_room(&self, trie: &Trie, owner: Owner, branch: Branch<'_>) -> Result<(), Unplaced> {
        if !trie.seats.in_force(owner) {
            return Err(Unplaced::Refused(Refusal::Superseded));
        }
        let depth = branch.from.map_or(Some(0), |block| trie.depth(block)).ok_or(Unplaced::Gone)?;
        let limits = &self.limits;
        if depth + branch.steps.len() > limits.chain_blocks {
            return Err(Unplaced::Refused(Refusal::ChainTooLong { limit: limits.chain_blocks }));
        }
        if trie.len() + branch.fresh > limits.index_blocks || !trie.has_strips(branch.fresh) {
            return Err(Unplaced::Refused(Refusal::IndexFull { limit: limits.index_blocks }));
        }
        Ok(())
    }

    /// Where blocks go that follow a block the owner knows of. `None`: it is superseded, and the block is gone.
    pub(crate) fn place(&self, owner: Owner, known: Known) -> Option<Place> {
        match known {
            Known::Place(place) => Some(place),
            Known::Held(block, seed) => {
                let trie = self.trie.read();
                let (block, sequence, strips) = trie.seats.in_force(owner).then(|| trie.block(block)).flatten()?;
                Some(Place { block: Some(block), sequence: Some(sequence), seed: seed.unwrap_or(strips) })
            }
        }
    }

    /// Keeps those of `held`, (step, block the owner holds), whose block is not the one of the step.
    pub(crate) fn keep_others(&self, steps: &Steps, held: &mut Vec<(usize, BlockId)>) {
        let (mut trie, mut looked_at) = (self.trie.read(), 0);
        held.retain(|(step, block)| {
            looked_at += 1;
            if looked_at % CHUNK_BLOCKS == 0 {
                parking_lot::RwLockReadGuard::bump(&mut trie);
            }
            trie.block(*block).is_none_or(|(_, identity, _)| identity != steps.identities()[*step])
        });
    }

    /// Gives up the owner's hold on the blocks of `queue`, last first. `false`: it was superseded.
    pub(crate) fn release(&self, owner: Owner, queue: &mut Vec<BlockId>) -> bool {
        let mut prune = None;
        let mut trie = self.writing();
        loop {
            if !trie.seats.in_force(owner) {
                queue.clear();
                return false;
            }
            trie.release(owner.seat, queue, &mut prune);
            if queue.is_empty() && prune.is_none() {
                return true;
            }
            RwLockWriteGuard::bump(&mut trie);
        }
    }

    /// From now on lookups do not see what the owner holds. `false`: it was superseded.
    pub(crate) fn hide(&self, owner: Owner) -> bool {
        let mut trie = self.trie.write();
        let in_force = trie.seats.in_force(owner);
        if in_force {
            trie.seats.hide(owner.seat);
        }
        in_force
    }

    /// Gives up all the owner holds, which lies in the strips of `queue`, and shows it again. `false`: it was superseded.
    pub(crate) fn vacate(&self, owner: Owner, mut queue: Vec<StripId>) -> bool {
        let mut prune = None;
        let mut trie = self.trie.write();
        loop {
            if !trie.seats.in_force(owner) {
                return false;
            }
            trie.vacate(owner.seat, &mut queue, &mut prune);
            if queue.is_empty() && prune.is_none() {
                trie.seats.show(owner.seat);
                return true;
            }
            RwLockWriteGuard::bump(&mut trie);
        }
    }

    /// The owner writes no more.
    pub(crate) fn leave(&self, owner: Owner) {
        self.trie.write().seats.leave(owner);
    }

    /// Empties a seat that was taken over, found by walking the index; shows it again.
    pub(crate) fn sweep(&self, seat: Seat) {
        let mut trie = self.trie.write();
        let mut number = 0;
        // Only the swept writer could have held more, and it is not in force.
        while number < trie.bound() {
            let (mut prune, mut steps) = (None, CHUNK_BLOCKS);
            for number in number..number + PAGE {
                trie.vacate_node(seat, number, &mut prune);
                while !trie.prune(&mut prune, &mut steps) {
                    RwLockWriteGuard::bump(&mut trie);
                    steps = CHUNK_BLOCKS;
                }
            }
            number += PAGE;
            RwLockWriteGuard::bump(&mut trie);
        }
        trie.seats.show(seat);
    }

    /// The blocks of as much of `chain` as is in memory.
    pub(crate) fn path(&self, chain: &[LocalHash]) -> Path {
        let mut path = Path::default();
        let mut rest = chain;
        while !rest.is_empty() {
            let at = path.last();
            let Some(done) = self.trie.read().follow(at, rest, &mut path.runs) else { break };
            if done == 0 {
                break;
            }
            rest = &rest[done..];
        }
        path
    }
}

/// Consecutive blocks of the trie, from its root on.
#[derive(Debug, Default)]
pub(crate) struct Path {
    runs: Vec<Run>,
}

impl Path {
    /// Block `at` of the chain.
    pub(crate) fn get(&self, at: usize) -> Option<BlockRef> {
        let mut before = 0;
        for run in &self.runs {
            if at - before < run.len {
                return Some(run.block(at - before));
            }
            before += run.len;
        }
        None
    }

    fn last(&self) -> Option<BlockRef> {
        self.runs.last().map(|run| run.block(run.len - 1))
    }
}

/// A step of the scratch, as [`Place`]s of what follows it.
pub(crate) fn places<'a>(steps: &'a Steps, runs: &'a [Run], seed: Seed) -> impl Iterator<Item = Place> + 'a {
    let blocks = runs.iter().flat_map(|run| (0..run.len).map(|at| run.block(at)));
    blocks.zip(steps.identities()).map(move |(block, identity): (BlockRef, &SequenceHash)| Place {
        block: Some(block),
        sequence: Some(*identity),
        seed,
    })
}
