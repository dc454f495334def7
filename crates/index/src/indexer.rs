//! The index of one (model, block size): who holds which blocks.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::RwLock;

use crate::{
    hash::{BlockSize, LocalHash, SequenceHash},
    lane::{Copies, Lane, Lanes},
    levels::Levels,
    limits::Limits,
    slots::SlotSet,
    target::{Slot, Target},
    writer::Writer,
};

/// The global prefix index of one model and block size.
#[derive(Debug)]
pub struct KvIndexer {
    block_size: BlockSize,
    limits: Limits,
    /// (slot, lane) -> the generation and identities it holds.
    held: RwLock<BTreeMap<(Slot, Lane), (Target, BTreeSet<SequenceHash>)>>,
}

impl KvIndexer {
    /// An empty index.
    pub fn new(block_size: BlockSize, limits: Limits) -> Arc<Self> {
        Arc::new(Self { block_size, limits, held: RwLock::default() })
    }

    /// Tokens per block of everything in it.
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// The bounds it was made with.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The hand that writes one lane of one target. At most one is in force: a newer one for the same lane, or for a
    /// later target in the same slot, takes over.
    pub fn writer(self: &Arc<Self>, target: Target, lane: Lane, copies: Copies) -> Writer {
        self.held.write().insert((target.slot, lane), (target, BTreeSet::new()));
        Writer::new(self.clone(), target, lane, copies)
    }

    /// Fills `levels` with how many leading blocks of `chain` each target holds in any of `lanes`.
    pub fn lookup(&self, chain: &[LocalHash], lanes: Lanes, levels: &mut Levels) {
        levels.clear();
        let held = self.held.read();
        let mut parent = None;
        let mut active: Option<SlotSet> = None;
        for (depth, local) in chain.iter().enumerate() {
            let sequence = SequenceHash::after(parent, *local);
            let now: SlotSet = held
                .iter()
                .filter(|((_, lane), (_, blocks))| lanes.contains(*lane) && blocks.contains(&sequence))
                .map(|((slot, _), _)| *slot)
                .collect();
            let mut next = active.clone().unwrap_or_else(|| now.clone());
            next.and(&now);
            if let Some(mut dropped) = active.take() {
                dropped.and_not(&next);
                levels.push(depth as u32, &dropped);
            }
            parent = Some(sequence);
            active = Some(next);
        }
        levels.push(chain.len() as u32, &active.unwrap_or_default());
    }

    /// The lanes that hold anything now.
    pub fn lanes_in_use(&self) -> Lanes {
        let held = self.held.read();
        held.iter().filter(|(_, (_, b))| !b.is_empty()).fold(Lanes::NONE, |lanes, ((_, lane), _)| lanes | (*lane).into())
    }

    /// Blocks `target` holds in `lane`.
    pub fn blocks(&self, target: Target, lane: Lane) -> usize {
        self.held(target, lane).len()
    }

    /// Distinct blocks in memory.
    pub fn distinct_blocks(&self) -> usize {
        self.held.read().values().flat_map(|(_, blocks)| blocks).collect::<BTreeSet<_>>().len()
    }

    /// [`digest_of`] the blocks `target` holds in the device lane.
    pub fn digest(&self, target: Target) -> u64 {
        digest_of(self.held(target, Lane::Device))
    }

    /// The identities of the blocks `target` holds in `lane`, in no order; for tests and debugging.
    pub fn held(&self, target: Target, lane: Lane) -> Vec<SequenceHash> {
        match self.held.read().get(&(target.slot, lane)) {
            Some((owner, blocks)) if *owner == target => blocks.iter().copied().collect(),
            Some(_) | None => Vec::new(),
        }
    }

    pub(crate) fn replace(&self, target: Target, lane: Lane, blocks: BTreeSet<SequenceHash>) {
        if let Some((owner, held)) = self.held.write().get_mut(&(target.slot, lane))
            && *owner == target
        {
            *held = blocks;
        }
    }
}

/// An order-free fingerprint of a set of blocks: the wrapping sum of each identity, mixed (the finalizer of splitmix64)
/// so that sums of related hashes do not cancel.
pub fn digest_of(blocks: impl IntoIterator<Item = SequenceHash>) -> u64 {
    blocks.into_iter().map(mixed).fold(0, u64::wrapping_add)
}

fn mixed(block: SequenceHash) -> u64 {
    let mut x = block.0;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
