//! What routing knows of one request before a worker is chosen: its prompts in blocks, and what each candidate holds.
//!
//! Hashing and lookups are pure work on memory; where tokens come from is [`super::tokens`]' business.

use std::{cell::RefCell, sync::Arc};

use index::{Catalog, KvIndexer, Lanes, Levels, LocalHash, RecentPrompts, Recipe, Seed, Slot};
use prompt::Tokens;
use sched::{Chain, Depths, Overlap, Prompt};

use crate::fleet::{Cut, Member, Served};

/// The prompts of one request in the blocks of each block size among its candidates.
pub(crate) struct Plan {
    /// As the scheduler wants them.
    pub(crate) prompts: Vec<Prompt>,
    /// Local hashes: for each way to cut, of each prompt.
    chains: Vec<(Cut, Vec<Arc<[LocalHash]>>)>,
}

/// What one target holds of the request's prompts, for the figures shown to people.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    /// For the cost.
    pub(crate) overlap: Overlap,
    /// Blocks beyond the device lane that are only predicted or confirmed.
    pub(crate) predicted_blocks: u64,
}

impl Plan {
    /// Hashes the prompts for every way to cut in `cuts`; what they share with a recent prompt is taken from there.
    pub(crate) fn of_tokens(served: &Served, salt: Option<&str>, tokens: &[Tokens], cuts: &[Cut], recent: &RecentPrompts) -> Self {
        let seed = Seed::new(served.adapter.as_deref(), salt);
        let mut prompts: Vec<Prompt> = tokens.iter().map(|tokens| Prompt { tokens: tokens.ids.len() as u32, chains: Vec::new() }).collect();
        let mut chains = Vec::with_capacity(cuts.len());
        for &cut in cuts {
            let of_cut = tokens.iter().zip(&mut prompts).map(|(tokens, prompt)| {
                // Blocks from the first image on are never matched by text (rule 9).
                let recipe = Recipe { block_size: cut.size, window: cut.window, seed };
                let hashed = recent.hash(&tokens.ids, tokens.matchable().len(), recipe);
                // Load is counted by block size alone: who shares a prompt shares it under any window.
                if prompt.chains.iter().all(|chain| chain.block_size != cut.size) {
                    prompt.chains.push(Chain { block_size: cut.size, hashes: hashed.sequences });
                }
                hashed.locals
            });
            chains.push((cut, of_cut.collect()));
        }
        Self { prompts, chains }
    }

    /// A plan for `prompts` without hashes, of about `tokens` together: load is estimated, overlap is none.
    pub(crate) fn unhashed(tokens: usize, prompts: usize) -> Self {
        let each = (tokens / prompts.max(1)) as u32;
        let prompts = (0..prompts.max(1)).map(|_| Prompt { tokens: each, chains: Vec::new() }).collect();
        Self { prompts, chains: Vec::new() }
    }

    /// A plan for one of its prompts.
    pub(crate) fn only(&self, prompt: usize) -> Self {
        let chains = self.chains.iter().filter_map(|(cut, chains)| Some((*cut, vec![chains.get(prompt)?.clone()])));
        Self { prompts: self.prompts.get(prompt).cloned().into_iter().collect(), chains: chains.collect() }
    }

    /// Prompt tokens of all prompts.
    pub(crate) fn tokens(&self) -> u64 {
        self.prompts.iter().map(|prompt| u64::from(prompt.tokens)).sum()
    }

    /// Blocks of all prompts, for every cut: what work on them is measured by.
    pub(crate) fn blocks(&self) -> u64 {
        self.chains.iter().flat_map(|(_, chains)| chains).map(|chain| chain.len() as u64).sum()
    }

    /// Whether the prompts were tokenised.
    pub(crate) fn is_hashed(&self) -> bool {
        !self.chains.is_empty()
    }

    /// The chain of the only prompt, where there is one prompt and it was hashed for this cut.
    pub(crate) fn only_chain(&self, cut: Cut) -> Option<&Arc<[LocalHash]>> {
        match self.of_cut(cut)? {
            [only] => Some(only),
            _ => None,
        }
    }

    /// The chain of each prompt, if they were hashed for this cut.
    pub(crate) fn all_chains(&self, cut: Cut) -> impl Iterator<Item = &[LocalHash]> {
        self.of_cut(cut).into_iter().flatten().map(|chain| &**chain)
    }

