//! A model folder as it comes from a hub: `tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json`,
//! `chat_template.jinja` or `.json`, `config.json`. Only the first must be there.

use std::path::Path;
use std::time::SystemTime;

use serde_json::Value;

use crate::cache::TextCache;
use crate::error::{LoadError, TokenError};
use crate::pool::Counters;
use crate::render;
use crate::request::{Chat, Inputs, Prompt, Request, Side, Tokens, Truncation};
use crate::template::Template;
use crate::tokenizer::{Engine, Tokenizer};

/// Models whose engines write their chat prompt in code (OpenAI's harmony format), not with the folder's template.
const RENDERED_IN_CODE: [&str; 1] = ["gpt_oss"];

/// How a folder is loaded.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Bytes of whole prompts whose token ids are remembered; 0 turns it off.
    pub text_cache_bytes: usize,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { text_cache_bytes: 64 << 20 }
    }
}

/// What was found in a folder, for the log and for `--check`.
#[derive(Clone, Debug)]
pub struct Report {
    /// Which tokenizer is used.
    pub tokenizer: Engine,
    /// Why that one.
    pub tokenizer_reason: String,
    /// Where the chat template came from, or why there is none.
    pub chat_template: Result<String, String>,
}

/// A loaded model folder. Loading a large vocabulary takes seconds of CPU: do it off the async workers.
pub struct Folder {
    tokenizer: Tokenizer,
    templates: Result<Templates, String>,
    special: Vec<(String, String)>,
    cache: TextCache,
    /// Tokens the model's configuration allows for prompt and answer.
    context_length: Option<u32>,
    report: Report,
}

impl std::fmt::Debug for Folder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Folder").field("report", &self.report).finish_non_exhaustive()
    }
}

/// A folder's templates: one for all, and perhaps one for conversations with tools.
#[derive(Debug)]
struct Templates {
    default: Option<Template>,
    tool_use: Option<Template>,
}

impl Folder {
    /// Reads the folder `path`.
    ///
    /// # Errors
    /// Where `tokenizer.json` is missing or unusable, or another file is there and is not valid JSON. A chat template
    /// that does not compile is no error: [`Report::chat_template`] says so, and chats are then [`TokenError::NoTemplate`].
    pub fn load(path: &Path, options: &LoadOptions) -> Result<Self, LoadError> {
        let config = json(&path.join("tokenizer_config.json"))?.unwrap_or_default();
        let special_map = json(&path.join("special_tokens_map.json"))?.unwrap_or_default();
        let model = json(&path.join("config.json"))?.unwrap_or_default();
        let (tokenizer, engine, tokenizer_reason) = Tokenizer::load(path)?;
        let in_code = model["model_type"].as_str().is_some_and(|kind| RENDERED_IN_CODE.contains(&kind));
        let (templates, origin) = if in_code {
            let why = "engines write the chat prompt of this model in code".to_owned();
            (Err(why.clone()), Err(why))
        } else {
            templates(path, &config)?
        };
        let length = &model["max_position_embeddings"];
        let length = length.as_u64().or_else(|| model["text_config"]["max_position_embeddings"].as_u64());
        Ok(Self {
            tokenizer,
            templates,
            special: special_tokens(&config, &special_map),
            cache: TextCache::new(options.text_cache_bytes),
            context_length: length.and_then(|length| u32::try_from(length).ok()),
            report: Report { tokenizer: engine, tokenizer_reason, chat_template: origin },
        })
    }

    /// What was found.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The token ids of each prompt of `request`, on the calling thread. [`crate::Pool::tokens`] is this on a thread that
    /// may take its time. `now` is what a template's `strftime_now` prints (in UTC).
    ///
    /// # Errors
    /// [`TokenError`]; the request is then routed by load.
    pub fn tokens(&self, request: &Request, now: SystemTime, counters: &Counters) -> Result<Vec<Tokens>, TokenError> {
        let prompts: Vec<Tokens> = match &request.inputs {
            Inputs::Opaque => return Err(TokenError::Opaque),
            Inputs::Prompts(prompts) => prompts
                .iter()
                .map(|prompt| match prompt {
                    Prompt::Ids(ids) => Ok(Tokens::all(ids.clone())),
                    Prompt::Text(text) => self.encode(text, request.add_special_tokens, counters).map(Tokens::all),
                })
                .collect::<Result<_, _>>()?,
            Inputs::Chat(chat) => vec![self.chat_tokens(chat, request.add_special_tokens, now, counters)?],
        };
        Ok(match request.truncation {
            Some(cut) => prompts.into_iter().map(|tokens| self.truncate(tokens, cut)).collect(),
            None => prompts,
        })
    }

    /// The text of a chat's prompt, before it is tokenised.
    ///
    /// # Errors
    /// As [`Folder::tokens`].
    pub fn chat_text(&self, chat: &Chat, now: SystemTime) -> Result<String, TokenError> {
        render::chat(chat, self.template(chat)?, &self.special, now).map(|rendered| rendered.text)
    }

    fn chat_tokens(&self, chat: &Chat, special: bool, now: SystemTime, counters: &Counters) -> Result<Tokens, TokenError> {
        let rendered = render::chat(chat, self.template(chat)?, &self.special, now)?;
        counters.rendered.add(1);
        let ids = self.encode(&rendered.text, special, counters)?;
        let text_only_prefix = match rendered.text_before_media {
            None => None,
            Some(end) => {
                // The last tokens in front of the media may be cut another way in the whole text; equal ones are safe.
                let before = self.encode(&rendered.text[..end], special, counters)?;
                Some(ids.iter().zip(before.iter()).take_while(|(a, b)| a == b).count())
            }
        };
        Ok(Tokens { ids, text_only_prefix })
    }

