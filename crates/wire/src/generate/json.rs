//! The other spelling: JSON from and to the MessagePack that the rest of the module reads and writes. It is not on the hot path: 1.6.1's
//! endpoints ask for MessagePack.

use std::fmt;

use bytes::Bytes;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::GenerateError;
use crate::{
    cursor::{Broken, Cursor, Item},
    out::Out,
};

/// The same value in MessagePack. JSON's reader bounds the depth.
pub(super) fn to_msgpack(json: &[u8]) -> Result<Bytes, GenerateError> {
    let mut out = Out::default();
    let mut reader = serde_json::Deserializer::from_slice(json);
    Transcode(&mut out).deserialize(&mut reader)?;
    reader.end()?;
    Ok(out.finish())
}

struct Transcode<'o>(&'o mut Out);

impl<'de> DeserializeSeed<'de> for Transcode<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Transcode<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.0.nil();
        Ok(())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.0.boolean(value);
        Ok(())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.0.unsigned(number);
        Ok(())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        self.0.integer(number);
        Ok(())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        self.0.float(number);
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.0.text(text);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let header = self.0.counted_array();
        let mut count = 0;
        while elements.next_element_seed(Transcode(self.0))?.is_some() {
            count += 1;
        }
        self.0.count(header, count);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<(), A::Error> {
        let header = self.0.counted_map();
        let mut count = 0;
        while pairs.next_key_seed(Transcode(self.0))?.is_some() {
            pairs.next_value_seed(Transcode(self.0))?;
            count += 1;
        }
        self.0.count(header, count);
        Ok(())
    }
}

/// The same value in JSON. Given what was written here, it cannot fail.
pub(super) fn of_msgpack(msgpack: &[u8]) -> Bytes {
    let mut json = Vec::with_capacity(2 * msgpack.len());
    // Only broken MessagePack fails, and this is written by `Out`.
    write(&mut Cursor::new(msgpack), &mut json).expect("what was just written is MessagePack");
    json.into()
}

fn write(cursor: &mut Cursor<'_>, json: &mut Vec<u8>) -> Result<(), Broken> {
    let single = cursor.is_single();
    match cursor.item()? {
        Item::Nil | Item::Extension => json.extend_from_slice(b"null"),
        Item::Bool(value) => scalar(json, &value),
        Item::Unsigned(number) => scalar(json, &number),
        Item::Negative(number) => scalar(json, &number),
        #[expect(clippy::cast_possible_truncation, reason = "it was written in single precision")]
        Item::Float(number) if single => scalar(json, &(number as f32)),
        Item::Float(number) => scalar(json, &number),
        Item::Text(text) => scalar(json, &String::from_utf8_lossy(text)),
        Item::Binary(bytes) => scalar(json, &bytes),
        Item::Array(count) => {
            json.push(b'[');
            for at in 0..count {
                if at > 0 {
                    json.push(b',');
                }
                write(cursor, json)?;
            }
            json.push(b']');
        }
        Item::Map(pairs) => {
            json.push(b'{');
            for at in 0..pairs {
                if at > 0 {
                    json.push(b',');
                }
                write(cursor, json)?;
                json.push(b':');
                write(cursor, json)?;
            }
            json.push(b'}');
        }
    }
    Ok(())
}

fn scalar<T: serde::Serialize + ?Sized>(json: &mut Vec<u8>, value: &T) {
    // Numbers, booleans, strings and lists of bytes are always JSON, and a vector takes everything.
    serde_json::to_writer(json, value).expect("a scalar is JSON");
}
