//! A model folder as it comes from a hub: `tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json`,
//! `chat_template.jinja` or `.json`, `config.json`, `generation_config.json`. Only the first must be there.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value;

use crate::cache::TextCache;
use crate::counters::Counters;
use crate::error::{LoadError, TokenError};
use crate::files::{self, Files};
use crate::render;
use crate::request::{Chat, Inputs, Prompt, Request, Side, Tokens, Truncation};
use crate::template::Template;
use crate::tokenizer::{self, Engine, Tokenizer};
use crate::vocabulary::Vocabulary;

/// Models whose OpenAI servers write the chat prompt in code (OpenAI's harmony format), not with the folder's template: the
/// two differ in details, so that ids made with the template would not be the server's.
const RENDERED_IN_CODE: [&str; 1] = ["gpt_oss"];

/// Who renders the chats of a model, and so whose prompt ours has to equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chats {
    /// An OpenAI server, which gets the messages. Models it renders in code have no template here.
    ByServer,
    /// We do, for a worker that gets token ids: with the folder's template for every model, as Dynamo does (gpt-oss
    /// folders ship one that writes the harmony format).
    Here,
}

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
    chats: Chats,
    cache: TextCache,
    /// Tokens the model's configuration allows for prompt and answer.
    context_length: Option<u32>,
    eos_token_ids: Vec<u32>,
    vocabulary: Arc<Vocabulary>,
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
    /// Reads the folder `path`, of a model whose OpenAI servers tokenise for themselves: ids are as theirs will be.
    ///
    /// # Errors
    /// Where `tokenizer.json` is missing or unusable, or another file is there and is not valid JSON. A chat template
    /// that does not compile is no error: [`Report::chat_template`] says so, and chats are then [`TokenError::NoTemplate`].
    pub fn load(path: &Path, options: &LoadOptions) -> Result<Self, LoadError> {
        Self::read(&Files::in_folder(path), options, Chats::ByServer)
    }

    /// Reads `files`, which may lie in different places, of a model whose workers take token ids: chats are rendered with
    /// its own template, whichever it is (gpt-oss too), and a prompt that is cut loses its start unless the body says
    /// otherwise.
    ///
    /// # Errors
    /// As [`Folder::load`], and where a file has another checksum than was announced.
    pub fn load_files(files: &Files, options: &LoadOptions) -> Result<Self, LoadError> {
        Self::read(files, options, Chats::Here)
    }

    fn read(files: &Files, options: &LoadOptions, chats: Chats) -> Result<Self, LoadError> {
        let config = files::json(files.tokenizer_config.as_ref())?;
        let special_map = files::json(files.special_tokens_map.as_ref())?;
        let model = files::json(files.config.as_ref())?;
        let generation = files::json(files.generation_config.as_ref())?;
        let tokenizer::Loaded { tokenizer, vocabulary, engine, reason } = Tokenizer::load(&files.tokenizer, &config)?;
        let in_code = model["model_type"].as_str().is_some_and(|kind| RENDERED_IN_CODE.contains(&kind));
        let (templates, origin) = if in_code && chats == Chats::ByServer {
            let why = "engines write the chat prompt of this model in code".to_owned();
            (Err(why.clone()), Err(why))
        } else {
            templates(files, &config)?
        };
        let length = &model["max_position_embeddings"];
        let length = length.as_u64().or_else(|| model["text_config"]["max_position_embeddings"].as_u64());
        let special = special_tokens(&config, &special_map);
        Ok(Self {
            eos_token_ids: eos_token_ids(&generation, &model, || {
                let eos = special.iter().find(|(name, _)| name == "eos_token")?;
                vocabulary.id_of_special(&eos.1)
            }),
            vocabulary: Arc::new(vocabulary),
            tokenizer,
            templates,
            special,
            chats,
            cache: TextCache::new(options.text_cache_bytes),
            context_length: length.and_then(|length| u32::try_from(length).ok()),
            report: Report { tokenizer: engine, tokenizer_reason: reason, chat_template: origin },
        })
    }

    /// What was found.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Ids to text.
    pub fn vocabulary(&self) -> Arc<Vocabulary> {
        self.vocabulary.clone()
    }

    /// The tokens that end an answer, by `generation_config.json`, else `config.json`, else the `eos_token` of
    /// `tokenizer_config.json`. Empty where none of them says.
    pub fn eos_token_ids(&self) -> &[u32] {
        &self.eos_token_ids
    }

    /// Tokens of prompt and answer together that the model's configuration allows, where it says.
    pub fn context_length(&self) -> Option<u32> {
        self.context_length
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
        render::chat(chat, self.template(chat)?, &self.special, self.chats, now).map(|rendered| rendered.text)
    }

    fn chat_tokens(&self, chat: &Chat, special: bool, now: SystemTime, counters: &Counters) -> Result<Tokens, TokenError> {
        let rendered = render::chat(chat, self.template(chat)?, &self.special, self.chats, now)?;
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

    /// Without a side in the body a server's tokenizer decides which end of a prompt goes: nothing may be matched then. Where
    /// the ids are ours, so is the side: the start goes, as vLLM has it.
    fn truncate(&self, tokens: Tokens, cut: Truncation) -> Tokens {
        let side = match (cut.side, self.chats) {
            (None, Chats::Here) => Some(Side::Left),
            (side, _) => side,
        };
        let keep = match usize::try_from(cut.keep_tokens) {
            Ok(keep) => keep,
            Err(_) => self.context_length.map_or(usize::MAX, |length| length as usize),
        };
        let length = tokens.ids.len();
        if length <= keep {
            return tokens;
        }
        match side {
            Some(Side::Right) => Tokens { ids: tokens.ids[..keep].into(), text_only_prefix: tokens.text_only_prefix },
            Some(Side::Left) if tokens.text_only_prefix.is_none() => Tokens::all(tokens.ids[length - keep..].into()),
            Some(Side::Left) | None => Tokens { ids: tokens.ids[..keep].into(), text_only_prefix: Some(0) },
        }
    }
}

type Found = (Result<Templates, String>, Result<String, String>);

/// A file of its own goes before `tokenizer_config.json`, as in transformers.
fn templates(files: &Files, config: &Value) -> Result<Found, LoadError> {
    let mut sources: Vec<(String, String)> = Vec::new();
    let mut origin = "tokenizer_config.json".to_owned();
    for file in &files.chat_templates {
        let found = match file.path.extension() {
            Some(extension) if extension == "json" => file.json()?.map(|json| named(&json["chat_template"])),
            Some(_) | None => file.text()?.map(|source| vec![("default".to_owned(), source)]),
        };
        if let Some(found) = found.filter(|found| !found.is_empty()) {
            sources = found;
            origin = file.path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            break;
        }
    }
    if sources.is_empty() {
        sources = named(&config["chat_template"]);
    }
    if let Some(source) = files::text(files.tool_use_template.as_ref())? {
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
    Ok((Ok(found), Ok(origin)))
}

/// One id or several, from the first place that has any.
fn eos_token_ids(generation: &Value, model: &Value, of_tokenizer: impl FnOnce() -> Option<u32>) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids = |value: &Value| match value {
        Value::Array(list) => list.iter().filter_map(id).collect(),
        one => id(one).into_iter().collect::<Vec<u32>>(),
    };
    [&generation["eos_token_id"], &model["eos_token_id"], &model["text_config"]["eos_token_id"]]
        .into_iter()
        .map(ids)
        .find(|ids| !ids.is_empty())
        .unwrap_or_else(|| of_tokenizer().into_iter().collect())
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
