//! Values that are almost JSON, turned into JSON as they come: Python literals, and the values of Gemma 4.

use super::{
    json::{is_valid, quote_part, quoted},
    machine::Io,
    text::{Begins, Found, begins, blank_prefix, find},
};

/// Values nested deeper than this are malformed.
const MAX_DEPTH: usize = 128;
/// Longest number or word, in bytes.
const MAX_WORD_BYTES: usize = 4096;
/// What Gemma 4 puts around strings.
const GEMMA_QUOTE: &str = "<|\"|>";

/// How values are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `'a'`, `"a"`, `True`, `None`, `[1, 2]`, `(1, 2)`, `{'k': 1}`.
    Python,
    /// `<|"|>a<|"|>`, `true`, `{k:1}`.
    Gemma,
}

/// What came of reading on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Read {
    /// So many bytes were read and there is more to read.
    Took(usize),
    /// More text is needed.
    More,
    /// The value ended before the rest.
    Done,
    /// This is no value.
    Bad,
}

/// Reads one value in pieces.
#[derive(Debug)]
pub(crate) struct Literal {
    dialect: Dialect,
    levels: Vec<Level>,
    place: Place,
}

#[derive(Debug)]
struct Level {
    close: u8,
    /// Something is in it already, so that a comma is due before what comes next.
    filled: bool,
}

#[derive(Debug)]
enum Place {
    Value,
    Key,
    Word { word: String, key: bool },
    Text { quote: Quote, escape: Escape, key: bool },
    Colon,
    After,
}

#[derive(Debug, Clone, Copy)]
enum Quote {
    Single(u8),
    Triple(u8),
    Gemma,
}

#[derive(Debug, Clone, Copy)]
enum Escape {
    None,
    Begun,
    Hex { left: u32, value: u32 },
}

impl Literal {
    pub(crate) fn new(dialect: Dialect) -> Self {
        Self { dialect, levels: Vec::new(), place: Place::Value }
    }

    /// Reads on, appending JSON. `last`: nothing follows `rest`.
    fn step(&mut self, rest: &str, last: bool, json: &mut String) -> Read {
        match &mut self.place {
            Place::Text { .. } => self.text(rest, last, json),
            Place::Word { .. } => self.word(rest, last, json),
            Place::Value | Place::Key | Place::Colon | Place::After => {
                let blank = blank_prefix(rest);
                match rest.as_bytes().get(blank) {
                    _ if blank > 0 => Read::Took(blank),
                    None => Read::More,
                    Some(&byte) => self.structure(byte, rest, last, json),
                }
            }
        }
    }

    /// Reads on in an argument of a call.
    pub(super) fn step_argument(&mut self, rest: &str, io: &mut Io<'_>) -> Read {
        let mut json = String::new();
        let read = self.step(rest, io.last, &mut json);
        io.arguments(&json);
        read
    }

    /// The text ended inside an argument: what was held of a word goes out.
    pub(super) fn cut_argument(&mut self, io: &mut Io<'_>) {
        if matches!(&self.place, Place::Word { word, .. } if !word.is_empty()) {
            let mut json = String::new();
            self.word("", true, &mut json);
            io.arguments(&json);
        }
    }

