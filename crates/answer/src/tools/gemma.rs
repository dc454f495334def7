//! Gemma 4's calls: `<|tool_call>call:NAME{key:<|"|>text<|"|>,count:3}<tool_call|>`.

use super::{
    literal::{Dialect, Literal, Read},
    machine::{Io, Step, head_overflow, is_name},
    text::{Begins, begins, blank_prefix},
};

const CALL: &str = "call:";
const END: &str = "<tool_call|>";

/// Reads what stands behind `<|tool_call>`.
#[derive(Debug)]
pub(super) struct Gemma {
    place: Place,
}

#[derive(Debug)]
enum Place {
    Open,
    Name(String),
    Arguments(Literal),
    End,
}

impl Gemma {
    pub(super) fn new() -> Self {
        Self { place: Place::Open }
    }

    /// What was read of the call may still turn out to be content.
    pub(super) fn is_undecided(&self) -> bool {
        match self.place {
            Place::Open | Place::Name(_) => true,
            Place::Arguments(_) | Place::End => false,
        }
    }

    /// The text ended: what was held of a value goes out.
    pub(super) fn finish(&mut self, io: &mut Io<'_>) {
        if let Place::Arguments(literal) = &mut self.place {
            literal.cut_argument(io);
        }
    }

    /// Reads on.
    pub(super) fn step(&mut self, rest: &str, io: &mut Io<'_>) -> Step {
        match &mut self.place {
            Place::Open => match begins(rest, CALL) {
                Begins::With => {
                    self.place = Place::Name(String::new());
                    Step::Took(CALL.len())
                }
                Begins::Perhaps if !io.last => Step::More,
                Begins::Perhaps | Begins::No => Step::Malformed(0),
            },
            Place::Name(name) => {
                let end = rest.find('{');
                let taken = end.unwrap_or(rest.len());
                if let Some(taken) = head_overflow(name.len(), rest, taken) {
                    return Step::Malformed(taken);
                }
                name.push_str(&rest[..taken]);
                if end.is_none() {
                    return Step::took_or_more(taken);
                }
                let name = name.trim();
                if !is_name(name) {
                    return Step::Malformed(taken);
                }
                io.begin(name, None);
                self.place = Place::Arguments(Literal::new(Dialect::Gemma));
                Step::Took(taken)
            }
            Place::Arguments(literal) => match literal.step_argument(rest, io) {
                Read::Took(taken) => Step::Took(taken),
                Read::More => Step::More,
                Read::Done | Read::Bad => {
                    self.place = Place::End;
                    Step::Took(0)
                }
            },
            Place::End => match (blank_prefix(rest), begins(rest, END)) {
                (1.., _) => Step::Took(blank_prefix(rest)),
                (_, Begins::With) => Step::Done(END.len()),
                (_, Begins::Perhaps) if !io.last => Step::More,
                (_, Begins::Perhaps) => Step::Done(rest.len()),
                (_, Begins::No) => Step::Done(0),
            },
        }
    }
}
