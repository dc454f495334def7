//! What a chat body lets a template know beside its messages: `chat_template_kwargs`, and the fields that are turned into such.

use serde_json::{Map, Value};

use crate::error::TokenError;
use crate::folder::Chats;
use crate::request::{Chat, Json};

/// The same decision in the three forms that templates read: two switches and a mode.
const SWITCHES: [&str; 2] = ["thinking", "enable_thinking"];
const MODE: &str = "thinking_mode";

/// The variables of `chat`'s own, for prompts that are rendered as `chats` says.
pub(crate) fn of(chat: &Chat, chats: Chats) -> Result<Map<String, Value>, TokenError> {
    let mut kwargs = object("chat_template_kwargs", chat.template_kwargs.as_ref())?;
    if let Some(documents) = &chat.documents {
        kwargs.insert("documents".into(), documents.value()?);
    }
    match chats {
        Chats::ByServer => as_servers_do(chat, &mut kwargs),
        Chats::Here => {
            kwargs.append(&mut object("chat_template_args", chat.template_args.as_ref())?);
            as_dynamo_does(chat, &mut kwargs)?;
        }
    }
    Ok(kwargs)
}

fn object(name: &str, json: Option<&Json>) -> Result<Map<String, Value>, TokenError> {
    match json.map(Json::value).transpose()? {
        None => Ok(Map::new()),
        Some(Value::Object(map)) => Ok(map),
        Some(_) => Err(TokenError::Unsupported(format!("'{name}' is not an object"))),
    }
}

/// vLLM derives `enable_thinking` from an effort.
fn as_servers_do(chat: &Chat, kwargs: &mut Map<String, Value>) {
    if let Some(effort) = &chat.reasoning_effort {
        kwargs.insert("reasoning_effort".into(), effort.as_str().into());
        kwargs.entry("enable_thinking").or_insert_with(|| (effort != "none").into());
    }
}

/// Dynamo lets `thinking` decide, then a switch, then a mode, then the effort, and says what was decided in every form: the
/// families of models differ in which one they read.
fn as_dynamo_does(chat: &Chat, kwargs: &mut Map<String, Value>) -> Result<(), TokenError> {
    match chat.thinking.as_ref().map(thinking).transpose()? {
        None => {}
        Some(Thinking::Adaptive) => {
            SWITCHES.iter().for_each(|switch| drop(kwargs.shift_remove(*switch)));
            kwargs.insert(MODE.into(), "adaptive".into());
        }
        Some(Thinking::On) => decide(kwargs, true),
        Some(Thinking::Off) => decide(kwargs, false),
    }
    let nested = kwargs.get("reasoning_effort").filter(|effort| !effort.is_null()).cloned();
    let effort = chat.reasoning_effort.as_deref().map(Value::from).or(nested);
    let by_switch = SWITCHES.iter().find_map(|switch| kwargs.get(*switch).and_then(Value::as_bool));
    let mode = kwargs.get(MODE).and_then(Value::as_str).map(str::to_ascii_lowercase);
    let decided = by_switch.or_else(|| match mode.as_deref() {
        Some("adaptive") => None,
        Some("enabled") => Some(true),
        Some("disabled") => Some(false),
        Some(_) | None => effort.as_ref().and_then(Value::as_str).map(|effort| effort != "none"),
    });
    if let Some(on) = decided {
        decide(kwargs, on);
    }
    if let Some(effort) = effort {
        kwargs.insert("reasoning_effort".into(), effort);
    }
    Ok(())
}

fn decide(kwargs: &mut Map<String, Value>, on: bool) {
    SWITCHES.iter().for_each(|switch| drop(kwargs.insert((*switch).into(), on.into())));
    kwargs.insert(MODE.into(), if on { "enabled" } else { "disabled" }.into());
}

enum Thinking {
    On,
    Off,
    /// The model decides.
    Adaptive,
}

fn thinking(json: &Json) -> Result<Thinking, TokenError> {
    let value = json.value()?;
    match (value.as_bool(), value["type"].as_str()) {
        (Some(true), _) | (_, Some("enabled")) => Ok(Thinking::On),
        (Some(false), _) | (_, Some("disabled")) => Ok(Thinking::Off),
        (_, Some("adaptive")) => Ok(Thinking::Adaptive),
        _ => Err(TokenError::Unsupported("'thinking' is neither true or false nor of 'type' enabled, disabled or adaptive".into())),
    }
}
