//! What the index's lock guards: a compressed tree of blocks keyed by local hash, and the seats of its holders.
//!
//! Every step here is bounded; whoever has more than [`CHUNK_BLOCKS`] of them to take lets others in between (rule 16).

mod give;
mod put;

pub(crate) use put::Onward;

use crate::{
    arena::Arena,
    cover::{Cover, Memo},
    cut::{Cut, Cutting},
    hash::{LocalHash, Seed, SequenceHash},
    kids::{Forks, Kids},
    mask::Mask,
    node::{BlockId, BlockRef, Blocks, MOST_STRIPS, Node, NodeId, Strip, StripId, common},
    seats::Seats,
};

/// Steps taken under one hold of the lock: blocks put in or given up, nodes looked at or freed.
pub(crate) const CHUNK_BLOCKS: usize = 512;
/// Strips kept back for stores that are checked at the same time.
const SPARE_STRIPS: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Trie {
    nodes: Arena<Node>,
    strips: Arena<Strip>,
    forks: Forks,
    /// The node before every first block; it has no blocks, never dies, and nobody holds it.
    root: NodeId,
    pub(crate) seats: Seats,
    blocks: usize,
    births: u64,
    /// About the seat and the change at hand: forgotten where that ends.
    memo: Memo,
    /// While a dump is taken.
    cutting: Option<Box<Cutting>>,
    scratch: Vec<u64>,
}

/// Between two blocks: after the first `within` blocks of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    pub(crate) node: NodeId,
    pub(crate) within: usize,
}

/// Where consecutive steps led.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) first: BlockRef,
    pub(crate) len: usize,
    /// Which of them the writer holds now and did not before.
    pub(crate) gained: Mask,
    /// The seed their strip has.
    pub(crate) seed: Seed,
}

impl Run {
    /// The block `at` of the run.
    pub(crate) fn block(&self, at: usize) -> BlockRef {
        BlockRef { id: self.first.id.plus(at), birth: self.first.birth }
    }
}

impl Trie {
    pub(crate) fn new() -> Self {
        let mut nodes = Arena::default();
        let root = Node {
            blocks: Blocks::none(),
            // Not the number of any strip.
            strip: StripId(u32::MAX),
            parent: NodeId(u32::MAX),
            kids: Kids::none(),
            cover: Cover::default(),
        };
        let root = NodeId(nodes.insert(root));
        let (strips, forks, seats) = (Arena::default(), Forks::new(), Seats::default());
        Self { nodes, strips, forks, root, seats, blocks: 0, births: 0, memo: Memo::default(), cutting: None, scratch: Vec::new() }
    }

    pub(crate) fn root(&self) -> NodeId {
        self.root
    }

    /// Blocks in memory.
    pub(crate) fn len(&self) -> usize {
        self.blocks
    }

    /// Whether there are numbers for strips of `blocks` more blocks.
    pub(crate) fn has_strips(&self, blocks: usize) -> bool {
        self.strips.bound() + blocks + SPARE_STRIPS <= MOST_STRIPS
    }

    /// One more than the largest number a node has.
    pub(crate) fn bound(&self) -> usize {
        self.nodes.bound()
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        // A `NodeId` is used only while something keeps its node alive: a child, a holder, or the lock it was read under.
        self.nodes.get(id.0).expect("node is alive")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        // As in `node`.
        self.nodes.get_mut(id.0).expect("node is alive")
    }

    /// The node with this number, if there is one.
    pub(crate) fn numbered(&self, number: usize) -> Option<&Node> {
        self.nodes.get(number as u32)
    }

    pub(crate) fn strip(&self, id: StripId) -> Option<&Strip> {
        self.strips.get(id.0)
    }

    /// Right before the block, if it lives.
    pub(crate) fn position(&self, block: BlockId) -> Option<Position> {
        let strip = self.strips.get(block.strip().0)?;
        let (first, node) = strip.nodes[strip.index(block.place())?];
        let within = block.place() - usize::from(first);
        (within < self.node(node).blocks.len()).then_some(Position { node, within })
    }

    pub(crate) fn is_alive(&self, block: BlockRef) -> bool {
        self.depth(block).is_some()
    }

