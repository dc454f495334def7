//! Bytes recorded from real Dynamo 1.6.1, in `tests/captures/dynamo`; the README beside them says what each file holds. A file that
//! does not have the promised shape panics with its name.

use std::fs;

use serde_json::Value;

use crate::repository;

/// The records of `NAME.json`.
pub fn records(name: &str) -> Vec<Value> {
    match serde_json::from_str(&read(&format!("{name}.json"))) {
        Ok(Value::Array(records)) => records,
        other => panic!("{name}.json is no list: {other:?}"),
    }
}

/// The lines of `NAME.txt`: the kind of each, and its bytes.
pub fn exchange(name: &str) -> Vec<(String, Vec<u8>)> {
    let text = read(&format!("{name}.txt"));
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (kind, hex) = line.split_once(' ').unwrap_or((line, ""));
            (kind.to_owned(), bytes(hex))
        })
        .collect()
}

/// The names of all files that end so, without the ending.
pub fn names(ending: &str) -> Vec<String> {
    let folder = repository().join("tests/captures/dynamo");
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("list {}: {error}", folder.display()));
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_suffix(ending).map(str::to_owned)).collect();
    names.sort();
    names
}

/// The bytes that a text of hex digits says.
pub fn bytes(hex: &str) -> Vec<u8> {
    let digits = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap_or_else(|error| panic!("hex at {at}: {error}"));
    (0..hex.len()).step_by(2).map(digits).collect()
}

fn read(file: &str) -> String {
    let path = repository().join("tests/captures/dynamo").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()))
}
