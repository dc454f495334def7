//! Reading an OpenAI body: one pass that notes where the known fields lie, then each field on its own, so that an error
//! can name its field. Unknown fields are nobody's business here. Where engines accept several spellings of a value
//! (`"16"` or `16.0` for a count) so does this: what an engine would answer must not be refused on the way to it.

use std::borrow::Cow;

use bytes::Bytes;
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::error::BadRequest;
use crate::ids::{self, IdError};
use crate::request::{Chat, Endpoint, Inputs, Json, Pin, Prompt, Request, Side, Truncation};

/// Prompts in one completions body; the limit of vLLM (`VLLM_MAX_COMPLETION_PROMPTS`).
const MAX_PROMPTS: usize = 1024;
/// Characters of a cache salt.
const MAX_SALT_CHARS: usize = 1024;
/// `max_tokens` of a completions body that has none: the default of OpenAI, vLLM and SGLang.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// Reads what routing needs of `body`. The returned request shares the body's memory.
///
/// # Errors
/// [`BadRequest`] where the body is not a JSON object, names no model, has no prompt, or a field it reads is of a type or
/// value no engine accepts.
pub fn parse(endpoint: Endpoint, body: &Bytes) -> Result<Request, BadRequest> {
    let text = std::str::from_utf8(body).map_err(|error| BadRequest {
        message: format!("could not parse the body as a JSON object: {error}"),
        param: None,
        code: None,
    })?;
    let mut reader = serde_json::Deserializer::from_str(text);
    let fields = reader
        .deserialize_map(Fields::default())
        .and_then(|fields| reader.end().map(|()| fields))
        .map_err(|error| BadRequest::json(&error))?;

    let model = match fields.get("model") {
        Some(raw) => string(raw).ok_or_else(|| BadRequest::wrong_type("model", "a string"))?.into_owned(),
        None => return Err(BadRequest::missing("model")),
    };
    if model.is_empty() {
        return Err(BadRequest::new("model", "invalid_value", "'model' must not be empty"));
    }
    let nvext = Nested::of("nvext", fields.get("nvext"), &["cache_salt", "backend_instance_id", "decode_worker_id", "dp_rank"])?;
    let max_tokens = match fields.count("max_completion_tokens", 0)? {
        Some(tokens) if endpoint == Endpoint::Chat => Some(tokens),
        _ => fields.count("max_tokens", 0)?,
    };
    let echo = fields.flag("echo")?.unwrap_or(false);
    Ok(Request {
        endpoint,
        model,
        stream: fields.flag("stream")?.unwrap_or(false),
        n: fields.count("n", 1)?.unwrap_or(1),
        best_of: fields.count("best_of", 1)?,
        max_tokens: match endpoint {
            Endpoint::Completions => max_tokens.or(Some(DEFAULT_MAX_TOKENS)),
            Endpoint::Chat => max_tokens,
        },
        salt: salt(fields.get("cache_salt"), nvext.get("cache_salt"))?,
        skips_cache: skips_cache(endpoint, &fields, echo),
        full_reports: full_reports(&fields)?,
        add_special_tokens: fields.flag("add_special_tokens")?.unwrap_or(endpoint == Endpoint::Completions),
        truncation: truncation(&fields)?,
        pin: pin(&nvext)?,
        inputs: match endpoint {
            Endpoint::Completions => prompts(&fields)?,
            Endpoint::Chat => Inputs::Chat(Box::new(chat(&fields, body)?)),
        },
    })
}

/// The fields this crate reads, in the order of [`Fields`]' slots.
const NAMES: [&str; 25] = [
    "model",
    "prompt",
    "messages",
    "stream",
    "n",
    "best_of",
    "max_tokens",
    "max_completion_tokens",
    "cache_salt",
    "nvext",
    "echo",
    "logprobs",
    "prompt_logprobs",
    "vllm_xargs",
    "add_special_tokens",
    "truncate_prompt_tokens",
    "truncation_side",
    "prompt_embeds",
    "tools",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "add_generation_prompt",
    "reasoning_effort",
];

/// Where each known field lies. A field given twice counts by its last value, as engines read it; null is absent.
#[derive(Default)]
struct Fields<'a>([Option<&'a RawValue>; NAMES.len()]);

impl<'a> Fields<'a> {
    fn get(&self, name: &str) -> Option<&'a RawValue> {
        let slot = NAMES.iter().position(|known| *known == name)?;
        self.0[slot].filter(|raw| raw.get() != "null")
    }

    fn flag(&self, name: &'static str) -> Result<Option<bool>, BadRequest> {
        self.get(name).map(|raw| flag(name, raw)).transpose()
    }

    fn count(&self, name: &'static str, least: u32) -> Result<Option<u32>, BadRequest> {
        self.get(name).map(|raw| count(name, raw, least)).transpose()
    }
}

