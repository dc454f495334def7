//! What the events of a publisher do to a target: they are hashed and counted already, so they are sets.

use std::{sync::Arc, time::Instant};

use index::{Blocks, Copies, EngineHash, Lane, LocalHash, Parent, Seed, SequenceHash, Stored as Outcome, Target};
use wire::{
    Carries,
    router::{Domain, KvData, RouterEvent, RouterEventError, RouterFault, StoredBlocks, Tier},
};

use super::{Arrival, Rank, Written};
use crate::{
    fold::Fold,
    fresh::{Content, Prepared},
    status::Ignored,
    trust::Footing,
};

/// The seed of the lanes' roots. It would matter only to children stored by their tokens, and there are none: adapter and
/// salt are in the local hashes that come.
const ROOT: Seed = Seed::BASE;

impl Rank {
    /// A target whose events are sets (rule 4).
    pub(crate) fn of_sets(rank: u32, target: Target) -> Self {
        let mut rank = Self { counting: Copies::Set, ..Self::new(rank, target) };
        rank.status.carries = Some(Carries::default());
        rank
    }

    /// How often something was found missing.
    pub(crate) fn lacks(&self) -> u64 {
        self.lacks
    }

    /// Whatever comes cannot be believed.
    pub(crate) fn contradict(&mut self, reason: &str) {
        self.conflict = Some(Arc::from(reason));
    }

    /// Another publisher speaks for the rank from now on. What is held stays until it is told what is to be held.
    pub(crate) fn publisher_changed(&mut self, now: Instant) {
        self.restarted(now);
        self.status.carries = Some(Carries::default());
    }

    /// Nothing is known any more.
    pub(crate) fn forget(&mut self) {
        self.clear_lanes();
        self.footing = Footing::Unheard;
        self.fresh = None;
    }

    /// Whether the blocks of a domain are the worker's own.
    pub(crate) fn is_own(domain: &Domain) -> bool {
        match domain {
            Domain::Legacy | Domain::Worker => true,
            Domain::CacheOwner | Domain::Unknown(_) => false,
        }
    }

    /// The lane of an event's blocks, or why they are left out.
    pub(crate) fn lane_of(tier: Tier, domain: &Domain) -> Result<Lane, Ignored> {
        if !Self::is_own(domain) {
            return Err(Ignored::OtherDomain);
        }
        match tier {
            Tier::Device => Ok(Lane::Device),
            Tier::HostPinned => Ok(Lane::Host),
            Tier::Disk => Ok(Lane::Disk),
            Tier::External => Err(Ignored::ExternalMedium),
        }
    }

    pub(crate) fn ignore(&mut self, reason: Ignored) {
        self.status.ignored.count(reason);
    }

    /// An event of this target; a clear is of every tier.
    pub(crate) fn apply_router(&mut self, now: Instant, event: RouterEvent, arrival: Arrival, fold: &Fold) {
        let clears = matches!(event.event.data, KvData::Cleared);
        let tier = if clears { Tier::Device } else { event.storage_tier };
        let lane = match Self::lane_of(tier, &event.domain) {
            Ok(lane) => lane,
            Err(reason) => return self.ignore(reason),
        };
        self.match_reset(now, clears, arrival);
        match event.event.data {
            KvData::Stored(stored) => self.store_hashed(now, lane, &stored, fold),
            KvData::Removed(hashes) => self.give_up(lane, &hashes.into_iter().map(EngineHash).collect::<Vec<_>>(), fold),
            KvData::Cleared => self.cleared(now, arrival),
        }
    }

    fn store_hashed(&mut self, now: Instant, lane: Lane, stored: &StoredBlocks, fold: &Fold) {
        if stored.blocks.is_empty() {
            return;
        }
        self.status.stores += 1;
        let parent = stored.parent_hash.map_or(Parent::Root(ROOT), |hash| Parent::Block(EngineHash(hash)));
        let hashes = stored.blocks.iter().map(|block| EngineHash(block.block_hash)).collect();
        let locals = stored.blocks.iter().map(|block| LocalHash(block.tokens_hash)).collect();
        match self.write(now, lane, Prepared { parent, hashes, content: Content::Locals(locals) }, fold) {
            Written::Kept => self.notice_dropped_orphans(now),
            Written::Refused => {}
        }
    }

    /// An event of which nothing can be read.
    pub(crate) fn unnumbered(&mut self) {
        self.status.event_errors += 1;
    }

    /// An event that cannot be used (rule 8).
    pub(crate) fn unusable(&mut self, now: Instant, error: &RouterEventError) {
        match &error.fault {
            // In no lane of ours, whatever it says.
            RouterFault::Tier(_) => self.ignore(Ignored::UnknownMedium),
            RouterFault::Missing(_) | RouterFault::Field { .. } | RouterFault::Data(_) => {
                self.status.event_errors += 1;
                self.lack(now, &Arc::from(format!("an event could not be read: {error}")));
            }
        }
    }

    /// Drops what a complete list of the lane does not have, see [`index::Writer::keep`].
    pub(crate) fn keep(&mut self, lane: Lane, is_listed: impl FnMut(EngineHash, SequenceHash) -> bool) {
        // What was stored before is on the list, or void.
        self.fresh = None;
        if let Some(writer) = self.lanes.get_mut(lane) {
            writer.keep(is_listed);
        }
    }

    /// Writes blocks of a complete list after their parent. It is no event: an answer of the engine may well be newer.
    pub(crate) fn install(&mut self, now: Instant, lane: Lane, (parent, blocks): (Option<EngineHash>, Blocks<'_>), fold: &Fold) {
        let Some(writer) = self.writer(lane, fold) else { return };
        match writer.store(parent.map_or(Parent::Root(ROOT), Parent::Block), blocks) {
            Outcome::Applied { .. } | Outcome::Parked => self.notice_dropped_orphans(now),
            Outcome::Refused(refusal) => self.refused(now, lane, refusal),
        }
    }

    /// Takes blocks out that were installed only because others follow them.
    pub(crate) fn uninstall(&mut self, lane: Lane, hashes: &[EngineHash], fold: &Fold) {
        if let Some(writer) = self.writer(lane, fold) {
            writer.remove(hashes);
        }
    }
}
