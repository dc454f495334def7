//! Where the nodes of the trie live: pages whose places are reused at once, and given back when a page is empty.
//!
//! Growing never moves a node and freeing leaves no tombstone, so no step under the index's lock costs more than a page.

use crate::{
    children::Children,
    hash::{LocalHash, SequenceHash},
    holders::Holders,
};

/// Nodes per page.
const PAGE: usize = 512;

/// Names a node while it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct NodeId(u32);

/// Names a node for good: it never means a later node in the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeRef {
    pub(crate) id: NodeId,
    birth: u64,
}

/// One block in its place after all blocks before it.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) local: LocalHash,
    pub(crate) sequence: SequenceHash,
    pub(crate) parent: NodeId,
    /// Blocks up to and including this one.
    pub(crate) depth: u32,
    pub(crate) children: Children,
    pub(crate) holders: Holders,
}

#[derive(Debug, Default)]
pub(crate) struct Arena {
    pages: Vec<Page>,
    /// Pages with room, each once.
    roomy: Vec<u32>,
    live: usize,
    births: u64,
}

#[derive(Debug, Default)]
struct Page {
    /// (birth, node), or a place to be used again. Never longer than [`PAGE`].
    places: Vec<Option<(u64, Node)>>,
    free: Vec<u16>,
}

impl Arena {
    /// Nodes that live.
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    pub(crate) fn insert(&mut self, node: Node) -> NodeRef {
        let page_index = match self.roomy.last() {
            Some(index) => *index,
            None => {
                let index = self.pages.len() as u32;
                self.pages.push(Page::default());
                self.roomy.push(index);
                index
            }
        };
        self.births += 1;
        self.live += 1;
        let page = &mut self.pages[page_index as usize];
        let place = page.insert(self.births, node);
        if page.is_full() {
            self.roomy.pop();
        }
        NodeRef { id: NodeId(page_index * PAGE as u32 + u32::from(place)), birth: self.births }
    }

    pub(crate) fn remove(&mut self, id: NodeId) {
        let (page_index, place) = id.split();
        let page = &mut self.pages[page_index];
        let was_full = page.is_full();
        if page.places[place].take().is_none() {
            return;
        }
        self.live -= 1;
        page.free.push(place as u16);
        if page.free.len() == page.places.len() {
            *page = Page::default();
        }
        if was_full {
            self.roomy.push(page_index as u32);
        }
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        let (page, place) = id.split();
        // A `NodeId` is used only while something keeps its node alive: a child, a holder, or the lock it was read under.
        let (_, node) = self.pages[page].places[place].as_ref().expect("node is alive");
        node
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        let (page, place) = id.split();
        // As in `node`.
        let (_, node) = self.pages[page].places[place].as_mut().expect("node is alive");
        node
    }

    /// The lasting name of a node that lives.
    pub(crate) fn reference(&self, id: NodeId) -> NodeRef {
        let (page, place) = id.split();
        let birth = self.pages[page].places[place].as_ref().map_or(0, |(birth, _)| *birth);
        NodeRef { id, birth }
    }

    pub(crate) fn is_alive(&self, node: NodeRef) -> bool {
        let (page, place) = node.id.split();
        let place = self.pages.get(page).and_then(|page| page.places.get(place));
        matches!(place, Some(Some((birth, _))) if *birth == node.birth)
    }

    pub(crate) fn pages(&self) -> usize {
        self.pages.len()
    }

    /// The nodes of one page.
    pub(crate) fn page(&self, index: usize) -> impl Iterator<Item = (NodeId, &Node)> {
        let places = self.pages.get(index).map(|page| page.places.iter()).unwrap_or_default();
        places.enumerate().filter_map(move |(place, node)| node.as_ref().map(|(_, node)| (NodeId((index * PAGE + place) as u32), node)))
    }
}

impl NodeId {
    fn split(self) -> (usize, usize) {
        (self.0 as usize / PAGE, self.0 as usize % PAGE)
    }
}

impl Page {
    fn is_full(&self) -> bool {
        self.free.is_empty() && self.places.len() == PAGE
    }

    fn insert(&mut self, birth: u64, node: Node) -> u16 {
        if let Some(place) = self.free.pop() {
            self.places[place as usize] = Some((birth, node));
            return place;
        }
        if self.places.is_empty() {
            self.places.reserve_exact(PAGE);
        }
        self.places.push(Some((birth, node)));
        (self.places.len() - 1) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Node {
        Node {
            local: LocalHash(0),
            sequence: SequenceHash(0),
            parent: NodeId(0),
            depth: 0,
            children: Children::None,
            holders: Holders::new(),
        }
    }

    #[test]
    fn places_are_reused_names_are_not_and_empty_pages_are_given_back() {
        let mut arena = Arena::default();
        let mut nodes: Vec<_> = (0..3 * PAGE).map(|_| arena.insert(node())).collect();
        assert_eq!((arena.len(), arena.pages()), (3 * PAGE, 3));
        for node in &nodes[PAGE / 2..2 * PAGE] {
            arena.remove(node.id);
        }
        assert!(arena.pages[1].places.capacity() == 0, "the middle page is empty");
        assert!(!arena.is_alive(nodes[PAGE]) && arena.is_alive(nodes[0]));
        let later: Vec<_> = (0..PAGE + PAGE / 2).map(|_| arena.insert(node())).collect();
        assert_eq!((arena.len(), arena.pages()), (3 * PAGE, 3), "no page was added");
        assert!(later.iter().all(|node| arena.is_alive(*node) && arena.reference(node.id) == *node));
        assert!(nodes.drain(PAGE / 2..2 * PAGE).all(|node| !arena.is_alive(node)), "a new node is not the old one");
        arena.insert(node());
        assert_eq!(arena.pages(), 4);
    }
}
