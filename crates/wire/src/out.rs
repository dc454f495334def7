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
    /// With room for so many bytes.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self { buffer: ByteBuf::with_capacity(bytes) }
    }

    pub(crate) fn array(&mut self, count: usize) {
        sure(encode::write_array_len(&mut self.buffer, length(count)));
    }

    pub(crate) fn map(&mut self, pairs: u16) {
        sure(encode::write_map_len(&mut self.buffer, pairs.into()));
    }

    /// A map of any number of pairs.
    pub(crate) fn large_map(&mut self, pairs: usize) {
        sure(encode::write_map_len(&mut self.buffer, length(pairs)));
    }

    /// Room for the header of an array whose elements follow, and are then [`count`](Self::count)ed. Where it is.
    pub(crate) fn counted_array(&mut self) -> usize {
        self.counted(Marker::Array32)
    }

    /// The same of a map.
    pub(crate) fn counted_map(&mut self) -> usize {
        self.counted(Marker::Map32)
    }

    fn counted(&mut self, marker: Marker) -> usize {
        self.buffer.as_mut_vec().extend([marker.to_u8(), 0, 0, 0, 0]);
        self.buffer.as_slice().len() - 4
    }

    /// Fills in a header.
    pub(crate) fn count(&mut self, header: usize, elements: usize) {
        self.buffer.as_mut_vec()[header..header + 4].copy_from_slice(&length(elements).to_be_bytes());
    }

    /// A list of ids, without a call for each byte: a prompt has thousands.
    pub(crate) fn ids(&mut self, ids: &[u32]) {
        self.array(ids.len());
        let buffer = self.buffer.as_mut_vec();
        buffer.reserve(5 * ids.len());
        for id in ids {
            let [a, b, c, d] = id.to_be_bytes();
            match id {
                0..=0x7f => buffer.push(d),
                0x80..=0xff => buffer.extend_from_slice(&[Marker::U8.to_u8(), d]),
                0x100..=0xffff => buffer.extend_from_slice(&[Marker::U16.to_u8(), c, d]),
                0x1_0000.. => buffer.extend_from_slice(&[Marker::U32.to_u8(), a, b, c, d]),
            }
        }
    }

    /// A list of texts.
    pub(crate) fn texts(&mut self, texts: &[String]) {
        self.array(texts.len());
        texts.iter().for_each(|text| self.text(text));
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

    pub(crate) fn single(&mut self, value: f32) {
        sure(encode::write_f32(&mut self.buffer, value));
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

    /// Writes a map's pair: the value, or nil.
    pub(crate) fn field<T>(&mut self, key: &str, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.text(key);
        self.optional(value, write);
    }

    /// Writes a map's pair, or nothing.
    pub(crate) fn present<T>(&mut self, key: &str, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        if let Some(value) = value {
            self.text(key);
            write(self, value);
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
