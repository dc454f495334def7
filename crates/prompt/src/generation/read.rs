//! A completions or chat body to a [`Generation`].

use bytes::Bytes;
use serde_json::{Map, Value};

use super::guided;
use super::tools::ToolUse;
use super::{Generation, Nvext, Sampling, UsageWanted};
use crate::body::DEFAULT_MAX_TOKENS;
use crate::error::BadRequest;
use crate::fields::{Fields, Raw, first_of_array, id_list, number, string, strings};
use crate::layout::Source;
use crate::request::{Endpoint, Request};

/// Choices for one prompt.
const MAX_CHOICES: u32 = 128;
/// Stop texts of one body.
const MAX_STOPS: usize = 32;
/// Bytes of a stop text: the end of an answer is held back while it may yet become one.
const MAX_STOP_BYTES: usize = 1024;
/// Stop token ids of one body.
const MAX_STOP_IDS: usize = 128;
/// Alternatives for each token in completions.
const MAX_LOGPROBS: u32 = 5;
/// Alternatives for each token in chats, and for each token of a prompt.
const MAX_TOP_LOGPROBS: u32 = 20;

/// Every field a body may have. What shapes the prompt (from `cache_salt` on) is read by [`crate::parse`]; the last, from
/// `user` on, are OpenAI's own and say nothing to an engine.
#[rustfmt::skip]
const NAMES: [&str; 78] = [
    "model", "messages", "prompt", "stream", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens", "temperature",
    "top_p", "top_k", "min_p", "n", "stop", "stop_token_ids", "ignore_eos", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "logprobs", "top_logprobs", "prompt_logprobs", "echo", "best_of", "suffix", "logit_bias",
    "include_stop_str_in_output", "no_stop_trim", "skip_special_tokens", "return_tokens_as_token_ids", "tools", "tool_choice",
    "parallel_tool_calls", "functions", "function_call", "response_format", "structured_outputs", "guided_json", "guided_regex",
    "guided_choice", "guided_grammar", "guided_decoding_backend", "guided_whitespace_pattern", "nvext", "modalities", "audio",
    "web_search_options", "thinking_token_budget", "allowed_token_ids", "bad_words_token_ids", "detokenize", "media_io_kwargs",
    "mm_processor_kwargs", "prompt_embeds", "chat_template",
    "cache_salt", "add_special_tokens", "truncate_prompt_tokens", "truncation_side", "documents", "chat_template_kwargs",
    "chat_template_args", "thinking", "reasoning_effort", "continue_final_message", "add_generation_prompt",
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "prompt_cache_options", "prediction", "verbosity", "moderation",
];

/// Fields that only the other endpoint has.
const CHAT_ONLY: [&str; 24] = [
    "messages",
    "max_completion_tokens",
    "top_logprobs",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "functions",
    "function_call",
    "modalities",
    "audio",
    "web_search_options",
    "thinking_token_budget",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "chat_template",
    "documents",
    "chat_template_kwargs",
    "chat_template_args",
    "thinking",
    "reasoning_effort",
    "continue_final_message",
    "add_generation_prompt",
    "prediction",
    "verbosity",
];
const COMPLETIONS_ONLY: [&str; 6] = ["prompt", "echo", "best_of", "suffix", "no_stop_trim", "prompt_embeds"];

/// For a worker's `extra_args`, as they are.
const EXTRA: [&str; 6] = ["logit_bias", "allowed_token_ids", "bad_words_token_ids", "detokenize", "media_io_kwargs", "mm_processor_kwargs"];

impl Generation {
    /// Reads what generation needs of `body`, all of it: a worker that takes token ids gets nothing else.
    ///
    /// # Errors
    /// [`BadRequest`] for the first field that is unknown, of a wrong type, out of its range, or at odds with another.
    pub fn parse(endpoint: Endpoint, body: &Bytes) -> Result<Self, BadRequest> {
        Self::read(endpoint, &Source::of(body)?)
    }

    /// The same of the body of `request`, which is not gone through again.
    ///
    /// # Errors
    /// As of [`parse`](Self::parse).
    pub fn of(request: &Request) -> Result<Self, BadRequest> {
        Self::read(request.endpoint, &request.source)
    }

