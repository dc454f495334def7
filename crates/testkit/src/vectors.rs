//! Inputs and the outputs expected for them, as JSON.

use std::fs;

use serde_json::Value;

use crate::repository;

/// `tests/vectors/NAME-vectors.json`: `hash`, `scheduler`, `event` or `indexer`.
pub fn load(name: &str) -> Value {
    let path = repository().join(format!("tests/vectors/{name}-vectors.json"));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
