//! What follows a node: which node, by the local hash of its first block.

use crate::{keyed::Key, node::NodeId, table::Table};

/// Parts of the table of forks. Each grows alone, so no step under the index's lock moves more than its share.
const SHARDS: usize = 128;

/// Most nodes are followed by one other; the children of the others are in [`Forks`].
#[derive(Debug, Default)]
pub(crate) enum Kids {
    #[default]
    None,
    One(NodeId, u64),
    Many(u32),
}

/// (node, local hash) -> the nodes that may follow there; whoever asks looks at the node itself.
#[derive(Debug)]
pub(crate) struct Forks {
    shards: Box<[Table]>,
    key: Key,
}

impl Kids {
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::None => true,
            Self::One(..) | Self::Many(_) => false,
        }
    }
}

impl Forks {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Table::default()).collect(), key: Key::of_process() }
    }

    /// The child of `parent` that begins with `local`. `is_it` looks at one that may be.
    pub(crate) fn get(&self, kids: &Kids, parent: NodeId, local: u64, is_it: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        match kids {
            Kids::None => None,
            Kids::One(node, only) => (*only == local).then_some(*node),
            Kids::Many(_) => {
                let key = self.key(parent, local);
                self.shards[shard(key)].find(key, |node| is_it(NodeId(node))).map(NodeId)
            }
        }
    }

    /// Adds a child that is not there.
    pub(crate) fn insert(&mut self, kids: &mut Kids, parent: NodeId, local: u64, node: NodeId) {
        match *kids {
            Kids::None => *kids = Kids::One(node, local),
            Kids::One(first, first_local) => {
                self.put(parent, first_local, first);
                self.put(parent, local, node);
                *kids = Kids::Many(2);
            }
            Kids::Many(count) => {
                *kids = Kids::Many(count + 1);
                self.put(parent, local, node);
            }
        }
    }

    /// Puts `new` in the place of the child `old` that begins with `local`.
    pub(crate) fn replace(&mut self, kids: &mut Kids, parent: NodeId, local: u64, (old, new): (NodeId, NodeId)) {
        match kids {
            Kids::None => {}
            Kids::One(node, _) => *node = new,
            Kids::Many(_) => {
                let key = self.key(parent, local);
                self.shards[shard(key)].replace(key, new.0, |node| node == old.0);
            }
        }
    }

    /// Takes the child `node` out, which begins with `local`.
    pub(crate) fn remove(&mut self, kids: &mut Kids, parent: NodeId, local: u64, node: NodeId) {
        match kids {
            Kids::None => {}
            Kids::One(..) => *kids = Kids::None,
            Kids::Many(count) => {
                *count -= 1;
                if *count == 0 {
                    *kids = Kids::None;
                }
                let key = self.key(parent, local);
                self.shards[shard(key)].remove(key, |other| other == node.0);
            }
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