    /// Encodes `text` and forgets it; errors show when it matters.
    pub(crate) fn warm(&self, text: &str) {
        let _ = self.tokenizer.encode(text, true);
    }

    fn template(&self, chat: &Chat) -> Result<&Template, TokenError> {
        if chat.own_template {
            return Err(TokenError::OwnTemplate);
        }
        let templates = self.templates.as_ref().map_err(|why| TokenError::NoTemplate(why.clone()))?;
        let for_tools = if chat.tools.is_some() { templates.tool_use.as_ref() } else { None };
        for_tools.or(templates.default.as_ref()).ok_or_else(|| TokenError::NoTemplate("none is named 'default'".into()))
    }

    fn encode(&self, text: &str, special: bool, counters: &Counters) -> Result<std::sync::Arc<[u32]>, TokenError> {
        let limit = self.tokenizer.longest_text();
        if text.len() > limit {
            return Err(TokenError::TooLong { bytes: text.len(), limit });
        }
        if let Some(ids) = self.cache.get(text, special) {
            counters.text_cache_hits.add(1);
            return Ok(ids);
        }
        let ids: std::sync::Arc<[u32]> = self.tokenizer.encode(text, special).map_err(TokenError::Encode)?.into();
        counters.encoded_bytes.add(text.len() as u64);
        counters.encoded_tokens.add(ids.len() as u64);
        self.cache.put(text, special, &ids);
        Ok(ids)
    }

    /// Without a side in the body the engine's tokenizer decides which end of a prompt goes: nothing may be matched then.
    fn truncate(&self, tokens: Tokens, cut: Truncation) -> Tokens {
        let keep = match usize::try_from(cut.keep_tokens) {
            Ok(keep) => keep,
            Err(_) => self.context_length.map_or(usize::MAX, |length| length as usize),
        };
        let length = tokens.ids.len();
        if length <= keep {
            return tokens;
        }
        match cut.side {
            Some(Side::Right) => Tokens { ids: tokens.ids[..keep].into(), text_only_prefix: tokens.text_only_prefix },
            Some(Side::Left) if tokens.text_only_prefix.is_none() => Tokens::all(tokens.ids[length - keep..].into()),
            Some(Side::Left) | None => Tokens { ids: tokens.ids[..keep].into(), text_only_prefix: Some(0) },
        }
    }
}

fn json(path: &Path) -> Result<Option<Value>, LoadError> {
    match text(path)? {
        Some(text) => serde_json::from_str(&text).map(Some).map_err(|source| LoadError::Json { path: path.into(), source }),
        None => Ok(None),
    }
}

fn text(path: &Path) -> Result<Option<String>, LoadError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(LoadError::Read { path: path.into(), source }),
    }
}

type Found = (Result<Templates, String>, Result<String, String>);

/// A file of its own goes before `tokenizer_config.json`, as in transformers.
fn templates(path: &Path, config: &Value) -> Result<Found, LoadError> {
    let mut sources: Vec<(String, String)> = Vec::new();
    let mut origin = "chat_template.jinja";
    if let Some(source) = text(&path.join("chat_template.jinja"))? {
        sources.push(("default".into(), source));
    } else if let Some(Value::Object(file)) = json(&path.join("chat_template.json"))? {
        origin = "chat_template.json";
        sources.extend(named(file.get("chat_template").unwrap_or(&Value::Null)));
    }
    if sources.is_empty() {
        origin = "tokenizer_config.json";
        sources.extend(named(&config["chat_template"]));
    }
    if let Some(source) = text(&path.join("additional_chat_templates").join("tool_use.jinja"))? {
        sources.push(("tool_use".into(), source));
    }
    let mut found = Templates { default: None, tool_use: None };
    for (name, source) in &sources {
        let slot = match name.as_str() {
            "default" => &mut found.default,
            "tool_use" => &mut found.tool_use,
            _ => continue,
        };
        match Template::new(source) {
            Ok(template) => *slot = Some(template),
            Err(error) => {
                let why = format!("template '{name}' of {origin} does not compile: {error}");
                return Ok((Err(why.clone()), Err(why)));
            }
        }
    }
    if found.default.is_none() && found.tool_use.is_none() {
        let why = "the folder has no chat template".to_owned();
        return Ok((Err(why.clone()), Err(why)));
    }
    Ok((Ok(found), Ok(origin.to_owned())))
}

/// `chat_template` is a text, a list of `{"name", "template"}`, or an object of names.
fn named(value: &Value) -> Vec<(String, String)> {
    match value {
        Value::String(source) => vec![("default".into(), source.clone())],
        Value::Array(list) => {
            list.iter().filter_map(|one| Some((one["name"].as_str()?.to_owned(), one["template"].as_str()?.to_owned()))).collect()
        }
        Value::Object(map) => map.iter().filter_map(|(name, source)| Some((name.clone(), source.as_str()?.to_owned()))).collect(),
        _ => Vec::new(),
    }
}

/// `bos_token` and its like, as text or as an object with `content`; the map fills what the configuration lacks.
fn special_tokens(config: &Value, map: &Value) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for source in [config, map] {
        for (name, value) in source.as_object().into_iter().flatten() {
            let content = value.as_str().or_else(|| value["content"].as_str());
            if let Some(content) = content.filter(|_| name.ends_with("_token"))
                && !found.iter().any(|(known, _)| known == name)
            {
                found.push((name.clone(), content.to_owned()));
            }
        }
    }
    found
}
