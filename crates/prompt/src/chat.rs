//! A chat body's messages and tools in the shape engines hand them to a template. The rules are vLLM's
//! (`parse_chat_messages`, `FunctionDefinition`): which keys of a message survive, how parts become content, arguments
//! of tool calls as objects, the `developer` role.

use serde_json::{Map, Value, json};

use crate::content_format::ContentFormat;
use crate::error::TokenError;

/// Stands for the first part that is no text, to find out where in the prompt it comes to lie. No template and no user
/// writes it; if one did, credit would end there, which is safe.
pub(crate) const MEDIA_MARK: &str = "\u{fdd0}media\u{fdd1}";

/// The messages for a template, and whether any part is no text.
#[derive(Debug)]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Value>,
    pub(crate) media: bool,
}

/// What to put where the first media part stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Media {
    /// What the template expects there.
    Placeholder,
    /// [`MEDIA_MARK`].
    Mark,
}

impl Conversation {
    pub(crate) fn new(messages: Value, format: ContentFormat, media: Media) -> Result<Self, TokenError> {
        let Value::Array(given) = messages else { return Err(unsupported("'messages' is not an array")) };
        let mut reader = Reader { format, mark: media == Media::Mark, media: false };
        let messages = given.into_iter().map(|message| reader.message(message)).collect::<Result<_, _>>()?;
        Ok(Self { messages, media: reader.media })
    }

    /// For templates that know no `developer`: such messages become `system`, and all system text moves to the front.
    pub(crate) fn without_developer(&mut self) {
        let role = |message: &Value, name: &str| message["role"] == name;
        if !self.messages.iter().any(|message| role(message, "developer")) {
            return;
        }
        for message in self.messages.iter_mut().filter(|message| role(message, "developer")) {
            message["role"] = "system".into();
            message.as_object_mut().map(|message| message.shift_remove("tools"));
        }
        let in_front = self.messages.iter().skip(1).all(|message| !role(message, "system"));
        if in_front {
            return;
        }
        let (system, mut others): (Vec<_>, Vec<_>) = self.messages.drain(..).partition(|message| role(message, "system"));
        let texts: Vec<String> = system.iter().map(|message| text_of(&message["content"])).filter(|text| !text.is_empty()).collect();
        self.messages.push(json!({"role": "system", "content": texts.join("\n\n")}));
        self.messages.append(&mut others);
    }
}

fn unsupported(reason: impl Into<String>) -> TokenError {
    TokenError::Unsupported(reason.into())
}

fn text_of(content: &Value) -> String {
    match content {
        Value::Array(parts) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            texts.join("\n")
        }
        other => other.as_str().unwrap_or_default().to_owned(),
    }
}

struct Reader {
    format: ContentFormat,
    mark: bool,
    media: bool,
}

