//! The writing side of the index: one stream's hand on one lane of one target.

mod keep;
mod next;

use std::{cell::RefCell, collections::VecDeque, sync::Arc};

use crate::{
    beneath::Beneath,
    hash::{EngineHash, LocalHash, Seed, local_hashes},
    hold::{Branch, Unplaced, places},
    indexer::KvIndexer,
    lane::{Copies, Lane},
    mask::Mask,
    names::{Names, Place},
    node::BlockId,
    parked::{Confirmed, Orphan, Parked, ParkedStores},
    seats::Owner,
    steps::Steps,
    store::{Blocks, Distinct, Parent, Refusal, Removed, Stored},
    target::Target,
    trie::Run,
};

/// Writes one lane of one target. Dropping it retracts everything it holds.
///
/// What it does is seen by lookups at once, at the latest when the call returns. A store is seen from its head on; a
/// clear and the drop are seen in one step.
#[derive(Debug)]
pub struct Writer {
    indexer: Arc<KvIndexer>,
    owner: Owner,
    target: Target,
    copies: Copies,
    names: Names,
    parked: ParkedStores,
    scratch: Scratch,
}

/// Buffers kept for their memory.
#[derive(Debug, Default)]
struct Scratch {
    distinct: Distinct,
    /// The names of the call at hand, as the table of names has them.
    mixed: Vec<u64>,
    locals: Vec<LocalHash>,
    steps: Steps,
    runs: Vec<Run>,
    /// Steps whose names are held already, and the blocks those mean.
    held: Vec<(usize, BlockId)>,
    queue: Vec<BlockId>,
}

/// A writer keeps buffers for as many blocks: thousands of writers may have seen one long prompt each.
const KEPT_BLOCKS: usize = 64;
/// Stores and removals of more are done in buffers that a thread's writers share, and these are kept up to so many.
const SHARED_BLOCKS: usize = 1024;

thread_local! {
    /// For what is larger than a writer's own buffers. At rest nothing in it is of use but its memory.
    static SHARED: RefCell<Scratch> = RefCell::default();
}

impl Scratch {
    /// For a call of so many blocks: the thread's buffers where they are many, and back again after it.
    fn lend(&mut self, blocks: usize) {
        if blocks > KEPT_BLOCKS {
            // A thread that is about to end has none any more; then new ones are made.
            let _ = SHARED.try_with(|shared| std::mem::swap(self, &mut shared.borrow_mut()));
        }
    }

    /// Gives up memory for more than `most` blocks.
    fn settle(&mut self, most: usize) {
        if self.steps.len() > most || self.mixed.capacity() > 2 * most || self.queue.capacity() > 4 * most {
            *self = Self::default();
        }
    }
}

/// Parked stores whose parents came, with their places.
type Found = VecDeque<(Place, Orphan)>;

impl Writer {
    pub(crate) fn new(indexer: Arc<KvIndexer>, owner: Owner, target: Target, copies: Copies) -> Self {
        let (names, parked) = (Names::default(), ParkedStores::default());
        Self { indexer, owner, target, copies, names, parked, scratch: Scratch::default() }
    }

    /// The index it writes.
    pub fn indexer(&self) -> &Arc<KvIndexer> {
        &self.indexer
    }

    /// The target it writes for.
    pub fn target(&self) -> Target {
        self.target
    }

    /// The lane it writes.
    pub fn lane(&self) -> Lane {
        self.owner.seat.lane
    }

    /// Blocks held in the lane.
    pub fn blocks(&self) -> usize {
        self.names.blocks()
    }

    /// The stores whose parents are unknown.
    pub fn parked(&self) -> Parked {
        self.parked.report()
    }

    /// Blocks stored after `parent`.
    ///
    /// Unless it is parked or refused, each block is held from now on under its hash, with one more copy where copies
    /// are counted, and parked stores that waited for one of them are attached. A hash that named another block until
    /// now names this one only: the engine knows best what its names mean. No blocks at all is a store that adds nothing.
    pub fn store(&mut self, parent: Parent, blocks: Blocks<'_>) -> Stored {
        match self.store_next(parent, blocks) {
            Some(stored) => stored,
            None => self.store_any(parent, blocks),
        }
    }

    /// Kept apart, so that what is told most often needs few words of the stack.
    #[inline(never)]
    fn store_any(&mut self, parent: Parent, blocks: Blocks<'_>) -> Stored {
        let len = blocks.hashes().len();
        self.scratch.lend(len);
        let stored = self.try_store(parent, blocks).unwrap_or_else(Stored::Refused);
        self.give_back(len);
        stored
    }

