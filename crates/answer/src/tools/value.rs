//! One parameter written as text, on its way to JSON.

use super::{json::quote_part, machine::Io, schema::Types};

/// Longest value that is not a string, in bytes; a longer one goes out as a string.
const MAX_VALUE_BYTES: usize = 64 * 1024;

/// A string goes out as it comes, what may be something else when it is whole.
#[derive(Debug)]
pub(super) struct Value {
    types: Types,
    /// What is held until the value is whole.
    held: String,
    /// The opening quote went out: the rest follows as it comes.
    open: bool,
    started: bool,
    /// A line break that is dropped if the value ends behind it.
    line_break: bool,
}

impl Value {
    pub(super) fn new(types: Types) -> Self {
        Self { types, held: String::new(), open: false, started: false, line_break: false }
    }

    /// Nothing but white space came, and nothing went out.
    pub(super) fn is_blank(&self) -> bool {
        !self.open && self.held.trim().is_empty()
    }

    /// Takes more of the value. `broken_lines`: one line break at each end is none of it.
    pub(super) fn push(&mut self, text: &str, broken_lines: bool, io: &mut Io<'_>) {
        let mut text = text;
        if broken_lines && !text.is_empty() {
            if !self.started {
                text = text.strip_prefix('\n').unwrap_or(text);
            } else if self.line_break {
                self.line_break = false;
                self.take("\n", io);
            }
            self.started = true;
            if let Some(body) = text.strip_suffix('\n') {
                self.line_break = true;
                text = body;
            }
        }
        self.take(text, io);
    }

    fn take(&mut self, text: &str, io: &mut Io<'_>) {
        if !self.open {
            self.held.push_str(text);
            if !self.types.is_text() && self.held.len() <= MAX_VALUE_BYTES {
                return;
            }
        }
        let mut json = String::with_capacity(text.len() + 2);
        if self.open {
            quote_part(text, &mut json);
        } else {
            json.push('"');
            quote_part(&std::mem::take(&mut self.held), &mut json);
            self.open = true;
        }
        io.arguments(&json);
    }

    /// The text ended inside the value. What was held goes out; a string that is open stays so.
    pub(super) fn cut(&mut self, io: &mut Io<'_>) {
        if !self.open && !self.held.is_empty() {
            self.close(io);
        }
    }

    /// The value is whole.
    pub(super) fn close(&mut self, io: &mut Io<'_>) {
        if self.open {
            io.arguments("\"");
        } else {
            io.arguments(&self.types.json(&self.held));
        }
    }
}
