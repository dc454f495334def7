//! One call as a JSON object: `{"name": "f", "arguments": {..}}`, also with `parameters` or `args`, with the arguments as
//! a string that holds JSON, with the arguments first, and inside `{"type": "function", "function": {..}}`.

use super::{
    json::{Scan, Unquote},
    machine::{Io, MAX_HEAD_BYTES, Step, is_name},
    text::blank_prefix,
};

/// What an object must hold to be a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strictness {
    /// It stands behind a marker: unknown keys are skipped, every name is taken.
    Marked,
    /// It stands alone and may be an answer in JSON: only the keys of a call, only tools that are offered.
    Alone,
}

/// Reads one such object, from its opening bracket on.
#[derive(Debug)]
pub(super) struct Object {
    strictness: Strictness,
    place: Place,
    /// Open brackets of the object itself: 1, or 2 inside `"function"`.
    depth: u32,
    key: String,
    name: Option<String>,
    id: Option<String>,
    announced: bool,
    /// Arguments that came before the name.
    early: String,
    /// Something was sent as arguments.
    argued: bool,
    /// There was a key that calls do not have.
    odd: bool,
}

#[derive(Debug)]
enum Place {
    Start,
    KeyOrEnd,
    Key(Unquote),
    Colon,
    Value,
    Text {
        of: Member,
        unquote: Unquote,
        text: String,
    },
    Arguments(Scan),
    ArgumentText(Unquote),
    /// The arguments ended and went out; what follows is held until the object closes.
    Argued,
    Skip(Scan),
    CommaOrEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Member {
    Name,
    Id,
}

impl Object {
    pub(super) fn new(strictness: Strictness) -> Self {
        Self {
            strictness,
            place: Place::Start,
            depth: 0,
            key: String::new(),
            name: None,
            id: None,
            announced: false,
            early: String::new(),
            argued: false,
            odd: false,
        }
    }

    /// What was read since the arguments, or since the beginning, may still turn out to be content.
    pub(super) fn is_undecided(&self) -> bool {
        match self.place {
            Place::Arguments(_) | Place::ArgumentText(_) | Place::Argued => !self.announced,
            Place::Start
            | Place::KeyOrEnd
            | Place::Key(_)
            | Place::Colon
            | Place::Value
            | Place::Text { .. }
            | Place::Skip(_)
            | Place::CommaOrEnd => true,
        }
    }

    /// The call went out, and its arguments are whole.
    pub(super) fn is_argued(&self) -> bool {
        self.argued && self.is_undecided()
    }

    /// Reads on.
    pub(super) fn step(&mut self, rest: &str, io: &mut Io<'_>) -> Step {
        match &mut self.place {
            Place::Key(_) | Place::Text { .. } | Place::ArgumentText(_) => self.text(rest, io),
            Place::Arguments(scan) => {
                let end = scan.feed(rest);
                let taken = end.unwrap_or(rest.len());
                self.argue(&rest[..taken], io);
                self.value_read(Place::Argued, end.is_some(), taken)
            }
            Place::Skip(scan) => {
                let end = scan.feed(rest);
                self.value_read(Place::CommaOrEnd, end.is_some(), end.unwrap_or(rest.len()))
            }
            Place::Argued => {
                self.place = Place::CommaOrEnd;
                Step::Took(0)
            }
            Place::Start | Place::KeyOrEnd | Place::Colon | Place::Value | Place::CommaOrEnd => {
                let blank = blank_prefix(rest);
                match rest.as_bytes().get(blank) {
                    _ if blank > 0 => Step::Took(blank),
                    None => Step::More,
                    Some(&byte) => self.structure(byte, io),
                }
            }
        }
    }

    fn value_read(&mut self, next: Place, ended: bool, taken: usize) -> Step {
        if ended {
            self.place = next;
            return Step::Took(taken);
        }
        Step::took_or_more(taken)
    }

    fn structure(&mut self, byte: u8, io: &mut Io<'_>) -> Step {
        let next = match (&self.place, byte) {
            (Place::Start, b'{') => {
                self.depth = 1;
                Place::KeyOrEnd
            }
            (Place::KeyOrEnd, b'"') => {
                self.key.clear();
                Place::Key(Unquote::default())
            }
            (Place::KeyOrEnd | Place::CommaOrEnd, b'}') => {
                self.depth -= 1;
                if self.depth == 0 {
                    return self.close(io);
                }
                Place::CommaOrEnd
            }
            (Place::CommaOrEnd, b',') => Place::KeyOrEnd,
            (Place::Colon, b':') => Place::Value,
            (Place::Value, _) => return self.value(byte),
            _ => return Step::Malformed(0),
        };
        self.place = next;
        Step::Took(1)
    }

