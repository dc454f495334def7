//! A lookup's way down the tree.

use std::sync::Arc;

use crate::{
    cover::{Cover, Crowd, Rest},
    hash::LocalHash,
    lane::Lanes,
    levels::Levels,
    near::{PAGE, approach_half},
    node::{Node, NodeId, common},
    slots::SlotSet,
    trie::Trie,
};

/// Nodes looked at under one hold of the lock.
pub(crate) const CHUNK_NODES: usize = 512;

/// So many blocks take longer to compare than the memory after them to come near.
const LONG_BLOCKS: usize = 128;

/// Where a lookup stands: at the end of a node, all of whose active targets hold every block up to there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    node: NodeId,
    pub(crate) depth: usize,
}

/// What a lookup knows of the node it comes from.
#[derive(Clone, Copy)]
struct Above<'a> {
    /// Those who hold all of it, where nobody else is active: nobody in whom several lanes together make up the whole.
    crowd: Option<&'a Arc<Crowd>>,
    /// Whether exactly those are active, in one lane; else it is the levels that know who is.
    exactly: bool,
}

/// What a lookup asks of a node: its first `same` blocks, after `depth` others.
#[derive(Clone, Copy)]
struct Piece {
    lanes: Lanes,
    depth: usize,
    same: usize,
}

impl<'a> Above<'a> {
    /// `exactly`: see there.
    #[inline]
    fn new(cover: &'a Cover, exactly: bool) -> Self {
        Self { crowd: if cover.has_parts() { None } else { cover.full() }, exactly }
    }

    /// Where a lookup goes on that let others in between.
    fn again(cover: &'a Cover, lanes: Lanes, levels: &Levels) -> Self {
        let above = Self::new(cover, false);
        let exactly = above.crowd.and_then(|crowd| crowd.all_in(lanes)).is_some_and(|slots| levels.are(slots));
        Self { exactly, ..above }
    }

    /// The active ones, where the levels do not know them.
    fn slots(self, lanes: Lanes) -> Option<&'a SlotSet> {
        if self.exactly { self.crowd?.all_in(lanes) } else { None }
    }

    /// Lets the levels know who is active.
    fn settle(self, lanes: Lanes, levels: &mut Levels) {
        if let Some(slots) = self.slots(lanes) {
            levels.settle(slots);
        }
    }

    /// All that are active end at `depth`.
    fn end(self, depth: usize, lanes: Lanes, levels: &mut Levels) {
        match self.slots(lanes) {
            Some(slots) => levels.end_all(slots, depth as u32),
            None => levels.end(depth as u32),
        }
    }
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
        let (mut kids, mut rest) = (&here.kids, &chain[depth..]);
        let mut above = Above::again(&here.cover, lanes, levels);
        for _ in 0..CHUNK_NODES {
            let Some(child) = rest.first().and_then(|first| self.child_of(kids, node, first.0)) else {
                above.end(depth, lanes, levels);
                return None;
            };
            node = child;
            let below = self.node(node);
            if below.blocks.len() >= LONG_BLOCKS {
                self.look_ahead(below, rest);
            }
            let same = common(below.blocks.locals(), rest);
            let exactly = self.step(above, &below.cover, Piece { lanes, depth, same }, levels);
            if !exactly && levels.nobody_left() {
                return None;
            }
            above = Above::new(&below.cover, exactly);
            depth += same;
            if same < below.blocks.len() {
                above.end(depth, lanes, levels);
                return None;
            }
            (kids, rest) = (&below.kids, &rest[same..]);
        }
        above.settle(lanes, levels);
        Some(Standing { node, depth })
    }

    /// Before the long node `here` is compared with `rest`: has the pages translated on which the two are read later. The
    /// processor asks for the lines of a page by itself, and for nothing beyond it.
    #[inline]
    fn look_ahead(&self, here: &Node, rest: &[LocalHash]) {
        [PAGE, 2 * PAGE, 4 * PAGE].iter().filter_map(|far| rest.get(*far)).for_each(approach_half);
        if let Some(first) = here.kids.latest().and_then(|next| self.node(next).blocks.locals().first()) {
            approach_half(first);
        }
    }

    /// Who of those that hold everything `above` goes on in a node; whether they are exactly those who hold all of it.
    #[inline]
    fn step(&self, above: Above<'_>, cover: &Cover, piece: Piece, levels: &mut Levels) -> bool {
        let Piece { lanes, depth, .. } = piece;
        if !cover.has_parts()
            && let (Some(last), Some(full)) = (above.crowd, cover.full())
        {
            if Arc::ptr_eq(last, full) {
                return above.exactly;
            }
            if above.exactly
                && let Some(rest) = full.rest_of(last)
            {
                match rest {
                    Rest::Nobody => {}
                    Rest::One(slot) => levels.end_one(slot, depth as u32),
                    Rest::Many => {
                        above.settle(lanes, levels);
                        levels.pass(Some(full), lanes, depth as u32);
                    }
                }
                return true;
            }
        }
        above.settle(lanes, levels);
        self.pass(cover, piece, levels)
    }

    /// As [`Trie::step`], where nothing is known of who comes.
    #[inline(never)]
    fn pass(&self, cover: &Cover, piece: Piece, levels: &mut Levels) -> bool {
        let Piece { lanes, depth, same } = piece;
        let full = cover.full();
        if depth == 0 {
            let all = full.and_then(|full| full.all_in(lanes));
            if all.is_some() && !cover.has_parts() && self.seats.nobody_hidden() {
                return true;
            }
            levels.start(cover, lanes);
            self.seats.without_hidden(lanes, levels.active_mut());
        }
        if cover.has_parts() {
            levels.pass_in_part(cover, lanes, depth as u32, same);
        } else if depth > 0 {
            levels.pass(full, lanes, depth as u32);
        }
        false
    }
}
