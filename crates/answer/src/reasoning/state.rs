//! One choice's text on its way through the parser of thoughts.

use super::names::{Marks, ReasoningParser, Where};
use crate::{
    Delta,
    tools::{
        ToolParser,
        text::{Found, Prose, Voice, blank_prefix, find, say},
    },
};

/// Takes the thoughts out of one choice's text. The deltas are the same however the text is cut into pieces, but for the
/// places where they are cut. Holds back no more than what may be the beginning of a marker and the white space before it.
#[derive(Debug)]
pub struct State {
    marks: Marks,
    place: Place,
    /// What opens calls: behind it there is no thought.
    calls: Vec<&'static str>,
    tools: Option<ToolParser>,
    unread: String,
    thought: Prose,
    content: Prose,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before the first token, with this still to be put in front.
    Prefix,
    Before,
    Inside,
    /// No thought can follow.
    Behind,
}

impl ReasoningParser {
    /// Begins a choice behind a prompt that ends with `prompt_tail`. Where calls are parsed too, `tools` says how, so that
    /// what looks like a thought in the arguments of a call stays there.
    pub fn start(self, prompt_tail: &str, tools: Option<ToolParser>) -> State {
        let marks = self.marks();
        let place = if self == Self::AppendThink {
            Place::Prefix
        } else if marks.opens.is_empty() {
            Place::Behind
        } else if self.starts_inside(prompt_tail) {
            Place::Inside
        } else if marks.at != Where::Anywhere && self.starts_behind(prompt_tail) {
            Place::Behind
        } else {
            Place::Before
        };
        let behind_marker = place == Place::Inside;
        State {
            marks,
            place,
            calls: tools.into_iter().flat_map(ToolParser::marks).collect(),
            tools,
            unread: String::new(),
            thought: Prose::behind_marker(Voice::Reasoning),
            content: if behind_marker { Prose::behind_marker(Voice::Content) } else { Prose::new(Voice::Content) },
        }
    }
}

impl State {
    /// Takes more text.
    pub fn push(&mut self, text: &str, out: &mut Vec<Delta>) {
        if self.place == Place::Behind && self.unread.is_empty() {
            return self.content.push(text, out);
        }
        self.unread.push_str(text);
        self.run(false, out);
    }

    /// Nothing follows: what was held goes out.
    pub fn finish(&mut self, out: &mut Vec<Delta>) {
        self.run(true, out);
        self.thought.end(out);
        self.content.end(out);
    }

    fn run(&mut self, last: bool, out: &mut Vec<Delta>) {
        let unread = std::mem::take(&mut self.unread);
        let mut at = 0;
        while at < unread.len() {
            let rest = &unread[at..];
            let taken = match self.place {
                Place::Prefix => {
                    say(Voice::Content, "<think>", out);
                    self.content = Prose::new(Voice::Content);
                    self.place = Place::Behind;
                    continue;
                }
                Place::Before => self.before(rest, last, out),
                Place::Inside => self.inside(rest, last, out),
                Place::Behind => {
                    self.content.push(rest, out);
                    Some(rest.len())
                }
            };
            let Some(taken) = taken else { break };
            at += taken;
        }
        self.unread.push_str(&unread[at..]);
    }

    fn before(&mut self, rest: &str, last: bool, out: &mut Vec<Delta>) -> Option<usize> {
        if self.content.is_blank() {
            let first = rest.as_bytes().get(blank_prefix(rest)).copied();
            if first.is_some_and(|first| self.tools.is_some_and(|tools| tools.opens_with(first))) {
                self.place = Place::Behind;
                return Some(0);
            }
        }
        let opens = self.marks.opens;
        let marks: Vec<_> = opens.iter().chain(&self.calls).copied().collect();
        let found = find(&marks, rest, last);
        let (Found::At { start, .. } | Found::Safe(start)) = found;
        self.content.push(&rest[..start], out);
        match found {
            Found::Safe(_) => (start > 0).then_some(start),
            Found::At { marker, .. } if marker < opens.len() => {
                self.content.marker();
                self.place = Place::Inside;
                Some(start + marks[marker].len())
            }
            Found::At { .. } => {
                self.place = Place::Behind;
                Some(start)
            }
        }
    }

    fn inside(&mut self, rest: &str, last: bool, out: &mut Vec<Delta>) -> Option<usize> {
        let Marks { opens, closes, breaks, .. } = self.marks;
        let mut marks: Vec<_> = closes.iter().chain(breaks).copied().collect();
        if self.thought.is_blank() {
            // Some models open again the thought that their template opened.
            marks.extend(opens);
        }
        let found = find(&marks, rest, last);
        let (mut start, found) = match found {
            Found::At { start, marker } => (start, Some(marker)),
            Found::Safe(safe) => (safe, None),
        };
        let reopened = found.is_some_and(|marker| marker >= closes.len() + breaks.len());
        if reopened && blank_prefix(rest) < start {
            // Quoted in the thought: it is text, and so is what is before it.
            start = blank_prefix(rest) + rest[blank_prefix(rest)..].chars().next().map_or(0, char::len_utf8);
            self.thought.push(&rest[..start], out);
            return Some(start);
        }
        self.thought.push(&rest[..start], out);
        let Some(marker) = found else { return (start > 0).then_some(start) };
        let mark = marks[marker];
        self.thought.marker();
        if reopened {
            return Some(start + mark.len());
        }
        self.thought.end(out);
        self.content.marker();
        self.place = if self.marks.at == Where::Anywhere { Place::Before } else { Place::Behind };
        Some(if marker < closes.len() { start + mark.len() } else { start })
    }
}
