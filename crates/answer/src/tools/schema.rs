//! What the tools' JSON schemas say of their parameters: enough to turn parameters written as plain text into JSON.

use std::collections::HashMap;

use serde_json::Value;

use super::{
    json::{is_valid, quoted},
    literal,
};

/// References and combinations are followed this deep.
const MAX_DEPTH: u32 = 8;

/// The tools a request offers, by name, with the types of their parameters.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Schemas {
    tools: HashMap<String, HashMap<String, Types>>,
}

/// Which types a parameter may have.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Types {
    text: bool,
    null: bool,
    other: bool,
}

impl Types {
    /// A string and nothing else.
    pub(crate) const TEXT: Self = Self { text: true, null: false, other: false };
    /// Any JSON but a string.
    pub(crate) const OTHER: Self = Self { text: false, null: true, other: true };
    /// Not known: what looks like JSON is JSON.
    pub(crate) const UNKNOWN: Self = Self { text: false, null: false, other: false };

    /// Whether text is a string for certain, so that it can be sent on before all of it is there.
    pub(crate) fn is_text(self) -> bool {
        self == Self::TEXT
    }

    fn named(name: &str) -> Self {
        match name {
            "string" => Self::TEXT,
            "null" => Self { null: true, ..Self::default() },
            _ => Self { other: true, ..Self::default() },
        }
    }

    fn of_value(value: &Value) -> Self {
        match value {
            Value::String(_) => Self::TEXT,
            Value::Null => Self::named("null"),
            Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => Self::named("other"),
        }
    }

    fn or(self, more: Self) -> Self {
        Self { text: self.text || more.text, null: self.null || more.null, other: self.other || more.other }
    }

    /// The JSON that `text` stands for. What cannot be read as any of the types becomes a string, so that nothing is lost.
    pub(crate) fn json(self, text: &str) -> String {
        let trimmed = text.trim();
        let is_null = matches!(trimmed, "null" | "None");
        if self.text {
            return if self.null && is_null { "null".to_owned() } else { quoted(text) };
        }
        if is_valid(trimmed) && (self != Self::UNKNOWN || !trimmed.starts_with('"')) {
            return trimmed.to_owned();
        }
        match literal::to_json(trimmed) {
            Some(json) if self != Self::UNKNOWN || !json.starts_with('"') => json,
            _ => quoted(text),
        }
    }
}

impl Schemas {
    /// What these tools declare. A schema that cannot be understood gives parameters of unknown type.
    pub fn of<'a>(tools: impl IntoIterator<Item = (&'a str, Option<&'a Value>)>) -> Self {
        let tools = tools.into_iter().map(|(name, schema)| {
            let schema = schema.unwrap_or(&Value::Null);
            let properties = schema.get("properties").and_then(Value::as_object);
            let types = properties.into_iter().flatten();
            (name.to_owned(), types.map(|(key, property)| (key.clone(), types_of(property, schema, MAX_DEPTH))).collect())
        });
        Self { tools: tools.collect() }
    }

    /// The tools of a request.
    pub fn of_request(tools: &[prompt::Tool]) -> Self {
        let schemas: Vec<_> = tools.iter().map(|tool| tool.parameters.as_ref().and_then(|json| json.value().ok())).collect();
        Self::of(tools.iter().map(|tool| tool.name.as_str()).zip(schemas.iter().map(Option::as_ref)))
    }

    /// Whether a tool of this name is offered. With no tools known, any may be.
    pub(crate) fn offers(&self, name: &str) -> bool {
        self.tools.is_empty() || self.tools.contains_key(name)
    }

    /// The types of a parameter. A parameter that its tool does not declare is a string.
    pub(crate) fn types(&self, name: &str, parameter: &str) -> Types {
        match self.tools.get(name) {
            Some(parameters) => parameters.get(parameter).copied().unwrap_or(Types::TEXT),
            None => Types::UNKNOWN,
        }
    }
}

fn types_of(schema: &Value, root: &Value, depth: u32) -> Types {
    if depth == 0 {
        return Types::UNKNOWN;
    }
    let mut types = match schema.get("type") {
        Some(Value::String(name)) => Types::named(name),
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).map(Types::named).fold(Types::default(), Types::or),
        _ => Types::default(),
    };
    for combination in ["anyOf", "oneOf", "allOf"] {
        for part in schema.get(combination).and_then(Value::as_array).into_iter().flatten() {
            types = types.or(types_of(part, root, depth - 1));
        }
    }
    let target = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix('#'));
    if let Some(target) = target.and_then(|pointer| root.pointer(pointer)) {
        types = types.or(types_of(target, root, depth - 1));
    }
    if types == Types::default() {
        let values = schema.get("enum").and_then(Value::as_array).into_iter().flatten().chain(schema.get("const"));
        types = values.map(Types::of_value).fold(types, Types::or);
    }
    if types == Types::default() && schema.get("properties").is_some() {
        types = Types::named("object");
    }
    if schema.get("nullable").and_then(Value::as_bool) == Some(true) {
        types.null = true;
    }
    types
}
