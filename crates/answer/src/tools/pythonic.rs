//! Calls as a Python list: `[get_weather(city='Paris', days=3), now()]`, in Llama 4 also between `<|python_start|>` and
//! `<|python_end|>`.

use super::{
    json::quoted,
    literal::{Dialect, Literal, Read},
    machine::{Io, Step, head_overflow, is_name},
    text::blank_prefix,
};

/// Reads such a list.
#[derive(Debug)]
pub(super) struct Pythonic {
    place: Place,
    function: String,
    /// The call at hand went out.
    announced: bool,
    filled: bool,
}

#[derive(Debug)]
enum Place {
    /// The list's opening bracket is due.
    Open,
    Function(String),
    /// Behind the opening parenthesis or a comma.
    KeyOrEnd,
    Key(String),
    Equals(String),
    Value(Literal),
    CommaOrEnd,
    Between,
}

impl Pythonic {
    /// Before the opening bracket.
    pub(super) fn new() -> Self {
        Self { place: Place::Open, function: String::new(), announced: false, filled: false }
    }

    /// What was read of the call at hand may still turn out to be content.
    pub(super) fn is_undecided(&self) -> bool {
        !self.announced
    }

    /// The text ended: what was held of a value goes out.
    pub(super) fn finish(&mut self, io: &mut Io<'_>) {
        match &mut self.place {
            Place::Value(literal) => literal.cut_argument(io),
            Place::Key(word) | Place::Equals(word) => io.content(word),
            Place::Open | Place::Function(_) | Place::KeyOrEnd | Place::CommaOrEnd | Place::Between => {}
        }
    }

    /// Reads on.
    pub(super) fn step(&mut self, rest: &str, io: &mut Io<'_>) -> Step {
        match &mut self.place {
            Place::Value(literal) => match literal.step_argument(rest, io) {
                Read::Took(taken) => Step::Took(taken),
                Read::More => Step::More,
                Read::Done => {
                    self.place = Place::CommaOrEnd;
                    Step::Took(0)
                }
                Read::Bad => Step::Done(0),
            },
            Place::Function(word) | Place::Key(word) => {
                let end = rest.find(|character: char| !is_word(character));
                let taken = end.unwrap_or(rest.len());
                if let Some(taken) = head_overflow(word.len(), rest, taken) {
                    return self.odd(taken, io, rest);
                }
                word.push_str(&rest[..taken]);
                match end {
                    None => Step::took_or_more(taken),
                    Some(_) => self.word_read(taken, rest, io),
                }
            }
            Place::Open | Place::KeyOrEnd | Place::Equals(_) | Place::CommaOrEnd | Place::Between => {
                let blank = blank_prefix(rest);
                match rest.as_bytes().get(blank) {
                    _ if blank > 0 => Step::Took(blank),
                    None => Step::More,
                    Some(&byte) => self.structure(byte, rest, io),
                }
            }
        }
    }

    fn word_read(&mut self, taken: usize, rest: &str, io: &mut Io<'_>) -> Step {
        match &mut self.place {
            Place::Function(word) if word.is_empty() => {
                // White space before the name.
                let blank = blank_prefix(rest);
                if blank > 0 { Step::Took(blank) } else { self.odd(0, io, rest) }
            }
            Place::Function(word) => {
                let offered = is_name(word) && io.schemas.offers(word);
                if !offered || !rest[taken..].starts_with('(') {
                    return self.odd(taken, io, rest);
                }
                self.function = std::mem::take(word);
                self.place = Place::KeyOrEnd;
                Step::Took(taken + 1)
            }
            Place::Key(word) if word.is_empty() => self.odd(0, io, rest),
            Place::Key(word) => {
                self.place = Place::Equals(std::mem::take(word));
                Step::Took(taken)
            }
            Place::Open | Place::KeyOrEnd | Place::Equals(_) | Place::Value(_) | Place::CommaOrEnd | Place::Between => Step::Malformed(0),
        }
    }

    fn structure(&mut self, byte: u8, rest: &str, io: &mut Io<'_>) -> Step {
        match (&mut self.place, byte) {
            (Place::Open, b'[') => self.function_due(),
            (Place::KeyOrEnd | Place::CommaOrEnd, b')') => {
                self.announce(io);
                io.arguments(if self.filled { "}" } else { "{}" });
                self.place = Place::Between;
            }
            (Place::KeyOrEnd, _) => {
                self.place = Place::Key(String::new());
                return Step::Took(0);
            }
            (Place::Equals(key), b'=') => {
                let key = std::mem::take(key);
                self.announce(io);
                io.arguments(if self.filled { "," } else { "{" });
                io.arguments(&quoted(&key));
                io.arguments(":");
                self.filled = true;
                self.place = Place::Value(Literal::new(Dialect::Python));
            }
            (Place::CommaOrEnd, b',') => self.place = Place::KeyOrEnd,
            (Place::Between, b',') => self.function_due(),
            (Place::Between, b']') => return Step::Done(1),
            _ => return self.odd(0, io, rest),
        }
        Step::Took(1)
    }

    fn function_due(&mut self) {
        self.place = Place::Function(String::new());
        (self.announced, self.filled) = (false, false);
    }

    fn announce(&mut self, io: &mut Io<'_>) {
        if !self.announced {
            self.announced = true;
            io.begin(&self.function, None);
        }
    }

    /// Not what a call looks like. A word that was read of a call that went out already is content with what follows.
    fn odd(&mut self, taken: usize, io: &mut Io<'_>, rest: &str) -> Step {
        if !self.announced {
            return Step::Malformed(taken);
        }
        if let Place::Key(word) | Place::Equals(word) = &self.place {
            io.content(word);
        }
        io.content(&rest[..taken]);
        Step::Done(taken)
    }
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '.' | '-')
}
