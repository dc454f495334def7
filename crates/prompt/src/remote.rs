//! Without a model folder: token ids from an engine's `/tokenize`. This builds the bodies, reads the answers and
//! remembers them; the call itself, its time-out and the choice of engine belong to whoever owns sockets.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::cache::TextCache;
use crate::chat::{Conversation, Media};
use crate::content_format::ContentFormat;
use crate::counters::Counter;
use crate::error::TokenError;
use crate::folder::Chats;
use crate::kwargs;
use crate::request::{Chat, Inputs, Prompt, Request, Tokens};

/// Bytes of questions and answers that are remembered.
const CACHE_BYTES: usize = 32 << 20;

/// What one prompt of a request needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Nothing: it is token ids already.
    Known(Tokens),
    /// The answer to this body, POSTed to `/tokenize`.
    Post(Bytes),
}

/// What asking engines costs, for metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Questions answered from memory.
    pub hits: Counter,
    /// Questions that needed an engine.
    pub misses: Counter,
    /// Token ids received.
    pub tokens: Counter,
}

/// Remembered answers, by the whole body of the question (which names the model).
pub struct Cache {
    answers: TextCache,
    counters: Arc<Counters>,
}

impl Default for Cache {
    fn default() -> Self {
        Self { answers: TextCache::new(CACHE_BYTES), counters: Arc::default() }
    }
}

impl Cache {
    /// What it has cost so far.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// The remembered answer to the question `body`.
    pub fn get(&self, body: &Bytes) -> Option<Tokens> {
        let found = std::str::from_utf8(body).ok().and_then(|text| self.answers.get(text, false));
        let counter = if found.is_some() { &self.counters.hits } else { &self.counters.misses };
        counter.add(1);
        found.map(Tokens::all)
    }

    /// Remembers the token ids an engine answered to the question `body`.
    pub fn answered(&self, body: &Bytes, ids: Vec<u32>) -> Tokens {
        let tokens = Tokens::all(ids.into());
        self.counters.tokens.add(tokens.ids.len() as u64);
        if let Ok(text) = std::str::from_utf8(body) {
            self.answers.put(text, false, &tokens.ids);
        }
        tokens
    }
}

/// The question for each prompt of `request`, in order. Reads the whole conversation: run it as [`crate::Pool::run_brief`]
/// where bodies are large.
///
/// # Errors
/// [`TokenError`] where an engine could not answer, or would have to fetch media to do so.
pub fn asks(request: &Request) -> Result<Vec<Ask>, TokenError> {
    if request.truncation.is_some() {
        return Err(TokenError::Unsupported("'truncate_prompt_tokens' without a model folder".into()));
    }
    match &request.inputs {
        Inputs::Opaque => Err(TokenError::Opaque),
        Inputs::Chat(chat) => chat_body(request, chat).map(|body| vec![Ask::Post(body)]),
        Inputs::Prompts(prompts) => prompts
            .iter()
            .map(|prompt| match prompt {
                Prompt::Ids(ids) => Ok(Ask::Known(Tokens::all(ids.clone()))),
                Prompt::Text(text) => {
                    let mut body = head(request);
                    body.insert("prompt".into(), text.as_ref().into());
                    Ok(Ask::Post(Value::Object(body).to_string().into()))
                }
            })
            .collect(),
    }
}

fn head(request: &Request) -> Map<String, Value> {
    let mut body = Map::new();
    body.insert("model".into(), request.model.as_str().into());
    body.insert("add_special_tokens".into(), request.add_special_tokens.into());
    body
}

/// The messages and tools go as the client wrote them; fields `/tokenize` does not know go where the template finds them.
fn chat_body(request: &Request, chat: &Chat) -> Result<Bytes, TokenError> {
    if chat.own_template {
        return Err(TokenError::OwnTemplate);
    }
    let messages = chat.messages.value()?;
    if Conversation::new(messages.clone(), ContentFormat::Parts, Media::Placeholder)?.media {
        return Err(TokenError::Unsupported("media in a chat without a model folder".into()));
    }
    let mut body = head(request);
    body.insert("messages".into(), messages);
    body.insert("add_generation_prompt".into(), chat.add_generation_prompt.into());
    body.insert("continue_final_message".into(), chat.continue_final_message.into());
    if let Some(tools) = &chat.tools {
        body.insert("tools".into(), tools.value()?);
    }
    let kwargs = kwargs::of(chat, Chats::ByServer)?;
    if !kwargs.is_empty() {
        body.insert("chat_template_kwargs".into(), kwargs.into());
    }
    Ok(Value::Object(body).to_string().into())
}
