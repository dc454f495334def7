//! Which of a writer's blocks lie beneath a block: found by climbing from each, in time linear in what is climbed over.
//!
//! The other way, down from the block, would pass everything that all other targets hold there.

use crate::{
    indexer::KvIndexer,
    keyed::KeyedMap,
    node::{BlockId, BlockRef, NodeId},
    seats::Owner,
    trie::{CHUNK_BLOCKS, Trie},
};

/// The blocks at and beneath `top`, as far as it was asked for.
#[derive(Debug)]
pub(crate) struct Beneath {
    top: BlockRef,
    /// Of nodes climbed over, other than the top block's: whether they are beneath. They live: the writer that asks
    /// holds blocks in them or beneath them. Parting such a node leaves its number to the lower part, to which the
    /// verdict applies as well.
    verdicts: KeyedMap<NodeId, bool>,
}

/// Where a part of a climb led.
enum Climb {
    Ended { beneath: bool },
    GoOn(NodeId),
}

impl Beneath {
    pub(crate) fn new(top: BlockRef) -> Self {
        Self { top, verdicts: KeyedMap::default() }
    }

    /// Whether `block`, which `owner` holds, is the top block or beneath it.
    pub(crate) fn contains(&mut self, indexer: &KvIndexer, owner: Owner, block: BlockId) -> bool {
        let (mut passed, mut at) = (Vec::new(), None);
        let beneath = loop {
            let trie = indexer.trie.read();
            if !trie.seats.in_force(owner) {
                return false;
            }
            match self.climb(&trie, block, at, &mut passed) {
                Climb::Ended { beneath } => break beneath,
                Climb::GoOn(node) => at = Some(node),
            }
        };
        self.verdicts.extend(passed.into_iter().map(|node| (node, beneath)));
        beneath
    }

    /// Climbs from `at`, or from the node of `block`, for a bounded number of steps.
    fn climb(&self, trie: &Trie, block: BlockId, at: Option<NodeId>, passed: &mut Vec<NodeId>) -> Climb {
        let top = if trie.is_alive(self.top) { trie.position(self.top.id) } else { None };
        let (Some(top), Some(own)) = (top, trie.position(block)) else { return Climb::Ended { beneath: false } };
        if own.node == top.node {
            return Climb::Ended { beneath: own.within >= top.within };
        }
        let depth = trie.node(top.node).blocks.depth;
        let mut at = at.unwrap_or(own.node);
        for _ in 0..CHUNK_BLOCKS {
            if let Some(beneath) = self.verdicts.get(&at) {
                return Climb::Ended { beneath: *beneath };
            }
            let node = trie.node(at);
            if node.blocks.depth <= depth || node.parent == top.node {
                return Climb::Ended { beneath: node.blocks.depth > depth };
            }
            passed.push(at);
            at = node.parent;
        }
        Climb::GoOn(at)
    }
}
