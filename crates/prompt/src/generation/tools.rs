//! Tools and `tool_choice`. A choice that must be made is no matter of finding calls in a model's text: the answer is bound to
//! JSON, in the form vLLM and Dynamo give it.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::error::BadRequest;
use crate::fields::{Key, Raw, first_of_array, string};
use crate::request::Json;

/// Tools in one body.
const MAX_TOOLS: usize = 1536;
/// Characters of a function's name.
const MAX_NAME_CHARS: usize = 96;

/// The tools of a chat, and whether they may be called.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolUse {
    /// `tools`, in their order.
    pub tools: Vec<Tool>,
    /// `tool_choice`.
    pub choice: ToolChoice,
    /// `parallel_tool_calls`: more than one call in one answer; true where absent.
    pub parallel: bool,
}

impl ToolUse {
    /// Whether an answer may call a tool, so that its text has to be searched for calls.
    pub fn offered(&self) -> bool {
        !self.tools.is_empty() && self.choice != ToolChoice::None
    }
}

/// One function a model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// `function.name`.
    pub name: String,
    /// `function.parameters`: a JSON schema.
    pub parameters: Option<Json>,
    /// `function.strict`.
    pub strict: bool,
}

/// `tool_choice`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides; the calls stand in its text in the form of its family. The default where there are tools.
    #[default]
    Auto,
    /// No tool is called.
    None,
    /// At least one is called. [`guided`](super::Generation::guided) then binds the answer to a JSON array of `{"name", "parameters"}`.
    Required,
    /// This one is called. [`guided`](super::Generation::guided) then binds the answer to its arguments, a JSON object.
    Named(String),
}

#[derive(serde::Deserialize)]
struct Given<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Option<Key<'a>>,
    #[serde(borrow)]
    function: Function<'a>,
}

#[derive(serde::Deserialize)]
struct Function<'a> {
    #[serde(borrow, default)]
    name: Option<Key<'a>>,
    #[serde(borrow, default)]
    parameters: Option<Raw<'a>>,
    #[serde(default)]
    strict: Option<bool>,
}

impl ToolUse {
    /// From the fields `tools` and `tool_choice` of `body`.
    pub(super) fn read(body: &Bytes, tools: Option<Raw<'_>>, choice: Option<Raw<'_>>, parallel: bool) -> Result<Self, BadRequest> {
        let tools = tools.map(|raw| list(body, raw)).transpose()?.unwrap_or_default();
        let choice = choice.map(|raw| tool_choice(raw, &tools)).transpose()?.unwrap_or_default();
        Ok(Self { tools, choice, parallel })
    }

    /// The JSON schema of an answer that has to be a call.
    pub(super) fn forced(&self) -> Result<Option<Value>, BadRequest> {
        match &self.choice {
            ToolChoice::Auto | ToolChoice::None => Ok(None),
            ToolChoice::Named(name) => {
                let tool = self.tools.iter().enumerate().find(|(_, tool)| tool.name == *name);
                tool.map(|(index, tool)| tool.schema(index)).transpose()
            }
            ToolChoice::Required => self.any_of_all().map(Some),
        }
    }

    fn any_of_all(&self) -> Result<Value, BadRequest> {
        let mut definitions = Map::new();
        let mut each = Vec::with_capacity(self.tools.len());
        for (index, tool) in self.tools.iter().enumerate() {
            let mut parameters = tool.schema(index)?;
            // References of one tool must not meet definitions of another: its schema moves whole, and they with it.
            let place = format!("tool_{index}");
            let reference = format!("#/$defs/{place}");
            if rebase(&mut parameters, &reference, Names::Keywords) {
                definitions.insert(place, parameters);
                parameters = json!({"$ref": reference});
            }
            each.push(json!({
                "properties": {"name": {"type": "string", "enum": [tool.name]}, "parameters": parameters},
                "required": ["name", "parameters"],
            }));
        }
        let mut schema = json!({"type": "array", "minItems": 1, "items": {"type": "object", "anyOf": each}});
        if !self.parallel {
            schema["maxItems"] = 1.into();
        }
        if !definitions.is_empty() {
            schema["$defs"] = definitions.into();
        }
        Ok(schema)
    }
}

impl Tool {
    fn schema(&self, index: usize) -> Result<Value, BadRequest> {
        let Some(parameters) = &self.parameters else { return Ok(json!({"type": "object", "properties": {}})) };
        let param = format!("tools[{index}].function.parameters");
        let schema = parameters
            .value()
            .map_err(|error| BadRequest::new(param.as_str(), "invalid_value", format!("'{param}' is not a usable JSON schema: {error}")))?;
        if schema.is_object() { Ok(schema) } else { Err(BadRequest::wrong_type(param, "an object")) }
    }
}

/// What the keys of an object in a schema are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    /// Keywords of JSON schema.
    Keywords,
    /// Names of the author's, each of a schema.
    OfSchemas,
}

