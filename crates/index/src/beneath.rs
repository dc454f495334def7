//! Which of a writer's blocks lie beneath a block: found by climbing from each, in time linear in what is climbed over.
//!
//! The other way, down from the block, would pass everything that all other targets hold there.

use crate::{
    arena::{NodeId, NodeRef},
    indexer::KvIndexer,
    keyed::KeyedMap,
    seats::Owner,
    trie::{CHUNK_BLOCKS, Trie},
};

/// The blocks at and beneath `top`, as far as it was asked for.
#[derive(Debug)]
pub(crate) struct Beneath {
    top: NodeRef,
    /// Of blocks climbed over: whether they are beneath.
    verdicts: KeyedMap<NodeId, bool>,
    passed: Vec<NodeId>,
}

/// Where a part of a climb led.
pub(crate) enum Climb {
    Ended { beneath: bool },
    GoOn(NodeId),
}

impl Beneath {
    pub(crate) fn new(top: NodeRef) -> Self {
        Self { top, verdicts: KeyedMap::default(), passed: Vec::new() }
    }

    /// Whether `node`, which `owner` holds, is `top` or beneath it.
    pub(crate) fn contains(&mut self, indexer: &KvIndexer, owner: Owner, node: NodeId) -> bool {
        let mut at = node;
        let beneath = loop {
            match indexer.climb(owner, at, self) {
                Climb::Ended { beneath } => break beneath,
                Climb::GoOn(next) => at = next,
            }
        };
        self.verdicts.extend(self.passed.drain(..).map(|node| (node, beneath)));
        beneath
    }

    /// Climbs from `at` for a bounded number of steps.
    pub(crate) fn climb(&mut self, trie: &Trie, at: NodeId) -> Climb {
        if !trie.is_alive(self.top) {
            return Climb::Ended { beneath: false };
        }
        let top_depth = trie.depth(self.top.id);
        let mut at = at;
        for _ in 0..CHUNK_BLOCKS {
            if let Some(beneath) = self.verdicts.get(&at) {
                return Climb::Ended { beneath: *beneath };
            }
            if trie.depth(at) <= top_depth {
                return Climb::Ended { beneath: at == self.top.id };
            }
            self.passed.push(at);
            at = trie.parent(at);
        }
        Climb::GoOn(at)
    }
}