    fn structure(&mut self, byte: u8, rest: &str, last: bool, json: &mut String) -> Read {
        let closes = self.levels.last().is_some_and(|level| level.close == byte);
        match self.place {
            Place::After if self.levels.is_empty() => return Read::Done,
            Place::After if byte == b',' => {
                let map = self.levels.last().is_some_and(|level| level.close == b'}');
                self.place = if map { Place::Key } else { Place::Value };
                return Read::Took(1);
            }
            Place::Colon if byte == b':' => {
                json.push(':');
                self.place = Place::Value;
                return Read::Took(1);
            }
            Place::Colon => return Read::Bad,
            // A value is due behind the colon of a map.
            Place::Value if closes && byte == b'}' => return Read::Bad,
            Place::After | Place::Key | Place::Value if closes => {
                self.levels.pop();
                json.push(if byte == b'}' { '}' } else { ']' });
                self.place = Place::After;
                return Read::Took(1);
            }
            Place::After => return Read::Bad,
            Place::Key | Place::Value | Place::Word { .. } | Place::Text { .. } => {}
        }
        let key = matches!(self.place, Place::Key);
        match byte {
            b'[' | b'(' | b'{' if !key => self.open(byte, json),
            b'\'' | b'"' if self.dialect == Dialect::Python => self.quote(byte, rest, last, json),
            b'<' if self.dialect == Dialect::Gemma => match begins(rest, GEMMA_QUOTE) {
                Begins::With => self.begin_text(Quote::Gemma, key, json),
                Begins::Perhaps if !last => Read::More,
                Begins::Perhaps | Begins::No => Read::Bad,
            },
            b',' | b':' | b')' | b']' | b'}' | b'[' | b'(' | b'{' => Read::Bad,
            _ => {
                self.place = Place::Word { word: String::new(), key };
                Read::Took(0)
            }
        }
    }

    fn due(&mut self, key: bool, json: &mut String) {
        if let Some(level) = self.levels.last_mut().filter(|level| key || level.close != b'}') {
            if level.filled {
                json.push(',');
            }
            level.filled = true;
        }
    }

    fn open(&mut self, byte: u8, json: &mut String) -> Read {
        if self.levels.len() == MAX_DEPTH {
            return Read::Bad;
        }
        self.due(false, json);
        let close = match byte {
            b'[' => b']',
            b'(' => b')',
            _ => b'}',
        };
        self.levels.push(Level { close, filled: false });
        json.push(if byte == b'{' { '{' } else { '[' });
        self.place = if byte == b'{' { Place::Key } else { Place::Value };
        Read::Took(1)
    }

    fn quote(&mut self, byte: u8, rest: &str, last: bool, json: &mut String) -> Read {
        let key = matches!(self.place, Place::Key);
        let run = rest.bytes().take(3).take_while(|&next| next == byte).count();
        if run == rest.len() && run < 3 && !last {
            return Read::More;
        }
        if run < 3 {
            return self.begin_text(Quote::Single(byte), key, json);
        }
        self.begin_text(Quote::Triple(byte), key, json)
    }

    fn begin_text(&mut self, quote: Quote, key: bool, json: &mut String) -> Read {
        self.due(key, json);
        json.push('"');
        self.place = Place::Text { quote, escape: Escape::None, key };
        Read::Took(quote_len(quote))
    }

    fn text(&mut self, rest: &str, last: bool, json: &mut String) -> Read {
        let Place::Text { quote, escape, key } = &mut self.place else { return Read::Bad };
        let (quote, key) = (*quote, *key);
        if let Quote::Gemma = quote {
            return match find(&[GEMMA_QUOTE], rest, last) {
                Found::At { start, .. } => {
                    quote_part(&rest[..start], json);
                    self.end_text(key, json);
                    Read::Took(start + GEMMA_QUOTE.len())
                }
                Found::Safe(0) => Read::More,
                Found::Safe(safe) => {
                    quote_part(&rest[..safe], json);
                    Read::Took(safe)
                }
            };
        }
        for (at, character) in rest.char_indices() {
            let plain = matches!(escape, Escape::None);
            let closing = match quote {
                Quote::Single(byte) | Quote::Triple(byte) => plain && character == char::from(byte),
                Quote::Gemma => false,
            };
            if closing {
                let run = rest[at..].bytes().take(3).take_while(|&next| char::from(next) == character).count();
                let needed = quote_len(quote);
                if run >= needed {
                    self.end_text(key, json);
                    return Read::Took(at + needed);
                }
                if at + run == rest.len() && !last {
                    return if at == 0 { Read::More } else { Read::Took(at) };
                }
            }
            unescape(escape, character, json);
        }
        if rest.is_empty() { Read::More } else { Read::Took(rest.len()) }
    }

    fn end_text(&mut self, key: bool, json: &mut String) {
        json.push('"');
        self.place = if key { Place::Colon } else { Place::After };
    }

