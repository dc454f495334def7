//! What binds an answer to a form: `guided_*` of vLLM and Dynamo, `structured_outputs` of newer vLLM, `response_format` of
//! OpenAI. The result is the value of `guided_decoding` in a worker's sampling options.

use serde_json::{Map, Value, json};

use crate::error::BadRequest;
use crate::fields::{Fields, Raw, string, strings};

/// Bytes of a regular expression or a grammar: engines compile it before they answer.
const MAX_PATTERN_BYTES: usize = 256 << 10;
/// Choices of one `guided_choice`.
const MAX_CHOICES: usize = 4096;

/// Forms in the body's own fields, and their names in a worker's options.
const GUIDED: [(&str, &str); 4] =
    [("guided_json", "json"), ("guided_regex", "regex"), ("guided_choice", "choice"), ("guided_grammar", "grammar")];
const STRUCTURED: [&str; 8] =
    ["json", "regex", "choice", "grammar", "json_object", "structural_tag", "whitespace_pattern", "disable_any_whitespace"];
const RESPONSE_FORMAT: [&str; 2] = ["type", "json_schema"];
const JSON_SCHEMA: [&str; 4] = ["name", "schema", "strict", "description"];

/// The form an answer is bound to. One that is asked for by name goes before `response_format`.
pub(super) fn read(fields: &Fields<'_>) -> Result<Option<Value>, BadRequest> {
    let mut found: Vec<(String, &'static str, Value)> = Vec::new();
    for (param, name) in GUIDED {
        if let Some(raw) = fields.get(param) {
            found.push((param.to_owned(), name, form(param, name, raw)?));
        }
    }
    let structured = Fields::nested("structured_outputs", fields.get("structured_outputs"), &STRUCTURED)?;
    structured.known_only()?;
    for name in &STRUCTURED[..6] {
        let Some(raw) = structured.get(name) else { continue };
        let param = structured.named(name);
        match *name {
            "json_object" if structured.flag(name)? == Some(true) => found.push((param, "json", json!({"type": "object"}))),
            "json_object" => {}
            name => found.push((param.clone(), name, form(&param, name, raw)?)),
        }
    }
    if let [(first, ..), (second, ..), ..] = found.as_slice() {
        let message = format!("'{first}' and '{second}' cannot both be given: an answer has one form");
        return Err(BadRequest::new(second.as_str(), "invalid_value", message));
    }
    let of_format = response_format(fields.get("response_format"))?;
    let form = found.pop().map(|(_, name, value)| (name, value)).or_else(|| of_format.map(|schema| ("json", schema)));
    let backend = text(fields, "guided_decoding_backend")?;
    let spaces = match structured.text("whitespace_pattern")? {
        Some(pattern) => Some(pattern.into_owned()),
        None => text(fields, "guided_whitespace_pattern")?,
    };
    let Some((name, value)) = form else { return Ok(None) };
    let mut guided = Map::new();
    guided.insert(name.to_owned(), value);
    guided.extend(backend.map(|backend| ("backend".to_owned(), backend.into())));
    guided.extend(spaces.map(|pattern| ("whitespace_pattern".to_owned(), pattern.into())));
    Ok(Some(guided.into()))
}

/// Whether a form is asked for by name, which an answer that has to be a call of a tool cannot have as well.
pub(super) fn by_name(fields: &Fields<'_>) -> Option<&'static str> {
    let names = GUIDED.iter().map(|(param, _)| *param).chain(["structured_outputs"]);
    names.into_iter().find(|name| fields.get(name).is_some())
}

fn text(fields: &Fields<'_>, name: &str) -> Result<Option<String>, BadRequest> {
    Ok(fields.text(name)?.map(std::borrow::Cow::into_owned))
}

fn form(param: &str, name: &str, raw: Raw<'_>) -> Result<Value, BadRequest> {
    let invalid = |message: String| BadRequest::new(param, "invalid_value", message);
    match name {
        "json" | "structural_tag" => match schema(param, raw)? {
            value @ (Value::Object(_) | Value::String(_)) => Ok(value),
            _ => Err(BadRequest::wrong_type(param, "a JSON schema, as an object or as text")),
        },
        "choice" => match strings(raw) {
            Some(choices) if choices.is_empty() || choices.iter().any(|choice| choice.is_empty()) => {
                Err(invalid(format!("'{param}' must be a list of texts, none of them empty")))
            }
            Some(choices) if choices.len() > MAX_CHOICES => Err(invalid(format!("'{param}' must have at most {MAX_CHOICES} choices"))),
            Some(choices) => Ok(choices.into_iter().collect()),
            None => Err(BadRequest::wrong_type(param, "an array of strings")),
        },
        _ => match string(raw) {
            Some(pattern) if pattern.is_empty() || pattern.len() > MAX_PATTERN_BYTES => {
                Err(invalid(format!("'{param}' must have 1 to {MAX_PATTERN_BYTES} bytes")))
            }
            Some(pattern) => Ok(pattern.into()),
            None => Err(BadRequest::wrong_type(param, "a string")),
        },
    }
}

fn schema(param: &str, raw: Raw<'_>) -> Result<Value, BadRequest> {
    let unusable = |error| BadRequest::new(param, "invalid_value", format!("'{param}' is not a usable JSON schema: {error}"));
    serde_json::from_str(raw.get()).map_err(unusable)
}

fn response_format(raw: Option<Raw<'_>>) -> Result<Option<Value>, BadRequest> {
    if raw.is_none() {
        return Ok(None);
    }
    let format = Fields::nested("response_format", raw, &RESPONSE_FORMAT)?;
    let kind = format.text("type")?.ok_or_else(|| BadRequest::missing("response_format.type"))?;
    match &*kind {
        "text" => Ok(None),
        "json_object" => Ok(Some(json!({"type": "object"}))),
        "json_schema" => {
            const PATH: &str = "response_format.json_schema";
            let given = format.get("json_schema").ok_or_else(|| BadRequest::missing(PATH))?;
            let given = Fields::nested(PATH, Some(given), &JSON_SCHEMA)?;
            let name = given.text("name")?.ok_or_else(|| BadRequest::missing("response_format.json_schema.name"))?;
            if name.is_empty() {
                return Err(BadRequest::new(given.named("name"), "invalid_value", "'response_format.json_schema.name' must not be empty"));
            }
            let raw = given.get("schema").ok_or_else(|| BadRequest::missing("response_format.json_schema.schema"))?;
            match schema(&given.named("schema"), raw)? {
                schema @ (Value::Object(_) | Value::Bool(true)) => Ok(Some(schema)),
                Value::Bool(false) => {
                    let message = "'response_format.json_schema.schema' is false, which no answer satisfies";
                    Err(BadRequest::new(given.named("schema"), "invalid_value", message))
                }
                _ => Err(BadRequest::wrong_type(given.named("schema"), "an object")),
            }
        }
        other => {
            let message = format!("'response_format.type' must be 'text', 'json_object' or 'json_schema', not '{other}'");
            Err(BadRequest::new("response_format.type", "invalid_value", message))
        }
    }
}
