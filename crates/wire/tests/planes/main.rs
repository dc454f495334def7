//! The planes of Dynamo 1.6.1: every recorded byte decodes to what is noted beside it and encodes back to itself, or the difference is
//! named where it is tested; odd and hostile bytes cost what they should.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod cards;
mod counting;
mod discovery;
mod events;
mod generate;
mod hostile;
mod long_dump;
mod random;
mod recovery;
mod request;
mod responses;
mod vectors;

use bytes::Bytes;
use serde_json::Value;
use testkit::dynamo::bytes;

/// The bytes of a record's field of hex digits.
fn hex(record: &Value, field: &str) -> Bytes {
    bytes(record[field].as_str().unwrap()).into()
}

/// A JSON text as a value.
fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}
