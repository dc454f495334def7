//! Where a text is the bytes of its tokens.

use prompt::Vocabulary;

/// Byte tokens in a row after which whole characters no longer wait for the end of the row.
const MAX_ROW_BYTES: usize = 1024;
/// How often a token of spaces is repeated to see how many of them a text loses in front: more than any model takes.
const PROBE: usize = 8;

/// Bytes whose text is not known yet.
#[derive(Debug)]
pub(crate) struct Bytes {
    waiting: Vec<u8>,
    /// The waiting bytes are a row of byte tokens.
    is_row: bool,
    front: Front,
}

/// Spaces in front of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Front {
    /// Nobody has asked how many a text loses.
    Unknown,
    /// It loses so many more.
    Loses(usize),
    /// The text has begun.
    Over,
}

impl Bytes {
    pub(super) fn new(follows_text: bool) -> Self {
        Self { waiting: Vec::new(), is_row: false, front: if follows_text { Front::Over } else { Front::Unknown } }
    }

    pub(super) fn is_settled(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn push(&mut self, id: u32, vocabulary: &Vocabulary, text: &mut String) {
        let bytes = vocabulary.token_bytes(id);
        if self.front == Front::Unknown && bytes.starts_with(b" ") {
            self.front = Front::Loses(lost_in_front(id, vocabulary));
        }
        let before = text.len();
        let is_row = vocabulary.is_byte_token(id);
        if is_row != self.is_row {
            self.settle(text);
            self.is_row = is_row;
        }
        if is_row {
            self.waiting.extend_from_slice(bytes);
            if self.waiting.len() >= MAX_ROW_BYTES {
                self.take_whole_characters(text);
            }
        } else if self.waiting.is_empty() {
            let rest = append_known(bytes, text);
            self.waiting.extend_from_slice(rest);
        } else {
            self.waiting.extend_from_slice(bytes);
            self.take_whole_characters(text);
        }
        self.strip(before, text);
    }

    pub(super) fn finish(&mut self, text: &mut String) {
        let before = text.len();
        self.settle(text);
        self.strip(before, text);
    }

    /// Decides on the waiting bytes: nothing that follows belongs to them.
    fn settle(&mut self, text: &mut String) {
        if self.waiting.is_empty() {
            return;
        }
        match std::str::from_utf8(&self.waiting) {
            Ok(known) => text.push_str(known),
            Err(_) if self.is_row => text.extend(self.waiting.iter().map(|_| char::REPLACEMENT_CHARACTER)),
            // The beginning of one character.
            Err(_) => text.push(char::REPLACEMENT_CHARACTER),
        }
        self.waiting.clear();
    }

    fn take_whole_characters(&mut self, text: &mut String) {
        let rest = append_known(&self.waiting, text).len();
        self.waiting.drain(..self.waiting.len() - rest);
    }

    /// Takes from `text`, from `start` on, the spaces that a text loses in front.
    fn strip(&mut self, start: usize, text: &mut String) {
        if self.front == Front::Over || text.len() == start {
            return;
        }
        let Front::Loses(most) = self.front else {
            self.front = Front::Over;
            return;
        };
        let spaces = text.as_bytes()[start..].iter().take(most).take_while(|byte| **byte == b' ').count();
        text.drain(start..start + spaces);
        self.front = if text.len() > start || spaces == most { Front::Over } else { Front::Loses(most - spaces) };
    }
}

/// Appends what of `bytes` is known: characters, and U+FFFD for what cannot become one. Returns the beginning of a character at
/// the end.
fn append_known<'a>(mut bytes: &'a [u8], text: &mut String) -> &'a [u8] {
    loop {
        match std::str::from_utf8(bytes) {
            Ok(known) => {
                text.push_str(known);
                return &[];
            }
            Err(error) => {
                let (known, rest) = bytes.split_at(error.valid_up_to());
                text.push_str(std::str::from_utf8(known).unwrap_or_default());
                let Some(wrong) = error.error_len() else { return rest };
                text.push(char::REPLACEMENT_CHARACTER);
                bytes = &rest[wrong..];
            }
        }
    }
}

/// How many of the spaces that `id` begins with a text loses that begins with it; all that it may lose where `id` is spaces
/// only.
fn lost_in_front(id: u32, vocabulary: &Vocabulary) -> usize {
    let bytes = vocabulary.token_bytes(id);
    let times = if bytes.iter().all(|byte| *byte == b' ') { PROBE } else { 1 };
    let spaces = |bytes: &[u8]| bytes.iter().take_while(|byte| **byte == b' ').count();
    let kept = spaces(vocabulary.decode(&vec![id; times], false).as_bytes());
    (spaces(bytes) * times).saturating_sub(kept)
}
