//! A dump: collected aside while the old state serves, then taken over.
//!
//! What the lanes hold and the dump does not goes first, then comes what is new, parents first. So a lookup sees at no time
//! more than the old state or the new one, and what both have never goes. A dump that lists blocks only because others follow
//! them (holes) has their chains written last, and the holes go in the same step.

use std::{
    collections::{HashMap, HashSet},
    time::Instant,
};

use index::{Blocks, EngineHash, Lane, LocalHash, SequenceHash};
use wire::router::{KvData, RouterEvent};

use super::pace::Answered;
use crate::{fold::Fold, rank::Rank, status::Ignored};

/// Blocks written in one step; then the caller may do something else (rule 16).
const STEP_BLOCKS: usize = 4096;

const LANES: [Lane; 3] = [Lane::Device, Lane::Host, Lane::Disk];

/// The events of a dump so far.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    lists: [List; 3],
    named: usize,
}

/// The blocks of one lane.
#[derive(Debug, Default)]
struct List {
    names: Vec<EngineHash>,
    locals: Vec<LocalHash>,
    /// Parents before their children; once complete, those without holes in them or above them first.
    runs: Vec<Run>,
    /// How many of the runs have no holes in them or above them.
    plain: usize,
    /// Not held, only what follows them.
    holes: HashSet<EngineHash>,
}

/// Blocks of a list that follow each other.
#[derive(Clone, Copy, Debug)]
struct Run {
    parent: Option<EngineHash>,
    from: usize,
    to: usize,
}

/// A complete dump on its way into the lanes.
#[derive(Debug)]
pub(crate) struct Takeover {
    lists: [List; 3],
    pub(crate) last_event_id: u64,
    pub(crate) blocks: usize,
    /// `None`: it answers a question whether there is more, and there is not.
    pub(crate) answered: Option<Answered>,
    /// The list and the run that are next; `None`: what is to go has not gone.
    next: Option<(usize, usize)>,
}

/// How far a step came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    More,
    Done,
}

impl Collected {
    /// Blocks that were named so far, in all lanes, whether stored or removed.
    pub(crate) fn named(&self) -> usize {
        self.named
    }

    /// An event of the dump that is of our target, or why it is left out.
    pub(crate) fn push(&mut self, event: RouterEvent) -> Result<(), Ignored> {
        let at = match Rank::lane_of(event.storage_tier, &event.domain)? {
            Lane::Device => 0,
            Lane::Host => 1,
            Lane::Disk => 2,
            // No tier is of these.
            Lane::Predicted | Lane::Confirmed => return Ok(()),
        };
        match event.event.data {
            // Nothing, and nothing is kept of it.
            KvData::Stored(stored) if stored.blocks.is_empty() => {}
            KvData::Stored(stored) => {
                let list = &mut self.lists[at];
                let from = list.names.len();
                list.names.extend(stored.blocks.iter().map(|block| EngineHash(block.block_hash)));
                list.locals.extend(stored.blocks.iter().map(|block| LocalHash(block.tokens_hash)));
                for name in &list.names[from..] {
                    list.holes.remove(name);
                }
                list.runs.push(Run { parent: stored.parent_hash.map(EngineHash), from, to: list.names.len() });
                self.named += stored.blocks.len();
            }
            KvData::Removed(hashes) => {
                self.named += hashes.len();
                self.lists[at].holes.extend(hashes.into_iter().map(EngineHash));
            }
            KvData::Cleared => *self = Self::default(),
        }
        Ok(())
    }

    /// The dump is complete.
    pub(crate) fn complete(mut self, last_event_id: u64, answered: Option<Answered>) -> Takeover {
        self.lists.iter_mut().for_each(List::settle);
        let blocks = self.lists.iter().flat_map(|list| &list.runs).map(|run| run.to - run.from).sum();
        Takeover { lists: self.lists, last_event_id, blocks, answered, next: None }
    }
}

impl List {
    /// Leaves out removed blocks that nothing follows, and puts the runs with those that something does, and the runs behind
    /// them, last.
    fn settle(&mut self) {
        self.plain = self.runs.len();
        if self.holes.is_empty() {
            return;
        }
        self.cut_removed_ends();
        let mut reached = self.holes.clone();
        let (mut plain, mut holed) = (Vec::with_capacity(self.runs.len()), Vec::new());
        for run in &self.runs {
            let names = &self.names[run.from..run.to];
            // A name that comes again in a later run may mean another block there, so their order stays.
            if run.parent.iter().chain(names).any(|name| reached.contains(name)) {
                reached.extend(names);
                holed.push(*run);
            } else {
                plain.push(*run);
            }
        }
        self.plain = plain.len();
        plain.append(&mut holed);
        self.runs = plain;
    }