impl Reader {
    fn message(&mut self, message: Value) -> Result<Value, TokenError> {
        let Value::Object(mut message) = message else { return Err(unsupported("a message is not an object")) };
        let role = match message.remove("role") {
            Some(Value::String(role)) => role,
            _ => return Err(unsupported("a message has no role")),
        };
        let parts = match message.remove("content") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(parts)) => parts,
            Some(text @ Value::String(_)) => vec![text],
            Some(_) => return Err(unsupported("content of a message is neither text nor a list of parts")),
        };
        let content = self.content(&role, parts)?;
        let mut read = Map::new();
        read.insert("role".into(), role.as_str().into());
        read.insert("content".into(), content);
        match role.as_str() {
            "assistant" => {
                if let Some(calls) = tool_calls(message.remove("tool_calls"))? {
                    read.insert("tool_calls".into(), calls);
                }
                let reasoning = [message.remove("reasoning"), message.remove("reasoning_content")];
                if let Some(reasoning) = reasoning.into_iter().flatten().find(|one| !one.is_null()) {
                    read.insert("reasoning".into(), reasoning.clone());
                    read.insert("reasoning_content".into(), reasoning);
                }
            }
            "tool" => {
                if let Some(id) = message.remove("tool_call_id") {
                    read.insert("tool_call_id".into(), id);
                }
            }
            "developer" => {
                read.insert("tools".into(), message.remove("tools").unwrap_or_default());
            }
            _ => {}
        }
        for key in ["name", "task"] {
            if let Some(text @ Value::String(_)) = message.remove(key) {
                read.insert(key.into(), text);
            }
        }
        Ok(Value::Object(read))
    }

    fn content(&mut self, role: &str, parts: Vec<Value>) -> Result<Value, TokenError> {
        let mut read = Vec::with_capacity(parts.len());
        for part in parts {
            read.extend(self.part(part)?);
        }
        if role == "system" {
            read.retain_mut(|part| part["type"] != "text" || keep_system_text(part));
        }
        // Results of tools are text to almost every template, whatever it expects of other messages.
        let all_text = read.iter().all(|part| part["type"] == "text");
        if self.format == ContentFormat::Parts && !(role == "tool" && all_text) {
            return Ok(Value::Array(read));
        }
        // Placeholders of media go in front of a message's text; what they look like is the model's.
        let marks = read.iter().filter(|part| part["text"] == MEDIA_MARK);
        let texts = read.iter().filter(|part| part["text"] != MEDIA_MARK);
        let texts: Vec<&str> = marks.chain(texts).filter_map(|part| part["text"].as_str().or(part["name"].as_str())).collect();
        Ok(texts.join("\n").into())
    }

    /// A part as `{"type": "text", "text": ...}`, `{"type": "tool_reference", ...}` or `{"type": "image"}`.
    fn part(&mut self, part: Value) -> Result<Option<Value>, TokenError> {
        let mut part = match part {
            Value::String(text) => return Ok(Some(json!({"type": "text", "text": text}))),
            Value::Object(part) => part,
            _ => return Err(unsupported("a content part is neither text nor an object")),
        };
        let kind = match part.remove("type") {
            Some(Value::String(kind)) => kind,
            None | Some(Value::Null) => {
                let known = ["image_url", "image_embeds", "audio_url", "input_audio", "audio_embeds", "video_url", "video_embeds"];
                let kind = known.into_iter().find(|kind| part.contains_key(*kind));
                kind.ok_or_else(|| unsupported("a content part has no type"))?.to_owned()
            }
            Some(_) => return Err(unsupported("the type of a content part is not text")),
        };
        let key = match kind.as_str() {
            "text" | "input_text" | "output_text" => "text",
            "refusal" => "refusal",
            "thinking" => "thinking",
            "tool_reference" => {
                let name = part.remove("name").unwrap_or_default();
                return Ok(Some(json!({"type": "tool_reference", "name": name})));
            }
            "image_url" | "input_image" | "image_pil" | "image_embeds" => return Ok(Some(self.media("image"))),
            "audio_url" | "input_audio" | "audio_embeds" => return Ok(Some(self.media("audio"))),
            "video_url" | "video_embeds" => return Ok(Some(self.media("video"))),
            "prompt_embeds" => return Ok(Some(self.media("prompt_embeds"))),
            other => return Err(unsupported(format!("content part of type '{other}'"))),
        };
        match part.remove(key) {
            Some(text @ Value::String(_)) => Ok(Some(json!({"type": "text", "text": text}))),
            None | Some(Value::Null) => Ok(None),
            Some(_) => Err(unsupported(format!("'{key}' of a content part is not text"))),
        }
    }

    fn media(&mut self, kind: &str) -> Value {
        let first = !std::mem::replace(&mut self.media, true);
        if first && self.mark {
            return json!({"type": "text", "text": MEDIA_MARK});
        }
        json!({"type": kind})
    }
}

/// Some gateways put a line with a value of its own for each request in front of the system prompt; vLLM drops it, and
/// an engine that does not can never hit behind it.
fn keep_system_text(part: &mut Value) -> bool {
    let Some(text) = part["text"].as_str().filter(|text| text.starts_with("x-anthropic-billing-header")) else { return true };
    let rest = text.split_once('\n').map_or("", |(_, rest)| rest).to_owned();
    let keep = !rest.is_empty();
    part["text"] = rest.into();
    keep
}

