//! `/v1/completions` and `/v1/chat/completions`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::{Value, json};

use super::body::{self, ChatBody, Checked, CompletionBody, Prompt, Unlimited};
use super::error::ApiError;
use super::{App, stream, tokens};
use crate::model::{Finish, NewRequest};
use crate::rank::Generation;
use crate::text::{self, Special};

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Completion,
    Chat,
}

/// A body whose sequences are with the engine. Dropping it aborts them.
pub(super) struct Job {
    pub(super) app: Arc<App>,
    pub(super) form: Form,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) checked: Checked,
    pub(super) prompts: Vec<Vec<u32>>,
    /// `n` for each prompt, in order.
    pub(super) generations: Vec<Generation>,
}

/// `POST /v1/completions`.
pub(super) async fn completions(State(app): State<Arc<App>>, headers: HeaderMap, bytes: Bytes) -> Result<Response, ApiError> {
    faulty(&app).await?;
    let body: CompletionBody = body::parse(&bytes)?;
    let adapter = app.adapter(body.sampling.model.as_deref())?;
    let mut prompts = Vec::new();
    for prompt in body.prompts(app.text.vocabulary_size())? {
        prompts.push(match prompt {
            Prompt::Text(text) => tokens::encode(&app, text, Special::Add).await?,
            Prompt::Tokens(tokens) => tokens,
        });
    }
    let checked = body.sampling.check(Unlimited::Completion)?;
    Job::start(app, headers, (Form::Completion, adapter), checked, prompts)?.answer().await
}

/// `POST /v1/chat/completions`.
pub(super) async fn chat_completions(State(app): State<Arc<App>>, headers: HeaderMap, bytes: Bytes) -> Result<Response, ApiError> {
    faulty(&app).await?;
    let body: ChatBody = body::parse(&bytes)?;
    let adapter = app.adapter(body.sampling.model.as_deref())?;
    let (messages, ending) = body.chat.read()?;
    let prompt = tokens::encode(&app, text::render(messages, ending), Special::Leave).await?;
    let checked = body.sampling.check(Unlimited::Chat)?;
    Job::start(app, headers, (Form::Chat, adapter), checked, vec![prompt])?.answer().await
}

/// Latency and status faults.
async fn faulty(app: &App) -> Result<(), ApiError> {
    app.requests.fetch_add(1, Ordering::Relaxed);
    let faults = app.switches.now();
    tokio::time::sleep(faults.latency()).await;
    match faults.status.map(StatusCode::from_u16) {
        Some(Ok(status)) => Err(ApiError::status(status, "a fault was asked for".to_owned())),
        Some(Err(_)) | None => Ok(()),
    }
}

impl Job {
    fn start(
        app: Arc<App>,
        headers: HeaderMap,
        (form, adapter): (Form, Option<Arc<str>>),
        checked: Checked,
        prompts: Vec<Vec<u32>>,
    ) -> Result<Self, ApiError> {
        let rank = app.rank(&headers)?.clone();
        let mut generations = Vec::new();
        for prompt in &prompts {
            for choice in 0..checked.n {
                let new = NewRequest {
                    prompt: prompt.clone(),
                    adapter: adapter.clone(),
                    salt: checked.salt.clone(),
                    max_tokens: checked.max_tokens,
                    ignore_eos: checked.ignore_eos,
                    choice,
                    ..NewRequest::default()
                };
                generations.push(rank.submit(new).map_err(|refused| ApiError::refused(refused, app.config.max_model_len))?);
            }
        }
        let prefix = match form {
            Form::Completion => "cmpl",
            Form::Chat => "chatcmpl",
        };
        Ok(Self {
            form,
            id: format!("{prefix}-{}", app.request_id(&headers)),
            created: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            model: adapter.as_deref().unwrap_or(&app.config.model).to_owned(),
            checked,
            prompts,
            generations,
            app,
        })
    }

    async fn answer(self) -> Result<Response, ApiError> {
        if self.checked.stream {
            return Ok(stream::response(self));
        }
        self.whole().await.map(|body| Json(body).into_response())
    }

    /// The answer in one piece.
    async fn whole(mut self) -> Result<Value, ApiError> {
        let mut choices = Vec::new();
        let mut usage = Usage::default();
        for index in 0..self.generations.len() {
            let answer = self.collect(index).await?;
            usage.add(answer.tokens.len(), answer.cached_tokens);
            choices.push(self.choice(index, &answer));
        }
        let object = match self.form {
            Form::Completion => "text_completion",
            Form::Chat => "chat.completion",
        };
        Ok(json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices,
            "service_tier": null, "system_fingerprint": self.fingerprint(), "usage": usage.whole(self.prompt_tokens()),
            "kv_transfer_params": null,
        }))
    }

    async fn collect(&mut self, index: usize) -> Result<Answer, ApiError> {
        let mut answer = Answer { text: String::new(), tokens: Vec::new(), cached_tokens: 0, finish: Finish::Length };
        loop {
            let Some(output) = self.generations[index].next().await else {
                return Err(ApiError::status(StatusCode::INTERNAL_SERVER_ERROR, "EngineCore encountered an issue.".to_owned()));
            };
            answer.text.push_str(&self.app.text.word(output.token));
            answer.tokens.push(output.token);
            answer.cached_tokens = output.cached_tokens;
            if let Some(finish) = output.finish {
                answer.finish = finish;
                return Ok(answer);
            }
        }
    }

    fn choice(&self, index: usize, answer: &Answer) -> Value {
        let ids = self.checked.return_token_ids;
        let token_ids = ids.then_some(&answer.tokens);
        let prompt_token_ids = ids.then(|| &self.prompts[index / self.checked.n as usize]);
        let finish = finish_reason(answer.finish);
        match self.form {
            Form::Completion => json!({
                "index": index, "text": answer.text, "logprobs": null, "finish_reason": finish, "stop_reason": null,
                "token_ids": token_ids, "prompt_logprobs": null, "prompt_token_ids": prompt_token_ids,
            }),
            Form::Chat => json!({
                "index": index,
                "message": {"role": "assistant", "content": answer.text, "refusal": null},
                "logprobs": null, "finish_reason": finish, "stop_reason": null, "token_ids": token_ids,
                "prompt_token_ids": prompt_token_ids,
            }),
        }
    }

    pub(super) fn prompt_tokens(&self) -> usize {
        self.prompts.iter().map(Vec::len).sum()
    }

    pub(super) fn fingerprint(&self) -> String {
        format!("mocker-{}", self.app.config.generation)
    }
}

struct Answer {
    text: String,
    tokens: Vec<u32>,
    cached_tokens: u32,
    finish: Finish,
}

/// Tokens of a body so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    completion_tokens: usize,
    /// Of the last sequence that said: with several, engines report one of them.
    cached_tokens: u32,
}

impl Usage {
    pub(super) fn add(&mut self, tokens: usize, cached_tokens: u32) {
        self.completion_tokens += tokens;
        self.cached_tokens = cached_tokens;
    }

    fn whole(self, prompt_tokens: usize) -> Value {
        let mut usage = self.streamed(prompt_tokens);
        usage["completion_tokens_details"] = Value::Null;
        usage
    }

    pub(super) fn streamed(self, prompt_tokens: usize) -> Value {
        json!({
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        })
    }
}

pub(super) fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}