    fn try_store(&mut self, parent: Parent, blocks: Blocks<'_>) -> Result<Stored, Refusal> {
        let Scratch { distinct, mixed, .. } = &mut self.scratch;
        Names::mix(blocks.hashes(), mixed);
        blocks.check(mixed, parent, self.indexer.block_size(), distinct)?;
        if blocks.hashes().is_empty() {
            return Ok(Stored::Applied { added: 0 });
        }
        let place = match parent {
            Parent::Root(seed) => Some(Place { block: None, sequence: None, seed }),
            Parent::Block(hash) => self.place(hash)?,
        };
        if let Some(place) = place {
            self.step_through(place, blocks);
            match self.attach(place, blocks.hashes()) {
                Ok(added) => {
                    let found = self.waiting_for(blocks.hashes(), place.seed);
                    return Ok(Stored::Applied { added: added + self.attach_all(found) });
                }
                Err(Unplaced::Refused(refusal)) => return Err(refusal),
                Err(Unplaced::Gone) => {}
            }
        }
        match parent {
            // Not reached: the root is never gone.
            Parent::Root(_) => Ok(Stored::Applied { added: 0 }),
            Parent::Block(hash) => {
                self.names.unanchor(hash);
                self.parked.park(hash, blocks, self.indexer.limits()).map(|()| Stored::Parked)
            }
        }
    }

    /// After a call of `blocks` blocks: the thread's buffers go back, none is kept that is too large for where it is.
    fn give_back(&mut self, blocks: usize) {
        self.scratch.settle(if blocks > KEPT_BLOCKS { SHARED_BLOCKS } else { KEPT_BLOCKS });
        self.scratch.lend(blocks);
    }

    /// Where blocks go that follow the block `hash` names.
    fn place(&mut self, hash: EngineHash) -> Result<Option<Place>, Refusal> {
        let Some(known) = self.names.known(hash) else { return Ok(None) };
        self.names.is_no_end(hash);
        let place = self.indexer.place(self.owner, known);
        if place.is_none() {
            self.superseded();
            return Err(Refusal::Superseded);
        }
        Ok(place)
    }

    /// Takes copies of blocks away, each hash once: with [`Copies::Counted`] one copy, a parked one first; with
    /// [`Copies::Set`] the block.
    pub fn remove(&mut self, hashes: &[EngineHash]) -> Removed {
        let mut removed = Removed::default();
        self.scratch.lend(hashes.len());
        let Scratch { mixed, queue, .. } = &mut self.scratch;
        let mut queue = std::mem::take(queue);
        Names::mix(hashes, mixed);
        for (at, hash) in hashes.iter().enumerate() {
            self.names.approach(mixed, at);
            let parked = !self.parked.is_empty() && self.parked.remove(*hash, self.copies);
            let known = match self.copies {
                Copies::Counted if parked => Some(None),
                Copies::Counted | Copies::Set => self.names.remove((*hash, mixed[at]), self.copies),
            };
            queue.extend(known.flatten());
            if parked || known.is_some() {
                removed.removed += 1;
            } else {
                removed.unknown += 1;
            }
        }
        // Given up from the end of the queue: in the order they were named.
        queue.reverse();
        self.release(&mut queue);
        self.scratch.queue = queue;
        self.give_back(hashes.len());
        removed
    }

    /// From now on what is held is a set, as if made with [`Copies::Set`]: copies counted until now are one (rule 4).
    pub fn count_as_set(&mut self) {
        // A removal from a set does not look at how often a block was stored.
        self.copies = Copies::Set;
    }

    /// Drops every block and every parked store (rule 5).
    pub fn clear(&mut self) {
        self.parked.clear();
        let seen = self.names.blocks() > 0 && self.indexer.hide(self.owner);
        let strips = self.names.take_all();
        if seen {
            self.indexer.vacate(self.owner, strips);
        }
    }

    /// Rule 11, the engine holds less than we knew: drops this writer's blocks of `chain` from position `keep` on, and
    /// every block of this writer beneath them, whatever their copies. Returns how many blocks. Parked stores stay;
    /// places known by confirmation alone are forgotten.
    pub fn retract(&mut self, chain: &[LocalHash], keep: usize) -> usize {
        let Some(chain) = chain.get(..=keep) else { return 0 };
        let Some(top) = self.indexer.path(chain).get(keep) else { return 0 };
        self.names.unanchor_all();
        let mut beneath = Beneath::new(top);
        let names = self.names.iter();
        let gone: Vec<_> = names.filter(|(_, block)| beneath.contains(&self.indexer, self.owner, *block)).collect();
        let before = self.names.blocks();
        self.forget_all(gone);
        before - self.names.blocks()
    }

