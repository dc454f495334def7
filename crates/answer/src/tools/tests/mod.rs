//! What the parsers of all families must do.

mod cuts;
mod documents;
mod names;
mod odd;
mod table;

use std::sync::Arc;

use prompt::ToolChoice;
use serde_json::{Value, json};

use super::{Parsing, Plan, Schemas, ToolParser};
use crate::{Delta, reasoning::ReasoningParser};

/// What came out, with neighbouring pieces of the same kind joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Seen {
    Thought(String),
    Said(String),
    Call { id: String, name: String, arguments: String },
}

pub(super) fn thought(text: &str) -> Seen {
    Seen::Thought(text.to_owned())
}

pub(super) fn said(text: &str) -> Seen {
    Seen::Said(text.to_owned())
}

/// A call with any id.
pub(super) fn call(name: &str, arguments: &str) -> Seen {
    Seen::Call { id: String::new(), name: name.to_owned(), arguments: arguments.to_owned() }
}

/// Joins deltas. Content within a call goes behind it.
pub(super) fn joined(deltas: Vec<Delta>) -> Vec<Seen> {
    let mut seen: Vec<Seen> = Vec::new();
    let mut calls: Vec<usize> = Vec::new();
    for delta in deltas {
        match (delta, seen.last_mut()) {
            (Delta::Reasoning(text), Some(Seen::Thought(all))) => all.push_str(&text),
            (Delta::Reasoning(text), _) => seen.push(Seen::Thought(text)),
            (Delta::Content(text), Some(Seen::Said(all))) => all.push_str(&text),
            (Delta::Content(text), _) => seen.push(Seen::Said(text)),
            (Delta::ToolCall { index, id: Some(id), name: Some(name), arguments }, _) => {
                assert_eq!(index as usize, calls.len(), "calls are numbered in order");
                calls.push(seen.len());
                seen.push(Seen::Call { id, name, arguments });
            }
            (Delta::ToolCall { index, id, name, arguments: more }, _) => {
                assert_eq!((id, name), (None, None), "id and name come together");
                match &mut seen[calls[index as usize]] {
                    Seen::Call { arguments, .. } => arguments.push_str(&more),
                    Seen::Thought(_) | Seen::Said(_) => unreachable!(),
                }
            }
        }
    }
    seen
}

pub(super) fn without_ids(seen: Vec<Seen>) -> Vec<Seen> {
    let strip = |seen| match seen {
        Seen::Call { name, arguments, .. } => Seen::Call { id: String::new(), name, arguments },
        other => other,
    };
    seen.into_iter().map(strip).collect()
}

/// The tools that the tests offer.
pub(super) fn schemas() -> Arc<Schemas> {
    let weather = json!({"type": "object", "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "where": {"type": "object"},
        "tags": {"type": "array"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "limit": {"$ref": "#/$defs/limit"}
    }, "$defs": {"limit": {"type": ["number", "null"]}}});
    let none = json!({"type": "object", "properties": {}});
    Arc::new(Schemas::of([("get_weather", Some(&weather)), ("now", Some(&none)), ("search.web", None::<&Value>)]))
}

pub(super) fn plan(tools: Option<ToolParser>, reasoning: Option<ReasoningParser>) -> Plan {
    let choice = if tools.is_some() { ToolChoice::Auto } else { ToolChoice::None };
    Plan { reasoning, tools, choice, parallel: true, schemas: schemas() }
}

/// Parses `text` in these pieces.
pub(super) fn run<'a>(mut parsing: Parsing, pieces: impl IntoIterator<Item = &'a str>) -> Vec<Seen> {
    let mut out = Vec::new();
    for piece in pieces {
        parsing.push(piece, &mut out);
    }
    parsing.finish(&mut out);
    for delta in &out {
        match delta {
            Delta::Reasoning(text) | Delta::Content(text) => assert!(!text.is_empty(), "no empty piece"),
            Delta::ToolCall { .. } => {}
        }
    }
    joined(out)
}

/// One piece per character.
pub(super) fn characters(text: &str) -> impl Iterator<Item = &str> {
    text.char_indices().map(|(at, character)| &text[at..at + character.len_utf8()])
}
