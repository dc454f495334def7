//! MiniMax-M3's calls: each parameter is an element of its name, elements nest, and `]<]minimax[>[` stands before each tag.
//! `]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="NAME">]<]minimax[>[<KEY>VALUE]<]minimax[>[</KEY>]<]minimax[>[</invoke>..`
//! A list is written as elements named `item`.

use super::{
    grammar::attribute,
    json::quoted,
    machine::{Io, Step, is_name},
    schema::Types,
    text::{Found, blank_prefix, find},
    value::Value,
};

/// Elements nested deeper than this are text.
const MAX_DEPTH: usize = 64;
/// Longest tag, in bytes; a longer one is text.
const MAX_TAG_BYTES: usize = 512;

/// Reads what stands behind the tag that opens a run of calls.
#[derive(Debug)]
pub(super) struct Elements {
    /// What stands before each tag, with its bracket.
    mark: &'static str,
    place: Place,
    function: String,
    filled: bool,
    any: bool,
    /// Something stood between elements that is none.
    stray: bool,
    open: Vec<Node>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Run,
    Call,
}

#[derive(Debug)]
struct Node {
    name: String,
    shape: Shape,
    filled: bool,
    value: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Leaf,
    Map,
    List,
}

impl Elements {
    pub(super) fn new(mark: &'static str) -> Self {
        Self { mark, place: Place::Run, function: String::new(), filled: false, any: false, stray: false, open: Vec::new() }
    }

    /// What was read may still turn out to be content.
    pub(super) fn is_undecided(&self) -> bool {
        !self.any
    }

    /// Reads on.
    pub(super) fn step(&mut self, rest: &str, io: &mut Io<'_>) -> Step {
        let between = self.open.last().is_none_or(|node| node.shape != Shape::Leaf);
        let blank = if between && !self.stray { blank_prefix(rest) } else { 0 };
        if blank > 0 {
            return Step::Took(blank);
        }
        let found = find(&[self.mark], rest, io.last);
        let (Found::At { start, .. } | Found::Safe(start)) = found;
        if start > 0 {
            return self.plain(&rest[..start], io);
        }
        let Found::At { .. } = found else { return Step::More };
        let behind = &rest[self.mark.len()..];
        let head = &behind.as_bytes()[..behind.len().min(MAX_TAG_BYTES + 1)];
        match memchr::memchr(b'>', head) {
            Some(end) => {
                let taken = self.mark.len() + end + 1;
                self.tag(&behind[..end], &rest[..taken], io)
            }
            None if behind.len() <= MAX_TAG_BYTES && !io.last => Step::More,
            // The text was cut inside the tag that closes the run.
            None if self.place == Place::Run && self.any && "/tool_call".starts_with(behind) => Step::Done(rest.len()),
            None => self.plain(self.mark, io),
        }
    }

    /// The text ended: what was held of a value goes out.
    pub(super) fn finish(&mut self, io: &mut Io<'_>) {
        if let Some(node) = self.open.last_mut().filter(|node| node.shape == Shape::Leaf) {
            node.value.cut(io);
        }
    }

    /// Text that is no tag.
    fn plain(&mut self, text: &str, io: &mut Io<'_>) -> Step {
        match (self.open.last_mut(), self.place) {
            (Some(node), _) if node.shape == Shape::Leaf => node.value.push(text, false, io),
            (_, Place::Run) if !self.any => return Step::Malformed(0),
            (_, Place::Run) => return Step::Done(0),
            (_, Place::Call) => {
                self.stray = true;
                io.content(text);
            }
        }
        Step::Took(text.len())
    }

    fn tag(&mut self, tag: &str, whole: &str, io: &mut Io<'_>) -> Step {
        if self.place == Place::Run {
            return self.run_tag(tag, whole, io);
        }
        match tag.strip_prefix('/') {
            Some("invoke") if self.open.is_empty() => {
                io.arguments(if self.filled { "}" } else { "{}" });
                self.place = Place::Run;
            }
            Some(name) => match self.open.last() {
                Some(node) if node.name == name => self.close(io),
                _ => return self.plain(whole, io),
            },
            None => {
                let inside_text = self.open.last().is_some_and(|node| node.shape == Shape::Leaf && !node.value.is_blank());
                if inside_text || self.open.len() == MAX_DEPTH || !is_name(tag) {
                    return self.plain(whole, io);
                }
                self.begin(tag, io);
            }
        }
        self.stray = false;
        Step::Took(whole.len())
    }

    fn run_tag(&mut self, tag: &str, whole: &str, io: &mut Io<'_>) -> Step {
        let name = tag.strip_prefix("invoke ").and_then(|head| attribute(head, "name")).filter(|name| is_name(name));
        if let Some(name) = name {
            io.begin(&name, None);
            self.function = name;
            (self.filled, self.any) = (false, true);
            self.place = Place::Call;
            return Step::Took(whole.len());
        }
        match (tag, self.any) {
            ("/tool_call", true) => Step::Done(whole.len()),
            (_, true) => Step::Done(0),
            (_, false) => Step::Malformed(0),
        }
    }

    fn begin(&mut self, name: &str, io: &mut Io<'_>) {
        let types = match self.open.last_mut() {
            None => {
                io.arguments(if self.filled { "," } else { "{" });
                self.filled = true;
                io.arguments(&quoted(name));
                io.arguments(":");
                io.schemas.types(&self.function, name)
            }
            Some(parent) => {
                if parent.shape == Shape::Leaf {
                    parent.shape = if name == "item" { Shape::List } else { Shape::Map };
                    io.arguments(if parent.shape == Shape::List { "[" } else { "{" });
                }
                if parent.filled {
                    io.arguments(",");
                }
                parent.filled = true;
                if parent.shape == Shape::Map {
                    io.arguments(&quoted(name));
                    io.arguments(":");
                }
                Types::UNKNOWN
            }
        };
        self.open.push(Node { name: name.to_owned(), shape: Shape::Leaf, filled: false, value: Value::new(types) });
    }

    fn close(&mut self, io: &mut Io<'_>) {
        if let Some(mut node) = self.open.pop() {
            match node.shape {
                Shape::Leaf => node.value.close(io),
                Shape::Map => io.arguments("}"),
                Shape::List => io.arguments("]"),
            }
        }
    }
}
