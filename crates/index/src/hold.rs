//! What writers do to the index: taking holds on blocks and giving them up, in steps that let readers in between.

use parking_lot::RwLockWriteGuard;

use crate::{
    arena::{NodeId, NodeRef},
    beneath::{Beneath, Climb},
    hash::LocalHash,
    holders::Seat,
    indexer::KvIndexer,
    seats::Owner,
    store::Refusal,
    trie::{CHUNK_BLOCKS, Reached, Step, Trie},
};

/// Blocks to put into the trie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Branch<'a> {
    /// What they follow; `None`: they start a prompt.
    pub(crate) from: Option<NodeRef>,
    pub(crate) steps: &'a [Step],
    /// How many of them the owner does not hold yet.
    pub(crate) fresh: usize,
}

/// Why blocks could not be put into the trie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unplaced {
    /// The node they follow is gone.
    Gone,
    Refused(Refusal),
}

impl KvIndexer {
    /// Puts `branch` into the trie, head first, and says where each step led: all of them, unless others pruned the way
    /// meanwhile. Nothing was changed if this fails, except by being superseded on the way.
    pub(crate) fn extend(&self, owner: Owner, branch: Branch<'_>, reached: &mut Vec<Reached>) -> Result<(), Unplaced> {
        reached.clear();
        let mut trie = self.trie.write();
        let mut at = branch.from.unwrap_or_else(|| trie.root());
        self.check_room(&trie, owner, branch)?;
        let mut rest = branch.steps;
        loop {
            let (part, after) = rest.split_at(chunk_of(rest));
            trie.extend(at, part, owner.seat, reached);
            rest = after;
            if rest.is_empty() {
                return Ok(());
            }
            at = reached.last().map_or(at, |last| last.node);
            RwLockWriteGuard::bump(&mut trie);
            if !trie.seats.in_force(owner) {
                return Err(Unplaced::Refused(Refusal::Superseded));
            }
            // A chunk ends at a block the writer holds where it can; where it cannot, others may have pruned it.
            if !trie.is_alive(at) {
                return Ok(());
            }
        }
    }

    /// Whether [`KvIndexer::extend`] could be done now.
    pub(crate) fn has_room(&self, owner: Owner, branch: Branch<'_>) -> Result<(), Unplaced> {
        self.check_room(&self.trie.read(), owner, branch)
    }

    fn check_room(&self, trie: &Trie, owner: Owner, branch: Branch<'_>) -> Result<(), Unplaced> {
        let at = branch.from.unwrap_or_else(|| trie.root());
        if !trie.seats.in_force(owner) {
            return Err(Unplaced::Refused(Refusal::Superseded));
        }
        if !trie.is_alive(at) {
            return Err(Unplaced::Gone);
        }
        let limits = &self.limits;
        if trie.depth(at.id) + branch.steps.len() > limits.chain_blocks {
            return Err(Unplaced::Refused(Refusal::ChainTooLong { limit: limits.chain_blocks }));
        }
        if trie.len() + branch.fresh > limits.index_blocks {
            return Err(Unplaced::Refused(Refusal::IndexFull { limit: limits.index_blocks }));
        }
        Ok(())
    }

    /// Gives up the owner's hold on the nodes of `queue`, last first. `false`: it was superseded.
    pub(crate) fn release(&self, owner: Owner, queue: &mut Vec<NodeId>) -> bool {
        self.release_while(owner.seat, queue, |trie| trie.seats.in_force(owner))
    }

    /// As [`KvIndexer::release`] of everything the owner holds, in one step to readers.
    pub(crate) fn vacate(&self, owner: Owner, queue: &mut Vec<NodeId>) -> bool {
        {
            let mut trie = self.trie.write();
            if !trie.seats.in_force(owner) {
                return false;
            }
            trie.seats.hide(owner.seat);
        }
        let done = self.release(owner, queue);
        let mut trie = self.trie.write();
        if trie.seats.in_force(owner) {
            trie.seats.show(owner.seat);
        }
        done
    }

    /// The owner writes no more.
    pub(crate) fn leave(&self, owner: Owner) {
        self.trie.write().seats.leave(owner);
    }

    /// Empties a seat that was taken over, found by walking the index; shows it again.
    pub(crate) fn sweep(&self, seat: Seat) {
        let mut queue = Vec::new();
        let mut page = 0;
        loop {
            {
                let trie = self.trie.read();
                if page == trie.pages() {
                    break;
                }
                queue.extend(trie.held_on_page(page, seat).map(|(node, _)| node));
            }
            // Only the swept writer could give these up, and it is not in force any more.
            self.release_while(seat, &mut queue, |_| true);
            page += 1;
        }
        self.trie.write().seats.show(seat);
    }

    fn release_while(&self, seat: Seat, queue: &mut Vec<NodeId>, in_force: impl Fn(&Trie) -> bool) -> bool {
        let mut prune = None;
        let mut done = true;
        let mut trie = self.trie.write();
        loop {
            if !in_force(&trie) {
                queue.clear();
                done = false;
            }
            trie.release(seat, queue, &mut prune);
            if queue.is_empty() && prune.is_none() {
                return done;
            }
            RwLockWriteGuard::bump(&mut trie);
        }
    }

    /// The nodes of as much of `chain` as is in memory.
    pub(crate) fn path(&self, chain: &[LocalHash]) -> Vec<NodeRef> {
        let mut path: Vec<NodeRef> = Vec::with_capacity(chain.len());
        for part in chain.chunks(CHUNK_BLOCKS) {
            let trie = self.trie.read();
            let mut at = path.last().copied().unwrap_or_else(|| trie.root());
            if !trie.is_alive(at) {
                break;
            }
            for local in part {
                let Some(child) = trie.child(at.id, *local) else { return path };
                path.push(child);
                at = child;
            }
        }
        path
    }

    /// One part of the way up from `at`, a block the owner holds or one above such a block.
    pub(crate) fn climb(&self, owner: Owner, at: NodeId, beneath: &mut Beneath) -> Climb {
        let trie = self.trie.read();
        if trie.seats.in_force(owner) { beneath.climb(&trie, at) } else { Climb::Ended { beneath: false } }
    }
}

/// How many of `steps` to take under one hold of the lock: up to the last one held, so that what the next chunk starts
/// from is kept alive by this writer.
fn chunk_of(steps: &[Step]) -> usize {
    let most = steps.len().min(CHUNK_BLOCKS);
    steps[..most].iter().rposition(|step| step.held).map_or(most, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::SequenceHash;

    #[test]
    fn a_chunk_ends_at_a_block_that_is_held_where_there_is_one() {
        let steps = |held: &dyn Fn(usize) -> bool| -> Vec<_> {
            (0..1000).map(|at| Step { local: LocalHash(0), sequence: SequenceHash(0), held: held(at) }).collect()
        };
        assert_eq!(chunk_of(&steps(&|_| true)), CHUNK_BLOCKS);
        assert_eq!(chunk_of(&steps(&|_| true)[..7]), 7);
        assert_eq!(chunk_of(&steps(&|at| !(300..900).contains(&at))), 300);
        assert_eq!(chunk_of(&steps(&|at| at >= 900)), CHUNK_BLOCKS);
    }
}