impl<'de> Visitor<'de> for Fields<'de> {
    type Value = Self;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some(key) = map.next_key::<Key<'_>>()? {
            match NAMES.iter().position(|known| *known == key.0) {
                Some(slot) => self.0[slot] = Some(map.next_value()?),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(self)
    }
}

/// A key of an object, borrowed unless it is written with escapes.
#[derive(serde::Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// Some fields of a small nested object.
struct Nested<'a> {
    name: &'static str,
    fields: Vec<(&'static str, &'a RawValue)>,
}

impl<'a> Nested<'a> {
    fn of(name: &'static str, raw: Option<&'a RawValue>, wanted: &[&'static str]) -> Result<Self, BadRequest> {
        struct Pick<'w, 'a>(&'w [&'static str], Vec<(&'static str, &'a RawValue)>);
        impl<'de> Visitor<'de> for Pick<'_, 'de> {
            type Value = Vec<(&'static str, &'de RawValue)>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self::Value, A::Error> {
                while let Some(key) = map.next_key::<Key<'_>>()? {
                    match self.0.iter().find(|wanted| **wanted == key.0) {
                        Some(wanted) => {
                            self.1.retain(|(name, _)| name != wanted);
                            self.1.push((wanted, map.next_value()?));
                        }
                        None => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(self.1)
            }
        }
        let fields = match raw {
            None => Vec::new(),
            Some(raw) => serde_json::Deserializer::from_str(raw.get())
                .deserialize_map(Pick(wanted, Vec::new()))
                .map_err(|_| BadRequest::wrong_type(name, "an object"))?,
        };
        Ok(Self { name, fields })
    }

    fn get(&self, name: &str) -> Option<&'a RawValue> {
        let found = self.fields.iter().find(|(known, _)| *known == name)?;
        Some(found.1).filter(|raw| raw.get() != "null")
    }

    fn path(&self, name: &str) -> String {
        format!("{}.{name}", self.name)
    }
}

fn string(raw: &RawValue) -> Option<Cow<'_, str>> {
    serde_json::from_str::<Key<'_>>(raw.get()).ok().map(|key| key.0)
}

fn flag(param: &str, raw: &RawValue) -> Result<bool, BadRequest> {
    match raw.get() {
        "true" | "1" | "\"true\"" => Ok(true),
        "false" | "0" | "\"false\"" => Ok(false),
        _ => Err(BadRequest::wrong_type(param, "a boolean")),
    }
}

fn integer(param: &str, raw: &RawValue) -> Result<i64, BadRequest> {
    let text = raw.get();
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    if let Ok(value) = text.parse() {
        return Ok(value);
    }
    match text.parse::<f64>() {
        // Saturates, which is what a bound check after it needs.
        Ok(value) if value.fract() == 0.0 && !raw.get().starts_with('"') => Ok(value as i64),
        Ok(_) | Err(_) => Err(BadRequest::wrong_type(param, "an integer")),
    }
}

fn count(param: &str, raw: &RawValue, least: u32) -> Result<u32, BadRequest> {
    let value = integer(param, raw)?;
    if value < i64::from(least) {
        let message = format!("'{param}' must be at least {least}, not {value}");
        return Err(BadRequest::new(param, "integer_below_min_value", message));
    }
    u32::try_from(value).map_err(|_| {
        let message = format!("'{param}' must be at most {}, not {value}", u32::MAX);
        BadRequest::new(param, "integer_above_max_value", message)
    })
}

/// Of the body and of `nvext`: both may be given if they are equal.
fn salt(body: Option<&RawValue>, nvext: Option<&RawValue>) -> Result<Option<String>, BadRequest> {
    let read = |param: &str, raw: &RawValue| {
        let salt = string(raw).ok_or_else(|| BadRequest::wrong_type(param, "a string"))?;
        if salt.is_empty() || salt.chars().count() > MAX_SALT_CHARS {
            let message = format!("'{param}' must have 1 to {MAX_SALT_CHARS} characters");
            return Err(BadRequest::new(param, "invalid_value", message));
        }
        Ok(salt.into_owned())
    };
    let body = body.map(|raw| read("cache_salt", raw)).transpose()?;
    let nvext = nvext.map(|raw| read("nvext.cache_salt", raw)).transpose()?;
    match (body, nvext) {
        (Some(body), Some(nvext)) if body != nvext => {
            let message = "'cache_salt' and 'nvext.cache_salt' differ; give one of them";
            Err(BadRequest::new("cache_salt", "invalid_value", message))
        }
        (body, nvext) => Ok(body.or(nvext)),
    }
}

