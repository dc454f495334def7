//! Chats that are rendered for a worker that takes token ids: where no server's prompt has to be met, a prompt is as the
//! model's own template means it.

use serde_json::Value;

use crate::template::Template;

/// Reasoning of earlier turns under the name a template reads. gpt-oss writes it in front of a call whose result is awaited,
/// which the model was trained to see. It refuses a message that has content as well: there the content stays.
pub(crate) fn messages(messages: &mut [Value], template: &Template) {
    if !template.reads_thinking() {
        return;
    }
    for message in messages {
        let has_content = message["content"].as_str().is_none_or(|content| !content.is_empty());
        if has_content && message.get("tool_calls").is_some() {
            continue;
        }
        let reasoning = message.get("reasoning").cloned();
        if let (Some(reasoning @ Value::String(_)), Some(message)) = (reasoning, message.as_object_mut()) {
            message.insert("thinking".into(), reasoning);
        }
    }
}

/// Tools without what the client did not write, which servers print as null. A template that appends the description to a
/// text (gpt-oss) fails without one and gets an empty one.
pub(crate) fn tools(tools: &mut Value, template: &Template) {
    for tool in tools.as_array_mut().into_iter().flatten() {
        let Some(function) = tool["function"].as_object_mut() else { continue };
        function.retain(|_, value| !value.is_null());
        if template.appends_description() && !function.contains_key("description") {
            function.insert("description".into(), "".into());
        }
    }
}