    /// The lasting name of a block that lives, its identity, and the seed of its strip.
    pub(crate) fn block(&self, id: BlockId) -> Option<(BlockRef, SequenceHash, Seed)> {
        let strip = self.strip(id.strip())?;
        let Position { node, within } = self.position(id)?;
        let identity = SequenceHash(self.node(node).blocks.identities()[within]);
        Some((BlockRef { id, birth: strip.birth }, identity, strip.seed))
    }

    /// Blocks up to and including this one, if it lives.
    pub(crate) fn depth(&self, block: BlockRef) -> Option<usize> {
        self.strip(block.id.strip()).filter(|strip| strip.birth == block.birth)?;
        self.position(block.id).map(|at| self.node(at.node).blocks.depth as usize + at.within + 1)
    }

    /// The child of `node` that begins with `local`.
    pub(crate) fn child(&self, node: NodeId, local: u64) -> Option<NodeId> {
        self.child_of(&self.node(node).kids, node, local)
    }

    /// As [`Trie::child`], of a node whose children are `kids`.
    #[inline]
    pub(crate) fn child_of(&self, kids: &Kids, node: NodeId, local: u64) -> Option<NodeId> {
        self.forks.get(kids, node, local, |child| {
            let child = self.nodes.get(child.0);
            child.is_some_and(|child| child.parent == node && child.blocks.locals().first() == Some(&local))
        })
    }

    fn run(&self, strip: StripId, place: usize, len: usize, gained: Mask) -> Run {
        // A node's strip lives as long as the node.
        let Strip { birth, seed, .. } = *self.strips.get(strip.0).expect("strip is alive");
        Run { first: BlockRef { id: BlockId::new(strip, place), birth }, len, gained, seed }
    }

    /// Begins to copy every node but the root as it is now, in place of a copy that was given up.
    pub(crate) fn begin_cut(&mut self) {
        self.cutting = Some(Box::new(Cutting::new(self.nodes.len(), self.nodes.bound())));
    }

    /// Copies some more; whether that was all.
    pub(crate) fn cut_on(&mut self) -> bool {
        self.cutting.as_mut().is_none_or(|cutting| cutting.go_on(&self.nodes, &self.strips))
    }

    /// Every node but the root, as it was when the copy began; it is all there.
    pub(crate) fn end_cut(&mut self) -> Vec<Cut> {
        self.cutting.take().map(|cutting| cutting.into_nodes()).unwrap_or_default()
    }

    /// To be called before anything but the children of a node changes, and before the node goes.
    #[inline]
    fn before_change(&mut self, id: NodeId) {
        if let Some(cutting) = &mut self.cutting {
            cutting.before_change(&self.nodes, &self.strips, id, false);
        }
    }

    /// Adds a node.
    #[inline]
    fn add(&mut self, node: Node) -> NodeId {
        let id = NodeId(self.nodes.insert(node));
        if let Some(cutting) = &mut self.cutting {
            cutting.before_change(&self.nodes, &self.strips, id, true);
        }
        id
    }

    /// As much of `chain`, which follows `at` (`None`: the root), as is in memory and takes no more than
    /// [`CHUNK_BLOCKS`] steps: runs of blocks. `None` when `at` is gone.
    pub(crate) fn follow(&self, at: Option<BlockRef>, chain: &[LocalHash], runs: &mut Vec<Run>) -> Option<usize> {
        let mut at = match at {
            None => Position { node: self.root, within: 0 },
            Some(block) if !self.is_alive(block) => return None,
            Some(block) => self.position(block.id).map(|at| Position { within: at.within + 1, ..at })?,
        };
        let mut done = 0;
        for _ in 0..CHUNK_BLOCKS {
            let node = self.node(at.node);
            let same = common(&node.blocks.locals()[at.within..], &chain[done..]);
            if same > 0 {
                runs.push(self.run(node.strip, usize::from(node.blocks.place) + at.within, same, Mask::NONE));
                done += same;
                at.within += same;
            }
            if done == chain.len() || at.within < node.blocks.len() {
                break;
            }
            let Some(child) = self.child(at.node, chain[done].0) else { break };
            at = Position { node: child, within: 0 };
        }
        Some(done)
    }
}