/// Tool calls with their arguments as objects. Arguments that are no JSON object become `{}`, so that one bad turn does
/// not break a conversation. Keys come in the order of the engine's model of a call, for templates that print it whole.
fn tool_calls(calls: Option<Value>) -> Result<Option<Value>, TokenError> {
    let calls = match calls {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(calls)) if calls.is_empty() => return Ok(None),
        Some(Value::Array(calls)) => calls,
        Some(_) => return Err(unsupported("'tool_calls' is not an array")),
    };
    calls.into_iter().map(tool_call).collect::<Result<Vec<_>, _>>().map(|calls| Some(Value::Array(calls)))
}

fn tool_call(call: Value) -> Result<Value, TokenError> {
    let not_a_function = || unsupported("a tool call is not of type 'function'");
    let Value::Object(mut call) = call else { return Err(not_a_function()) };
    if call.get("type").is_some_and(|kind| kind != "function") {
        return Err(not_a_function());
    }
    let Some(Value::Object(mut function)) = call.shift_remove("function") else { return Err(not_a_function()) };
    let arguments = match function.shift_remove("arguments") {
        Some(Value::String(text)) => serde_json::from_str(&text).unwrap_or_default(),
        other => other.unwrap_or_default(),
    };
    let arguments = if arguments.is_object() { arguments } else { Value::Object(Map::new()) };
    function.insert("arguments".into(), arguments);
    call.insert("function".into(), Value::Object(first(function, ["arguments", "name"])));
    Ok(Value::Object(first(call, ["id", "function", "type"])))
}

/// `map` with `keys` in front, in this order.
fn first<const N: usize>(mut map: Map<String, Value>, keys: [&str; N]) -> Map<String, Value> {
    let mut ordered: Map<String, Value> =
        keys.into_iter().filter_map(|key| map.shift_remove(key).map(|value| (key.to_owned(), value))).collect();
    ordered.append(&mut map);
    ordered
}

/// Tools as an engine's model of them prints: `type`, `function`, and of that `name`, `description`, `parameters` (null
/// where absent), `strict` and `defer_loading` (only where given), in this order.
pub(crate) fn tools(tools: Value) -> Result<Value, TokenError> {
    let Value::Array(tools) = tools else { return Err(unsupported("'tools' is not an array")) };
    tools.into_iter().map(tool).collect::<Result<Vec<_>, _>>().map(Value::Array)
}