    /// Rules 6 and 11, the engine confirmed that it holds `chain[..known]` (hashed under `seed`): gives parked stores
    /// their place if that tells it. Returns how many blocks are held now that were not.
    ///
    /// A store whose blocks are those of `chain` from `known` on, for as long as both last, has its place there. Failing
    /// that, a store whose blocks are those of `chain` from exactly one position inside the known part. The parent such a
    /// store names is then known to be the block before it, for other stores too, without being held: a hole in this
    /// lane, which a lookup over the lane that holds what was confirmed closes. So that lane must hold `chain[..known]`
    /// before: where nobody in the index holds the parent's place, nothing is attached.
    pub fn adopt(&mut self, chain: &[LocalHash], known: usize, seed: Seed) -> usize {
        let known = known.min(chain.len());
        if known == 0 || self.parked.is_empty() {
            return 0;
        }
        let confirmed = Confirmed { locals: chain, known, seed, block_size: self.indexer.block_size() };
        let parents = self.parked.parents_on(&confirmed);
        if parents.is_empty() {
            return 0;
        }
        let path = self.indexer.path(&chain[..known]);
        let mut sequences = Vec::new();
        crate::hash::sequence_hashes(&chain[..known], &mut sequences);
        let mut found = Found::new();
        for (parent, position) in parents {
            let Some(block) = path.get(position - 1) else { continue };
            let place = Place { block: Some(block), sequence: Some(sequences[position - 1]), seed };
            self.names.anchor(parent, place, self.indexer.limits().anchors);
            found.extend(self.parked.take_waiting(parent).into_iter().map(|orphan| (place, orphan)));
        }
        self.attach_all(found)
    }

    /// Fills the scratch with the steps of `blocks` after `place`.
    fn step_through(&mut self, place: Place, blocks: Blocks<'_>) {
        let Scratch { locals: hashed, steps, .. } = &mut self.scratch;
        let locals = match blocks {
            Blocks::Tokens { tokens, window, .. } => {
                local_hashes(tokens, self.indexer.block_size(), place.seed, window, hashed);
                hashed
            }
            Blocks::LocalHashes { locals, .. } => locals,
        };
        steps.fill(place.sequence, locals);
    }

    /// Puts the steps in the scratch after `place`; `hashes`, mixed in the scratch, name them and may be more. Returns how
    /// many blocks are held now that were not.
    fn attach(&mut self, place: Place, hashes: &[EngineHash]) -> Result<usize, Unplaced> {
        let Scratch { steps, held, mixed, .. } = &mut self.scratch;
        held.clear();
        let (mut named, mut known) = (0, 0);
        for (step, name) in mixed.iter().enumerate().take(steps.len()) {
            self.names.approach(mixed, step);
            if !steps.is_held(step) {
                continue;
            }
            named += 1;
            if let Some(block) = self.names.held(*name) {
                known += 1;
                held.push((step, block));
            }
        }
        let limit = self.indexer.limits().writer_blocks;
        if self.names.len() + named - known > limit {
            return Err(Unplaced::Refused(Refusal::WriterFull { limit }));
        }
        let mut again: Vec<usize> = Vec::new();
        if known > 0 {
            again.extend(held.iter().map(|(step, _)| *step));
            self.indexer.keep_others(steps, held);
            again.retain(|step| held.binary_search_by_key(step, |(other, _)| *other).is_err());
        }
        let fresh = named - again.len();
        self.make_way(place, hashes, fresh).map_err(|unplaced| self.unplaced(unplaced))?;
        let Scratch { steps, runs, .. } = &mut self.scratch;
        let branch = Branch { from: place.block, steps, seed: place.seed, fresh };
        let placed = self.indexer.extend(self.owner, branch, runs);
        placed.map_err(|unplaced| self.unplaced(unplaced))?;
        Ok(self.name(place, hashes, &again))
    }

