//! A target as a candidate for one request: what it holds of the prompt, and why it may be out.
//!
//! The caller fills candidates from the index, from health and from the request; the ledger adds load by itself.

use std::fmt;

use index::{BlockSize, Target};

/// One target that a request could go to.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The worker and rank.
    pub target: Target,
    /// Tokens per block of its engine. For an engine that has not told yet, what the caller takes as default.
    pub block_size: BlockSize,
    /// What it holds of the request's prompts.
    pub overlap: Overlap,
    /// How much the request prefers it: the sum of the weights of those preferred taints it has, else zero.
    pub preference: f64,
    /// Why it may not be chosen, if so.
    pub excluded: Option<Exclusion>,
}

/// Why a candidate may not be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Exclusion {
    /// It finishes what it has and takes nothing new.
    Draining,
    /// Its breaker is open: it failed lately and the next probe is not due.
    BreakerOpen,
    /// It has not answered yet since it was added.
    NotReady,
    /// It does not serve the model or adapter of the request.
    ModelNotServed,
    /// This request was sent to it before and failed there.
    AlreadyTried,
    /// The request names another worker.
    NotPinned,
    /// The request names another rank of this worker.
    RankNotPinned,
    /// The request limits its workers to a set without this one.
    NotAllowed,
    /// It takes token ids, and the request cannot be turned into what it takes.
    Unfit,
    /// It was removed after the caller listed it. Set by the scheduler.
    Removed,
}

impl Exclusion {
    /// Every reason, in the order of declaration.
    pub const ALL: [Exclusion; 10] = [
        Exclusion::Draining,
        Exclusion::BreakerOpen,
        Exclusion::NotReady,
        Exclusion::ModelNotServed,
        Exclusion::AlreadyTried,
        Exclusion::NotPinned,
        Exclusion::RankNotPinned,
        Exclusion::NotAllowed,
        Exclusion::Unfit,
        Exclusion::Removed,
    ];

    /// The text shown by `/route` and in errors.
    pub fn as_str(self) -> &'static str {
        match self {
            Exclusion::Draining => "draining",
            Exclusion::BreakerOpen => "breaker open",
            Exclusion::NotReady => "not ready",
            Exclusion::ModelNotServed => "model not served",
            Exclusion::AlreadyTried => "already tried",
            Exclusion::NotPinned => "not the pinned worker",
            Exclusion::RankNotPinned => "not the pinned rank",
            Exclusion::NotAllowed => "not in the allowed set",
            Exclusion::Unfit => "takes token ids, which the request cannot be turned into",
            Exclusion::Removed => "removed",
        }
    }
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Leading blocks of one prompt that a target holds, each figure counted from the start of the prompt and at least as
/// deep as the one before: the depth in the index of a growing set of lanes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Depths {
    /// The device lane alone: what the engine's events prove.
    pub device: u32,
    /// Device, confirmed and predicted lanes together.
    pub near: u32,
    /// With host memory too.
    pub host: u32,
    /// With disk (and external stores) too.
    pub disk: u32,
    /// Blocks beyond `near` that a cache shared by all targets holds; a count, not a depth.
    pub shared: u32,
}

/// What a target holds of all prompts of a request: sums over the prompts, in blocks, up to `u32::MAX`.
///
/// In half words, so that a [`Candidate`] is one cache line: a choice reads every one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    device: u32,
    held: Tiers,
    usable: Tiers,
    device_usable: u32,
    shared: u32,
}

/// Blocks by where they lie; each is counted once, in the nearest tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tiers {
    near: u32,
    host: u32,
    disk: u32,
}

impl Tiers {
    /// Splits depths into tiers, of at most `cap` blocks together.
    #[inline]
    fn split(depths: Depths, cap: u32) -> Tiers {
        let near = depths.near.max(depths.device).min(cap);
        let host = depths.host.min(cap).max(near);
        let disk = depths.disk.min(cap).max(host);
        Tiers { near, host: host - near, disk: disk - host }
    }

    #[inline]
    fn add(&mut self, other: Tiers) {
        self.near = self.near.saturating_add(other.near);
        self.host = self.host.saturating_add(other.host);
        self.disk = self.disk.saturating_add(other.disk);
    }
}

