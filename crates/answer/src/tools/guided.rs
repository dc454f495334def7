//! Calls where the client said which tool is to be called, or that one is: the engine was bound to JSON, which needs no marker.
//! An engine that cannot be bound writes what its family writes, so the first character decides.

use super::{
    calls::Calls,
    calls::IdStyle,
    json::Scan,
    state::State,
    text::{Prose, Voice, blank_prefix},
};
use crate::Delta;

/// White space held before the first character, in bytes.
const MAX_BLANK_BYTES: usize = 1024;

/// The arguments of one named tool, and nothing else.
#[derive(Debug)]
pub(super) struct Named {
    name: String,
    place: Place,
    calls: Calls,
    prose: Prose,
}

#[derive(Debug)]
enum Place {
    Before,
    Arguments(Scan),
    Behind,
}

impl Named {
    pub(super) fn new(name: String, style: IdStyle, seed: u64) -> Self {
        Self { name, place: Place::Before, calls: Calls::new(style, seed), prose: Prose::new(Voice::Content) }
    }

    /// Takes more text, the first of it beginning with the arguments' bracket.
    pub(super) fn push(&mut self, text: &str, out: &mut Vec<Delta>) {
        let mut text = text;
        if let Place::Before = self.place {
            if text.is_empty() {
                return;
            }
            self.prose.marker();
            self.calls.begin(&self.name, None, out);
            self.place = Place::Arguments(Scan::default());
        }
        if let Place::Arguments(scan) = &mut self.place {
            let end = scan.feed(text);
            let (arguments, behind) = text.split_at(end.unwrap_or(text.len()));
            self.calls.arguments(arguments, out);
            text = behind;
            if end.is_some() {
                self.place = Place::Behind;
            }
        }
        self.prose.push(text, out);
    }

    pub(super) fn finish(&mut self, out: &mut Vec<Delta>) {
        self.prose.end(out);
    }
}

/// What reads a text, chosen by its first character.
#[derive(Debug)]
pub(super) enum Reader {
    /// Nothing came but white space.
    Undecided(Box<Choices>),
    Named(Box<Named>),
    Family(Box<State>),
    Plain,
}

/// What [`Reader::Undecided`] chooses from.
#[derive(Debug)]
pub(super) struct Choices {
    /// For JSON.
    pub(super) guided: Guided,
    /// For anything else; content if there is none.
    pub(super) family: Option<State>,
    pub(super) blank: String,
}

/// What the engine was bound to.
#[derive(Debug)]
pub(super) enum Guided {
    /// The arguments of this tool.
    Named(Box<Named>),
    /// A list of calls.
    Required(Box<State>),
}

impl Reader {
    pub(super) fn push(&mut self, text: &str, out: &mut Vec<Delta>) {
        if let Self::Undecided(choices) = self {
            let blank = blank_prefix(text);
            let first = text.as_bytes().get(blank).copied();
            if first.is_none() && choices.blank.len() + text.len() <= MAX_BLANK_BYTES {
                return choices.blank.push_str(text);
            }
            self.decide(first, out);
            if let Self::Named(named) = self {
                return named.push(&text[blank..], out);
            }
        }
        match self {
            Self::Undecided(_) => {}
            Self::Named(named) => named.push(text, out),
            Self::Family(state) => state.push(text, out),
            Self::Plain => super::text::say(Voice::Content, text, out),
        }
    }

    pub(super) fn finish(&mut self, out: &mut Vec<Delta>) {
        self.decide(None, out);
        match self {
            Self::Named(named) => named.finish(out),
            Self::Family(state) => state.finish(out),
            Self::Undecided(_) | Self::Plain => {}
        }
    }

    /// Chooses by the first character that is not white space, if there is one.
    fn decide(&mut self, first: Option<u8>, out: &mut Vec<Delta>) {
        let choices = match std::mem::replace(self, Self::Plain) {
            Self::Undecided(choices) => *choices,
            decided => return *self = decided,
        };
        *self = match (choices.guided, first) {
            (Guided::Named(named), Some(b'{')) => return *self = Self::Named(named),
            (Guided::Required(state), Some(b'{' | b'[')) => Self::Family(state),
            (Guided::Named(_) | Guided::Required(_), _) => choices.family.map_or(Self::Plain, |state| Self::Family(Box::new(state))),
        };
        self.push(&choices.blank, out);
    }
}
