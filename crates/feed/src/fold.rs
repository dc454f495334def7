//! What the ranks of one stream share while events are folded in: the model's index, the block size, the groups.

use std::{collections::BTreeMap, sync::Arc};

use index::{BlockSize, Catalog, Copies, Lane, Seed, Target, Writer};
use wire::{Adapter, Group, Locality, Medium};

use crate::{groups::Groups, status::Ignored};

/// Where an event of one medium and group belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    pub(crate) lane: Lane,
    pub(crate) group: u32,
}

/// Whether a store's block size is the stream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    Fits,
    /// Smaller than the blocks seen before.
    Partial,
    /// Another one, in a lower tier: connectors may choose their own.
    Other,
    /// Another one than configured, or than adopted.
    Conflicts {
        expected: BlockSize,
    },
}

#[derive(Debug)]
pub(crate) struct Fold {
    catalog: Arc<Catalog>,
    model: String,
    configured: Option<BlockSize>,
    adopted: Option<BlockSize>,
    /// A store of the stream's block size has come.
    confirmed: bool,
    adapters: BTreeMap<i64, String>,
    pub(crate) groups: Groups,
}

impl Fold {
    pub(crate) fn new(catalog: Arc<Catalog>, model: String, configured: Option<BlockSize>, adapters: BTreeMap<i64, String>) -> Self {
        Self { catalog, model, configured, adopted: None, confirmed: false, adapters, groups: Groups::default() }
    }

    /// Tokens per block, once known.
    pub(crate) fn block_size(&self) -> Option<BlockSize> {
        self.configured.or(self.adopted)
    }

    /// Forgets what the engine's next life may tell otherwise. Writers made for an adopted block size go with it.
    pub(crate) fn begin_life(&mut self) {
        self.adopted = None;
        self.confirmed = false;
        self.groups.forget();
    }

    /// Whether writers outlive the engine's life.
    pub(crate) fn keeps_writers(&self) -> bool {
        self.configured.is_some()
    }

    /// The lane and group of an event, or why it is left out.
    pub(crate) fn admit(&self, medium: &Medium, locality: Locality, group: &Group) -> Result<Admitted, Ignored> {
        match locality {
            Locality::Local => {}
            Locality::Remote => return Err(Ignored::RemoteLocality),
        }
        let lane = match medium {
            Medium::Device => Lane::Device,
            Medium::Host => Lane::Host,
            Medium::Disk => Lane::Disk,
            Medium::External => return Err(Ignored::ExternalMedium),
            Medium::Unknown(_) => return Err(Ignored::UnknownMedium),
        };
        Ok(Admitted { lane, group: self.groups.admit(group)? })
    }

    /// Compares a store's block size with the stream's, which the first one in device memory sets if the configuration did
    /// not.
    pub(crate) fn size(&mut self, lane: Lane, given: BlockSize) -> Size {
        let device = lane == Lane::Device;
        let expected = match self.block_size() {
            Some(expected) => expected,
            None if device => *self.adopted.insert(given),
            None => return Size::Other,
        };
        match (given == expected, device) {
            (true, _) => {
                self.confirmed |= device;
                Size::Fits
            }
            (false, false) => Size::Other,
            (false, true) if self.confirmed && given < expected => Size::Partial,
            (false, true) => Size::Conflicts { expected },
        }
    }

    /// The seed of a sequence's first block (rules 1 and 13).
    pub(crate) fn seed(&self, adapter: &Adapter, salt: Option<&str>) -> Seed {
        match adapter {
            Adapter::Base => Seed::new(None, salt),
            Adapter::Named(name) => Seed::new(Some(name), salt),
            Adapter::Numbered(number) => match self.adapters.get(number) {
                Some(name) => Seed::new(Some(name), salt),
                None => Seed::numbered(*number, salt),
            },
        }
    }

    /// The adapter of this number, if the configuration names it.
    pub(crate) fn adapter(&self, number: i64) -> Option<&str> {
        self.adapters.get(&number).map(String::as_str)
    }

    /// The hand on one lane of `target`; `None` before the block size is known.
    pub(crate) fn writer(&self, target: Target, lane: Lane, copies: Copies) -> Option<Writer> {
        let indexer = self.catalog.indexer(&self.model, self.block_size()?);
        Some(indexer.writer(target, lane, copies))
    }
}