    fn read(endpoint: Endpoint, source: &Source) -> Result<Self, BadRequest> {
        let (body, fields) = (source.body(), Fields::of_body(source, &NAMES)?);
        fields.known_only()?;
        only_of(endpoint, &fields)?;
        not_served(&fields)?;
        let stream = fields.flag("stream")?.unwrap_or(false);
        let n = fields.count_within("n", 1, MAX_CHOICES)?.unwrap_or(1);
        one_choice_each(&fields, n)?;
        let (max_tokens, min_tokens) = lengths(endpoint, &fields)?;
        let (stop, stop_token_ids) = stops(&fields)?;
        let nvext = Nvext::read(fields.get("nvext"), body)?;
        let tools =
            ToolUse::read(body, fields.get("tools"), fields.get("tool_choice"), fields.flag("parallel_tool_calls")?.unwrap_or(true))?;
        let include = [fields.flag("include_stop_str_in_output")?, fields.flag("no_stop_trim")?];
        Ok(Self {
            n,
            stream,
            max_tokens,
            min_tokens,
            ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
            stop,
            stop_token_ids,
            include_stop: include.contains(&Some(true)),
            skip_special_tokens: fields.flag("skip_special_tokens")?.unwrap_or(true),
            sampling: Sampling::read(&fields, nvext.greed_sampling)?,
            logprobs: logprobs(endpoint, &fields)?,
            prompt_logprobs: fields.count_within("prompt_logprobs", 0, MAX_TOP_LOGPROBS)?,
            return_tokens_as_ids: fields.flag("return_tokens_as_token_ids")?.unwrap_or(false),
            echo: fields.flag("echo")?.unwrap_or(false),
            usage: usage(&fields, stream)?,
            guided: form(&fields, &tools)?,
            tools,
            max_thinking_tokens: match fields.count("thinking_token_budget", 0)? {
                Some(tokens) => Some(tokens),
                None => nvext.max_thinking_tokens,
            },
            extra: extra(&fields)?,
            nvext,
        })
    }
}

fn only_of(endpoint: Endpoint, fields: &Fields<'_>) -> Result<(), BadRequest> {
    let (others, route): (&[&str], _) = match endpoint {
        Endpoint::Completions => (&CHAT_ONLY, "/v1/chat/completions"),
        Endpoint::Chat => (&COMPLETIONS_ONLY, "/v1/completions"),
    };
    let Some(name) = others.iter().find(|name| fields.get(name).is_some()) else { return Ok(()) };
    Err(BadRequest::new(*name, "unknown_parameter", format!("unknown parameter: '{name}'; it is one of {route}")))
}

/// Fields that are known and ask for something no worker behind token ids can do.
fn not_served(fields: &Fields<'_>) -> Result<(), BadRequest> {
    let refuse = |name: &str, why: &str| Err(BadRequest::new(name, "unsupported_value", format!("'{name}' is not supported: {why}")));
    let given = |name: &str| fields.get(name).map(Raw::get);
    for name in ["audio", "web_search_options"] {
        if given(name).is_some() {
            return refuse(name, "the model's workers generate text");
        }
    }
    if let Some(raw) = fields.get("modalities")
        && strings(raw).is_none_or(|modes| modes.iter().any(|mode| *mode != "text"))
    {
        return refuse("modalities", "the model's workers generate text; allowed is [\"text\"]");
    }
    for name in ["functions", "function_call"] {
        if given(name).is_some_and(|json| json != "[]" && json != "\"none\"" && json != "\"auto\"") {
            return refuse(name, "use 'tools' and 'tool_choice'");
        }
    }
    if given("suffix").is_some_and(|json| json != "\"\"") {
        return refuse("suffix", "the model's workers continue a prompt and fill in nothing");
    }
    if given("prompt_embeds").is_some_and(|json| json != "[]") {
        return refuse("prompt_embeds", "the model's workers take token ids");
    }
    for name in ["chat_template", "chat_template_kwargs", "chat_template_args"] {
        let brings_one = match fields.get(name) {
            None => false,
            Some(_) if name == "chat_template" => true,
            // An object, and one without a template of its own.
            some => Fields::nested(name, some, &["chat_template"])?.get("chat_template").is_some(),
        };
        if brings_one {
            return refuse("chat_template", "chats are rendered with the model's own template");
        }
    }
    Ok(())
}

