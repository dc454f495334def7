//! Putting blocks where they belong and naming them: those of a store, and those of parked stores that waited for it.

use std::collections::VecDeque;

use super::{Writer, scratch::Scratch};
use crate::{
    hash::{EngineHash, Seed, local_hashes},
    hold::{Branch, Unplaced, places},
    mask::Mask,
    names::{Names, Place},
    parked::Orphan,
    store::{Blocks, Refusal},
};

/// Parked stores whose parents came, with their places.
pub(super) type Found = VecDeque<(Place, Orphan)>;

impl Writer {
    /// Fills the scratch with the steps of `blocks` after `place`.
    pub(super) fn step_through(&mut self, place: Place, blocks: Blocks<'_>) {
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
    pub(super) fn attach(&mut self, place: Place, hashes: &[EngineHash]) -> Result<usize, Unplaced> {
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
    pub(super) fn waiting_for(&mut self, hashes: &[EngineHash], seed: Seed) -> Found {
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
    pub(super) fn attach_all(&mut self, mut found: Found) -> usize {
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
}
