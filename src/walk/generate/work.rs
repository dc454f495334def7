//! What a request means to token-level workers: its prompts as token ids, and everything they are told beside them.

use std::{sync::Arc, time::SystemTime};

use http::{HeaderMap, StatusCode};
use prompt::{Generation, Inputs, Request, Targets, TokenError, Tokens};
use serde_json::{Map, Value};
use wire::generate::{GenerateRequest, OutputOptions, RoutingHints, SamplingOptions, StopConditions};

use crate::{
    app::App,
    fleet::{Served, TokenModel},
    http::ApiError,
    metrics::TokenSource,
};

/// What tools, schemas and other fields of bodies of up to this many bytes say is read where it comes up. The prompts, nearly all
/// of a large body, are not gone through again.
const INLINE_BODY_BYTES: usize = 64 << 10;

/// Most choices of all prompts of one request: each is a request of its own to a worker.
const MOST_LEGS: usize = 1024;

/// What a request means to token-level workers.
pub(crate) struct Work {
    pub(super) generation: Generation,
    pub(super) model: Arc<TokenModel>,
    pub(super) prompts: Vec<Tokens>,
    /// Of the adapter, where one is asked for.
    adapter: Option<String>,
    salt: Option<String>,
    /// The client's name for the model.
    name: String,
    hints: Hints,
}

/// Hints in headers, which go before those in the body.
#[derive(Debug, Default)]
struct Hints {
    priority: Option<i32>,
    strict_priority: Option<u32>,
}

impl Work {
    /// Reads what routing has no use for, and makes the prompts token ids.
    ///
    /// # Errors
    /// What the client is told where token-level workers cannot take the request.
    pub(crate) async fn of(
        app: &App,
        served: &Served,
        model: Arc<TokenModel>,
        (request, headers): (&Arc<Request>, &HeaderMap),
    ) -> Result<Self, ApiError> {
        let generation = read(app, request).await?;
        let started = std::time::Instant::now();
        let (source, prompts) = match &generation.nvext.token_data {
            Some(_) if request.inputs.count() > 1 => {
                return Err(ApiError::invalid("nvext.token_data is one prompt, and the body has several", Some("nvext.token_data")));
            }
            Some(ids) => (TokenSource::Ids, vec![Tokens { ids: ids.clone(), text_only_prefix: None }]),
            None => {
                let source = if request.inputs.are_ids() { TokenSource::Ids } else { TokenSource::Folder };
                let tokens = app.pool.tokens(&model.folder, request, SystemTime::now()).await;
                (source, tokens.map_err(|error| untokenized(&error, request))?)
            }
        };
        app.metrics.tokenized(source, prompts.len(), started.elapsed());
        let legs = prompts.len().saturating_mul(generation.n.max(1) as usize);
        if legs > MOST_LEGS {
            let message = format!("the request asks for {legs} choices, and {MOST_LEGS} of all prompts together are allowed");
            return Err(ApiError::invalid(message, Some("n")));
        }
        for tokens in &prompts {
            check(&model, tokens, prompt_param(request))?;
        }
        Ok(Self {
            generation,
            model,
            prompts,
            adapter: served.adapter.clone(),
            salt: request.salt.clone(),
            name: request.model.clone(),
            hints: Hints::of(headers),
        })
    }

    /// The token ids of each prompt.
    pub(crate) fn prompts(&self) -> &[Tokens] {
        &self.prompts
    }

    /// The workers that the body names.
    pub(crate) fn targets(&self) -> &Targets {
        &self.generation.nvext.targets
    }

    /// Choices of each prompt.
    pub(super) fn n(&self) -> u32 {
        self.generation.n.max(1)
    }

    /// Choices of all prompts.
    pub(super) fn legs(&self) -> u32 {
        // At most MOST_LEGS.
        self.prompts.len() as u32 * self.n()
    }

