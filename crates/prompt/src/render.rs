//! A chat request to prompt text: conversation, variables, template, and transformers' `continue_final_message`.

use std::time::SystemTime;

use minijinja::Value;
use serde_json::Value as JsonValue;

use crate::chat::{self, Conversation, MEDIA_MARK, Media};
use crate::error::TokenError;
use crate::folder::Chats;
use crate::request::Chat;
use crate::template::Template;
use crate::{here, kwargs};

/// Put behind the final message to find it in the rendered text, as transformers does (the same text, because a template
/// may treat what it sees).
const FINAL_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Arguments of transformers' `apply_chat_template`, which never reach the template.
const NOT_VARIABLES: [&str; 12] = [
    "chat_template",
    "continue_final_message",
    "conversation",
    "max_length",
    "messages",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "tokenize",
    "tokenizer_kwargs",
    "truncation",
];

/// Rendered text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rendered {
    pub(crate) text: String,
    /// Bytes in front of the first media part, where there is one.
    pub(crate) text_before_media: Option<usize>,
}

/// Renders `chat`; `special` are the tokenizer's named tokens.
pub(crate) fn chat(
    chat: &Chat,
    template: &Template,
    special: &[(String, String)],
    chats: Chats,
    now: SystemTime,
) -> Result<Rendered, TokenError> {
    let variables = variables(chat, special, template, chats)?;
    let read = |media| -> Result<Conversation, TokenError> {
        let mut conversation = Conversation::new(chat.messages.value()?, template.content_format(), media)?;
        if chats == Chats::Here {
            here::messages(&mut conversation.messages, template);
        }
        Ok(conversation)
    };
    let conversation = read(Media::Placeholder)?;
    let media = conversation.media;
    let text = conversation_text(chat, conversation, template, (&variables, now))?;
    if !media {
        return Ok(Rendered { text, text_before_media: None });
    }
    // Where the two renderings part, the media begins (or an earlier place that depends on it).
    let marked = conversation_text(chat, read(Media::Mark)?, template, (&variables, now))?;
    let mark = marked.find(MEDIA_MARK).unwrap_or(marked.len());
    let mut before = text.bytes().zip(marked[..mark].bytes()).take_while(|(a, b)| a == b).count();
    while !text.is_char_boundary(before) {
        before -= 1;
    }
    Ok(Rendered { text, text_before_media: Some(before) })
}

type Variables = Vec<(String, Value)>;

fn variables(chat: &Chat, special: &[(String, String)], template: &Template, chats: Chats) -> Result<Variables, TokenError> {
    let mut all: Vec<(String, Value)> = special.iter().map(|(name, token)| (name.clone(), Value::from(token.as_str()))).collect();
    let mut set = |name: &str, value: Value| {
        all.retain(|(known, _)| known != name);
        all.push((name.to_owned(), value));
    };
    let tools = match &chat.tools {
        Some(tools) => {
            let mut tools = chat::tools(tools.value()?)?;
            if chats == Chats::Here {
                here::tools(&mut tools, template);
            }
            Value::from_serialize(tools)
        }
        None => Value::from(()),
    };
    set("tools", tools);
    set("documents", Value::from(()));
    for (name, value) in kwargs::of(chat, chats)? {
        if !NOT_VARIABLES.contains(&name.as_str()) {
            set(&name, Value::from_serialize(value));
        }
    }
    set("add_generation_prompt", Value::from(chat.add_generation_prompt));
    Ok(all)
}

fn conversation_text(
    chat: &Chat,
    mut conversation: Conversation,
    template: &Template,
    (variables, now): (&[(String, Value)], SystemTime),
) -> Result<String, TokenError> {
    if !template.knows_developer() {
        conversation.without_developer();
    }
    let last = if chat.continue_final_message { Some(tag_final(&mut conversation.messages)?) } else { None };
    let mut variables = variables.to_vec();
    variables.push(("messages".to_owned(), Value::from_serialize(&conversation.messages)));
    let text = template.render(variables, now)?;
    match last {
        Some(last) => cut_behind_final(text, &last),
        None => Ok(text),
    }
}

/// Appends the tag to the last message's last text; answers that text.
fn tag_final(messages: &mut [JsonValue]) -> Result<String, TokenError> {
    let nothing = || TokenError::Unsupported("'continue_final_message' without text in the final message".into());
    let content = messages.last_mut().map(|message| &mut message["content"]).ok_or_else(nothing)?;
    let text = match content {
        JsonValue::Array(parts) => {
            let part = parts.iter_mut().rev().find(|part| part.get("text").is_some()).ok_or_else(nothing)?;
            &mut part["text"]
        }
        other => other,
    };
    let last = text.as_str().ok_or_else(nothing)?.to_owned();
    *text = format!("{last}{FINAL_TAG}").into();
    Ok(last)
}

/// Cuts the text at the tag. A template that trims content has eaten the tag's trailing space; then the message's own
/// trailing space goes too.
fn cut_behind_final(mut text: String, last: &str) -> Result<String, TokenError> {
    let found = text.rfind(FINAL_TAG.trim_end()).filter(|_| text.contains(last.trim()));
    let Some(at) = found else {
        return Err(TokenError::Refused("the final message does not appear in the rendered chat".into()));
    };
    let kept = if text[at..].starts_with(FINAL_TAG) { at } else { text[..at].trim_end().len() };
    text.truncate(kept);
    Ok(text)
}
