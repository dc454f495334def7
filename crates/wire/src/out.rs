//! A writer of MessagePack into memory, each value in its shortest form unless asked otherwise.

use std::convert::Infallible;

use bytes::Bytes;
use rmp::{
    Marker,
    encode::{self, ByteBuf, ValueWriteError},
};

const NIL: u8 = 0xc0;

#[derive(Default)]
pub(crate) struct Out {
    buffer: ByteBuf,
}

/// Writing into memory cannot fail, which the type of its error says.
fn sure<T>(result: Result<T, ValueWriteError<Infallible>>) -> T {
    match result {
        Ok(value) => value,
        Err(ValueWriteError::InvalidMarkerWrite(never) | ValueWriteError::InvalidDataWrite(never)) => match never {},
    }
}

/// MessagePack counts in 32 bits. What a simulated engine publishes is far below, and more could not be said.
fn length(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

impl Out {
    pub(crate) fn array(&mut self, count: usize) {
        sure(encode::write_array_len(&mut self.buffer, length(count)));
    }

    pub(crate) fn map(&mut self, pairs: u16) {
        sure(encode::write_map_len(&mut self.buffer, pairs.into()));
    }

    /// A map header of 16 bits, whatever the count.
    pub(crate) fn wide_map(&mut self, pairs: u16) {
        self.buffer.as_mut_vec().push(Marker::Map16.to_u8());
        self.buffer.as_mut_vec().extend(pairs.to_be_bytes());
    }

    pub(crate) fn nil(&mut self) {
        self.buffer.as_mut_vec().push(NIL);
    }

    pub(crate) fn boolean(&mut self, value: bool) {
        let marker = if value { Marker::True } else { Marker::False };
        self.buffer.as_mut_vec().push(marker.to_u8());
    }

    pub(crate) fn float(&mut self, value: f64) {
        sure(encode::write_f64(&mut self.buffer, value));
    }

    pub(crate) fn unsigned(&mut self, value: u64) {
        sure(encode::write_uint(&mut self.buffer, value));
    }

    pub(crate) fn integer(&mut self, value: i64) {
        sure(encode::write_sint(&mut self.buffer, value));
    }

    pub(crate) fn text(&mut self, value: &str) {
        sure(encode::write_str(&mut self.buffer, value));
    }

    pub(crate) fn binary(&mut self, value: &[u8]) {
        sure(encode::write_bin(&mut self.buffer, value));
    }

    /// Writes the value, or nil.
    pub(crate) fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            Some(value) => write(self, value),
            None => self.nil(),
        }
    }

    /// Writes a map's pair. False, and nothing written, if `write` writes nil and `omit_nil`.
    pub(crate) fn pair(&mut self, key: &str, omit_nil: bool, write: impl FnOnce(&mut Self)) -> bool {
        let start = self.buffer.as_slice().len();
        self.text(key);
        let value = self.buffer.as_slice().len();
        write(self);
        let omitted = omit_nil && self.buffer.as_slice()[value..] == [NIL];
        if omitted {
            self.buffer.as_mut_vec().truncate(start);
        }
        !omitted
    }

    pub(crate) fn append(&mut self, other: &Self) {
        self.buffer.as_mut_vec().extend_from_slice(other.buffer.as_slice());
    }

    pub(crate) fn finish(self) -> Bytes {
        Bytes::from(self.buffer.into_vec())
    }
}
