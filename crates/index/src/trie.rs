//! What the index's lock guards: a trie of blocks keyed by local hash, and the seats of its holders.
//!
//! Every step here is bounded; whoever has more than [`CHUNK_BLOCKS`] of them to take lets others in between (rule 16).

use crate::{
    arena::{Arena, Node, NodeId, NodeRef},
    children::Children,
    hash::{LocalHash, SequenceHash},
    holders::{Holders, Seat},
    lane::Lanes,
    levels::Levels,
    seats::Seats,
};

/// Steps taken under one hold of the lock.
pub(crate) const CHUNK_BLOCKS: usize = 512;

#[derive(Debug)]
pub(crate) struct Trie {
    arena: Arena,
    /// The node before every first block; it never dies and nobody holds it.
    root: NodeRef,
    pub(crate) seats: Seats,
}

/// One block to put into the trie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) local: LocalHash,
    pub(crate) sequence: SequenceHash,
    /// Whether the writer holds it, or only what comes after it.
    pub(crate) held: bool,
}

/// Where a step led.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reached {
    pub(crate) node: NodeRef,
    /// The writer holds the block now and did not before.
    pub(crate) gained: bool,
}

impl Trie {
    pub(crate) fn new() -> Self {
        let mut arena = Arena::default();
        let node = Node {
            local: LocalHash(0),
            sequence: SequenceHash(0),
            parent: NodeId::default(),
            depth: 0,
            children: Children::default(),
            holders: Holders::new(),
        };
        let root = arena.insert(node);
        Self { arena, root, seats: Seats::default() }
    }

    pub(crate) fn root(&self) -> NodeRef {
        self.root
    }

    /// Blocks in memory.
    pub(crate) fn len(&self) -> usize {
        self.arena.len() - 1
    }

    pub(crate) fn is_alive(&self, node: NodeRef) -> bool {
        self.arena.is_alive(node)
    }

    pub(crate) fn child(&self, node: NodeId, local: LocalHash) -> Option<NodeRef> {
        self.arena.node(node).children.get(local).map(|child| self.arena.reference(child))
    }

    pub(crate) fn depth(&self, node: NodeId) -> usize {
        self.arena.node(node).depth as usize
    }

    pub(crate) fn parent(&self, node: NodeId) -> NodeId {
        self.arena.node(node).parent
    }

    /// Walks `steps` down from `from`, which lives, making the nodes that are missing and taking `seat` in those held.
    pub(crate) fn extend(&mut self, from: NodeRef, steps: &[Step], seat: Seat, reached: &mut Vec<Reached>) {
        let mut at = from;
        for step in steps {
            at = match self.child(at.id, step.local) {
                Some(child) => child,
                None => self.grow(at.id, step),
            };
            let gained = step.held && self.arena.node_mut(at.id).holders.insert(seat);
            if gained {
                self.seats.gained(seat, step.sequence);
            }
            reached.push(Reached { node: at, gained });
        }
    }

    fn grow(&mut self, parent: NodeId, step: &Step) -> NodeRef {
        let child = self.arena.insert(Node {
            local: step.local,
            sequence: step.sequence,
            parent,
            depth: self.arena.node(parent).depth + 1,
            children: Children::default(),
            holders: Holders::new(),
        });
        self.arena.node_mut(parent).children.insert(step.local, child.id);
        child
    }

    /// Gives `seat` up in the nodes of `queue`, last first, and frees what nothing needs any more. Stops after
    /// [`CHUNK_BLOCKS`] steps; done when `queue` is empty and `prune` is `None`, else to be called again with both.
    pub(crate) fn release(&mut self, seat: Seat, queue: &mut Vec<NodeId>, prune: &mut Option<NodeRef>) {
        for _ in 0..CHUNK_BLOCKS {
            if let Some(leaf) = prune.take() {
                *prune = self.prune(leaf);
            } else if let Some(node) = queue.pop() {
                if self.arena.node_mut(node).holders.remove(seat) {
                    self.seats.lost(seat, self.arena.node(node).sequence);
                }
                *prune = Some(self.arena.reference(node));
            } else {
                return;
            }
        }
    }

    /// Frees `leaf` if nobody holds it or anything beneath it; then its parent is the next to look at.
    fn prune(&mut self, leaf: NodeRef) -> Option<NodeRef> {
        if leaf == self.root || !self.arena.is_alive(leaf) {
            return None;
        }
        let node = self.arena.node(leaf.id);
        if !node.children.is_empty() || !node.holders.is_empty() {
            return None;
        }
        let (parent, local) = (node.parent, node.local);
        self.arena.node_mut(parent).children.remove(local);
        self.arena.remove(leaf.id);
        Some(self.arena.reference(parent))
    }

    /// Carries `levels` over the blocks of `chain` that follow `at`, of which it is known that all of the active
    /// targets hold it; `at` ends at the last block that any holds.
    pub(crate) fn descend(&self, at: &mut NodeId, chain: &[LocalHash], lanes: Lanes, levels: &mut Levels) {
        for local in chain {
            let node = self.arena.node(*at);
            let depth = node.depth;
            let Some(child) = node.children.get(*local) else {
                levels.end(depth);
                return;
            };
            let holders = &self.arena.node(child).holders;
            if *at == self.root.id {
                holders.in_lanes(lanes, levels.active_mut());
                self.seats.without_hidden(lanes, levels.active_mut());
            } else {
                holders.in_lanes(lanes, levels.scratch_mut());
                levels.narrow(depth);
            }
            if levels.nobody_left() {
                return;
            }
            *at = child;
        }
    }

    pub(crate) fn pages(&self) -> usize {
        self.arena.pages()
    }

    /// The nodes of one page in which `seat` is taken.
    pub(crate) fn held_on_page(&self, page: usize, seat: Seat) -> impl Iterator<Item = (NodeId, SequenceHash)> {
        self.arena.page(page).filter(move |(_, node)| node.holders.contains(seat)).map(|(id, node)| (id, node.sequence))
    }
}
