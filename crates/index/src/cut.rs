//! One instant of the whole tree, copied in steps that let others in between: what is about to change is copied before it
//! does, so that all copies are of the instant at which the first step began.

use crate::{
    arena::Arena,
    cover::Cover,
    hash::Seed,
    node::{Blocks, Node, NodeId, Strip},
    trie::CHUNK_BLOCKS,
};

/// One node at the instant.
#[derive(Debug)]
pub(crate) struct Cut {
    pub(crate) id: NodeId,
    pub(crate) parent: NodeId,
    pub(crate) blocks: Blocks,
    pub(crate) cover: Cover,
    pub(crate) seed: Seed,
}

/// A cut on its way through the numbers of nodes.
#[derive(Debug)]
pub(crate) struct Cutting {
    /// All numbers before it are done.
    next: usize,
    /// No node of the instant has this number or a larger one.
    end: usize,
    /// A bit for each number: done before its turn, or the number of a node that is no part of the instant.
    done: Vec<u64>,
    nodes: Vec<Cut>,
}

impl Cutting {
    /// Begins now, with at most `nodes` nodes numbered below `end`.
    pub(crate) fn new(nodes: usize, end: usize) -> Self {
        Self { next: 0, end, done: vec![0; end.div_ceil(64)], nodes: Vec::with_capacity(nodes) }
    }

    /// To be called before a node changes or goes, and after one came.
    #[cold]
    pub(crate) fn before_change(&mut self, nodes: &Arena<Node>, strips: &Arena<Strip>, id: NodeId, is_new: bool) {
        let number = id.0 as usize;
        if number < self.next || number >= self.end || self.is_done(number) {
            return;
        }
        self.done[number / 64] |= 1 << (number % 64);
        if !is_new {
            self.copy(nodes, strips, number);
        }
    }

    /// Copies some more; whether that was all.
    pub(crate) fn go_on(&mut self, nodes: &Arena<Node>, strips: &Arena<Strip>) -> bool {
        let to = self.end.min(self.next + CHUNK_BLOCKS);
        for number in self.next..to {
            if !self.is_done(number) {
                self.copy(nodes, strips, number);
            }
        }
        self.next = to;
        to == self.end
    }

    pub(crate) fn into_nodes(self) -> Vec<Cut> {
        self.nodes
    }

    fn is_done(&self, number: usize) -> bool {
        self.done[number / 64] >> (number % 64) & 1 == 1
    }

    fn copy(&mut self, nodes: &Arena<Node>, strips: &Arena<Strip>, number: usize) {
        let Some(node) = nodes.get(number as u32) else { return };
        // The root has none.
        let Some(strip) = strips.get(node.strip.0) else { return };
        let (blocks, cover) = (node.blocks.clone(), node.cover.clone());
        self.nodes.push(Cut { id: NodeId(number as u32), parent: node.parent, blocks, cover, seed: strip.seed });
    }
}