/// vLLM reads no cache for a request that returns logprobs of its prompt. `echo` asks for them too: in completions where
/// `logprobs` is given, in chats always (their `top_logprobs` is 0 by default).
fn skips_cache(endpoint: Endpoint, fields: &Fields<'_>, echo: bool) -> bool {
    fields.get("prompt_logprobs").is_some()
        || (echo
            && match endpoint {
                Endpoint::Completions => fields.get("logprobs").is_some(),
                Endpoint::Chat => true,
            })
}

fn full_reports(fields: &Fields<'_>) -> Result<bool, BadRequest> {
    let extra = Nested::of("vllm_xargs", fields.get("vllm_xargs"), &["kv_cache_report_mode"])?;
    Ok(extra.get("kv_cache_report_mode").and_then(string).is_some_and(|mode| mode == "full"))
}

fn truncation(fields: &Fields<'_>) -> Result<Option<Truncation>, BadRequest> {
    let Some(raw) = fields.get("truncate_prompt_tokens") else { return Ok(None) };
    let keep_tokens = integer("truncate_prompt_tokens", raw)?;
    if keep_tokens < -1 {
        let message = format!("'truncate_prompt_tokens' must be at least -1, not {keep_tokens}");
        return Err(BadRequest::new("truncate_prompt_tokens", "integer_below_min_value", message));
    }
    let side = match fields.get("truncation_side").map(RawValue::get) {
        None => None,
        Some("\"left\"") => Some(Side::Left),
        Some("\"right\"") => Some(Side::Right),
        Some(_) => return Err(BadRequest::wrong_type("truncation_side", "'left' or 'right'")),
    };
    Ok(Some(Truncation { keep_tokens, side }))
}

fn pin(nvext: &Nested<'_>) -> Result<Pin, BadRequest> {
    let worker = |name: &str| {
        nvext.get(name).map(|raw| match (string(raw), raw.get().as_bytes().first()) {
            (Some(id), _) => Ok(id.into_owned()),
            (None, Some(b'0'..=b'9')) => Ok(raw.get().to_owned()),
            (None, _) => Err(BadRequest::wrong_type(nvext.path(name), "a worker id")),
        })
    };
    Ok(Pin {
        worker: worker("backend_instance_id").or_else(|| worker("decode_worker_id")).transpose()?,
        dp_rank: nvext.get("dp_rank").map(|raw| count(&nvext.path("dp_rank"), raw, 0)).transpose()?,
    })
}

fn prompts(fields: &Fields<'_>) -> Result<Inputs, BadRequest> {
    const EXPECTED: &str = "a string, a list of strings, a list of token ids, or a list of lists of token ids";
    let embeds = fields.get("prompt_embeds").is_some_and(|raw| raw.get() != "[]");
    if embeds {
        return Ok(Inputs::Opaque);
    }
    let Some(raw) = fields.get("prompt") else { return Err(BadRequest::missing("prompt")) };
    let json = raw.get().as_bytes();
    match json.first() {
        Some(b'"') => match string(raw) {
            Some(text) if text.is_empty() => Err(empty("prompt")),
            Some(text) => Ok(Inputs::Prompts(vec![Prompt::Text(text.into())])),
            None => Err(BadRequest::wrong_type("prompt", EXPECTED)),
        },
        Some(b'[') => {
            let mut at = 1;
            ids::skip_space(json, &mut at);
            match json.get(at) {
                Some(b']') => Err(empty("prompt")),
                Some(b'"') => texts(raw).map(Inputs::Prompts),
                Some(b'[') => id_lists(json, at).map(Inputs::Prompts),
                Some(b'-' | b'0'..=b'9') => Ok(Inputs::Prompts(vec![id_list(json, &mut 0, "prompt")?])),
                Some(_) | None => Err(BadRequest::wrong_type("prompt", EXPECTED)),
            }
        }
        Some(_) | None => Err(BadRequest::wrong_type("prompt", EXPECTED)),
    }
}

fn empty(param: &str) -> BadRequest {
    BadRequest::new(param, "empty_array", format!("'{param}' must not be empty"))
}

