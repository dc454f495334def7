//! What follows a node: which node, by the local hash of its first block.

use crate::{keyed::scramble_pair, node::NodeId, table::Table};

/// Parts of the table of forks. Each grows alone, so no step under the index's lock moves more than its share.
const SHARDS: usize = 512;

/// Most nodes are followed by one other or two; the children of the others are in [`Forks`].
#[derive(Debug, Default)]
pub(crate) enum Kids {
    #[default]
    None,
    Some {
        locals: [u64; 2],
        nodes: [NodeId; 2],
        len: u8,
    },
    Many(u32),
}

/// (node, local hash) -> the nodes that may follow there; whoever asks looks at the node itself.
#[derive(Debug)]
pub(crate) struct Forks {
    shards: Box<[Table]>,
}

impl Kids {
    pub(crate) fn one(local: u64, node: NodeId) -> Self {
        Self::Some { locals: [local, 0], nodes: [node, NodeId::default()], len: 1 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::None => true,
            Self::Some { .. } | Self::Many(_) => false,
        }
    }
}

impl Forks {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Table::new()).collect() }
    }

    /// The child of `parent` that begins with `local`. `is_it` looks at one that may be.
    pub(crate) fn get(&self, kids: &Kids, parent: NodeId, local: u64, is_it: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        match kids {
            Kids::None => None,
            Kids::Some { locals, nodes, len } => {
                if locals[0] == local {
                    Some(nodes[0])
                } else if *len == 2 && locals[1] == local {
                    Some(nodes[1])
                } else {
                    None
                }
            }
            Kids::Many(_) => {
                let key = scramble_pair(u64::from(parent.0), local);
                self.shard(key).find(key, |node| is_it(NodeId(node))).map(NodeId)
            }
        }
    }

    /// Adds a child that is not there.
    pub(crate) fn insert(&mut self, kids: &mut Kids, parent: NodeId, local: u64, node: NodeId) {
        match kids {
            Kids::None => *kids = Kids::one(local, node),
            Kids::Some { locals, nodes, len: len @ 1 } => {
                (locals[1], nodes[1], *len) = (local, node, 2);
            }
            Kids::Some { locals, nodes, .. } => {
                for (local, node) in locals.iter().chain([&local]).zip(nodes.iter().chain([&node])) {
                    self.put(parent, *local, *node);
                }
                *kids = Kids::Many(3);
            }
            Kids::Many(count) => {
                *count += 1;
                self.put(parent, local, node);
            }
        }
    }

    /// Puts `new` in the place of the child `old` that begins with `local`.
    pub(crate) fn replace(&mut self, kids: &mut Kids, parent: NodeId, local: u64, (old, new): (NodeId, NodeId)) {
        match kids {
            Kids::None => {}
            Kids::Some { nodes, len, .. } => {
                for node in &mut nodes[..usize::from(*len)] {
                    if *node == old {
                        *node = new;
                    }
                }
            }
            Kids::Many(_) => {
                let key = scramble_pair(u64::from(parent.0), local);
                self.shard_mut(key).replace(key, new.0, |node| node == old.0);
            }
        }
    }

    /// Takes the child `node` out, which begins with `local`.
    pub(crate) fn remove(&mut self, kids: &mut Kids, parent: NodeId, local: u64, node: NodeId) {
        match kids {
            Kids::None => {}
            Kids::Some { locals, nodes, len } => {
                if *len == 2 && nodes[0] == node {
                    (locals[0], nodes[0]) = (locals[1], nodes[1]);
                }
                *len -= 1;
                if *len == 0 {
                    *kids = Kids::None;
                }
            }
            Kids::Many(count) => {
                *count -= 1;
                if *count == 0 {
                    *kids = Kids::None;
                }
                let key = scramble_pair(u64::from(parent.0), local);
                self.shard_mut(key).remove(key, |other| other == node.0);
            }
        }
    }

    fn put(&mut self, parent: NodeId, local: u64, node: NodeId) {
        let key = scramble_pair(u64::from(parent.0), local);
        self.shard_mut(key).insert(key, node.0);
    }

    /// The tables hash the key again, so all its bits are theirs.
    fn shard(&self, key: u64) -> &Table {
        &self.shards[key as usize % SHARDS]
    }

    fn shard_mut(&mut self, key: u64) -> &mut Table {
        &mut self.shards[key as usize % SHARDS]
    }
}
