//! The gateway's JSON: protobuf's mapping, so numbers of 64 bits are strings, bytes are base64, and what is zero is left out.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use serde_json::{Value, json};

use super::error::Refusal;

/// The end of the range of all keys with this prefix.
pub(super) fn end_of_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // All keys.
    vec![0]
}

/// Bytes on their way to etcd.
struct Base64<'a>(&'a [u8]);

impl Serialize for Base64<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(self.0))
    }
}

/// One page of the records below a prefix.
pub(super) fn range(from: &[u8], end: &[u8], limit: u32, revision: i64) -> Value {
    json!({"key": Base64(from), "range_end": Base64(end), "limit": limit, "revision": revision.to_string()})
}

/// Whether the range can be read, and nothing of it.
pub(super) fn count(from: &[u8], end: &[u8]) -> Value {
    json!({"key": Base64(from), "range_end": Base64(end), "count_only": true})
}

/// A watch of a range from a revision on.
pub(super) fn watch(from: &[u8], end: &[u8], start: i64) -> Value {
    json!({"create_request": {"key": Base64(from), "range_end": Base64(end), "start_revision": start.to_string()}})
}

pub(super) fn grant(lease: u64, ttl_seconds: u64) -> Value {
    json!({"ID": lease.to_string(), "TTL": ttl_seconds.to_string()})
}

/// Names a lease.
pub(super) fn lease(lease: u64) -> Value {
    json!({"ID": lease.to_string()})
}

pub(super) fn time_to_live(lease: u64) -> Value {
    json!({"ID": lease.to_string(), "keys": true})
}

fn put(key: &[u8], value: &[u8], lease: u64) -> Value {
    json!({"request_put": {"key": Base64(key), "value": Base64(value), "lease": lease.to_string()}})
}

/// Puts a key unless it is there; then says what is there.
pub(super) fn create(key: &[u8], value: &[u8], lease: u64) -> Value {
    json!({
        "compare": [{"target": "CREATE", "key": Base64(key), "create_revision": "0"}],
        "success": [put(key, value, lease)],
        "failure": [{"request_range": {"key": Base64(key)}}],
    })
}

/// Puts a key if it hangs on the lease.
pub(super) fn replace(key: &[u8], value: &[u8], lease: u64) -> Value {
    json!({"compare": [ours(key, lease)], "success": [put(key, value, lease)]})
}

/// Deletes a key if it hangs on the lease.
pub(super) fn delete(key: &[u8], lease: u64) -> Value {
    json!({"compare": [ours(key, lease)], "success": [{"request_delete_range": {"key": Base64(key)}}]})
}

fn ours(key: &[u8], lease: u64) -> Value {
    json!({"target": "LEASE", "key": Base64(key), "lease": lease.to_string()})
}

pub(super) fn authenticate(user: &str, password: &str) -> Value {
    json!({"name": user, "password": password})
}

#[derive(Debug, Deserialize)]
pub(super) struct Token {
    pub(super) token: String,
}

/// An answer of which nothing matters but that it came.
#[derive(Debug, Deserialize)]
pub(super) struct Done {}

#[derive(Debug, Deserialize)]
struct Header {
    #[serde(default, deserialize_with = "number")]
    revision: i64,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Range {
    #[serde(default)]
    header: Option<Header>,
    #[serde(default)]
    pub(super) kvs: Vec<KeyValue>,
    #[serde(default)]
    pub(super) more: bool,
}

impl Range {
    /// The store's revision when it was read.
    pub(super) fn revision(&self) -> i64 {
        self.header.as_ref().map_or(0, |header| header.revision)
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct KeyValue {
    #[serde(deserialize_with = "bytes")]
    pub(super) key: Vec<u8>,
    #[serde(default, deserialize_with = "bytes")]
    pub(super) value: Vec<u8>,
    #[serde(default, deserialize_with = "number")]
    pub(super) lease: i64,
    #[serde(default, deserialize_with = "number")]
    pub(super) mod_revision: i64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Txn {
    #[serde(default)]
    pub(super) succeeded: bool,
    #[serde(default)]
    responses: Vec<Response>,
}

impl Txn {
    /// What [`create`] found in its place.
    pub(super) fn found(&self) -> Option<&KeyValue> {
        self.responses.first()?.response_range.as_ref()?.kvs.first()
    }
}

#[derive(Debug, Deserialize)]
struct Response {
    #[serde(default)]
    response_range: Option<Range>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TimeToLive {
    /// Seconds left; negative without such a lease.
    #[serde(default, rename = "TTL", deserialize_with = "number")]
    pub(super) left: i64,
    #[serde(default, rename = "grantedTTL", deserialize_with = "number")]
    pub(super) granted: i64,
    #[serde(default)]
    pub(super) keys: Vec<KeyName>,
}

#[derive(Debug, Deserialize)]
pub(super) struct KeyName(#[serde(deserialize_with = "bytes")] pub(super) Vec<u8>);

/// One line of a stream.
#[derive(Debug, Deserialize)]
pub(super) struct Line<T> {
    pub(super) result: Option<T>,
    pub(super) error: Option<Refusal>,
}

#[derive(Debug, Deserialize)]
pub(super) struct WatchLine {
    #[serde(default)]
    pub(super) created: bool,
    #[serde(default)]
    pub(super) canceled: bool,
    #[serde(default)]
    pub(super) cancel_reason: String,
    #[serde(default, deserialize_with = "number")]
    pub(super) compact_revision: i64,
    #[serde(default)]
    pub(super) events: Vec<Event>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Event {
    #[serde(default, rename = "type")]
    pub(super) kind: EventKind,
    pub(super) kv: KeyValue,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) enum EventKind {
    #[default]
    #[serde(rename = "PUT")]
    Put,
    #[serde(rename = "DELETE")]
    Delete,
}

/// A number as a string, as it should be, or bare.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form<'a> {
        Text(#[serde(borrow)] Cow<'a, str>),
        Bare(i64),
    }
    match Form::deserialize(deserializer)? {
        Form::Text(text) => text.parse().map_err(D::Error::custom),
        Form::Bare(number) => Ok(number),
    }
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = Cow::<'de, str>::deserialize(deserializer)?;
    STANDARD.decode(&*text).map_err(D::Error::custom)
}