    /// Names the blocks of the runs in the scratch; the steps of `again` have their names already. Returns how many
    /// blocks are held now that were not.
    fn name(&mut self, place: Place, hashes: &[EngineHash], again: &[usize]) -> usize {
        let Scratch { steps, runs, mixed, .. } = &self.scratch;
        let (before, mut again, mut step) = (self.names.blocks(), again.iter().copied().peekable(), 0);
        self.names.reserve(steps.len() - again.len());
        for run in runs {
            let odd_seed = (run.seed != place.seed).then_some(place.seed);
            if again.len() == 0 && odd_seed.is_none() && run.gained == Mask::first(run.len) {
                // All of it is new.
                let (hashes, mixed) = (&hashes[step..step + run.len], &mixed[step..step + run.len]);
                self.names.store_run(hashes, mixed, run.first.id);
                self.names.gained_in(run.first.id.strip());
                step += run.len;
                continue;
            }
            for at in 0..run.len {
                if again.next_if_eq(&step).is_some() {
                    self.names.store_again(hashes[step], self.copies);
                } else if steps.is_held(step) {
                    self.names.store((hashes[step], mixed[step]), run.first.id.plus(at), run.gained.contains(at), odd_seed);
                }
                step += 1;
            }
            if !run.gained.is_empty() {
                self.names.gained_in(run.first.id.strip());
            }
        }
        if step < steps.len() {
            self.parked.lost();
        } else if let (Some(run), Some(last)) = (runs.last(), step.checked_sub(1))
            && steps.is_held(last)
        {
            self.names.end_at(hashes[last], run.block(run.len - 1).id, (steps.identities()[last], place.seed));
        }
        self.names.blocks() - before
    }

    /// Drops the names in the scratch that name other blocks from now on: before they do, so that no lookup sees both,
    /// and not at all if the new place cannot be had.
    fn make_way(&mut self, place: Place, hashes: &[EngineHash], fresh: usize) -> Result<(), Unplaced> {
        let Scratch { steps, held, .. } = &self.scratch;
        if !held.is_empty() {
            self.indexer.has_room(self.owner, Branch { from: place.block, steps, seed: place.seed, fresh })?;
            let renamed: Vec<_> = held.iter().map(|(step, _)| hashes[*step]).collect();
            self.forget(&renamed);
        }
        Ok(())
    }

    /// Takes out the parked stores that wait for a block the scratch has just reached.
    fn waiting_for(&mut self, hashes: &[EngineHash], seed: Seed) -> Found {
        let mut found = Found::new();
        if self.parked.is_empty() {
            return found;
        }
        for (hash, place) in hashes.iter().zip(places(&self.scratch.steps, &self.scratch.runs, seed)) {
            found.extend(self.parked.take_waiting(*hash).into_iter().map(|orphan| (place, orphan)));
        }
        found
    }

    /// Attaches parked stores, and those that waited for them in turn.
    fn attach_all(&mut self, mut found: Found) -> usize {
        let mut added = 0;
        while let Some((place, orphan)) = found.pop_front() {
            orphan.steps(place.sequence, place.seed, self.indexer.block_size(), &mut self.scratch.steps);
            let hashes: Vec<_> = orphan.hashes().collect();
            Names::mix(&hashes, &mut self.scratch.mixed);
            match self.attach(place, &hashes) {
                Ok(more) => {
                    added += more;
                    found.extend(self.waiting_for(&hashes, place.seed));
                }
                Err(Unplaced::Gone | Unplaced::Refused(_)) => self.parked.lost(),
            }
        }
        added
    }

    /// Drops names with all their copies, of blocks that lie anywhere.
    fn forget_all(&mut self, mut gone: Vec<(EngineHash, BlockId)>) {
        // By block: those of a node go at once. And not in the order of the table of names, whose one end would be full and whose
        // other end empty, so that each search were long.
        gone.sort_unstable_by_key(|(_, block)| std::cmp::Reverse(*block));
        let gone: Vec<_> = gone.into_iter().map(|(hash, _)| hash).collect();
        self.forget(&gone);
    }

    /// Drops names with all their copies.
    fn forget(&mut self, hashes: &[EngineHash]) {
        let mut queue = std::mem::take(&mut self.scratch.queue);
        queue.extend(hashes.iter().rev().filter_map(|hash| self.names.forget(*hash)));
        self.release(&mut queue);
        self.scratch.queue = queue;
    }

    fn release(&mut self, queue: &mut Vec<BlockId>) {
        if !queue.is_empty() && !self.indexer.release(self.owner, queue) {
            self.superseded();
        }
    }

    fn unplaced(&mut self, unplaced: Unplaced) -> Unplaced {
        if unplaced == Unplaced::Refused(Refusal::Superseded) {
            self.superseded();
        }
        unplaced
    }

    /// A superseded writer forgets what it thinks it holds; the one that took over has swept it.
    fn superseded(&mut self) {
        self.parked.clear();
        self.names.take_all();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.clear();
        self.indexer.leave(self.owner);
    }
}
