//! What the parsers of all families have in common: how one step of theirs ends and what they may touch.

use super::{calls::Calls, schema::Schemas, text::Prose};
use crate::Delta;

/// Longest name of a tool or a parameter with what stands around it, in bytes.
pub(super) const MAX_HEAD_BYTES: usize = 1024;

/// How one step of a parser inside a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// So many bytes were read; there may be more to do with what is left.
    Took(usize),
    /// More text is needed.
    More,
    /// So many bytes were read and the call, or the run of calls, is over.
    Done(usize),
    /// This is no call: what was held since it seemed to begin is content, and so many bytes more.
    Malformed(usize),
}

impl Step {
    /// After reading `taken` bytes from a text that held no more: `More` if it was none.
    pub(super) fn took_or_more(taken: usize) -> Self {
        if taken == 0 { Self::More } else { Self::Took(taken) }
    }
}

/// What a parser reads besides the text, and where its results go.
pub(super) struct Io<'a> {
    pub(super) prose: &'a mut Prose,
    pub(super) calls: &'a mut Calls,
    pub(super) schemas: &'a Schemas,
    pub(super) out: &'a mut Vec<Delta>,
    /// Nothing follows the text at hand.
    pub(super) last: bool,
}

impl Io<'_> {
    /// A call is certain: it begins with its name.
    pub(super) fn begin(&mut self, name: &str, id: Option<String>) {
        self.prose.marker();
        self.calls.begin(name, id, self.out);
    }

    pub(super) fn arguments(&mut self, json: &str) {
        self.calls.arguments(json, self.out);
    }

    /// Text between calls that belongs to none.
    pub(super) fn content(&mut self, text: &str) {
        self.prose.push(text, self.out);
    }
}

/// How much of `rest` a head of `held` bytes can take in, if `wanted` bytes are too much for it. Exact to the byte, so that
/// the same text is read the same way however it was cut.
pub(super) fn head_overflow(held: usize, rest: &str, wanted: usize) -> Option<usize> {
    (held + wanted > MAX_HEAD_BYTES).then(|| rest.floor_char_boundary(MAX_HEAD_BYTES.saturating_sub(held)))
}

/// Whether a tool can have this name.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 256
        && !name.contains(|character: char| {
            character.is_whitespace() || character.is_control() || matches!(character, '<' | '>' | '{' | '}' | '"' | '(' | ')' | '|')
        })
}