/// `best_of` above `n` means that choices are generated and thrown away by their probability, which no engine does any more.
fn one_choice_each(fields: &Fields<'_>, n: u32) -> Result<(), BadRequest> {
    match fields.count("best_of", 0)? {
        Some(best_of) if best_of > 1 && best_of != n => {
            let message = format!("'best_of' must be absent or equal to 'n', which is {n}, not {best_of}");
            Err(BadRequest::new("best_of", "unsupported_value", message))
        }
        Some(_) | None => Ok(()),
    }
}

fn lengths(endpoint: Endpoint, fields: &Fields<'_>) -> Result<(Option<u32>, Option<u32>), BadRequest> {
    let plain = fields.count("max_tokens", 1)?;
    let max_tokens = match endpoint {
        Endpoint::Chat => fields.count("max_completion_tokens", 1)?.or(plain),
        Endpoint::Completions => plain.or(Some(DEFAULT_MAX_TOKENS)),
    };
    let min_tokens = fields.count("min_tokens", 0)?;
    match (min_tokens, max_tokens) {
        (Some(least), Some(most)) if least > most => {
            let default = if plain.is_none() && endpoint == Endpoint::Completions { ", the default" } else { "" };
            let message = format!("'min_tokens' is {least}, which is more than 'max_tokens' ({most}{default})");
            Err(BadRequest::new("min_tokens", "invalid_value", message))
        }
        lengths => Ok((lengths.1, lengths.0)),
    }
}

/// `stop` is a text, a list of texts, or a list of token ids.
fn stops(fields: &Fields<'_>) -> Result<(Vec<String>, Vec<u32>), BadRequest> {
    const EXPECTED: &str = "a string, an array of strings, or an array of token ids";
    let mut ids = fields.ids("stop_token_ids")?.unwrap_or_default().to_vec();
    let mut texts = Vec::new();
    if let Some(raw) = fields.get("stop") {
        match first_of_array(raw) {
            Some(b'0'..=b'9' | b'-') => ids.extend_from_slice(&id_list(raw.get().as_bytes(), &mut 0, "stop")?),
            Some(_) => texts = strings(raw).ok_or_else(|| BadRequest::wrong_type("stop", EXPECTED))?,
            None => texts = vec![string(raw).ok_or_else(|| BadRequest::wrong_type("stop", EXPECTED))?],
        }
    }
    if texts.len() > MAX_STOPS {
        let message = format!("'stop' must have at most {MAX_STOPS} texts, not {}", texts.len());
        return Err(BadRequest::new("stop", "array_above_max_length", message));
    }
    if texts.iter().any(|text| text.is_empty() || text.len() > MAX_STOP_BYTES) {
        let message = format!("each text of 'stop' must have 1 to {MAX_STOP_BYTES} bytes");
        return Err(BadRequest::new("stop", "invalid_value", message));
    }
    if ids.len() > MAX_STOP_IDS {
        let message = format!("at most {MAX_STOP_IDS} token ids may end an answer, not {}", ids.len());
        return Err(BadRequest::new("stop_token_ids", "array_above_max_length", message));
    }
    Ok((texts.into_iter().map(std::borrow::Cow::into_owned).collect(), ids))
}

impl Sampling {
    fn read(fields: &Fields<'_>, greedy: bool) -> Result<Self, BadRequest> {
        let within = |name, least, most| fields.number(name, least, most).map(|value| value.map(|value| value as f32));
        let repetition_penalty = within("repetition_penalty", 0.0, 2.0)?;
        if repetition_penalty == Some(0.0) {
            return Err(BadRequest::new("repetition_penalty", "decimal_below_min_value", "'repetition_penalty' must be above 0"));
        }
        let top_k = fields.integer("top_k")?;
        let top_k = top_k.map(|top_k| i32::try_from(top_k).ok().filter(|top_k| *top_k >= -1).ok_or(top_k)).transpose();
        let top_k = top_k.map_err(|top_k| {
            let message = format!("'top_k' must be at least -1 and at most {}, not {top_k}", i32::MAX);
            BadRequest::new("top_k", "invalid_value", message)
        })?;
        let temperature = within("temperature", 0.0, 2.0)?;
        Ok(Self {
            temperature: if greedy { Some(0.0) } else { temperature },
            top_p: within("top_p", 0.0, 1.0)?,
            top_k,
            min_p: within("min_p", 0.0, 1.0)?,
            presence_penalty: within("presence_penalty", -2.0, 2.0)?,
            frequency_penalty: within("frequency_penalty", -2.0, 2.0)?,
            repetition_penalty,
            seed: fields.integer("seed")?,
        })
    }
}