impl Overlap {
    /// Adds what the target holds of one more prompt.
    ///
    /// Usable blocks are cut per prompt by rule 3: an engine always recomputes the last token.
    #[inline]
    pub fn add(&mut self, prompt_tokens: u32, block_size: BlockSize, depths: Depths) {
        let held = Tiers::split(depths, u32::MAX);
        let before_last = prompt_tokens.saturating_sub(1);
        let deepest = depths.device.max(depths.near).max(depths.host).max(depths.disk);
        // Most hold no more than the cut leaves: no need to work it out.
        let is_cut = u64::from(deepest) * u64::from(block_size.get()) > u64::from(before_last);
        let cap = if is_cut { before_last / block_size.get() } else { u32::MAX };
        self.device = self.device.saturating_add(depths.device);
        self.device_usable = self.device_usable.saturating_add(depths.device.min(cap));
        self.held.add(held);
        self.usable.add(if is_cut { Tiers::split(depths, cap) } else { held });
        self.shared = self.shared.saturating_add(depths.shared);
    }

    /// Blocks in the device lane.
    pub fn device_blocks(&self) -> u64 {
        self.device.into()
    }

    /// Blocks in the device lane that an engine would not recompute (rule 3).
    pub fn device_usable_blocks(&self) -> u64 {
        self.device_usable.into()
    }

    /// Blocks in the device, confirmed or predicted lane.
    pub(crate) fn near_blocks(&self) -> u64 {
        self.held.near.into()
    }

    /// Further blocks in host memory.
    pub fn host_blocks(&self) -> u64 {
        self.held.host.into()
    }

    /// Further blocks on disk.
    pub fn disk_blocks(&self) -> u64 {
        self.held.disk.into()
    }

    /// Blocks of slower tiers and of a shared cache, each kind by its weight.
    #[inline]
    pub(crate) fn slower_blocks(&self, host_weight: f64, disk_weight: f64, shared_weight: f64) -> f64 {
        if self.held.host | self.held.disk | self.shared == 0 {
            return 0.0;
        }
        host_weight * f64::from(self.held.host) + disk_weight * f64::from(self.held.disk) + shared_weight * f64::from(self.shared)
    }

    /// Blocks an engine would not compute, with blocks of slower tiers counted by their weight.
    pub(crate) fn usable_blocks(&self, host_weight: f64, disk_weight: f64) -> f64 {
        let Tiers { near, host, disk } = self.usable;
        f64::from(near) + host_weight.min(1.0) * f64::from(host) + disk_weight.min(1.0) * f64::from(disk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_size(tokens: u32) -> BlockSize {
        BlockSize::new(tokens).unwrap()
    }

    #[test]
    fn a_fully_held_prompt_is_usable_without_its_last_block() {
        let mut overlap = Overlap::default();
        overlap.add(64, block_size(16), Depths { device: 4, near: 4, host: 4, disk: 4, shared: 0 });
        assert_eq!(overlap.device_blocks(), 4);
        assert_eq!(overlap.device_usable_blocks(), 3);
        assert_eq!(overlap.usable_blocks(0.75, 0.25), 3.0);
    }

    #[test]
    fn the_last_block_of_each_prompt_is_cut_alone() {
        let mut overlap = Overlap::default();
        overlap.add(32, block_size(16), Depths { device: 2, near: 2, host: 2, disk: 2, shared: 0 });
        overlap.add(160, block_size(16), Depths::default());
        assert_eq!(overlap.usable_blocks(0.75, 0.25), 1.0);
        overlap.add(0, block_size(16), Depths::default());
        assert_eq!(overlap.near_blocks(), 2);
    }

    #[test]
    fn slower_tiers_count_what_lies_beyond_the_nearer_ones() {
        let mut overlap = Overlap::default();
        overlap.add(1000, block_size(16), Depths { device: 1, near: 3, host: 7, disk: 9, shared: 2 });
        assert_eq!((overlap.device_blocks(), overlap.near_blocks()), (1, 3));
        assert_eq!((overlap.host_blocks(), overlap.disk_blocks(), overlap.shared), (4, 2, 2));
        assert_eq!(overlap.usable_blocks(0.75, 0.25), 3.0 + 3.0 + 0.5);
    }

    #[test]
    fn texts_of_exclusions_differ() {
        let texts: std::collections::HashSet<_> = Exclusion::ALL.iter().map(|e| e.to_string()).collect();
        assert_eq!(texts.len(), Exclusion::ALL.len());
    }
}