    /// The most tokens of an answer to `prompt`: what was asked for, and no more than the context leaves.
    pub(super) fn max_tokens(&self, prompt: usize) -> Option<u32> {
        let length = self.prompts[prompt].ids.len();
        let left = self.model.context_length.map(|context| context.saturating_sub(length as u32));
        match (self.generation.max_tokens, left) {
            (Some(asked), Some(left)) => Some(asked.min(left)),
            (asked, left) => asked.or(left),
        }
    }

    /// Whether an answer that has begun may go on at another worker: not where the engine's state bound what comes next.
    pub(super) fn may_migrate(&self) -> bool {
        self.generation.guided.is_none()
    }

    /// What the `choice`-th answer of the request is asked of a worker with.
    pub(super) fn request(&self, choice: u32) -> GenerateRequest {
        let (prompt, nth) = ((choice / self.n()) as usize, choice % self.n());
        let Generation { sampling, nvext, .. } = &self.generation;
        GenerateRequest {
            model: self.name.clone(),
            token_ids: self.prompts[prompt].ids.to_vec(),
            stop_conditions: self.stop_conditions(prompt),
            sampling_options: SamplingOptions {
                n: None,
                best_of: None,
                presence_penalty: sampling.presence_penalty,
                frequency_penalty: sampling.frequency_penalty,
                repetition_penalty: sampling.repetition_penalty,
                temperature: sampling.temperature,
                top_p: sampling.top_p,
                top_k: sampling.top_k,
                min_p: sampling.min_p,
                use_beam_search: None,
                length_penalty: None,
                // As engines do it: equal seeds would make equal choices.
                seed: sampling.seed.map(|seed| seed.wrapping_add(nth.into())),
                include_stop_str_in_output: self.generation.include_stop.then_some(true),
                guided_decoding: self.generation.guided.clone(),
            },
            output_options: OutputOptions {
                logprobs: self.generation.logprobs,
                prompt_logprobs: self.prompt_logprobs(),
                skip_special_tokens: (!self.generation.skip_special_tokens).then_some(false),
                formatted_prompt: None,
                return_tokens_as_token_ids: self.generation.return_tokens_as_ids.then_some(true),
            },
            eos_token_ids: self.model.eos_token_ids.clone(),
            annotations: nvext.annotations.clone(),
            routing: Some(self.routing()),
            extra_args: self.extra_args(),
            request_timestamp_ms: nvext.request_timestamp_ms,
            ..GenerateRequest::default()
        }
    }

    /// A prompt that is repeated with log-probabilities is repeated with its own.
    fn prompt_logprobs(&self) -> Option<u32> {
        let echoed = self.generation.logprobs.filter(|_| self.generation.echo);
        self.generation.prompt_logprobs.or(echoed)
    }

    fn stop_conditions(&self, prompt: usize) -> StopConditions {
        let generation = &self.generation;
        let given = |ids: &[u32]| Some(ids.to_vec()).filter(|ids| !ids.is_empty());
        // Ends of sequence are the engine's to stop at, and nothing that a client sees.
        let eos = if generation.ignore_eos { None } else { given(&self.model.eos_token_ids) };
        StopConditions {
            max_tokens: self.max_tokens(prompt),
            stop: Some(generation.stop.clone()).filter(|stop| !stop.is_empty()),
            stop_token_ids: given(&generation.stop_token_ids),
            stop_token_ids_visible: None,
            stop_token_ids_hidden: eos,
            min_tokens: generation.min_tokens,
            ignore_eos: generation.ignore_eos.then_some(true),
            max_thinking_tokens: generation.max_thinking_tokens,
        }
    }

    fn routing(&self) -> RoutingHints {
        let hints = &self.generation.nvext.hints;
        RoutingHints {
            expected_output_tokens: hints.osl,
            lora_name: self.adapter.clone(),
            cache_salt: self.salt.clone(),
            priority_jump: hints.latency_sensitivity,
            strict_priority: self.hints.strict_priority.or(hints.strict_priority),
            priority: self.hints.priority.or(hints.priority),
            ..RoutingHints::default()
        }
    }