fn texts(raw: &RawValue) -> Result<Vec<Prompt>, BadRequest> {
    let texts: Vec<Key<'_>> = serde_json::from_str(raw.get())
        .map_err(|_| BadRequest::wrong_type("prompt", "a list of strings or a list of token ids, not a mixture"))?;
    if texts.len() > MAX_PROMPTS {
        return Err(too_many());
    }
    Ok(texts.into_iter().map(|text| Prompt::Text(text.0.into())).collect())
}

fn id_lists(json: &[u8], mut at: usize) -> Result<Vec<Prompt>, BadRequest> {
    let mut prompts = Vec::new();
    loop {
        ids::skip_space(json, &mut at);
        match json.get(at) {
            Some(b'[') if prompts.len() == MAX_PROMPTS => return Err(too_many()),
            Some(b'[') => prompts.push(id_list(json, &mut at, &format!("prompt[{}]", prompts.len()))?),
            Some(b',') => at += 1,
            Some(b']') => return Ok(prompts),
            Some(_) | None => return Err(BadRequest::wrong_type("prompt", "a list of lists of token ids")),
        }
    }
}

fn id_list(json: &[u8], at: &mut usize, param: &str) -> Result<Prompt, BadRequest> {
    match ids::array(json, at) {
        Ok(ids) if ids.is_empty() => Err(empty(param)),
        Ok(ids) => Ok(Prompt::Ids(ids.into())),
        Err(IdError::Negative(index)) => {
            let message = format!("token ids must be at least 0 ('{param}[{index}]')");
            Err(BadRequest::new(format!("{param}[{index}]"), "integer_below_min_value", message))
        }
        Err(IdError::TooLarge(index)) => {
            let message = format!("token ids must be at most {} ('{param}[{index}]')", u32::MAX);
            Err(BadRequest::new(format!("{param}[{index}]"), "integer_above_max_value", message))
        }
        Err(IdError::NotAnInteger(index)) => Err(BadRequest::wrong_type(format!("{param}[{index}]"), "a token id")),
    }
}

fn too_many() -> BadRequest {
    BadRequest::new("prompt", "array_above_max_length", format!("'prompt' must have at most {MAX_PROMPTS} prompts"))
}

fn chat(fields: &Fields<'_>, body: &Bytes) -> Result<Chat, BadRequest> {
    let Some(messages) = fields.get("messages") else { return Err(BadRequest::missing("messages")) };
    match first_of_array(messages) {
        Some(b'{') => {}
        Some(b']') => return Err(empty("messages")),
        Some(_) => return Err(BadRequest::wrong_type("messages[0]", "an object")),
        None => return Err(BadRequest::wrong_type("messages", "an array of objects")),
    }
    let array = |name: &'static str| match fields.get(name).map(|raw| (raw, first_of_array(raw))) {
        None | Some((_, Some(b']'))) => Ok(None),
        Some((raw, Some(_))) => Ok(Some(Json::of(body, raw))),
        Some((_, None)) => Err(BadRequest::wrong_type(name, "an array of objects")),
    };
    let kwargs = fields.get("chat_template_kwargs");
    if kwargs.is_some_and(|raw| !raw.get().starts_with('{')) {
        return Err(BadRequest::wrong_type("chat_template_kwargs", "an object"));
    }
    let own = Nested::of("chat_template_kwargs", kwargs, &["chat_template"])?;
    let continue_final_message = fields.flag("continue_final_message")?.unwrap_or(false);
    let add_generation_prompt = fields.flag("add_generation_prompt")?;
    if continue_final_message && add_generation_prompt == Some(true) {
        let message = "'continue_final_message' and 'add_generation_prompt' cannot both be true";
        return Err(BadRequest::new("add_generation_prompt", "invalid_value", message));
    }
    Ok(Chat {
        messages: Json::of(body, messages),
        tools: array("tools")?,
        documents: array("documents")?,
        template_kwargs: kwargs.map(|raw| Json::of(body, raw)),
        reasoning_effort: fields
            .get("reasoning_effort")
            .map(|raw| string(raw).ok_or_else(|| BadRequest::wrong_type("reasoning_effort", "a string")))
            .transpose()?
            .map(Cow::into_owned),
        add_generation_prompt: add_generation_prompt.unwrap_or(!continue_final_message),
        continue_final_message,
        own_template: fields.get("chat_template").is_some() || own.get("chat_template").is_some(),
    })
}

/// The first byte inside an array (`]` where it is empty), nothing for another value.
fn first_of_array(raw: &RawValue) -> Option<u8> {
    let json = raw.get().as_bytes();
    if json.first() != Some(&b'[') {
        return None;
    }
    let mut at = 1;
    ids::skip_space(json, &mut at);
    json.get(at).copied()
}
