//! What the index's lock guards: a compressed tree of blocks keyed by local hash, and the seats of its holders.
//!
//! Every step here is bounded; whoever has more than [`CHUNK_BLOCKS`] of them to take lets others in between (rule 16).

use crate::{
    arena::Arena,
    cover::{Cover, Memo, Seat},
    cut::{Cut, Cutting},
    hash::{LocalHash, Seed, SequenceHash},
    kids::{Forks, Kids},
    mask::Mask,
    node::{BlockId, BlockRef, Blocks, MOST_STRIPS, Node, NodeId, STRIP_BLOCKS, Strip, StripId, common},
    seats::Seats,
    steps::Steps,
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

/// What is being put into the tree, by whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Onward<'a> {
    pub(crate) steps: &'a Steps,
    pub(crate) seat: Seat,
    pub(crate) seed: Seed,
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

    /// Walks the steps `from..to` down from `at` (`None`: the root), making what is missing and taking the seat in what
    /// is held. `at` lives.
    pub(crate) fn extend(&mut self, at: Option<BlockId>, onward: Onward<'_>, (from, to): (usize, usize), runs: &mut Vec<Run>) {
        let locals = &onward.steps.locals()[..to];
        let before = at.and_then(|block| self.position(block));
        let mut at = before.map_or(Position { node: self.root, within: 0 }, |at| Position { within: at.within + 1, ..at });
        let mut next = from;
        while next < to {
            let blocks = &self.node(at.node).blocks;
            let same = common(&blocks.locals()[at.within..], &locals[next..]);
            let len = blocks.len();
            if same > 0 {
                runs.push(self.take(at, onward, (next, same)));
                at.within += same;
                next += same;
            } else if at.within < len {
                let node = self.split(at.node, at.within);
                at = Position { node, within: at.within };
            } else if let Some(child) = self.child(at.node, locals[next].0) {
                at = Position { node: child, within: 0 };
            } else {
                let run = match self.lengthen(at.node, onward, (next, to)) {
                    Some(run) => {
                        at.within += run.len;
                        run
                    }
                    None => {
                        let (node, run) = self.grow(at.node, onward, (next, to));
                        at = Position { node, within: run.len };
                        run
                    }
                };
                next += run.len;
                runs.push(run);
            }
        }
        self.memo.forget();
    }

    /// Takes the seat in the `len` blocks after `at` that are the steps from `next` on.
    fn take(&mut self, at: Position, onward: Onward<'_>, (next, len): (usize, usize)) -> Run {
        let Onward { steps, seat, .. } = onward;
        self.before_change(at.node);
        let node = self.nodes.get_mut(at.node.0).expect("node is alive");
        let had = node.cover.held(seat, node.blocks.len());
        let gained = steps.held(next, len).up(at.within) & !had;
        if !gained.is_empty() {
            node.cover.set(seat, had | gained, node.blocks.len(), &mut self.memo);
            self.seats.gained(seat, node.blocks.identities(), gained);
        }
        let (strip, place, parent) = (node.strip, usize::from(node.blocks.place) + at.within, node.parent);
        self.compare(at.node, parent);
        self.run(strip, place, len, gained.down(at.within))
    }

    /// Tells a node who holds the one above it, for lookups that come from there.
    fn compare(&mut self, node: NodeId, parent: NodeId) {
        if let (Some(node), Some(above)) = self.nodes.get_two(node.0, parent.0) {
            node.cover.compare(&above.cover);
        }
    }

    fn run(&self, strip: StripId, place: usize, len: usize, gained: Mask) -> Run {
        // A node's strip lives as long as the node.
        let Strip { birth, seed, .. } = *self.strips.get(strip.0).expect("strip is alive");
        Run { first: BlockRef { id: BlockId::new(strip, place), birth }, len, gained, seed }
    }

    /// What engines store most often: one block, where a store of the same seat ended, after `from`, which it holds. It has the next number of
    /// the strip, whose seed is returned. `None`, and nothing is changed: it is not as simple as that, or the chain would be longer
    /// than `longest`.
    #[inline]
    pub(crate) fn go_on(&mut self, from: BlockId, step: (LocalHash, SequenceHash), seat: Seat, longest: usize) -> Option<Seed> {
        if self.cutting.is_some()
            && let Some((_, node)) = self.strips.get(from.strip().0).and_then(|strip| strip.nodes.last().copied())
        {
            self.before_change(node);
        }
        let strip = self.strips.get_mut(from.strip().0)?;
        let (given, (first, node)) = (usize::from(strip.given), *strip.nodes.last()?);
        let end = self.nodes.get_mut(node.0)?;
        let is_end = from.place() + 1 == given && usize::from(first) + end.blocks.len() == given;
        let has_room = given < STRIP_BLOCKS && end.blocks.end() < longest;
        let is_only = !end.cover.has_parts() && end.cover.full().is_some_and(|crowd| self.seats.is_alone(seat, crowd));
        if !is_end || !has_room || !end.kids.is_empty() || !is_only && !end.cover.is_all_of(seat) {
            return None;
        }
        let (local, identity) = step;
        end.blocks.push(local, identity, &mut self.scratch);
        strip.given += 1;
        self.blocks += 1;
        self.seats.gained_one(seat, identity);
        Some(strip.seed)
    }

    /// Adds as many of the steps `next..to` as it may to the end of `node`: only where nobody else holds the node, for
    /// they would not hold the new blocks, and where its last block has the last number given.
    fn lengthen(&mut self, node: NodeId, onward: Onward<'_>, (next, to): (usize, usize)) -> Option<Run> {
        let Onward { steps, seat, .. } = onward;
        self.before_change(node);
        let end = self.nodes.get_mut(node.0)?;
        if !end.kids.is_empty() || !end.cover.is_all_of(seat) {
            return None;
        }
        let strip = self.strips.get_mut(end.strip.0)?;
        let given = usize::from(strip.given);
        let len = STRIP_BLOCKS.saturating_sub(given).min(to - next);
        if usize::from(end.blocks.place) + end.blocks.len() != given || len == 0 || !steps.all_held(next, len) {
            return None;
        }
        let identities = &steps.identities()[next..next + len];
        end.blocks.extend(&steps.locals()[next..next + len], identities, &mut self.scratch);
        strip.given += len as u8;
        self.blocks += len;
        self.seats.gained_all(seat, identities);
        let id = BlockId::new(end.strip, given);
        Some(Run { first: BlockRef { id, birth: strip.birth }, len, gained: Mask::first(len), seed: strip.seed })
    }

    /// Makes a child of `parent` of the first of the steps `next..to`, on a strip of its own.
    fn grow(&mut self, parent: NodeId, onward: Onward<'_>, (next, to): (usize, usize)) -> (NodeId, Run) {
        let Onward { steps, seat, seed } = onward;
        let len = (to - next).min(STRIP_BLOCKS);
        let depth = self.node(parent).blocks.end() as u32;
        let blocks = Blocks::new(depth, &steps.locals()[next..next + len], &steps.identities()[next..next + len], &mut self.scratch);
        let held = steps.held(next, len);
        self.births += 1;
        let birth = self.births;
        let strip = StripId(self.strips.insert(Strip { birth, seed, given: len as u8, nodes: Default::default() }));
        let mut cover = Cover::default();
        if held == Mask::first(len) {
            cover = Cover::of(self.seats.alone(seat));
        } else if !held.is_empty() {
            cover.set(seat, held, len, &mut self.memo);
        }
        self.seats.gained(seat, blocks.identities(), held);
        let local = blocks.locals()[0];
        let node = self.add(Node { blocks, cover, kids: Kids::none(), parent, strip });
        if let Some(strip) = self.strips.get_mut(strip.0) {
            strip.nodes.push((0, node));
        }
        let parent_node = self.nodes.get_mut(parent.0).expect("node is alive");
        self.forks.insert(&mut parent_node.kids, parent, local, node);
        self.blocks += len;
        (node, self.run(strip, 0, len, held))
    }

    /// Parts `node` after its first `at` blocks, of which there are more: they become a node above it, which is returned.
    /// That way what follows `node` stays where it is, however much it is.
    fn split(&mut self, node: NodeId, at: usize) -> NodeId {
        self.before_change(node);
        let lower = self.nodes.get_mut(node.0).expect("node is alive");
        let len = lower.blocks.len();
        let (blocks, cover) = (lower.blocks.split(at), lower.cover.split(at, len));
        let (strip, place, parent) = (lower.strip, blocks.place, lower.parent);
        let kids = Kids::one(node, lower.blocks.locals()[0]);
        let first = blocks.locals()[0];
        let upper = self.add(Node { blocks, cover, kids, parent, strip });
        self.node_mut(node).parent = upper;
        let above = self.nodes.get_mut(parent.0).expect("node is alive");
        self.forks.replace(&mut above.kids, parent, first, (node, upper));
        if let Some(strip) = self.strips.get_mut(strip.0)
            && let Some(index) = strip.index(usize::from(place))
        {
            strip.nodes[index].1 = upper;
            strip.nodes.insert(index + 1, (place + at as u8, node));
        }
        upper
    }

    /// Gives `seat` up in the blocks of `queue`, last first, and frees what nothing needs any more. Stops after about
    /// [`CHUNK_BLOCKS`] steps; done when `queue` is empty and `prune` is `None`, else to be called again with both.
    pub(crate) fn release(&mut self, seat: Seat, queue: &mut Vec<BlockId>, prune: &mut Option<BlockRef>) {
        let mut steps = CHUNK_BLOCKS;
        while self.prune(prune, &mut steps) {
            let Some(block) = queue.pop() else { break };
            let Some(at) = self.position(block) else { continue };
            let len = self.node(at.node).blocks.len();
            let first = block.0 - at.within as u32;
            let mut mask = Mask::NONE;
            mask.add(at.within);
            while let Some(next) = queue.pop_if(|next| next.0 >= first && ((next.0 - first) as usize) < len) {
                mask.add((next.0 - first) as usize);
            }
            steps = steps.saturating_sub(mask.count());
            *prune = self.give_up(at.node, seat, mask);
        }
        self.memo.forget();
    }

    /// Gives `seat` up in every block of the strips of `queue`, as [`Trie::release`] does.
    pub(crate) fn vacate(&mut self, seat: Seat, queue: &mut Vec<StripId>, prune: &mut Option<BlockRef>) {
        let mut steps = CHUNK_BLOCKS;
        while self.prune(prune, &mut steps) {
            let Some(strip) = queue.last().copied() else { break };
            // From the last node of a strip to its first: freeing one may free those before it.
            let nodes = self.strips.get(strip.0).map(|strip| strip.nodes.as_slice()).unwrap_or_default();
            steps = steps.saturating_sub(nodes.len().max(1));
            let held = nodes.iter().rev().map(|(_, node)| *node);
            let mut held = held.filter(|node| !self.node(*node).cover.held(seat, self.node(*node).blocks.len()).is_empty());
            let Some(node) = held.next() else {
                queue.pop();
                continue;
            };
            if held.next().is_none() {
                queue.pop();
            }
            *prune = self.give_up(node, seat, Mask::ALL);
        }
        self.memo.forget();
    }

    /// As [`Trie::vacate`], in the node with this number, if there is one.
    pub(crate) fn vacate_node(&mut self, seat: Seat, number: usize, prune: &mut Option<BlockRef>) {
        if self.numbered(number).is_some_and(|node| !node.cover.held(seat, node.blocks.len()).is_empty()) {
            *prune = self.give_up(NodeId(number as u32), seat, Mask::ALL);
            self.memo.forget();
        }
    }

    /// Gives `seat` up in the blocks of one node, and says where something may be free to go.
    fn give_up(&mut self, id: NodeId, seat: Seat, mask: Mask) -> Option<BlockRef> {
        self.before_change(id);
        let node = self.nodes.get_mut(id.0)?;
        let len = node.blocks.len();
        let had = node.cover.held(seat, len);
        let lost = had & mask;
        if lost.is_empty() {
            return None;
        }
        node.cover.set(seat, had & !mask, len, &mut self.memo);
        self.seats.lost(seat, node.blocks.identities(), lost);
        let (strip, place) = (node.strip, usize::from(node.blocks.place));
        node.kids.is_empty().then(|| self.run(strip, place, len, Mask::NONE).first)
    }

    /// Frees the end of the node with this block and the nodes above it, as far as nobody needs them and `steps` last.
    /// Whether that is done and steps are left.
    pub(crate) fn prune(&mut self, at: &mut Option<BlockRef>, steps: &mut usize) -> bool {
        while let Some(block) = at.take() {
            if !self.is_alive(block) {
                continue;
            }
            let Some(Position { node, .. }) = self.position(block.id) else { continue };
            *at = self.trim(node);
            *steps = steps.saturating_sub(1);
            if *steps == 0 {
                return false;
            }
        }
        *steps > 0
    }

    /// Cuts off the blocks at the end of `id` that nobody holds and nothing follows. If none is left, the node is gone,
    /// and the first block of the one before it is returned, to be looked at next.
    fn trim(&mut self, id: NodeId) -> Option<BlockRef> {
        self.before_change(id);
        let node = self.nodes.get_mut(id.0)?;
        let len = node.blocks.len();
        let reach = node.cover.reach(len);
        if !node.kids.is_empty() || reach == len {
            return None;
        }
        self.blocks -= len - reach;
        if reach > 0 {
            node.blocks.cut(reach);
            node.cover.cut(reach);
            return None;
        }
        let Node { blocks, strip, parent, .. } = self.nodes.remove(id.0)?;
        let above = self.nodes.get_mut(parent.0)?;
        self.forks.remove(&mut above.kids, parent, blocks.locals()[0], id);
        let (above, place, above_strip) = (above.blocks.len(), usize::from(above.blocks.place), above.strip);
        let own = self.strips.get_mut(strip.0)?;
        own.nodes.retain(|(_, node)| *node != id);
        if own.nodes.is_empty() {
            self.strips.remove(strip.0);
        }
        (above > 0).then(|| self.run(above_strip, place, above, Mask::NONE).first)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{lane::Lane, target::Slot};

    #[test]
    fn emptying_lets_others_in_though_nothing_is_freed() {
        let (mut trie, mut steps, mut runs) = (Trie::new(), Steps::default(), Vec::new());
        let seats = [0, 1].map(|slot| Seat { slot: Slot::new(slot), lane: Lane::Device });
        for seat in seats {
            trie.seats.claim(crate::target::Target { slot: seat.slot, generation: 0 }, seat.lane);
        }
        // Blocks that both hold, with one after each that the other holds: giving one's hold up frees nothing.
        for piece in 0..3 * CHUNK_BLOCKS as u64 {
            for (seat, chain) in seats.into_iter().zip([&[LocalHash(piece)][..], &[LocalHash(piece), LocalHash(0)]]) {
                steps.fill(None, chain);
                trie.extend(None, Onward { steps: &steps, seat, seed: Seed::BASE }, (0, chain.len()), &mut runs);
            }
        }
        let mut queue: Vec<_> = (0..6 * CHUNK_BLOCKS as u32).map(StripId).collect();
        let (mut prune, mut holds) = (None, 0);
        while !queue.is_empty() {
            let before = queue.len();
            trie.vacate(seats[0], &mut queue, &mut prune);
            assert!(before - queue.len() <= CHUNK_BLOCKS);
            holds += 1;
        }
        assert!(holds >= 6);
        assert_eq!(trie.len(), 6 * CHUNK_BLOCKS);
    }
}
