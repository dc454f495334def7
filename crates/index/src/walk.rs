//! A lookup's way down the tree.

use std::sync::Arc;

use crate::{
    cover::{Cover, Crowd},
    hash::LocalHash,
    lane::Lanes,
    levels::Levels,
    node::{NodeId, common},
    trie::Trie,
};

/// Nodes looked at under one hold of the lock.
pub(crate) const CHUNK_NODES: usize = 512;

/// Where a lookup stands: at the end of a node, all of whose active targets hold every block up to there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    node: NodeId,
    pub(crate) depth: usize,
}

impl Trie {
    pub(crate) fn start(&self) -> Standing {
        Standing { node: self.root(), depth: 0 }
    }

    /// Carries `levels` down `chain` from where it stands. `None`: it is at its end, and so are the levels.
    ///
    /// Somebody active holds the block before `from`, so that its node lives; it may have grown meanwhile.
    pub(crate) fn descend(&self, from: Standing, chain: &[LocalHash], lanes: Lanes, levels: &mut Levels) -> Option<Standing> {
        let Standing { mut node, mut depth } = from;
        let here = self.node(node);
        if here.blocks.end() != depth {
            levels.end(depth as u32);
            return None;
        }
        let mut kids = &here.kids;
        let mut last: Option<&Arc<Crowd>> = None;
        for _ in 0..CHUNK_NODES {
            let child = if depth < chain.len() { self.child_of(kids, node, chain[depth].0) } else { None };
            let Some(child) = child else {
                levels.end(depth as u32);
                return None;
            };
            node = child;
            let below = self.node(node);
            let same = common(below.blocks.locals(), &chain[depth..]);
            let full = below.cover.full();
            if below.cover.has_parts() {
                if depth == 0 {
                    self.enter(&below.cover, lanes, levels);
                }
                levels.pass_in_part(&below.cover, lanes, depth as u32, same);
            } else if depth == 0 {
                self.enter(&below.cover, lanes, levels);
            } else if !matches!((last, full), (Some(last), Some(full)) if Arc::ptr_eq(last, full)) {
                levels.pass(full, lanes, depth as u32);
            }
            if levels.nobody_left() {
                return None;
            }
            depth += same;
            if same < below.blocks.len() {
                levels.end(depth as u32);
                return None;
            }
            (kids, last) = (&below.kids, full);
        }
        Some(Standing { node, depth })
    }

    /// All that hold a first block are active, except those that are hidden.
    fn enter(&self, cover: &Cover, lanes: Lanes, levels: &mut Levels) {
        levels.start(cover, lanes);
        self.seats.without_hidden(lanes, levels.active_mut());
    }
}
