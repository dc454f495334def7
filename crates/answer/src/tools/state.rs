//! One choice's text on its way through the parser of its family: prose until a marker, then what reads the call.

use std::sync::Arc;

use super::{
    calls::{Calls, IdStyle},
    elements::Elements,
    family::ToolParser,
    framed::Framed,
    gemma::Gemma,
    headed::{Headed, Style},
    machine::{Io, Step},
    pythonic::Pythonic,
    schema::Schemas,
    tagged::Tagged,
    text::{Found, Prose, Voice, blank_prefix, find},
};
use crate::Delta;

/// What may be held of text that seems to be a call but is none yet, in bytes; more than this is content.
pub const MAX_HELD_BYTES: usize = 64 * 1024;

/// What reads a call.
#[derive(Debug)]
pub(super) enum Machine {
    /// Behind Mistral's marker: the next character tells objects from headers.
    Mistral,
    Framed(Framed),
    Headed(Headed),
    Tagged(Tagged),
    Elements(Elements),
    Pythonic(Pythonic),
    Gemma(Gemma),
}

/// Parses the calls in one choice's text. The deltas are the same however the text is cut into pieces, but for the places
/// where they are cut. Holds back what may be the beginning of a marker, or [`MAX_HELD_BYTES`] of what may be a call.
#[derive(Debug)]
pub struct State {
    parser: ToolParser,
    marks: Vec<&'static str>,
    machine: Option<Machine>,
    /// Text that was not looked at to the end.
    unread: String,
    /// What was read of a call that may still turn out to be none.
    raw: String,
    prose: Prose,
    calls: Calls,
    schemas: Arc<Schemas>,
}

impl ToolParser {
    /// Begins a choice. `seed` is what the ids of its calls are drawn from: let it be random, and another for each choice.
    pub fn start(self, schemas: Arc<Schemas>, seed: u64) -> State {
        let style = if self == Self::Mistral { IdStyle::Nine } else { IdStyle::Call };
        self.start_with(&schemas, style, seed)
    }

    /// As [`ToolParser::start`], with ids of another family.
    pub(super) fn start_with(self, schemas: &Arc<Schemas>, style: IdStyle, seed: u64) -> State {
        let marks = self.marks().chain(self.drops().iter().copied()).collect();
        State {
            parser: self,
            marks,
            machine: None,
            unread: String::new(),
            raw: String::new(),
            prose: Prose::new(Voice::Content),
            calls: Calls::new(style, seed),
            schemas: Arc::clone(schemas),
        }
    }
}

impl State {
    /// Takes more text.
    pub fn push(&mut self, text: &str, out: &mut Vec<Delta>) {
        self.unread.push_str(text);
        self.run(false, out);
    }

    /// Nothing follows: what was held goes out, a call that was not whole and did not begin to go out as content.
    pub fn finish(&mut self, out: &mut Vec<Delta>) {
        self.settle(out);
        self.prose.end(out);
    }

    /// As [`State::finish`], in the middle of an answer.
    pub(super) fn settle(&mut self, out: &mut Vec<Delta>) {
        self.run(true, out);
        if self.machine.as_ref().is_some_and(Machine::is_undecided) {
            self.give_up(out);
        }
        if let Some(mut machine) = self.machine.take() {
            let Self { prose, calls, schemas, .. } = self;
            machine.finish(&mut Io { prose, calls, schemas, out, last: true });
        }
        let left = std::mem::take(&mut self.unread);
        self.prose.push(&left, out);
    }

    /// Reads what follows with `machine`, as behind a marker.
    pub(super) fn open(&mut self, machine: Machine) {
        self.machine = Some(machine);
    }

    /// A call of which only the arguments follow.
    pub(super) fn begin(&mut self, name: &str, out: &mut Vec<Delta>) {
        self.prose.marker();
        self.calls.begin(name, None, out);
    }

    /// More of such arguments.
    pub(super) fn arguments(&mut self, json: &str, out: &mut Vec<Delta>) {
        self.calls.arguments(json, out);
    }

    fn run(&mut self, last: bool, out: &mut Vec<Delta>) {
        let unread = std::mem::take(&mut self.unread);
        let mut at = 0;
        while at < unread.len() {
            let rest = &unread[at..];
            let Some(taken) = (if self.machine.is_some() { self.inside(rest, last, out) } else { self.outside(rest, last, out) }) else {
                break;
            };
            at += taken;
        }
        self.unread.push_str(&unread[at..]);
    }

