//! One answer on its way: an engine's tokens as outputs, one by one, with usage on the first and on the last, as 1.6.1's simulated
//! worker has it.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Value, json};
use wire::{
    generate::{BootstrapInfo, EngineOutput, EngineUsage, FinishReason, GenerateRequest, StopReason},
    request::TypedError,
};
use worker::Failure;

use super::{
    logprobs,
    meeting::{Opened, Prefilled},
};
use crate::{
    faults::{Freeze, StreamFaultKind},
    http::App,
    model::{Finish, Output},
    rank::Generation,
};

/// An answer. Dropping it aborts the engine's work.
pub(super) struct Answer {
    pub(super) app: Arc<App>,
    pub(super) generation: Generation,
    pub(super) prompt_tokens: u32,
    pub(super) asked: Asked,
    /// Of a prefill worker: what is handed over at the end.
    pub(super) hand_over: Option<(Opened, Prefilled, BootstrapInfo)>,
    pub(super) sent: u32,
    pub(super) cached_tokens: u32,
    /// Why it is over, to be told next.
    pub(super) finish: Option<(FinishReason, Option<StopReason>)>,
    pub(super) over: bool,
}

/// What of a request matters while it is answered.
pub(super) struct Asked {
    stops: HashSet<u32>,
    min_tokens: u32,
    logprobs: Option<u32>,
    /// Told with the first token.
    engine_data: Option<Value>,
}

impl Asked {
    pub(super) fn of(request: &GenerateRequest, app: &App) -> Self {
        let stop = &request.stop_conditions;
        let lists = [&stop.stop_token_ids, &stop.stop_token_ids_visible, &stop.stop_token_ids_hidden];
        let engine_data = request.output_options.prompt_logprobs.map(|_| logprobs::prompt(&app.text, &request.token_ids));
        Self {
            stops: lists.into_iter().flatten().flatten().copied().collect(),
            min_tokens: stop.min_tokens.unwrap_or(0),
            logprobs: request.output_options.logprobs,
            engine_data,
        }
    }
}

impl Answer {
    /// The next output, or why there is none; `None` once the last was given.
    pub(super) async fn next(&mut self) -> Option<Result<EngineOutput, TypedError>> {
        if self.over {
            return None;
        }
        self.app.switches.until(|faults| faults.freeze != Freeze::Process).await;
        if let Some((reason, stop_reason)) = self.finish.take() {
            self.over = true;
            return Some(Ok(self.last(reason, stop_reason)));
        }
        if let Some(fault) = self.app.switches.now().stream.filter(|fault| self.sent >= fault.after_events) {
            self.over = true;
            match fault.kind {
                StreamFaultKind::ErrorEvent => return Some(Err(Failure::Internal.error("a fault was asked for"))),
                // The stream ends in good order, and the answer does not.
                StreamFaultKind::Close | StreamFaultKind::DieMidLine => return None,
                StreamFaultKind::Stall => std::future::pending().await,
            }
        }
        let Some(output) = self.generation.next().await else {
            self.over = true;
            return Some(Err(Failure::Shutdown.error("the engine was restarted")));
        };
        Some(Ok(self.token(output)))
    }

    fn token(&mut self, output: Output) -> EngineOutput {
        self.sent += 1;
        self.cached_tokens = output.cached_tokens;
        let token = output.token;
        self.finish = if self.asked.stops.contains(&token) && self.sent > self.asked.min_tokens {
            // The engine would go on: dropped, it is aborted.
            Some((FinishReason::Stop, Some(StopReason::Token(token.into()))))
        } else {
            let reason = |finish| match finish {
                Finish::Stop => FinishReason::Eos,
                Finish::Length => FinishReason::Length,
            };
            output.finish.map(|finish| (reason(finish), None))
        };
        let told = EngineOutput {
            token_ids: vec![token],
            log_probs: self.asked.logprobs.map(|_| vec![logprobs::chosen(token)]),
            top_logprobs: self.asked.logprobs.map(|count| vec![logprobs::top(&self.app.text, token, count)]),
            completion_usage: (self.sent == 1).then(|| self.usage()),
            engine_data: self.asked.engine_data.take(),
            ..EngineOutput::default()
        };
        match self.hand_over.take() {
            Some((room, prefilled, place)) => {
                self.over = true;
                room.ready(prefilled);
                let params = json!({"bootstrap_host": place.host, "bootstrap_port": place.port, "bootstrap_room": place.room});
                EngineOutput {
                    finish_reason: Some(FinishReason::Length),
                    completion_usage: Some(self.usage()),
                    disaggregated_params: Some(params),
                    ..told
                }
            }
            None => told,
        }
    }

    fn last(&self, reason: FinishReason, stop_reason: Option<StopReason>) -> EngineOutput {
        EngineOutput { finish_reason: Some(reason), stop_reason, completion_usage: Some(self.usage()), ..EngineOutput::default() }
    }

    fn usage(&self) -> EngineUsage {
        EngineUsage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.sent,
            total_tokens: self.prompt_tokens + self.sent,
            cached_tokens: Some(self.cached_tokens),
        }
    }
}
