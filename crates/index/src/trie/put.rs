//! How blocks come into the tree, and seats into blocks.

use super::{Position, Run, Trie};
use crate::{
    cover::{Cover, Seat},
    hash::{LocalHash, Seed, SequenceHash},
    kids::Kids,
    mask::Mask,
    node::{BlockId, BlockRef, Blocks, Node, NodeId, STRIP_BLOCKS, Strip, StripId, common},
    steps::Steps,
};

/// What is being put into the tree, by whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Onward<'a> {
    pub(crate) steps: &'a Steps,
    pub(crate) seat: Seat,
    pub(crate) seed: Seed,
}

impl Trie {
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

    /// What engines store most often: one block, where a store of the same seat ended, after `from`, which it holds. It has the next
    /// number of the strip, whose seed is returned. `None`, and nothing is changed: it is not as simple as that, or the chain would
    /// be longer than `longest`.
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
}