fn tool(mut tool: Value) -> Result<Value, TokenError> {
    if tool.get("type").is_some_and(|kind| kind != "function") {
        return Err(unsupported("a tool is not of type 'function'"));
    }
    let deferred = tool.get("defer_loading").cloned().filter(|value| !value.is_null());
    let Some(Value::Object(mut given)) = tool.get_mut("function").map(Value::take) else {
        return Err(unsupported("a tool has no 'function'"));
    };
    let Some(name @ Value::String(_)) = given.remove("name") else { return Err(unsupported("a tool has no name")) };
    let mut function = Map::new();
    function.insert("name".into(), name);
    for key in ["description", "parameters"] {
        function.insert(key.into(), given.remove(key).unwrap_or_default());
    }
    for key in ["strict", "defer_loading"] {
        let inherited = if key == "defer_loading" { deferred.clone() } else { None };
        if let Some(value) = given.remove(key).filter(|value| !value.is_null()).or(inherited) {
            function.insert(key.into(), value);
        }
    }
    let mut read = Map::new();
    read.insert("type".into(), "function".into());
    read.insert("function".into(), Value::Object(function));
    if let Some(deferred) = deferred {
        read.insert("defer_loading".into(), deferred);
    }
    Ok(Value::Object(read))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(messages: Value, format: ContentFormat) -> Value {
        Value::Array(Conversation::new(messages, format, Media::Placeholder).expect("readable").messages)
    }

    #[test]
    fn content_takes_the_form_the_template_wants() {
        let messages = json!([
            {"role": "user", "content": "a", "unknown": 1},
            {"role": "user", "name": "bo", "content": [{"type": "text", "text": "b"}, "c", {"type": "refusal", "refusal": "d"}]},
            {"role": "assistant", "content": null, "reasoning_content": "r"},
            {"role": "tool", "tool_call_id": "t1", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]},
        ]);
        assert_eq!(
            read(messages.clone(), ContentFormat::Text),
            json!([
                {"role": "user", "content": "a"},
                {"role": "user", "content": "b\nc\nd", "name": "bo"},
                {"role": "assistant", "content": "", "reasoning": "r", "reasoning_content": "r"},
                {"role": "tool", "content": "x\ny", "tool_call_id": "t1"},
            ])
        );
        assert_eq!(
            read(messages, ContentFormat::Parts),
            json!([
                {"role": "user", "content": [{"type": "text", "text": "a"}]},
                {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}, {"type": "text", "text": "d"}], "name": "bo"},
                {"role": "assistant", "content": [], "reasoning": "r", "reasoning_content": "r"},
                {"role": "tool", "content": "x\ny", "tool_call_id": "t1"},
            ])
        );
    }

    #[test]
    fn arguments_become_objects() {
        for (given, expected) in [
            (json!("{\"b\": 1, \"a\": [2]}"), json!({"b": 1, "a": [2]})),
            (json!({"z": 1}), json!({"z": 1})),
            (json!(""), json!({})),
            (json!(null), json!({})),
            (json!("[1]"), json!({})),
            (json!("{broken"), json!({})),
        ] {
            let messages = json!([{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": given}}]}]);
            let read = read(messages, ContentFormat::Text);
            assert_eq!(read[0]["tool_calls"][0]["function"]["arguments"], expected);
        }
        assert!(read(json!([{"role": "assistant", "tool_calls": []}]), ContentFormat::Text)[0].get("tool_calls").is_none());
    }

    #[test]
    fn media_is_noticed_and_the_first_can_be_marked() {
        let messages = json!([{"role": "user", "content": [
            {"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "u"}}, {"input_audio": {}}]}]);
        let plain = Conversation::new(messages.clone(), ContentFormat::Parts, Media::Placeholder).expect("readable");
        assert!(plain.media);
        assert_eq!(plain.messages[0]["content"], json!([{"type": "text", "text": "see"}, {"type": "image"}, {"type": "audio"}]));
        let marked = Conversation::new(messages, ContentFormat::Text, Media::Mark).expect("readable");
        assert_eq!(marked.messages[0]["content"], json!(format!("{MEDIA_MARK}\nsee")));
    }

    #[test]
    fn developer_becomes_system_in_front() {
        let mut conversation = Conversation::new(
            json!([{"role": "user", "content": "u"}, {"role": "developer", "content": "d"}, {"role": "system", "content": "s"}]),
            ContentFormat::Parts,
            Media::Placeholder,
        )
        .expect("readable");
        conversation.without_developer();
        assert_eq!(conversation.messages[0], json!({"role": "system", "content": "d\n\ns"}));
        assert_eq!(conversation.messages[1]["role"], "user");
    }

    #[test]
    fn tools_as_engines_print_them() {
        let given = json!([{"function": {"strict": true, "parameters": {"b": 1, "a": 2}, "name": "f", "extra": 0}, "type": "function"},
            {"type": "function", "function": {"name": "g", "description": "d", "strict": null}}]);
        let expected = r#"[{"type":"function","function":{"name":"f","description":null,"parameters":{"b":1,"a":2},"strict":true}},{"type":"function","function":{"name":"g","description":"d","parameters":null}}]"#;
        assert_eq!(tools(given).expect("readable").to_string(), expected);
        assert!(tools(json!([{"type": "web_search"}])).is_err());
    }

    #[test]
    fn a_line_of_its_own_per_request_is_dropped() {
        let read = read(
            json!([{"role": "system", "content": "x-anthropic-billing-header: cch=1;\nbe kind"},
            {"role": "user", "content": "x-anthropic-billing-header: mine"}]),
            ContentFormat::Text,
        );
        assert_eq!(read[0]["content"], "be kind");
        assert_eq!(read[1]["content"], "x-anthropic-billing-header: mine");
    }
}
