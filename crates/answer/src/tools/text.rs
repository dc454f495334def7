//! Text on its way through a parser: where markers are in it, and what of it is content.

use crate::Delta;

/// White space held back at the edge of a marker, in bytes; more than this goes out as it is.
const MAX_BLANK_BYTES: usize = 1024;

/// Where the first of several markers is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// The marker with this number begins here.
    At { start: usize, marker: usize },
    /// No marker; up to here the text cannot become one either.
    Safe(usize),
}

/// Finds the first of `markers` in `text`. No marker may be the beginning of another. `last`: nothing will follow.
pub(crate) fn find(markers: &[&str], text: &str, last: bool) -> Found {
    let bytes = text.as_bytes();
    let mut from = 0;
    while let Some(step) = next_candidate(markers, &bytes[from..]) {
        let start = from + step;
        let rest = &bytes[start..];
        if let Some(marker) = markers.iter().position(|marker| rest.starts_with(marker.as_bytes())) {
            return Found::At { start, marker };
        }
        if !last && markers.iter().any(|marker| marker.as_bytes().starts_with(rest)) {
            return Found::Safe(start);
        }
        from = start + 1;
    }
    Found::Safe(text.len())
}

fn next_candidate(markers: &[&str], bytes: &[u8]) -> Option<usize> {
    let firsts = || markers.iter().filter_map(|marker| marker.as_bytes().first());
    let &first = firsts().next()?;
    if firsts().all(|&byte| byte == first) {
        return memchr::memchr(first, bytes);
    }
    bytes.iter().position(|byte| firsts().any(|first| first == byte))
}

/// How the beginning of `text` compares with one expected marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begins {
    With,
    /// All there is, is the beginning of the marker.
    Perhaps,
    No,
}

/// Whether `text` begins with `marker`.
pub(crate) fn begins(text: &str, marker: &str) -> Begins {
    if text.starts_with(marker) {
        Begins::With
    } else if marker.starts_with(text) {
        Begins::Perhaps
    } else {
        Begins::No
    }
}

/// How many bytes of white space `text` begins with.
pub(crate) fn blank_prefix(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Voice {
    Reasoning,
    Content,
}

/// Appends to the last delta, or begins one.
pub(crate) fn say(voice: Voice, text: &str, out: &mut Vec<Delta>) {
    if text.is_empty() {
        return;
    }
    match (voice, out.last_mut()) {
        (Voice::Reasoning, Some(Delta::Reasoning(said))) | (Voice::Content, Some(Delta::Content(said))) => {
            said.push_str(text);
        }
        (Voice::Reasoning, _) => out.push(Delta::Reasoning(text.to_owned())),
        (Voice::Content, _) => out.push(Delta::Content(text.to_owned())),
    }
}

/// Prose between markers. Line breaks next to a marker belong to the marker, and so does prose that is only white
/// space: templates put them there. All else goes out as it is.
#[derive(Debug)]
pub(crate) struct Prose {
    voice: Voice,
    /// White space that is dropped when a marker follows.
    blank: String,
    /// Something that is not white space went out since the last marker.
    started: bool,
    /// No marker was seen yet.
    fresh: bool,
}

impl Prose {
    /// Prose from the beginning of a text on.
    pub(crate) fn new(voice: Voice) -> Self {
        Self { voice, blank: String::new(), started: false, fresh: true }
    }

    /// Prose that begins behind a marker.
    pub(crate) fn behind_marker(voice: Voice) -> Self {
        Self { fresh: false, ..Self::new(voice) }
    }

    /// Whether only white space came since the beginning or the last marker.
    pub(crate) fn is_blank(&self) -> bool {
        !self.started
    }

    /// Takes more prose.
    pub(crate) fn push(&mut self, text: &str, out: &mut Vec<Delta>) {
        let mut text = text;
        if !self.started {
            let (blank, rest) = text.split_at(blank_prefix(text));
            self.blank.push_str(blank);
            if rest.is_empty() && self.blank.len() <= MAX_BLANK_BYTES {
                return;
            }
            self.started = true;
            let held = std::mem::take(&mut self.blank);
            let kept = if self.fresh { held.as_str() } else { held.trim_start_matches(is_break) };
            say(self.voice, kept, out);
            text = rest;
        }
        let body = text.trim_end_matches(is_break);
        if !body.is_empty() || self.blank.len() + text.len() > MAX_BLANK_BYTES {
            say(self.voice, &self.blank, out);
            self.blank.clear();
            say(self.voice, body, out);
        }
        self.blank.push_str(&text[body.len()..]);
    }

    /// A marker follows.
    pub(crate) fn marker(&mut self) {
        self.blank.clear();
        self.started = false;
        self.fresh = false;
    }

    /// Nothing follows.
    pub(crate) fn end(&mut self, out: &mut Vec<Delta>) {
        if self.started || self.fresh {
            say(self.voice, &self.blank, out);
        }
        self.blank.clear();
    }
}

fn is_break(character: char) -> bool {
    matches!(character, '\n' | '\r')
}
