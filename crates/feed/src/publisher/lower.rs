//! What a tier below the device holds: its blocks by name, each with the name of the one before it.
//!
//! A lower tier goes on where another tier ends, so parents need not be held here. No index is kept: it is dumped from
//! this table.

use std::collections::{HashMap, HashSet};

use index::{BlockSize, Seed};
use wire::router::{KvData, StoredBlock, StoredBlocks};

use super::{call::StoredCall, device::told, hashing::hash_blocks, shards::Shards};

/// A held block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    parent: Option<u64>,
    local: u64,
    copies: u32,
}

#[derive(Debug, Default)]
pub(super) struct Lower {
    names: Shards<Link>,
    /// Of names whose prompts have an adapter or a salt.
    seeds: HashMap<u64, Seed>,
    pub(super) unknown_removals: u64,
}

impl Lower {
    /// The seed of a held block.
    pub(super) fn seed_of(&self, name: u64) -> Option<Seed> {
        self.names.contains(name).then(|| self.seeds.get(&name).copied().unwrap_or(Seed::BASE))
    }

    pub(super) fn names(&self) -> usize {
        self.names.len()
    }

    /// One more copy of each block; what that changes of the set goes to `out`.
    pub(super) fn store(&mut self, call: &StoredCall, block_size: BlockSize, seed: Seed, out: &mut Vec<KvData>) {
        let locals = hash_blocks(call, block_size, seed);
        let (mut renamed, mut first_new, mut parent) = (Vec::new(), None, call.parent_hash);
        for (position, (name, local)) in call.block_hashes.iter().zip(&locals).enumerate() {
            match self.names.get_mut(*name) {
                Some(link) if link.parent == parent && link.local == local.0 => link.copies = link.copies.saturating_add(1),
                Some(link) => {
                    *link = Link { parent, local: local.0, copies: 1 };
                    renamed.push(*name);
                    first_new.get_or_insert(position);
                }
                None => {
                    self.names.insert(*name, Link { parent, local: local.0, copies: 1 });
                    first_new.get_or_insert(position);
                }
            }
            if seed == Seed::BASE {
                self.seeds.remove(name);
            } else {
                self.seeds.insert(*name, seed);
            }
            parent = Some(*name);
        }
        let Some(first) = first_new else { return };
        if !renamed.is_empty() {
            out.push(KvData::Removed(renamed));
        }
        out.push(KvData::Stored(told(call, &locals, first)));
    }

    /// One copy less of each block; those without any left go to `out`.
    pub(super) fn remove(&mut self, hashes: &[u64], out: &mut Vec<KvData>) {
        let mut gone = Vec::new();
        for hash in hashes {
            let Some(link) = self.names.get_mut(*hash) else {
                self.unknown_removals += 1;
                continue;
            };
            link.copies -= 1;
            if link.copies == 0 {
                self.names.remove(*hash);
                self.seeds.remove(hash);
                gone.push(*hash);
            }
        }
        if !gone.is_empty() {
            out.push(KvData::Removed(gone));
        }
    }

    pub(super) fn clear(&mut self) {
        self.names = Shards::default();
        self.seeds.clear();
    }

    /// A copy of everything held at this instant, made without copying it.
    pub(super) fn cut(&self) -> Shards<Link> {
        self.names.clone()
    }
}

/// The stores that rebuild a tier, parents first, each at most `most` blocks.
pub(super) fn runs(names: &Shards<Link>, most: usize) -> Vec<StoredBlocks> {
    let (mut told, mut runs) = (HashSet::with_capacity(names.len()), Vec::new());
    for (name, _) in names.iter() {
        let (mut way, mut next) = (Vec::new(), Some(name));
        // Names are marked on the way up, so a ring of parents ends, too.
        while let Some((name, link)) = next.and_then(|name| Some((name, names.get(name)?)))
            && told.insert(name)
        {
            way.push((name, link));
            next = link.parent;
        }
        way.reverse();
        runs.extend(way.chunks(most).map(|blocks| StoredBlocks {
            parent_hash: blocks[0].1.parent,
            start_position: None,
            blocks: blocks.iter().map(|(name, link)| StoredBlock { block_hash: *name, tokens_hash: link.local, media: None }).collect(),
        }));
    }
    runs
}
