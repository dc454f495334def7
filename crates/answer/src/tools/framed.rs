//! Calls as JSON objects, one or a list of them, between markers: `<tool_call>{..}</tool_call>`, `[TOOL_CALLS][{..}]`;
//! or with no marker at all.

use super::{
    machine::{Io, Step},
    object::{Object, Strictness},
    text::{Begins, begins, blank_prefix},
};

/// Reads what stands behind an opening marker, or from a bracket on where calls need no marker.
#[derive(Debug)]
pub(super) struct Framed {
    /// Any of these closes the frame.
    ends: &'static [&'static str],
    strictness: Strictness,
    place: Place,
    list: List,
}

#[derive(Debug)]
enum Place {
    /// An object or a list is due.
    Open,
    Object(Object),
    /// Behind an object: more of them, or the end.
    Between,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum List {
    None,
    Open,
    Closed,
}

impl Framed {
    /// Behind a marker.
    pub(super) fn marked(ends: &'static [&'static str]) -> Self {
        Self { ends, strictness: Strictness::Marked, place: Place::Open, list: List::None }
    }

    /// At a bracket, without a marker: see [`Strictness::Alone`].
    pub(super) fn alone() -> Self {
        Self { strictness: Strictness::Alone, ..Self::marked(&[]) }
    }

    /// What was read of the call at hand may still turn out to be content.
    pub(super) fn is_undecided(&self) -> bool {
        match &self.place {
            Place::Open => true,
            Place::Object(object) => object.is_undecided(),
            Place::Between => false,
        }
    }

    /// Reads on.
    pub(super) fn step(&mut self, rest: &str, io: &mut Io<'_>) -> Step {
        if let Place::Object(object) = &mut self.place {
            let step = object.step(rest, io);
            let argued = object.is_argued();
            return match step {
                Step::Done(taken) => {
                    self.place = Place::Between;
                    Step::Took(taken)
                }
                // Models forget the bracket that closes the object.
                Step::Malformed(0) if argued => match self.end(rest, io.last) {
                    Step::Done(0) => step,
                    end => end,
                },
                Step::Took(_) | Step::More | Step::Malformed(_) => step,
            };
        }
        let blank = blank_prefix(rest);
        if blank > 0 {
            return Step::Took(blank);
        }
        let Some(&byte) = rest.as_bytes().first() else { return Step::More };
        if matches!(self.place, Place::Open) {
            return self.open(byte);
        }
        match (byte, self.list) {
            (b',', List::Open) => self.place = Place::Open,
            (b']', List::Open) => self.list = List::Closed,
            (b';', List::None) => {}
            // Models close brackets that they did not open.
            (b'}', List::None | List::Closed) if !self.ends.is_empty() => {}
            (b'{', List::None) => return self.open(byte),
            _ => return self.end(rest, io.last),
        }
        Step::Took(1)
    }

    fn open(&mut self, byte: u8) -> Step {
        match (byte, self.list) {
            (b'{', List::None | List::Open) => {
                self.place = Place::Object(Object::new(self.strictness));
                Step::Took(0)
            }
            (b'[', List::None) => {
                self.list = List::Open;
                Step::Took(1)
            }
            _ => Step::Malformed(0),
        }
    }

    fn end(&self, rest: &str, last: bool) -> Step {
        let mut perhaps = false;
        for end in self.ends {
            match begins(rest, end) {
                Begins::With => return Step::Done(end.len()),
                Begins::Perhaps => perhaps = true,
                Begins::No => {}
            }
        }
        match (perhaps, last) {
            (true, false) => Step::More,
            // The text was cut inside the closing marker.
            (true, true) => Step::Done(rest.len()),
            (false, _) => Step::Done(0),
        }
    }
}