/// Moves references within a document to where the document now is; answers whether there are any.
fn rebase(schema: &mut Value, place: &str, names: Names) -> bool {
    const OF_SCHEMAS: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
    const VALUES: [&str; 4] = ["const", "default", "enum", "examples"];
    match schema {
        Value::Array(list) => list.iter_mut().fold(false, |moved, one| rebase(one, place, Names::Keywords) | moved),
        // It names itself, and its references are to that name.
        Value::Object(map) if names == Names::Keywords && map.contains_key("$id") => false,
        Value::Object(map) => map.iter_mut().fold(false, |moved, (key, value)| {
            let key = if names == Names::Keywords { key.as_str() } else { "" };
            let is_reference = key == "$ref";
            moved
                | match value {
                    Value::String(reference) if is_reference && (reference == "#" || reference.starts_with("#/")) => {
                        reference.replace_range(..1, place);
                        true
                    }
                    _ if VALUES.contains(&key) => false,
                    value => rebase(value, place, if OF_SCHEMAS.contains(&key) { Names::OfSchemas } else { Names::Keywords }),
                }
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn list(body: &Bytes, raw: Raw<'_>) -> Result<Vec<Tool>, BadRequest> {
    if first_of_array(raw).is_none() {
        return Err(BadRequest::wrong_type("tools", "an array of objects"));
    }
    let given: Vec<Raw<'_>> = serde_json::from_str(raw.get()).map_err(|_| BadRequest::wrong_type("tools", "an array of objects"))?;
    if given.len() > MAX_TOOLS {
        let message = format!("'tools' must have at most {MAX_TOOLS} tools, not {}", given.len());
        return Err(BadRequest::new("tools", "array_above_max_length", message));
    }
    given.into_iter().enumerate().map(|(index, raw)| tool(body, raw, index)).collect()
}

fn tool(body: &Bytes, raw: Raw<'_>, index: usize) -> Result<Tool, BadRequest> {
    let param = format!("tools[{index}]");
    let given: Given<'_> = serde_json::from_str(raw.get())
        .map_err(|_| BadRequest::wrong_type(&param, "an object with 'type': 'function' and 'function', an object with a 'name'"))?;
    if given.kind.as_ref().is_some_and(|kind| kind.0 != "function") {
        let message = format!("'{param}.type' must be 'function'");
        return Err(BadRequest::new(format!("{param}.type"), "invalid_value", message));
    }
    let param = format!("{param}.function.name");
    let Some(Key(name)) = given.function.name else {
        return Err(BadRequest::new(param.as_str(), "missing_required_parameter", format!("missing required parameter: '{param}'")));
    };
    let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'));
    if name.is_empty() || name.len() > MAX_NAME_CHARS || !is_name(&name) {
        let message = format!("'{param}' must have 1 to {MAX_NAME_CHARS} characters, letters, digits, '_', '-' and '.'");
        return Err(BadRequest::new(param, "invalid_value", message));
    }
    Ok(Tool {
        name: name.into_owned(),
        parameters: given.function.parameters.filter(|raw| raw.get() != "null").map(|raw| Json::of(body, raw)),
        strict: given.function.strict.unwrap_or(false),
    })
}

fn tool_choice(raw: Raw<'_>, tools: &[Tool]) -> Result<ToolChoice, BadRequest> {
    #[derive(serde::Deserialize)]
    struct Named<'a> {
        #[serde(borrow)]
        function: NamedFunction<'a>,
    }
    #[derive(serde::Deserialize)]
    struct NamedFunction<'a> {
        #[serde(borrow)]
        name: Cow<'a, str>,
    }
    const EXPECTED: &str = "'none', 'auto', 'required', or an object with 'type': 'function' and 'function': {'name'}";
    let choice = match string(raw).as_deref() {
        Some("auto") => ToolChoice::Auto,
        Some("none") => ToolChoice::None,
        Some("required") => ToolChoice::Required,
        Some(_) => return Err(BadRequest::new("tool_choice", "invalid_value", format!("'tool_choice' must be {EXPECTED}"))),
        None => match serde_json::from_str::<Named<'_>>(raw.get()) {
            Ok(named) => ToolChoice::Named(named.function.name.into_owned()),
            Err(_) => return Err(BadRequest::wrong_type("tool_choice", EXPECTED)),
        },
    };
    match &choice {
        ToolChoice::Required if tools.is_empty() => {
            Err(BadRequest::new("tool_choice", "invalid_value", "'tool_choice' is 'required' and 'tools' names no tool"))
        }
        ToolChoice::Named(name) if !tools.iter().any(|tool| tool.name == *name) => {
            let message = format!("'tool_choice' names the tool '{name}', which is not in 'tools'");
            Err(BadRequest::new("tool_choice.function.name", "invalid_value", message))
        }
        ToolChoice::Auto | ToolChoice::None | ToolChoice::Required | ToolChoice::Named(_) => Ok(choice),
    }
}
