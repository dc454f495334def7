//! JSON, straight into a buffer.

use bytes::{BufMut, BytesMut};
use serde::Serialize;

/// Where a number may not be infinite and nothing is known: what engines write for "not among the likeliest".
const LOWEST_LOGPROB: f64 = -9999.0;

/// A text, quoted and escaped.
pub(crate) fn text(out: &mut BytesMut, text: &str) {
    value(out, text);
}

/// Whatever serialises. A buffer takes all that is written and texts, numbers and values cannot fail, so there is no error
/// to hand on.
pub(crate) fn value<T: Serialize + ?Sized>(out: &mut BytesMut, value: &T) {
    let _ = serde_json::to_writer(out.writer(), value);
}

/// An integer.
pub(crate) fn integer<T: itoa::Integer>(out: &mut BytesMut, number: T) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// A log-probability; what is none (not finite) is the lowest.
pub(crate) fn logprob(out: &mut BytesMut, number: f64) {
    value(out, &if number.is_finite() { number.max(LOWEST_LOGPROB) } else { LOWEST_LOGPROB });
}

/// An array of what `write` writes of each item.
pub(crate) fn array<T>(out: &mut BytesMut, items: impl IntoIterator<Item = T>, mut write: impl FnMut(&mut BytesMut, T)) {
    let mut before = "[";
    for item in items {
        out.extend_from_slice(before.as_bytes());
        write(out, item);
        before = ",";
    }
    out.extend_from_slice(if before == "[" { b"[]" } else { b"]" });
}

/// The fields of an object that begins with its first field: one without any writes nothing.
pub(crate) struct Fields<'a> {
    out: &'a mut BytesMut,
    before: &'static str,
}

impl<'a> Fields<'a> {
    /// `before` is written before the first field, and ends with the brace that opens the object.
    pub(crate) fn new(out: &'a mut BytesMut, before: &'static str) -> Self {
        Self { out, before }
    }

    /// Writes the name of a field; the value goes into what is returned. `name` needs no escaping.
    pub(crate) fn field(&mut self, name: &str) -> &mut BytesMut {
        self.out.extend_from_slice(self.before.as_bytes());
        self.before = ",";
        self.out.put_u8(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.out
    }

    /// A field that is left out where there is nothing to say.
    pub(crate) fn optional<T: Serialize>(&mut self, name: &str, given: Option<T>) {
        if let Some(given) = given {
            value(self.field(name), &given);
        }
    }

    /// Closes the object, if one was begun.
    pub(crate) fn end(self) {
        self.end_or("");
    }

    /// Closes the object; `nothing` is written where none was begun.
    pub(crate) fn end_or(self, nothing: &str) {
        self.out.extend_from_slice(if self.before == "," { b"}" } else { nothing.as_bytes() });
    }
}
