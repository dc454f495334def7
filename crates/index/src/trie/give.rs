//! How seats are given up, and blocks that nobody needs go.

use super::{CHUNK_BLOCKS, Position, Trie};
use crate::{
    cover::Seat,
    mask::Mask,
    node::{BlockId, BlockRef, Node, NodeId, StripId},
};

impl Trie {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        hash::{LocalHash, Seed},
        lane::Lane,
        steps::Steps,
        target::Slot,
        trie::Onward,
    };

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