    /// Chooses how to read the value of the key just read, which begins with `byte`.
    fn value(&mut self, byte: u8) -> Step {
        let of = match self.key.as_str() {
            "name" => Some(Member::Name),
            "function" if byte == b'"' => Some(Member::Name),
            "id" | "call_id" => Some(Member::Id),
            _ => None,
        };
        let named = matches!(self.key.as_str(), "arguments" | "parameters" | "args");
        let arguments = named && !self.argued && self.early.is_empty();
        let (place, taken) = match (of, byte) {
            (Some(of), b'"') => (Place::Text { of, unquote: Unquote::default(), text: String::new() }, 1),
            (Some(Member::Name), _) => return Step::Malformed(0),
            (None, b'"') if arguments => (Place::ArgumentText(Unquote::default()), 1),
            // No arguments: the empty object is sent when the object closes.
            (None, b'n') if arguments => (Place::Skip(Scan::default()), 0),
            (None, _) if arguments => (Place::Arguments(Scan::default()), 0),
            (None, b'{') if self.key == "function" && self.depth == 1 => {
                self.depth = 2;
                (Place::KeyOrEnd, 1)
            }
            _ if self.strictness == Strictness::Alone && !matches!(self.key.as_str(), "type" | "id") => {
                return Step::Malformed(0);
            }
            _ if matches!(byte, b',' | b'}' | b']' | b':') => return Step::Malformed(0),
            _ => {
                self.odd |= !matches!(self.key.as_str(), "type" | "id");
                (Place::Skip(Scan::default()), 0)
            }
        };
        self.place = place;
        Step::Took(taken)
    }

    fn text(&mut self, rest: &str, io: &mut Io<'_>) -> Step {
        let end = match &mut self.place {
            Place::Key(unquote) => {
                let end = unquote.feed(rest, &mut self.key);
                shorten(&mut self.key);
                if end.is_some() {
                    self.place = Place::Colon;
                }
                end
            }
            Place::Text { of, unquote, text } => {
                let end = unquote.feed(rest, text);
                shorten(text);
                if let Some(taken) = end {
                    let (of, text) = (*of, std::mem::take(text));
                    self.place = Place::CommaOrEnd;
                    match of {
                        Member::Id => self.id = Some(text).filter(|id| !id.is_empty()),
                        Member::Name if !self.named(text, io) => return Step::Malformed(taken),
                        Member::Name => {}
                    }
                }
                end
            }
            Place::ArgumentText(unquote) => {
                let mut said = String::new();
                let end = unquote.feed(rest, &mut said);
                if end.is_some() {
                    self.place = Place::Argued;
                }
                self.argue(&said, io);
                end
            }
            Place::Start
            | Place::KeyOrEnd
            | Place::Colon
            | Place::Value
            | Place::Arguments(_)
            | Place::Argued
            | Place::Skip(_)
            | Place::CommaOrEnd => None,
        };
        match end {
            Some(taken) => Step::Took(taken),
            None => Step::took_or_more(rest.len()),
        }
    }

    /// The name is known. It goes out at once if the arguments came before it, else together with their beginning, as the
    /// id may still come.
    fn named(&mut self, name: String, io: &mut Io<'_>) -> bool {
        if !is_name(&name) || (self.strictness == Strictness::Alone && !io.schemas.offers(&name)) {
            return false;
        }
        if self.name.is_some() {
            return true;
        }
        self.name = Some(name);
        let early = std::mem::take(&mut self.early);
        if !early.is_empty() {
            self.argue(&early, io);
        }
        true
    }

    fn argue(&mut self, json: &str, io: &mut Io<'_>) {
        if json.is_empty() {
            return;
        }
        if self.name.is_none() {
            self.early.push_str(json);
            return;
        }
        self.announce(io);
        self.argued = true;
        io.arguments(json);
    }

    fn announce(&mut self, io: &mut Io<'_>) {
        if let Some(name) = self.name.as_deref().filter(|_| !self.announced) {
            self.announced = true;
            io.begin(name, self.id.take());
        }
    }

    fn close(&mut self, io: &mut Io<'_>) -> Step {
        // With an unknown key instead of arguments, these are lost or misspelled: nothing to call a tool with.
        if self.odd && !self.argued {
            return Step::Malformed(1);
        }
        self.announce(io);
        if !self.announced {
            return Step::Malformed(1);
        }
        if !self.argued {
            io.arguments("{}");
        }
        Step::Done(1)
    }
}

/// Nothing so long is a key or a name that matters here; what is cut off is not needed to see that.
fn shorten(text: &mut String) {
    if text.len() > MAX_HEAD_BYTES {
        text.truncate(text.floor_char_boundary(MAX_HEAD_BYTES));
    }
}
