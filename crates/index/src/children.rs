//! The blocks that follow a block, by local hash.

use std::collections::BTreeMap;

use crate::{arena::NodeId, hash::LocalHash};

/// Most blocks are followed by one other. The wide ones are ordered maps and not hash tables: they grow without a
/// rehash under the index's lock, and hashes chosen by an engine cannot make them slow.
#[derive(Debug, Default)]
pub(crate) enum Children {
    #[default]
    None,
    One(LocalHash, NodeId),
    Many(BTreeMap<LocalHash, NodeId>),
}

impl Children {
    pub(crate) fn get(&self, local: LocalHash) -> Option<NodeId> {
        match self {
            Self::None => None,
            Self::One(only, node) => (*only == local).then_some(*node),
            Self::Many(map) => map.get(&local).copied(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::None => true,
            Self::One(..) | Self::Many(_) => false,
        }
    }

    /// Adds a child that is not there yet.
    pub(crate) fn insert(&mut self, local: LocalHash, node: NodeId) {
        match self {
            Self::None => *self = Self::One(local, node),
            Self::One(first, at) => *self = Self::Many(BTreeMap::from([(*first, *at), (local, node)])),
            Self::Many(map) => {
                map.insert(local, node);
            }
        }
    }

    pub(crate) fn remove(&mut self, local: LocalHash) {
        match self {
            Self::None => {}
            Self::One(only, _) => {
                if *only == local {
                    *self = Self::None;
                }
            }
            Self::Many(map) => {
                map.remove(&local);
                if map.len() == 1
                    && let Some((local, node)) = map.pop_first()
                {
                    *self = Self::One(local, node);
                }
            }
        }
    }
}
