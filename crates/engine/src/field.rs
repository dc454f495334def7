//! Finds one key in JSON that arrives in pieces, without parsing the rest.
//!
//! Works on bytes cut anywhere, keeps at most [`VALUE_LIMIT_BYTES`], and answers the same for every cut. A key is
//! recognised by its quotes and colon: inside a JSON string both quotes would be escaped, so text that a model wrote
//! never matches.

use memchr::{memmem::Finder, memrchr};

/// The longest object taken as a value. A `usage` object is a few hundred bytes.
const VALUE_LIMIT_BYTES: usize = 4096;

/// The value behind a key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    /// A whole object, its braces included.
    Object(&'a [u8]),
    /// Anything else, by its first byte.
    Other(u8),
}

/// One key on watch in one stream of bytes.
#[derive(Debug)]
pub(crate) struct Field {
    /// Searches for the key with its two quotes; there is no quote between them.
    finder: &'static Finder<'static>,
    /// Bytes of the key that the last piece ended with.
    matched: usize,
    state: State,
    /// The object so far.
    object: Vec<u8>,
    depth: u32,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Key,
    Colon,
    Value,
    Object,
}

impl Field {
    /// Watches for a key, given with its quotes.
    pub(crate) fn new(finder: &'static Finder<'static>) -> Self {
        Self { finder, matched: 0, state: State::Key, object: Vec::new(), depth: 0 }
    }

    /// Reads the next piece; `found` gets each value of the key that is complete with it.
    pub(crate) fn feed(&mut self, mut bytes: &[u8], mut found: impl FnMut(Value<'_>)) {
        while !bytes.is_empty() {
            match self.state {
                State::Key => {
                    let Some(end) = self.find_key(bytes) else { return };
                    bytes = &bytes[end..];
                    self.state = State::Colon;
                }
                State::Colon => {
                    bytes = bytes.trim_ascii_start();
                    match bytes.first() {
                        Some(b':') => {
                            bytes = &bytes[1..];
                            self.state = State::Value;
                        }
                        Some(_) => self.state = State::Key,
                        None => return,
                    }
                }
                State::Value => {
                    bytes = bytes.trim_ascii_start();
                    match bytes.first() {
                        Some(b'{') => {
                            self.object.clear();
                            self.depth = 0;
                            self.state = State::Object;
                        }
                        Some(&other) => {
                            found(Value::Other(other));
                            self.state = State::Key;
                        }
                        None => return,
                    }
                }
                State::Object => bytes = self.take_object(bytes, &mut found),
            }
        }
    }

    /// The offset behind the next key, if it ends in this piece.
    fn find_key(&mut self, bytes: &[u8]) -> Option<usize> {
        let key = self.finder.needle();
        let mut from = 0;
        while self.matched > 0 {
            if *bytes.get(from)? == key[self.matched] {
                from += 1;
                self.matched += 1;
                if self.matched == key.len() {
                    self.matched = 0;
                    return Some(from);
                }
            } else {
                // Only the first byte of a key is a quote before its last, so no other start lies in what matched.
                self.matched = 0;
            }
        }
        if let Some(at) = self.finder.find(&bytes[from..]) {
            return Some(from + at + key.len());
        }
        let tail = &bytes[bytes.len().saturating_sub(key.len() - 1).max(from)..];
        if let Some(at) = memrchr(b'"', tail)
            && key.starts_with(&tail[at..])
        {
            self.matched = tail.len() - at;
        }
        None
    }

    /// Takes bytes of the object up to its closing brace; returns what follows.
    fn take_object<'a>(&mut self, bytes: &'a [u8], found: &mut impl FnMut(Value<'_>)) -> &'a [u8] {
        for (at, byte) in bytes.iter().enumerate() {
            match byte {
                b'{' => self.depth += 1,
                b'}' => self.depth -= 1,
                _ => {}
            }
            self.object.push(*byte);
            let whole = self.depth == 0;
            if whole {
                found(Value::Object(&self.object));
            }
            if whole || self.object.len() == VALUE_LIMIT_BYTES {
                self.state = State::Key;
                return &bytes[at + 1..];
            }
        }
        &[]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    static KEY: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"usage\""));

    fn values(pieces: &[&[u8]]) -> Vec<String> {
        let mut field = Field::new(&KEY);
        let mut all = Vec::new();
        for piece in pieces {
            field.feed(piece, |value| {
                all.push(match value {
                    Value::Object(json) => String::from_utf8_lossy(json).into_owned(),
                    Value::Other(byte) => char::from(byte).to_string(),
                });
            });
        }
        all
    }

    #[test]
    fn values_are_found_wherever_the_bytes_are_cut() {
        let text = br#"{"a":"usage","b":"\"usage\": {\"x\":1}","usage" : null,"usage":{"p":1,"d":{"c":2}},""usage":{}}"#;
        let whole = values(&[text]);
        assert_eq!(whole, ["n", r#"{"p":1,"d":{"c":2}}"#, "{}"]);
        for first in 0..text.len() {
            for second in first..text.len() {
                assert_eq!(values(&[&text[..first], &text[first..second], &text[second..]]), whole, "{first} {second}");
            }
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(values(&bytes), whole);
    }

    #[test]
    fn an_object_without_an_end_is_given_up_at_the_bound() {
        let endless = format!("\"usage\":{}", "{".repeat(VALUE_LIMIT_BYTES * 3));
        let mut field = Field::new(&KEY);
        field.feed(endless.as_bytes(), |value| panic!("found {value:?}"));
        assert!(field.object.capacity() <= 2 * VALUE_LIMIT_BYTES);
        let mut found = 0;
        field.feed(b"\"usage\":{}", |_| found += 1);
        assert_eq!(found, 1);
    }
}
