//! Follows a stream of server-sent events without changing or storing it.
//!
//! Reads as much as a relay must know: how many events went by, whether a line or an event is open where the bytes end,
//! whether the stream has come to its own end, whether the engine reported an error inside it, and the token counts. The same
//! for every way of cutting the bytes; memory is constant.

use std::sync::LazyLock;

use memchr::{memchr2_iter, memmem::Finder};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    field::{Field, Value},
    usage::{Usage, UsageWatch},
};

static FINISH_KEY: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"finish_reason\""));

/// Bytes kept of the line being read: enough to tell its field and the start of its value.
const LINE_START_BYTES: usize = 48;

/// `event:` names that end a stream on endpoints without `[DONE]` (responses, messages).
const LAST_EVENTS: [&[u8]; 4] = [b"response.completed", b"response.incomplete", b"response.failed", b"message_stop"];

/// What stands open where the bytes end, so that more can be written behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Open {
    /// The next byte starts an event.
    Nothing,
    /// Lines of an event are there, its blank line is not.
    Event,
    /// A line has no end yet.
    Line,
}

/// A reader's place in one stream.
#[derive(Debug)]
pub(crate) struct Scanner {
    line: [u8; LINE_START_BYTES],
    line_bytes: usize,
    /// The last byte was a carriage return: a line feed right behind it belongs to the same line end.
    after_return: bool,
    event: EventKind,
    events: u64,
    done: bool,
    finished: bool,
    failed: bool,
    finish: Field,
    usage: UsageWatch,
}

/// What the open event holds so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EventKind {
    Empty,
    NoData,
    Data,
    Done,
}

impl Scanner {
    pub(crate) fn new() -> Self {
        Self {
            line: [0; LINE_START_BYTES],
            line_bytes: 0,
            after_return: false,
            event: EventKind::Empty,
            events: 0,
            done: false,
            finished: false,
            failed: false,
            finish: Field::new(&FINISH_KEY),
            usage: UsageWatch::new(),
        }
    }

    /// Reads the next bytes of the stream.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.usage.feed(bytes);
        let finished = &mut self.finished;
        self.finish.feed(bytes, |value| *finished |= value == Value::Other(b'"'));
        let mut start = 0;
        for at in memchr2_iter(b'\r', b'\n', bytes) {
            let second_half = std::mem::take(&mut self.after_return) && at == start && bytes[at] == b'\n';
            if !second_half {
                self.extend_line(&bytes[start..at]);
                self.end_line();
                self.after_return = bytes[at] == b'\r';
            }
            start = at + 1;
        }
        if start < bytes.len() {
            self.after_return = false;
            self.extend_line(&bytes[start..]);
        }
    }

    /// Events with data that are complete; `[DONE]` is not one.
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    /// Whether `[DONE]` went by, or the last event of an endpoint without it.
    pub(crate) fn is_done(&self) -> bool {
        self.done
    }

    /// Whether the stream may end here: it is done, or a choice gave its `finish_reason`.
    pub(crate) fn is_finished(&self) -> bool {
        self.done || self.finished
    }

    /// Whether the engine put an error into its stream. `[DONE]` may follow it all the same.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    pub(crate) fn usage(&self) -> Option<Usage> {
        self.usage.last()
    }

    /// What stands open where the bytes end.
    pub(crate) fn open(&self) -> Open {
        if self.line_bytes > 0 {
            return Open::Line;
        }
        match self.event {
            EventKind::Empty => Open::Nothing,
            EventKind::NoData | EventKind::Data | EventKind::Done => Open::Event,
        }
    }

    /// Line ends that close what is open, so that an event of our own can follow.
    pub(crate) fn closing(&self) -> &'static str {
        match self.open() {
            Open::Nothing => "",
            // A line feed behind a carriage return would only complete that line end.
            Open::Event if self.after_return => "\n\n",
            Open::Event => "\n",
            Open::Line => "\n\n",
        }
    }

    fn extend_line(&mut self, bytes: &[u8]) {
        let kept = self.line_bytes.min(LINE_START_BYTES);
        let room = bytes.len().min(LINE_START_BYTES - kept);
        self.line[kept..kept + room].copy_from_slice(&bytes[..room]);
        self.line_bytes = self.line_bytes.saturating_add(bytes.len());
    }

    fn end_line(&mut self) {
        let line = &self.line[..self.line_bytes.min(LINE_START_BYTES)];
        if line.is_empty() {
            self.events += u64::from(self.event == EventKind::Data);
            self.event = EventKind::Empty;
        } else if let Some(value) = field(line, b"data") {
            let done = value.trim_ascii_end() == b"[DONE]";
            self.done |= done;
            self.failed |= starts_error(value);
            self.event = if done && self.event != EventKind::Data { EventKind::Done } else { EventKind::Data };
        } else if line[0] != b':' {
            if let Some(name) = field(line, b"event") {
                self.done |= LAST_EVENTS.contains(&name.trim_ascii_end());
                self.failed |= name.trim_ascii_end() == b"error";
            }
            if self.event == EventKind::Empty {
                self.event = EventKind::NoData;
            }
        }
        self.line_bytes = 0;
    }
}

/// The value of a line's field, if the line is of that field.
fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    match line.strip_prefix(name)? {
        [] => Some(&[]),
        [b':', value @ ..] => Some(value.trim_ascii_start()),
        _ => None,
    }
}

/// Whether a value begins as `{"error": ` and something other than null.
fn starts_error(value: &[u8]) -> bool {
    let inner = || {
        let rest = value.strip_prefix(b"{")?.trim_ascii_start().strip_prefix(b"\"error\"")?;
        let rest = rest.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        rest.first().copied()
    };
    inner().is_some_and(|first| first != b'n')
}

/// The JSON text of the first event's data and the HTTP status in it, if that event is an error.
///
/// `held` is the beginning of a stream. Only called on what was held back before the answer's head went out.
pub(crate) fn first_error(held: &[u8]) -> Option<(Option<u16>, &str)> {
    #[derive(Deserialize)]
    struct ErrorData<'a> {
        #[serde(borrow)]
        error: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct ErrorCode {
        code: u16,
    }
    let data = std::str::from_utf8(held)
        .unwrap_or_else(|broken| std::str::from_utf8(&held[..broken.valid_up_to()]).unwrap_or_default())
        .split(['\n', '\r'])
        .find_map(|line| line.strip_prefix("data:"))?
        .trim();
    let error = serde_json::from_str::<ErrorData<'_>>(data).ok()?.error?;
    let code = serde_json::from_str::<ErrorCode>(error.get()).ok().map(|error| error.code);
    Some((code, data))
}

#[cfg(test)]
mod tests;