    /// Prose, until a marker or a bracket opens a call. Returns what was read; `None` if more is needed.
    fn outside(&mut self, rest: &str, last: bool, out: &mut Vec<Delta>) -> Option<usize> {
        if self.prose.is_blank() {
            let blank = blank_prefix(rest);
            let first = rest.as_bytes().get(blank).copied();
            if let Some(machine) = first.and_then(|first| self.parser.bare(first)) {
                self.prose.push(&rest[..blank], out);
                self.machine = Some(machine);
                return Some(blank);
            }
        }
        let found = find(&self.marks, rest, last);
        let (Found::At { start, .. } | Found::Safe(start)) = found;
        self.prose.push(&rest[..start], out);
        let Found::At { marker, .. } = found else { return (start > 0).then_some(start) };
        let mark = self.marks[marker];
        if let Some((_, open)) = self.parser.opens().get(marker) {
            self.machine = Some(open());
            self.raw.push_str(mark);
        }
        Some(start + mark.len())
    }

    /// One step of what reads the call.
    fn inside(&mut self, rest: &str, last: bool, out: &mut Vec<Delta>) -> Option<usize> {
        let machine = self.machine.as_mut()?;
        let mut rest = rest;
        let mut full = false;
        if machine.is_undecided() {
            let room = MAX_HELD_BYTES.saturating_sub(self.raw.len());
            full = rest.len() > room;
            rest = &rest[..rest.floor_char_boundary(room)];
        }
        let Self { prose, calls, schemas, .. } = self;
        let step = machine.step(rest, &mut Io { prose, calls, schemas, out, last });
        let (taken, more) = match step {
            Step::Took(taken) => (taken, true),
            Step::Done(taken) => (taken, false),
            Step::More if full => {
                self.raw.push_str(rest);
                self.give_up(out);
                return Some(rest.len());
            }
            Step::More => return None,
            Step::Malformed(taken) => {
                self.raw.push_str(&rest[..taken]);
                self.give_up(out);
                return Some(taken);
            }
        };
        if more && machine.is_undecided() {
            self.raw.push_str(&rest[..taken]);
        } else {
            self.raw.clear();
        }
        if !more {
            self.machine = None;
        }
        Some(taken)
    }

    fn give_up(&mut self, out: &mut Vec<Delta>) {
        self.machine = None;
        let raw = std::mem::take(&mut self.raw);
        self.prose.push(&raw, out);
    }
}

impl Machine {
    fn is_undecided(&self) -> bool {
        match self {
            Self::Mistral => true,
            Self::Framed(framed) => framed.is_undecided(),
            Self::Headed(headed) => headed.is_undecided(),
            Self::Tagged(tagged) => tagged.is_undecided(),
            Self::Elements(elements) => elements.is_undecided(),
            Self::Pythonic(pythonic) => pythonic.is_undecided(),
            Self::Gemma(gemma) => gemma.is_undecided(),
        }
    }

    fn finish(&mut self, io: &mut Io<'_>) {
        match self {
            Self::Mistral | Self::Framed(_) | Self::Headed(_) => {}
            Self::Tagged(tagged) => tagged.finish(io),
            Self::Elements(elements) => elements.finish(io),
            Self::Pythonic(pythonic) => pythonic.finish(io),
            Self::Gemma(gemma) => gemma.finish(io),
        }
    }

    fn step(&mut self, rest: &str, io: &mut Io<'_>) -> Step {
        match self {
            Self::Mistral => {
                let blank = blank_prefix(rest);
                match rest.as_bytes().get(blank) {
                    None => return Step::took_or_more(blank),
                    Some(b'[' | b'{') => *self = Self::Framed(Framed::marked(&["[/TOOL_CALLS]"])),
                    Some(_) => *self = Self::Headed(Headed::call(Style::Mistral)),
                }
                Step::Took(blank)
            }
            Self::Framed(framed) => framed.step(rest, io),
            Self::Headed(headed) => headed.step(rest, io),
            Self::Tagged(tagged) => tagged.step(rest, io),
            Self::Elements(elements) => elements.step(rest, io),
            Self::Pythonic(pythonic) => pythonic.step(rest, io),
            Self::Gemma(gemma) => gemma.step(rest, io),
        }
    }
}
