//! Reading what routing needs of an OpenAI body. Fields it does not know are nobody's business here: what generation needs of
//! a body, and which fields a body may have, is in `generation`.

use std::borrow::Cow;

use bytes::Bytes;

use crate::error::BadRequest;
use crate::fields::{self, Fields, Key, Raw, first_of_array, string};
use crate::ids;
use crate::layout::Source;
use crate::request::{Chat, Endpoint, Inputs, Json, Pin, Prompt, Request, Side, Truncation};

/// Prompts in one completions body; the limit of vLLM (`VLLM_MAX_COMPLETION_PROMPTS`).
const MAX_PROMPTS: usize = 1024;
/// Characters of a cache salt.
const MAX_SALT_CHARS: usize = 1024;
/// `max_tokens` of a completions body that has none: the default of OpenAI, vLLM and SGLang.
pub(crate) const DEFAULT_MAX_TOKENS: u32 = 16;

/// Reads what routing needs of `body`. The returned request shares the body's memory.
///
/// # Errors
/// [`BadRequest`] where the body is not a JSON object, names no model, has no prompt, or a field it reads is of a type or
/// value no engine accepts.
pub fn parse(endpoint: Endpoint, body: &Bytes) -> Result<Request, BadRequest> {
    let source = Source::of(body)?;
    let fields = Fields::of_body(&source, &NAMES)?;
    let model = match fields.get("model") {
        Some(raw) => string(raw).ok_or_else(|| BadRequest::wrong_type("model", "a string"))?.into_owned(),
        None => return Err(BadRequest::missing("model")),
    };
    if model.is_empty() {
        return Err(BadRequest::new("model", "invalid_value", "'model' must not be empty"));
    }
    let nvext = Fields::nested("nvext", fields.get("nvext"), &NVEXT)?;
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
        source,
    })
}

/// The fields of a body that are read.
const NAMES: [&str; 27] = [
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
    "chat_template_args",
    "thinking",
    "continue_final_message",
    "add_generation_prompt",
    "reasoning_effort",
];

/// And of its `nvext`. A server that the body is forwarded to may know others, as servers of NVIDIA's NIM do.
const NVEXT: [&str; 4] = ["cache_salt", "backend_instance_id", "decode_worker_id", "dp_rank"];

/// Of the body and of `nvext`: both may be given if they are equal.
fn salt(body: Option<Raw<'_>>, nvext: Option<Raw<'_>>) -> Result<Option<String>, BadRequest> {
    let read = |param: &str, raw: Raw<'_>| {
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
    let extra = Fields::nested("vllm_xargs", fields.get("vllm_xargs"), &["kv_cache_report_mode"])?;
    Ok(extra.get("kv_cache_report_mode").and_then(string).is_some_and(|mode| mode == "full"))
}

fn truncation(fields: &Fields<'_>) -> Result<Option<Truncation>, BadRequest> {
    let Some(keep_tokens) = fields.integer("truncate_prompt_tokens")? else { return Ok(None) };
    if keep_tokens < -1 {
        let message = format!("'truncate_prompt_tokens' must be at least -1, not {keep_tokens}");
        return Err(BadRequest::new("truncate_prompt_tokens", "integer_below_min_value", message));
    }
    let side = match fields.get("truncation_side").map(Raw::get) {
        None => None,
        Some("\"left\"") => Some(Side::Left),
        Some("\"right\"") => Some(Side::Right),
        Some(_) => return Err(BadRequest::wrong_type("truncation_side", "'left' or 'right'")),
    };
    Ok(Some(Truncation { keep_tokens, side }))
}

fn pin(nvext: &Fields<'_>) -> Result<Pin, BadRequest> {
    let worker = |name: &str| nvext.get(name).map(|raw| worker_id(&nvext.named(name), raw)).transpose();
    let (backend, decode) = (worker("backend_instance_id")?, worker("decode_worker_id")?);
    let worker_param = if backend.is_none() && decode.is_some() { "nvext.decode_worker_id" } else { "nvext.backend_instance_id" };
    Ok(Pin { worker: one_worker(backend, decode)?, worker_param, dp_rank: nvext.count("dp_rank", 0)? })
}

/// The worker that two fields name, which are two names of one.
pub(crate) fn one_worker(backend: Option<String>, decode: Option<String>) -> Result<Option<String>, BadRequest> {
    match (backend, decode) {
        (Some(backend), Some(decode)) if backend != decode => {
            let message = format!(
                "'nvext.backend_instance_id' names worker {backend} and 'nvext.decode_worker_id' worker {decode}; give one of them"
            );
            Err(BadRequest::new("nvext.decode_worker_id", "invalid_value", message))
        }
        (backend, decode) => Ok(backend.or(decode)),
    }
}

/// A worker's id, written as text or as a number.
pub(crate) fn worker_id(param: &str, raw: Raw<'_>) -> Result<String, BadRequest> {
    match (string(raw), raw.get().as_bytes().first()) {
        (Some(id), _) => Ok(id.into_owned()),
        (None, Some(b'0'..=b'9')) => Ok(raw.get().to_owned()),
        (None, _) => Err(BadRequest::wrong_type(param, "a worker id")),
    }
}

fn prompts(fields: &Fields<'_>) -> Result<Inputs, BadRequest> {
    const EXPECTED: &str = "a string, a list of strings, a list of token ids, or a list of lists of token ids";
    let embeds = fields.get("prompt_embeds").is_some_and(|raw| raw.get() != "[]");
    if embeds {
        return Ok(Inputs::Opaque);
    }
    let Some(raw) = fields.get("prompt") else { return Err(BadRequest::missing("prompt")) };
    if let Some(ids) = raw.ids().filter(|ids| !ids.is_empty()) {
        return Ok(Inputs::Prompts(vec![Prompt::Ids(ids.clone())]));
    }
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

fn texts(raw: Raw<'_>) -> Result<Vec<Prompt>, BadRequest> {
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
    let ids = fields::id_list(json, at, param)?;
    if ids.is_empty() { Err(empty(param)) } else { Ok(Prompt::Ids(ids)) }
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
    let own = Fields::nested("chat_template_kwargs", kwargs, &["chat_template"])?;
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
        template_args: fields.get("chat_template_args").map(|raw| Json::of(body, raw)),
        thinking: fields.get("thinking").map(|raw| Json::of(body, raw)),
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