    fn of_cut(&self, cut: Cut) -> Option<&[Arc<[LocalHash]>]> {
        self.chains.iter().find(|(known, _)| *known == cut).map(|(_, chains)| chains.as_slice())
    }

    /// What each member holds, in their order, each looked up in the index of its own base model.
    pub(crate) fn held(&self, catalog: &Catalog, members: &[Member]) -> Vec<Held> {
        let mut held = vec![Held::default(); members.len()];
        let (bases, of_member) = bases(members);
        LOOKUPS.with_borrow_mut(|lookups| {
            let indexers =
                bases.iter().enumerate().flat_map(|(of, base)| catalog.of_model(base).into_iter().map(move |indexer| (of, indexer)));
            for (of, indexer) in indexers {
                let members = || members.iter().zip(&of_member).enumerate().filter(move |(_, (_, base))| **base == of);
                for (cut, chains) in self.chains.iter().filter(|(cut, _)| cut.size == indexer.block_size()) {
                    for (prompt, chain) in self.prompts.iter().zip(chains) {
                        lookups.look_up(&indexer, chain);
                        for (at, (member, _)) in members().filter(|(_, (member, _))| member.cut() == *cut) {
                            let held = &mut held[at];
                            let depths = lookups.depths(member.rank.target.slot);
                            held.overlap.add(prompt.tokens, cut.size, depths);
                            held.predicted_blocks += u64::from(depths.near - depths.device);
                        }
                    }
                }
            }
        });
        held
    }
}

/// The distinct base models of `members`, of which there is nearly always one, and which of them is each member's.
fn bases(members: &[Member]) -> (Vec<&str>, Vec<usize>) {
    let mut bases: Vec<&str> = Vec::with_capacity(1);
    let of_member = members.iter().map(|member| {
        bases.iter().position(|known| *known == member.base()).unwrap_or_else(|| {
            bases.push(member.base());
            bases.len() - 1
        })
    });
    let of_member = of_member.collect();
    (bases, of_member)
}

thread_local! {
    /// Kept for their memory.
    static LOOKUPS: RefCell<Lookups> = RefCell::default();
}

/// One lookup for each growing set of lanes that is in use.
#[derive(Default)]
struct Lookups {
    device: Lookup,
    near: Option<Lookup>,
    host: Option<Lookup>,
    disk: Option<Lookup>,
}

impl Lookups {
    fn look_up(&mut self, indexer: &KvIndexer, chain: &[LocalHash]) {
        let used = indexer.lanes_in_use();
        self.device.look_up(indexer, chain, Lanes::DEVICE);
        let mut lanes = Lanes::DEVICE;
        for (more, lookup) in
            [(Lanes::PREDICTED | Lanes::CONFIRMED, &mut self.near), (Lanes::HOST, &mut self.host), (Lanes::DISK, &mut self.disk)]
        {
            lanes = lanes | more;
            if used.intersects(more) {
                lookup.get_or_insert_default().look_up(indexer, chain, lanes);
            } else {
                *lookup = None;
            }
        }
    }

    /// A set that is not in use is as deep as the one before it.
    fn depths(&self, slot: Slot) -> Depths {
        let device = self.device.depth(slot);
        let depth = |lookup: &Option<Lookup>, before: u32| lookup.as_ref().map_or(before, |lookup| lookup.depth(slot).max(before));
        let near = depth(&self.near, device);
        let host = depth(&self.host, near);
        Depths { device, near, host, disk: depth(&self.disk, host), shared: 0 }
    }
}

/// One lookup, spread out so that each of a thousand members finds its depth in one step.
#[derive(Default)]
struct Lookup {
    levels: Levels,
    /// By slot; slots beyond the end hold nothing.
    depths: Vec<u32>,
}

impl Lookup {
    fn look_up(&mut self, indexer: &KvIndexer, chain: &[LocalHash], lanes: Lanes) {
        indexer.lookup(chain, lanes, &mut self.levels);
        self.depths.clear();
        for (depth, slots) in self.levels.iter() {
            for slot in slots.iter() {
                let at = slot.index();
                if at >= self.depths.len() {
                    self.depths.resize((at + 1).next_multiple_of(64), 0);
                }
                self.depths[at] = depth;
            }
        }
    }

    fn depth(&self, slot: Slot) -> u32 {
        self.depths.get(slot.index()).copied().unwrap_or(0)
    }
}
