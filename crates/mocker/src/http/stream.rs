//! Answers as server-sent events, with the faults that can befall them.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream::{self, SelectAll, Stream, StreamExt};
use serde_json::{Value, json};

use super::error::ApiError;
use super::generate::{Form, Job, Usage, finish_reason};
use crate::faults::{Freeze, StreamFault, StreamFaultKind};
use crate::model::Output;
use crate::rank::Generation;

/// The body of a stream: dropping it aborts its sequences.
pub(super) fn response(job: Job) -> Response {
    let headers = [(CONTENT_TYPE, "text/event-stream; charset=utf-8"), (CACHE_CONTROL, "no-cache")];
    let events = stream::unfold(Events::new(job), async |mut events| events.next().await.map(|event| (event, events)));
    (headers, Body::from_stream(events)).into_response()
}

/// The token of one sequence, or the end of its channel.
type Token = (usize, Option<Output>);
type Tokens = SelectAll<Pin<Box<dyn Stream<Item = Token> + Send>>>;

struct Events {
    job: Job,
    tokens: Tokens,
    /// Per sequence, whether it has begun.
    begun: Vec<bool>,
    usage: Usage,
    ready: VecDeque<Bytes>,
    sent: u32,
    ended: bool,
    /// Set once a fault has struck: what is still to come.
    last_words: Option<LastWords>,
}

/// What a struck stream still does, in order.
struct LastWords {
    bytes: VecDeque<Bytes>,
    then: Then,
}

/// How a struck stream ends.
#[derive(Clone, Copy)]
enum Then {
    /// As if nothing had happened.
    End,
    /// The connection is closed without the end of the body.
    Close,
    /// Not at all.
    Stall,
}

impl Events {
    fn new(mut job: Job) -> Self {
        let generations = std::mem::take(&mut job.generations);
        let begun = vec![false; generations.len()];
        let mut tokens = SelectAll::new();
        for (index, generation) in generations.into_iter().enumerate() {
            let one: Pin<Box<dyn Stream<Item = Token> + Send>> = Box::pin(stream::unfold((index, Some(generation)), next_token));
            tokens.push(one);
        }
        Self { job, tokens, begun, usage: Usage::default(), ready: VecDeque::new(), sent: 0, ended: false, last_words: None }
    }

    /// The next bytes; an error closes the connection without the end of the body.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        while self.ready.is_empty() && !self.ended && self.last_words.is_none() {
            match self.tokens.next().await {
                Some((index, Some(output))) => self.token(index, output),
                Some((_, None)) => self.broken(),
                None => self.finish(),
            }
        }
        self.job.app.switches.until(|faults| faults.freeze != Freeze::Process).await;
        let fault = self.job.app.switches.now().stream.filter(|fault| self.sent >= fault.after_events);
        if let (Some(fault), Some(event), None) = (fault, self.ready.front(), &self.last_words) {
            self.last_words = Some(LastWords::of(fault, event));
        }
        if let Some(words) = &mut self.last_words {
            return words.next().await;
        }
        self.sent += 1;
        self.ready.pop_front().map(Ok)
    }

    fn token(&mut self, index: usize, output: Output) {
        if !std::mem::replace(&mut self.begun[index], true) {
            self.begin(index);
        }
        let finish = output.finish.map(finish_reason);
        let text = self.job.app.text.word(output.token);
        let ids = self.job.checked.return_token_ids.then_some([output.token]);
        let choice = match self.job.form {
            Form::Completion => json!({
                "index": index, "text": text, "logprobs": null, "finish_reason": finish, "stop_reason": null,
                "prompt_token_ids": null, "token_ids": ids,
            }),
            Form::Chat => {
                json!({"index": index, "delta": {"content": text}, "logprobs": null, "finish_reason": finish, "token_ids": ids})
            }
        };
        self.chunk(json!([choice]), None);
        self.usage.add(1, output.cached_tokens);
    }

    /// A chat's first event of a sequence names the role.
    fn begin(&mut self, index: usize) {
        match self.job.form {
            Form::Completion => {}
            Form::Chat => {
                let choice = json!({
                    "index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null,
                });
                self.chunk(json!([choice]), None);
            }
        }
    }

    fn finish(&mut self) {
        if self.job.checked.include_usage {
            self.chunk(json!([]), Some(self.usage.streamed(self.job.prompt_tokens())));
        }
        self.ready.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
        self.ended = true;
    }

    /// The engine went away under the stream.
    fn broken(&mut self) {
        self.ready.extend(death());
        self.ended = true;
    }

    fn chunk(&mut self, choices: Value, usage: Option<Value>) {
        let object = match self.job.form {
            Form::Completion => "text_completion",
            Form::Chat => "chat.completion.chunk",
        };
        let mut chunk = json!({
            "id": self.job.id, "object": object, "created": self.job.created, "model": self.job.model, "choices": choices,
        });
        if let Some(usage) = usage {
            chunk["usage"] = usage;
            chunk["system_fingerprint"] = self.job.fingerprint().into();
        }
        self.ready.push_back(event(&chunk));
    }
}

impl LastWords {
    /// What `fault` makes of a stream whose next event is `event`.
    fn of(fault: StreamFault, event: &Bytes) -> Self {
        let (bytes, then) = match fault.kind {
            StreamFaultKind::DieMidLine => (vec![event.slice(..event.len() / 2)], Then::Close),
            StreamFaultKind::Close => (Vec::new(), Then::Close),
            StreamFaultKind::ErrorEvent => (death().to_vec(), Then::End),
            StreamFaultKind::Stall => (Vec::new(), Then::Stall),
        };
        Self { bytes: bytes.into(), then }
    }

    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if let Some(bytes) = self.bytes.pop_front() {
            return Some(Ok(bytes));
        }
        match self.then {
            Then::End => None,
            Then::Close => {
                // The server flushes what it has when a body has nothing to give; an error alone would discard it.
                tokio::task::yield_now().await;
                Some(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "a fault was asked for")))
            }
            Then::Stall => std::future::pending().await,
        }
    }
}

/// One token of a sequence; after its last one there is no sequence left.
async fn next_token((index, generation): (usize, Option<Generation>)) -> Option<(Token, (usize, Option<Generation>))> {
    let mut generation = generation?;
    let output = generation.next().await;
    let more = output.is_some_and(|output| output.finish.is_none());
    Some(((index, output), (index, more.then_some(generation))))
}

/// What vLLM sends under status 200 when its engine dies.
fn death() -> [Bytes; 2] {
    let error = ApiError::status(StatusCode::INTERNAL_SERVER_ERROR, "EngineCore encountered an issue.".to_owned());
    [event(&error.body()), Bytes::from_static(b"data: [DONE]\n\n")]
}

fn event(value: &Value) -> Bytes {
    Bytes::from(format!("data: {value}\n\n"))
}
