//! A copy of everything an index holds at one instant, told as events that rebuild an equal index.

use std::collections::BTreeMap;

use parking_lot::RwLockWriteGuard;

use crate::{
    cover::Seat,
    cut::Cut,
    hash::{EngineHash, LocalHash},
    indexer::KvIndexer,
    keyed::KeyedMap,
    lane::Lane,
    mask::Mask,
    node::NodeId,
    store::Parent,
    target::Target,
};

/// What [`KvIndexer::dump`] copied. It shares the hashes with the index and keeps them alive; drop it when told.
#[derive(Debug)]
pub struct Dump {
    /// Parents before their children.
    nodes: Vec<Cut>,
    /// Who holds anything, with the nodes it holds anything of, ascending.
    seats: BTreeMap<(Target, Lane), Vec<u32>>,
}

/// One step of rebuilding a lane, to be written with [`crate::Copies::Set`]. Blocks are named by their sequence hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DumpEvent {
    /// Blocks stored after `parent`.
    Stored {
        /// What the first one follows; never a block of a later event.
        parent: Parent,
        /// Their local hashes.
        locals: Vec<LocalHash>,
        /// Their names.
        hashes: Vec<EngineHash>,
    },
    /// Blocks that were stored only because others follow them: holes.
    Removed {
        /// Their names.
        hashes: Vec<EngineHash>,
    },
}

impl KvIndexer {
    /// Everything that is held at this instant: one cut through all targets and lanes.
    ///
    /// The instant is when the call gets the lock. The copy takes many holds of it, each of at most 512
    /// nodes, of which a few counts are raised and nothing is copied but the lists of those who hold
    /// parts; meanwhile a writer copies what it is about to change and was not copied yet. Dumps of one index take turns.
    pub fn dump(&self) -> Dump {
        let turn = self.dumping.lock();
        let mut trie = self.trie.write();
        trie.begin_cut();
        let mut generations = KeyedMap::default();
        for (slot, generation) in trie.seats.generations() {
            generations.insert(slot, generation);
        }
        let hidden = trie.seats.hidden().clone();
        while !trie.cut_on() {
            RwLockWriteGuard::bump(&mut trie);
        }
        let mut nodes = trie.end_cut();
        drop(trie);
        drop(turn);
        nodes.sort_unstable_by_key(|node| node.blocks.depth);
        let mut seats: BTreeMap<_, Vec<u32>> = BTreeMap::new();
        for (index, node) in nodes.iter().enumerate() {
            let whole = node.cover.full().into_iter().flat_map(|crowd| crowd.seats());
            for Seat { slot, lane } in whole.chain(node.cover.parts().map(|(seat, _)| seat)) {
                // What is being emptied is not seen.
                if hidden[lane.index()].contains(slot) {
                    continue;
                }
                let generation = generations.get(&(slot.index() as u32)).copied().unwrap_or(0);
                seats.entry((Target { slot, generation }, lane)).or_default().push(index as u32);
            }
        }
        Dump { nodes, seats }
    }
}

impl Dump {
    /// The lanes in which anything is held.
    pub fn lanes(&self) -> impl Iterator<Item = (Target, Lane)> {
        self.seats.keys().copied()
    }

    /// What rebuilds one lane of one target, in this order: stores, parents first, then removals of what is not held
    /// itself. A lookup between the two may see more than is held.
    pub fn events(&self, target: Target, lane: Lane) -> Vec<DumpEvent> {
        let seat = Seat { slot: target.slot, lane };
        let held = self.seats.get(&(target, lane)).map(Vec::as_slice).unwrap_or_default();
        let index: KeyedMap<NodeId, u32> = self.nodes.iter().zip(0..).map(|(node, index)| (node.id, index)).collect();
        // How many leading blocks are needed of each node.
        let mut needed: BTreeMap<u32, usize> = BTreeMap::new();
        for at in held {
            let node = &self.nodes[*at as usize];
            let reach = node.cover.held(seat, node.blocks.len()).reach();
            let own = needed.entry(*at).or_default();
            *own = (*own).max(reach);
            let mut above = node.parent;
            while let Some(at) = index.get(&above) {
                let node = &self.nodes[*at as usize];
                if needed.insert(*at, node.blocks.len()) == Some(node.blocks.len()) {
                    break;
                }
                above = node.parent;
            }
        }
        let (mut events, mut holes) = (Vec::with_capacity(needed.len() + 1), Vec::new());
        for (at, len) in needed {
            let node = &self.nodes[at as usize];
            let above = index.get(&node.parent).and_then(|above| self.nodes[*above as usize].blocks.identities().last());
            let parent = above.map_or(Parent::Root(node.seed), |identity| Parent::Block(EngineHash(*identity)));
            let locals = node.blocks.locals()[..len].iter().map(|local| LocalHash(*local)).collect();
            let hashes: Vec<_> = node.blocks.identities()[..len].iter().map(|identity| EngineHash(*identity)).collect();
            let missing = Mask::first(len) & !node.cover.held(seat, node.blocks.len());
            holes.extend(hashes.iter().enumerate().filter(|(at, _)| missing.contains(*at)).map(|(_, hash)| *hash));
            events.push(DumpEvent::Stored { parent, locals, hashes });
        }
        if !holes.is_empty() {
            events.push(DumpEvent::Removed { hashes: holes });
        }
        events
    }
}