    /// Fields that only some engines know, and the client's `nvext`, from which engines take the salt.
    fn extra_args(&self) -> Option<Value> {
        let mut extra = self.generation.extra.clone();
        let raw = self.generation.nvext.raw.as_ref().map(|raw| serde_json::from_slice(raw.as_bytes()));
        // It was read as an object before.
        let mut nvext = match raw {
            Some(Ok(Value::Object(nvext))) => nvext,
            Some(Ok(_) | Err(_)) | None => Map::new(),
        };
        if let Some(salt) = &self.salt {
            nvext.entry("cache_salt").or_insert_with(|| salt.clone().into());
        }
        if !nvext.is_empty() {
            extra.insert("nvext".to_owned(), Value::Object(nvext));
        }
        Some(extra).filter(|extra| !extra.is_empty()).map(Value::Object)
    }
}

impl Hints {
    /// What cannot be read is no hint.
    fn of(headers: &HeaderMap) -> Self {
        let text = |names: [&str; 2]| names.iter().find_map(|name| headers.get(*name)?.to_str().ok());
        Self {
            priority: text(["x-dynamo-request-priority", "x-request-priority"]).and_then(|text| text.parse().ok()),
            strict_priority: text(["x-dynamo-request-strict-priority", "x-request-strict-priority"]).and_then(|text| text.parse().ok()),
        }
    }
}

async fn read(app: &App, request: &Arc<Request>) -> Result<Generation, ApiError> {
    let parsed = if request.body_bytes() > INLINE_BODY_BYTES {
        let request = request.clone();
        app.pool.run_brief(move || Generation::of(&request)).await.ok()
    } else {
        None
    };
    // A body cannot be refused because the pool is full.
    parsed.unwrap_or_else(|| Generation::of(request)).map_err(|error| ApiError::body(&error))
}

fn prompt_param(request: &Request) -> &'static str {
    match &request.inputs {
        Inputs::Chat(_) => "messages",
        Inputs::Prompts(_) | Inputs::Opaque => "prompt",
    }
}

fn untokenized(error: &TokenError, request: &Request) -> ApiError {
    let text = error.to_string();
    match error {
        TokenError::Busy { .. } => ApiError::overloaded(text),
        TokenError::Failed | TokenError::Encode(_) => ApiError::engine(StatusCode::INTERNAL_SERVER_ERROR, text),
        TokenError::NoTemplate(_)
        | TokenError::OwnTemplate
        | TokenError::Refused(_)
        | TokenError::Render(_)
        | TokenError::Unsupported(_)
        | TokenError::Opaque
        | TokenError::TooLong { .. } => ApiError::invalid(text, Some(prompt_param(request))),
    }
}

/// A prompt that leaves no room for an answer is refused with both numbers.
fn check(model: &TokenModel, tokens: &Tokens, param: &str) -> Result<(), ApiError> {
    if tokens.text_only_prefix.is_some() {
        let message = "the prompt holds media or is to be cut, which cannot be told to workers that take token ids";
        return Err(ApiError::invalid(message, Some(param)));
    }
    let known = model.folder.vocabulary().size();
    // The largest is found in one short pass; which one is to be named, only where there is one.
    let largest = tokens.ids.iter().copied().fold(0, u32::max);
    if largest as usize >= known
        && let Some(unknown) = tokens.ids.iter().find(|id| **id as usize >= known)
    {
        let message = format!("token id {unknown} is not in the model's vocabulary, which has {known} tokens");
        return Err(ApiError::invalid(message, Some(param)));
    }
    let length = tokens.ids.len();
    if length == 0 {
        return Err(ApiError::invalid("the prompt has no tokens", Some(param)));
    }
    match model.context_length {
        Some(context) if length >= context as usize => {
            let message =
                format!("the prompt has {length} tokens, and the model's context of {context} tokens must hold it and at least one more");
            Err(ApiError::too_long(message, param))
        }
        Some(_) | None => Ok(()),
    }
}