    fn word(&mut self, rest: &str, last: bool, json: &mut String) -> Read {
        let Place::Word { word, key } = &mut self.place else { return Read::Bad };
        let python = self.dialect == Dialect::Python;
        let key = *key;
        let end = rest.find(|character: char| match character {
            ',' | ')' | ']' | '}' => true,
            ':' => key || python,
            '<' => !python,
            other => python && other.is_whitespace(),
        });
        let mut taken = end.unwrap_or(rest.len());
        let long = word.len() + taken > MAX_WORD_BYTES;
        if long {
            // It ends here, which the reader of what follows will not like.
            taken = rest.floor_char_boundary(MAX_WORD_BYTES - word.len());
        }
        word.push_str(&rest[..taken]);
        if end.is_none() && !last && !long {
            return if taken == 0 { Read::More } else { Read::Took(taken) };
        }
        let word = std::mem::take(word);
        self.due(key, json);
        if key {
            json.push_str(&quoted(word.trim()));
            self.place = Place::Colon;
        } else {
            json.push_str(&word_json(word.trim()));
            self.place = Place::After;
        }
        Read::Took(taken)
    }
}

fn quote_len(quote: Quote) -> usize {
    match quote {
        Quote::Single(_) => 1,
        Quote::Triple(_) => 3,
        Quote::Gemma => GEMMA_QUOTE.len(),
    }
}

fn unescape(escape: &mut Escape, character: char, json: &mut String) {
    let mut buffer = [0; 4];
    let plain = match *escape {
        Escape::None if character == '\\' => {
            *escape = Escape::Begun;
            return;
        }
        Escape::None => character,
        Escape::Begun => {
            *escape = Escape::None;
            match character {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                'b' => '\u{8}',
                'f' => '\u{c}',
                'a' => '\u{7}',
                'v' => '\u{b}',
                '0' => '\0',
                '\n' => return,
                'x' | 'u' | 'U' => {
                    let left = match character {
                        'x' => 2,
                        'u' => 4,
                        _ => 8,
                    };
                    *escape = Escape::Hex { left, value: 0 };
                    return;
                }
                '\'' | '"' | '\\' => character,
                // Python leaves the backslash of an escape it does not know.
                other => {
                    json.push_str("\\\\");
                    other
                }
            }
        }
        Escape::Hex { left, value } => match character.to_digit(16) {
            Some(digit) => {
                let value = value.wrapping_shl(4) | digit;
                if left > 1 {
                    *escape = Escape::Hex { left: left - 1, value };
                    return;
                }
                *escape = Escape::None;
                char::from_u32(value).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            None => {
                *escape = Escape::None;
                json.push(char::REPLACEMENT_CHARACTER);
                character
            }
        },
    };
    quote_part(plain.encode_utf8(&mut buffer), json);
}

fn word_json(word: &str) -> String {
    match word {
        "True" | "true" => return "true".to_owned(),
        "False" | "false" => return "false".to_owned(),
        "None" | "null" => return "null".to_owned(),
        _ => {}
    }
    if is_valid(word) {
        return word.to_owned();
    }
    let digits = word.replace('_', "");
    let numeric = digits.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'+' | b'-' | b'e' | b'E'));
    match digits.parse::<f64>() {
        Ok(number) if numeric && number.is_finite() => {
            serde_json::Number::from_f64(number).map_or_else(|| quoted(word), |number| number.to_string())
        }
        _ => quoted(word),
    }
}

/// One whole Python literal as JSON; `None` if it is none. A bare word is none either, but for `True`, `False` and `None`.
pub(crate) fn to_json(text: &str) -> Option<String> {
    let mut literal = Literal::new(Dialect::Python);
    let mut json = String::with_capacity(text.len());
    let mut rest = text;
    loop {
        match literal.step(rest, true, &mut json) {
            Read::Took(taken) => rest = &rest[taken..],
            Read::Done | Read::Bad => return None,
            Read::More => break,
        }
    }
    let whole = matches!(literal.place, Place::After) && literal.levels.is_empty() && rest.is_empty();
    let bare = !text.starts_with(['\'', '"']) && json.starts_with('"');
    (whole && !bare).then_some(json)
}