fn logprobs(endpoint: Endpoint, fields: &Fields<'_>) -> Result<Option<u32>, BadRequest> {
    if endpoint == Endpoint::Completions {
        return fields.count_within("logprobs", 0, MAX_LOGPROBS);
    }
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    match fields.count_within("top_logprobs", 0, MAX_TOP_LOGPROBS)? {
        Some(top) if top > 0 && !wanted => {
            let message = format!("'top_logprobs' is {top} and 'logprobs' is not true");
            Err(BadRequest::new("top_logprobs", "invalid_value", message))
        }
        top => Ok(wanted.then(|| top.unwrap_or(0))),
    }
}

fn usage(fields: &Fields<'_>, stream: bool) -> Result<UsageWanted, BadRequest> {
    const NAMES: [&str; 3] = ["include_usage", "continuous_usage_stats", "include_obfuscation"];
    let Some(raw) = fields.get("stream_options") else { return Ok(UsageWanted::default()) };
    if !stream {
        return Err(BadRequest::new("stream_options", "invalid_value", "'stream_options' is only allowed when 'stream' is true"));
    }
    let options = Fields::nested("stream_options", Some(raw), &NAMES)?;
    options.known_only()?;
    let in_stream = options.flag("include_usage")?.unwrap_or(false);
    Ok(UsageWanted { in_stream, each_chunk: in_stream && options.flag("continuous_usage_stats")?.unwrap_or(false) })
}

/// A call that has to be made is the form of an answer, and goes before `response_format`, which is about its text.
fn form(fields: &Fields<'_>, tools: &ToolUse) -> Result<Option<Value>, BadRequest> {
    let guided = guided::read(fields)?;
    let Some(schema) = tools.forced()? else { return Ok(guided) };
    if let Some(name) = guided::by_name(fields) {
        let message = format!("'tool_choice' demands a call of a tool and '{name}' another form of answer; give one of them");
        return Err(BadRequest::new(name, "invalid_value", message));
    }
    Ok(Some(Map::from_iter([("json".to_owned(), schema)]).into()))
}

fn extra(fields: &Fields<'_>) -> Result<Map<String, Value>, BadRequest> {
    if let Some(raw) = fields.get("logit_bias") {
        logit_bias(raw)?;
    }
    fields.ids("allowed_token_ids")?;
    fields.flag("detokenize")?;
    let mut extra = Map::new();
    for name in EXTRA {
        if let Some(raw) = fields.get(name) {
            let value = serde_json::from_str(raw.get());
            let value = value.map_err(|error| BadRequest::new(name, "invalid_value", format!("'{name}' is not usable: {error}")))?;
            extra.insert(name.to_owned(), value);
        }
    }
    match extra.get("bad_words_token_ids") {
        Some(Value::Array(lists)) if lists.iter().all(|list| list.as_array().is_some_and(|ids| ids.iter().all(Value::is_u64))) => {}
        None => {}
        Some(_) => return Err(BadRequest::wrong_type("bad_words_token_ids", "an array of arrays of token ids")),
    }
    Ok(extra)
}

/// Token ids to what is added to their logits, -100 to 100.
fn logit_bias(raw: Raw<'_>) -> Result<(), BadRequest> {
    let biases: std::collections::BTreeMap<String, Raw<'_>> =
        serde_json::from_str(raw.get()).map_err(|_| BadRequest::wrong_type("logit_bias", "an object of token ids and numbers"))?;
    for (id, bias) in biases {
        let param = format!("logit_bias.{}", id.chars().take(20).collect::<String>());
        if id.parse::<u32>().is_err() {
            return Err(BadRequest::new(param, "invalid_value", "the keys of 'logit_bias' must be token ids"));
        }
        number(&param, bias, -100.0, 100.0)?;
    }
    Ok(())
}