    fn cut_removed_ends(&mut self) {
        let mut followed = HashSet::new();
        for run in self.runs.iter_mut().rev() {
            let names = &self.names[run.from..run.to];
            let ends = names.iter().rev().take_while(|name| self.holes.contains(name) && !followed.contains(*name)).count();
            run.to -= ends;
            if run.to > run.from {
                followed.extend(run.parent);
            }
        }
        self.runs.retain(|run| run.to > run.from);
        let installed: HashSet<_> = self.runs.iter().flat_map(|run| &self.names[run.from..run.to]).collect();
        self.holes.retain(|name| installed.contains(name));
    }

    /// Which block each name is.
    fn identities(&self) -> HashMap<EngineHash, SequenceHash> {
        let mut identities = HashMap::with_capacity(self.names.len());
        for run in &self.runs {
            let mut before = match run.parent {
                None => None,
                Some(parent) => match identities.get(&parent) {
                    Some(identity) => Some(*identity),
                    // It is not known where these are.
                    None => continue,
                },
            };
            for (name, local) in self.names[run.from..run.to].iter().zip(&self.locals[run.from..run.to]) {
                let identity = SequenceHash::after(before, *local);
                identities.insert(*name, identity);
                before = Some(identity);
            }
        }
        identities
    }

    fn drop_others(&self, lane: Lane, rank: &mut Rank) {
        let identities = if rank.blocks(lane) > 0 { self.identities() } else { HashMap::new() };
        rank.keep(lane, |name, identity| identities.get(&name) == Some(&identity) && !self.holes.contains(&name));
    }

    fn install(&self, now: Instant, at: (Lane, usize), rank: &mut Rank, fold: &Fold) -> usize {
        let (lane, run) = at;
        let Run { parent, from, to } = self.runs[run];
        let blocks = Blocks::LocalHashes { locals: &self.locals[from..to], hashes: &self.names[from..to] };
        rank.install(now, lane, (parent, blocks), fold);
        to - from
    }
}

impl Takeover {
    /// Does a part of what is left: to drop what the dump does not have, then some blocks at a time.
    pub(crate) fn step(&mut self, now: Instant, rank: &mut Rank, fold: &Fold) -> Step {
        let Some((mut at, mut run)) = self.next else {
            for (list, lane) in self.lists.iter().zip(LANES) {
                list.drop_others(lane, rank);
            }
            self.next = Some((0, 0));
            return Step::More;
        };
        let mut written = 0;
        while let Some(list) = self.lists.get(at) {
            // Chains with holes are not parted from the removal of those.
            if written >= STEP_BLOCKS && run <= list.plain {
                self.next = Some((at, run));
                return Step::More;
            }
            if run < list.runs.len() {
                written += list.install(now, (LANES[at], run), rank, fold);
                run += 1;
                continue;
            }
            if !list.holes.is_empty() {
                let holes: Vec<_> = list.holes.iter().copied().collect();
                rank.uninstall(LANES[at], &holes, fold);
            }
            (at, run) = (at + 1, 0);
        }
        Step::Done
    }
}

#[cfg(test)]
mod tests {
    use wire::router::{Domain, KvCacheEvent, StoredBlock, StoredBlocks, Tier};

    use super::*;

    fn event(data: KvData) -> RouterEvent {
        let event = KvCacheEvent { event_id: 0, data, dp_rank: 0 };
        RouterEvent { worker_id: 1, storage_tier: Tier::Device, domain: Domain::Worker, event, state_source: None, session_id: None }
    }

    fn stored(parent_hash: Option<u64>, blocks: &[u64]) -> RouterEvent {
        let block = |name: &u64| StoredBlock { block_hash: *name, tokens_hash: name + 500, media: None };
        event(KvData::Stored(StoredBlocks { parent_hash, start_position: None, blocks: blocks.iter().map(block).collect() }))
    }

    #[test]
    fn removed_blocks_are_written_only_if_something_follows_them_and_then_last() {
        let mut dump = Collected::default();
        for event in [
            stored(None, &[1, 2, 3, 4]),
            stored(Some(2), &[20, 21]),
            stored(Some(21), &[22]),
            stored(None, &[30, 31]),
            event(KvData::Removed(vec![4, 22, 21, 2, 77])),
        ] {
            assert_eq!(dump.push(event), Ok(()));
        }
        assert_eq!(dump.named(), 4 + 2 + 1 + 2 + 5);
        let takeover = dump.complete(9, Some(Answered::AsAsked));
        let list = &takeover.lists[0];
        let written: Vec<Vec<u64>> = list.runs.iter().map(|run| list.names[run.from..run.to].iter().map(|name| name.0).collect()).collect();
        assert_eq!(written, [vec![30, 31], vec![1, 2, 3], vec![20]]);
        assert_eq!((list.plain, list.holes.iter().collect::<Vec<_>>(), takeover.blocks), (1, vec![&EngineHash(2)], 6));
    }
}
