//! Stop strings: which text ends a choice, and how much of its end may yet turn out to.
//!
//! An automaton over all strings at once (Aho and Corasick 1975), built once per request: a step of text costs the same for one
//! string as for many. The state of a choice is one number: the longest end of its text that begins some string.

/// The automaton. State 0 is the text of which nothing begins a string.
#[derive(Debug)]
pub(crate) struct StopStrings {
    nodes: Vec<Node>,
    /// Where each byte leads from state 0.
    root: Box<[u32; 256]>,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    byte: u8,
    /// The first of the nodes one byte further, 0 for none.
    child: u32,
    /// The next child of the same parent, 0 for none.
    sibling: u32,
    /// The longest proper end of this node's text that is a node too.
    fail: u32,
    /// Bytes of its text.
    depth: u32,
    /// Bytes of the longest string that its text ends with, 0 for none.
    found: u32,
}

/// A string that is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Match {
    /// Where it ends in the scanned piece.
    pub(crate) end: usize,
    /// Its length; it may have begun before the piece.
    pub(crate) length: usize,
}

impl StopStrings {
    /// `None` where no string is left to look for.
    pub(crate) fn new(strings: &[String]) -> Option<Self> {
        let root = Node { byte: 0, child: 0, sibling: 0, fail: 0, depth: 0, found: 0 };
        let mut this = Self { nodes: vec![root], root: Box::new([0; 256]) };
        for string in strings.iter().filter(|string| !string.is_empty()) {
            this.insert(string.as_bytes());
        }
        this.link();
        (this.nodes.len() > 1).then_some(this)
    }

    /// Walks `piece` from `state`. Stops behind the first string that is complete, the longest of those that end there.
    /// While not `armed`, strings that end count for nothing.
    pub(crate) fn scan(&self, state: &mut u32, piece: &[u8], armed: bool) -> Option<Match> {
        for (at, &byte) in piece.iter().enumerate() {
            *state = self.step(*state, byte);
            let found = self.nodes[*state as usize].found;
            if armed && found > 0 {
                return Some(Match { end: at + 1, length: found as usize });
            }
        }
        None
    }

    /// How many bytes at the end of the text may yet be the beginning of a string.
    pub(crate) fn held(&self, state: u32) -> usize {
        self.nodes[state as usize].depth as usize
    }

    /// Each step down the tree allows one step back, so that a text costs at most two steps a byte.
    fn step(&self, mut state: u32, byte: u8) -> u32 {
        while state != 0 {
            if let Some(next) = self.child(state, byte) {
                return next;
            }
            state = self.nodes[state as usize].fail;
        }
        self.root[byte as usize]
    }

    fn child(&self, state: u32, byte: u8) -> Option<u32> {
        let mut next = self.nodes[state as usize].child;
        while next != 0 {
            let node = &self.nodes[next as usize];
            if node.byte == byte {
                return Some(next);
            }
            next = node.sibling;
        }
        None
    }

    fn insert(&mut self, string: &[u8]) {
        let mut at = 0;
        for &byte in string {
            at = match if at == 0 { Some(self.root[byte as usize]).filter(|next| *next != 0) } else { self.child(at, byte) } {
                Some(next) => next,
                None => self.grow(at, byte),
            };
        }
        self.nodes[at as usize].found = self.nodes[at as usize].depth;
    }

    fn grow(&mut self, parent: u32, byte: u8) -> u32 {
        let Ok(new) = u32::try_from(self.nodes.len()) else { return parent };
        let Node { child, depth, .. } = self.nodes[parent as usize];
        self.nodes.push(Node { byte, child: 0, sibling: child, fail: 0, depth: depth + 1, found: 0 });
        self.nodes[parent as usize].child = new;
        if parent == 0 {
            self.root[byte as usize] = new;
        }
        new
    }

    /// Fills `fail` and `found`, shallow nodes first.
    fn link(&mut self) {
        let mut order = vec![0_u32];
        let mut done = 0;
        while let Some(&parent) = order.get(done) {
            done += 1;
            let mut next = self.nodes[parent as usize].child;
            while next != 0 {
                let Node { byte, sibling, .. } = self.nodes[next as usize];
                let fail = if parent == 0 { 0 } else { self.step(self.nodes[parent as usize].fail, byte) };
                let shorter = self.nodes[fail as usize].found;
                let node = &mut self.nodes[next as usize];
                node.fail = fail;
                node.found = node.found.max(shorter);
                order.push(next);
                next = sibling;
            }
        }
    }
}
