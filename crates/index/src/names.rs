//! A writer's own book: which block each of its engine's names means.

use std::collections::VecDeque;

use crate::{
    arena::{NodeId, NodeRef},
    hash::{EngineHash, Seed, SequenceHash},
    keyed::KeyedMap,
    lane::Copies,
};

/// A map is given memory back when it is below a quarter of what it has and above this.
const SMALLEST_SHRUNK: usize = 1024;

/// A block that others can follow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// `None`: before the first block.
    pub(crate) node: Option<NodeRef>,
    pub(crate) sequence: Option<SequenceHash>,
    pub(crate) seed: Seed,
}

/// The names of the blocks a writer holds, and those it knows the place of without holding them.
#[derive(Debug)]
pub(crate) struct Names {
    held: KeyedMap<EngineHash, Name>,
    /// How many names a block has beyond its first, for the few that have.
    more_names: KeyedMap<NodeId, u32>,
    /// Blocks held.
    blocks: usize,
    anchors: Anchors,
}

#[derive(Clone, Copy, Debug)]
struct Name {
    node: NodeRef,
    sequence: SequenceHash,
    seed: Seed,
    copies: u32,
}

/// Names whose place is known by confirmation alone, oldest first in `order`. A place does not keep its node alive: it
/// is worth something only while others do.
#[derive(Debug, Default)]
struct Anchors {
    places: KeyedMap<EngineHash, Place>,
    order: VecDeque<EngineHash>,
}

impl Names {
    pub(crate) fn new() -> Self {
        Self { held: KeyedMap::default(), more_names: KeyedMap::default(), blocks: 0, anchors: Anchors::default() }
    }

    /// Blocks held.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Names of blocks that are held.
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// The identity of the held block `hash` names.
    pub(crate) fn identity(&self, hash: EngineHash) -> Option<SequenceHash> {
        self.held.get(&hash).map(|name| name.sequence)
    }

    /// Where blocks go that follow the block `hash` names.
    pub(crate) fn place(&self, hash: EngineHash) -> Option<Place> {
        match self.held.get(&hash) {
            Some(name) => Some(Place { node: Some(name.node), sequence: Some(name.sequence), seed: name.seed }),
            None => self.anchors.places.get(&hash).copied(),
        }
    }

    /// Notes one more copy of the block at `place` under `hash`; `gained`: the lane did not hold it before. A hash that
    /// is held names this very block.
    pub(crate) fn store(&mut self, hash: EngineHash, place: (NodeRef, SequenceHash, Seed), copies: Copies, gained: bool) {
        let (node, sequence, seed) = place;
        self.anchors.forget(hash);
        self.blocks += usize::from(gained);
        match self.held.get_mut(&hash) {
            Some(name) => match copies {
                Copies::Counted => name.copies = name.copies.saturating_add(1),
                Copies::Set => {}
            },
            None => {
                self.held.insert(hash, Name { node, sequence, seed, copies: 1 });
                if !gained {
                    *self.more_names.entry(node.id).or_default() += 1;
                }
            }
        }
    }

    /// Takes one copy away, or with [`Copies::Set`] all. `None`: the name is not known. The node is given if its block
    /// is not held any more.
    pub(crate) fn remove(&mut self, hash: EngineHash, copies: Copies) -> Option<Option<NodeId>> {
        let Some(name) = self.held.get_mut(&hash) else {
            return self.anchors.forget(hash).then_some(None);
        };
        match copies {
            Copies::Counted if name.copies > 1 => {
                name.copies -= 1;
                Some(None)
            }
            Copies::Counted | Copies::Set => Some(self.forget(hash)),
        }
    }

    /// Drops a name with all its copies; the node if its block is not held any more.
    pub(crate) fn forget(&mut self, hash: EngineHash) -> Option<NodeId> {
        let node = self.held.remove(&hash)?.node.id;
        shrink(&mut self.held);
        if let Some(more) = self.more_names.get_mut(&node) {
            *more -= 1;
            if *more == 0 {
                self.more_names.remove(&node);
                shrink(&mut self.more_names);
            }
            return None;
        }
        self.blocks -= 1;
        Some(node)
    }

    /// Remembers where the block `hash` names is, without holding it: at most `limit` such, the oldest go first.
    pub(crate) fn anchor(&mut self, hash: EngineHash, place: Place, limit: usize) {
        self.anchors.forget(hash);
        self.anchors.places.insert(hash, place);
        self.anchors.order.push_back(hash);
        while self.anchors.order.len() > limit {
            if let Some(oldest) = self.anchors.order.pop_front() {
                self.anchors.places.remove(&oldest);
            }
        }
    }

    /// Drops an anchor.
    pub(crate) fn unanchor(&mut self, hash: EngineHash) {
        self.anchors.forget(hash);
    }

    /// Drops all anchors.
    pub(crate) fn unanchor_all(&mut self) {
        self.anchors = Anchors::default();
    }

    /// Each held name and its node; a node comes once for each of its names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (EngineHash, NodeId)> {
        self.held.iter().map(|(hash, name)| (*hash, name.node.id))
    }

    /// Forgets everything; the nodes that were held, once each.
    pub(crate) fn take_all(&mut self) -> Vec<NodeId> {
        let names = std::mem::replace(self, Self::new());
        let mut nodes: Vec<_> = names.held.into_values().map(|name| name.node.id).collect();
        if !names.more_names.is_empty() {
            nodes.sort_unstable();
            nodes.dedup();
        }
        nodes
    }
}

impl Anchors {
    fn forget(&mut self, hash: EngineHash) -> bool {
        let known = !self.places.is_empty() && self.places.remove(&hash).is_some();
        if known {
            self.order.retain(|other| *other != hash);
        }
        known
    }
}

fn shrink<K: Eq + std::hash::Hash, V>(map: &mut KeyedMap<K, V>) {
    if map.capacity() > SMALLEST_SHRUNK && map.len() < map.capacity() / 4 {
        map.shrink_to(map.len() * 2);
    }
}
