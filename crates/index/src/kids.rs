//! What follows a node: which node, by the local hash of its first block.

use crate::{keyed::Key, node::NodeId, table::Table};

/// Parts of the table of forks. Each grows alone, so no step under the index's lock moves more than its share.
const SHARDS: usize = 128;

/// Most nodes are followed by one other, which is here; where more follow, the latest is, and the others are in [`Forks`].
#[derive(Debug)]
pub(crate) struct Kids {
    local: u64,
    latest: NodeId,
    /// How many are in the table.
    others: u32,
}

/// (node, local hash) -> the nodes that may follow there; whoever asks looks at the node itself.
#[derive(Debug)]
pub(crate) struct Forks {
    shards: Box<[Table]>,
    key: Key,
}

impl Kids {
    /// Not the number of any node.
    const NOBODY: NodeId = NodeId(u32::MAX);

    pub(crate) const fn none() -> Self {
        Self { local: 0, latest: Self::NOBODY, others: 0 }
    }

    pub(crate) fn one(node: NodeId, local: u64) -> Self {
        Self { local, latest: node, others: 0 }
    }

    /// The latest, where it is still there.
    #[inline]
    pub(crate) fn latest(&self) -> Option<NodeId> {
        (self.latest != Self::NOBODY).then_some(self.latest)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.latest == Self::NOBODY && self.others == 0
    }
}

impl Forks {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Table::default()).collect(), key: Key::of_process() }
    }

    /// The child of `parent` that begins with `local`. `is_it` looks at one that may be.
    #[inline]
    pub(crate) fn get(&self, kids: &Kids, parent: NodeId, local: u64, is_it: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        if kids.local == local && kids.latest != Kids::NOBODY {
            return Some(kids.latest);
        }
        if kids.others == 0 {
            return None;
        }
        let key = self.key(parent, local);
        self.shards[shard(key)].find(key, |node| is_it(NodeId(node))).map(NodeId)
    }

    /// Adds a child that is not there.
    pub(crate) fn insert(&mut self, kids: &mut Kids, parent: NodeId, local: u64, node: NodeId) {
        if kids.latest != Kids::NOBODY {
            self.put(parent, kids.local, kids.latest);
            kids.others += 1;
        }
        (kids.local, kids.latest) = (local, node);
    }

    /// Puts `new` in the place of the child `old` that begins with `local`.
    pub(crate) fn replace(&mut self, kids: &mut Kids, parent: NodeId, local: u64, (old, new): (NodeId, NodeId)) {
        if kids.latest == old {
            kids.latest = new;
        } else {
            let key = self.key(parent, local);
            self.shards[shard(key)].replace(key, new.0, |node| node == old.0);
        }
    }

    /// Takes the child `node` out, which begins with `local`.
    pub(crate) fn remove(&mut self, kids: &mut Kids, parent: NodeId, local: u64, node: NodeId) {
        if kids.latest == node {
            kids.latest = Kids::NOBODY;
        } else {
            kids.others -= 1;
            let key = self.key(parent, local);
            self.shards[shard(key)].remove(key, |other| other == node.0);
        }
    }

    fn put(&mut self, parent: NodeId, local: u64, node: NodeId) {
        let key = self.key(parent, local);
        self.shards[shard(key)].insert(key, node.0);
    }

    fn key(&self, parent: NodeId, local: u64) -> u64 {
        self.key.scramble_pair(u64::from(parent.0), local)
    }
}

/// The tables hash the key again, so all its bits are theirs.
fn shard(key: u64) -> usize {
    key as usize % SHARDS
}
