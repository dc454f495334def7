//! JSON read in pieces: where a value ends, what a string says, and the text of a string written as JSON.

use serde_json::value::RawValue;

/// Finds the end of one JSON value by its brackets and quotes, without checking what is between them.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    kind: Kind,
    depth: u64,
    in_string: bool,
    escaped: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Kind {
    #[default]
    Unknown,
    Nested,
    Text,
    Scalar,
}

impl Scan {
    /// Reads on. Returns how many bytes belong to the value if it ends here, `None` if all do and more may follow. The value
    /// begins with the first byte ever given.
    pub(crate) fn feed(&mut self, text: &str) -> Option<usize> {
        for (at, &byte) in text.as_bytes().iter().enumerate() {
            if self.kind == Kind::Unknown {
                self.kind = match byte {
                    b'{' | b'[' => Kind::Nested,
                    b'"' => Kind::Text,
                    _ => Kind::Scalar,
                };
            }
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                if self.kind == Kind::Text && !self.in_string {
                    return Some(at + 1);
                }
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n' if self.kind == Kind::Scalar => return Some(at),
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(at + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

/// Reads the inside of a JSON string, behind its opening quote.
#[derive(Debug, Default)]
pub(crate) struct Unquote {
    escape: Escape,
    /// The first half of a surrogate pair.
    high: Option<u32>,
}

#[derive(Debug, Default, Clone, Copy)]
enum Escape {
    #[default]
    None,
    Begun,
    Unicode {
        digits: u32,
        value: u32,
    },
}

impl Unquote {
    /// Appends what `text` says. Returns how many bytes were read if the closing quote was among them (it is the last of
    /// them), `None` if the string goes on. Escapes that JSON does not know are taken literally.
    pub(crate) fn feed(&mut self, text: &str, into: &mut String) -> Option<usize> {
        for (at, character) in text.char_indices() {
            match self.escape {
                Escape::None => match character {
                    '"' => {
                        self.lone(into);
                        return Some(at + 1);
                    }
                    '\\' => self.escape = Escape::Begun,
                    _ => self.plain(character, into),
                },
                Escape::Begun => self.escaped(character, into),
                Escape::Unicode { digits, value } => match character.to_digit(16) {
                    Some(digit) if digits == 3 => {
                        self.escape = Escape::None;
                        self.unit(value << 4 | digit, into);
                    }
                    Some(digit) => self.escape = Escape::Unicode { digits: digits + 1, value: value << 4 | digit },
                    None => {
                        self.escape = Escape::None;
                        self.plain(char::REPLACEMENT_CHARACTER, into);
                        match character {
                            '"' => return Some(at + 1),
                            '\\' => self.escape = Escape::Begun,
                            _ => into.push(character),
                        }
                    }
                },
            }
        }
        None
    }

    fn escaped(&mut self, character: char, into: &mut String) {
        self.escape = Escape::None;
        match character {
            'n' => self.plain('\n', into),
            't' => self.plain('\t', into),
            'r' => self.plain('\r', into),
            'b' => self.plain('\u{8}', into),
            'f' => self.plain('\u{c}', into),
            'u' => self.escape = Escape::Unicode { digits: 0, value: 0 },
            other => self.plain(other, into),
        }
    }

    fn plain(&mut self, character: char, into: &mut String) {
        self.lone(into);
        into.push(character);
    }

    fn lone(&mut self, into: &mut String) {
        if self.high.take().is_some() {
            into.push(char::REPLACEMENT_CHARACTER);
        }
    }

    fn unit(&mut self, unit: u32, into: &mut String) {
        if let (Some(high), 0xDC00..=0xDFFF) = (self.high, unit) {
            self.high = None;
            let point = 0x10000 + ((high - 0xD800) << 10) + (unit - 0xDC00);
            into.push(char::from_u32(point).unwrap_or(char::REPLACEMENT_CHARACTER));
        } else if (0xD800..=0xDBFF).contains(&unit) {
            self.lone(into);
            self.high = Some(unit);
        } else {
            self.plain(char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER), into);
        }
    }
}

/// Appends `text` as it stands inside a JSON string.
pub(crate) fn quote_part(text: &str, into: &mut String) {
    for character in text.chars() {
        match character {
            '"' => into.push_str("\\\""),
            '\\' => into.push_str("\\\\"),
            '\n' => into.push_str("\\n"),
            '\r' => into.push_str("\\r"),
            '\t' => into.push_str("\\t"),
            control if (control as u32) < 0x20 => {
                into.push_str("\\u00");
                for shift in [4, 0] {
                    let digit = (control as u32 >> shift) & 0xF;
                    into.push(char::from_digit(digit, 16).unwrap_or('0'));
                }
            }
            other => into.push(other),
        }
    }
}

/// `text` as a whole JSON string.
pub(crate) fn quoted(text: &str) -> String {
    let mut json = String::with_capacity(text.len() + 2);
    json.push('"');
    quote_part(text, &mut json);
    json.push('"');
    json
}

/// Whether `text` is one valid JSON value.
pub(crate) fn is_valid(text: &str) -> bool {
    serde_json::from_str::<&RawValue>(text).is_ok()
}
