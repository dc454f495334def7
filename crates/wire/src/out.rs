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

/// How an id is written: so many of the first bytes of a big-endian word, in which the marker is the first.
#[derive(Clone, Copy)]
struct Form {
    marker: u64,
    shift: u32,
    bytes: usize,
}

impl Form {
    const MOST_BYTES: usize = 5;

    /// Of ids with so many leading zeros.
    const fn of(leading_zeros: usize) -> Self {
        /// The smallest ids are a byte that is its own marker.
        const NONE: u8 = 0;
        let (marker, bytes) = match u32::BITS as usize - leading_zeros {
            0..=7 => (NONE, 1),
            8 => (Marker::U8.to_u8(), 2),
            9..=16 => (Marker::U16.to_u8(), 3),
            _ => (Marker::U32.to_u8(), Self::MOST_BYTES),
        };
        Self { marker: (marker as u64) << 56, shift: u64::BITS - 8 * bytes as u32, bytes }
    }
}

static FORMS: [Form; u32::BITS as usize + 1] = {
    let mut forms = [Form::of(0); u32::BITS as usize + 1];
    let mut leading_zeros = 0;
    while leading_zeros < forms.len() {
        forms[leading_zeros] = Form::of(leading_zeros);
        leading_zeros += 1;
    }
    forms
};

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

    /// A list of ids. A prompt has thousands, of widths that nobody foresees: none of them is asked for its own.
    pub(crate) fn ids(&mut self, ids: &[u32]) {
        /// Ids that are written before the buffer is asked for room.
        const RUN: usize = 32;
        self.array(ids.len());
        let buffer = self.buffer.as_mut_vec();
        buffer.reserve(Form::MOST_BYTES * ids.len());
        let mut room = [0; Form::MOST_BYTES * RUN + size_of::<u64>()];
        for run in ids.chunks(RUN) {
            let mut end = 0;
            for id in run {
                let form = FORMS[id.leading_zeros() as usize];
                // What is beyond the form's bytes is written over.
                let bytes = (form.marker | u64::from(*id) << form.shift).to_be_bytes();
                room[end..end + bytes.len()].copy_from_slice(&bytes);
                end += form.bytes;
            }
            buffer.extend_from_slice(&room[..end]);
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn each_alone(ids: &[u32]) -> Bytes {
        let mut out = Out::default();
        out.array(ids.len());
        ids.iter().for_each(|id| out.unsigned((*id).into()));
        out.finish()
    }

    fn together(ids: &[u32]) -> Bytes {
        let mut out = Out::default();
        out.ids(ids);
        out.finish()
    }

    #[test]
    fn ids_of_every_width() {
        let around = (0..=32).flat_map(|bits| [-1, 0, 1].map(|by| u32::try_from((1_i64 << bits) + by).unwrap_or(u32::MAX)));
        let around: Vec<u32> = around.collect();
        assert_eq!(together(&around), each_alone(&around));
        for id in around {
            assert_eq!(together(&[id]), each_alone(&[id]), "{id}");
        }
    }

    proptest! {
        #[test]
        fn ids_are_written_as_each_alone_is(ids in prop::collection::vec((any::<u32>(), 0..32_u32).prop_map(|(id, by)| id >> by), 0..200)) {
            prop_assert_eq!(together(&ids), each_alone(&ids));
        }
    }
}
