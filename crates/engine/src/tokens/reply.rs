//! The answer of a token-level worker as it comes.

use std::sync::Arc;

use bytes::Bytes;
use transport::request::{CallError, Responses};
use wire::{
    generate::{Annotated, EngineOutput, FinishReason},
    request::Codec,
};

use super::{TokenFailure, Trouble, watch::Watch};
use crate::pulse::Pulse;

/// Outputs of an engine for one request, in order. Dropping it before its end stops the engine's work.
pub struct TokenReply {
    pub(super) peer: Arc<str>,
    pub(super) responses: Responses,
    pub(super) codec: Codec,
    pub(super) watch: Watch,
    pub(super) pulse: Pulse,
    pub(super) state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Outputs come.
    Open,
    /// The finish reason has come.
    Finished,
    /// Nothing more comes.
    Over,
}

impl TokenReply {
    /// The next output; `None` after the last, which has a finish reason. After a failure nothing more comes. A failure that
    /// speaks against the worker is told to its health. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Box<EngineOutput>, TokenFailure>> {
        self.next_as(Self::read).await
    }

    /// The next item as `read` has it; those of which that is nothing are passed over.
    pub(super) async fn next_as<T>(
        &mut self,
        mut read: impl FnMut(&mut Self, &Bytes) -> Result<Option<T>, Trouble>,
    ) -> Option<Result<T, TokenFailure>> {
        loop {
            let Self { responses, watch, .. } = self;
            let item = match self.state {
                State::Over => return None,
                State::Open | State::Finished => watch.over(responses.next()).await,
            };
            match (self.state, item) {
                (State::Open, Ok(Some(Ok(item)))) => match read(self, &item) {
                    Ok(Some(output)) => return Some(Ok(output)),
                    Ok(None) => {}
                    Err(trouble) => return Some(Err(self.fail(trouble))),
                },
                (State::Open, Ok(None)) => return Some(Err(self.fail(Trouble::Unfinished))),
                (State::Open, Ok(Some(Err(error)))) => return Some(Err(self.fail(trouble(&error)))),
                (State::Open, Err(trouble)) => return Some(Err(self.fail(trouble))),
                // What comes after the finish reason changes nothing about the answer.
                (State::Finished, Ok(Some(Ok(_)))) => {}
                (State::Finished | State::Over, _) => {
                    self.state = State::Over;
                    return None;
                }
            }
        }
    }

    /// Waits for the goodbye of a finished answer, so that its worker is not told to stop what it has done. Short: a worker
    /// that keeps it waiting is left.
    pub async fn farewell(&mut self) {
        while self.state == State::Finished {
            self.next().await;
        }
    }

    /// Everything that was wanted has come, before the engine was done: what still runs is stopped with the drop.
    pub fn enough(&mut self) {
        if self.state == State::Open {
            self.pulse.succeeded();
        }
        self.state = State::Over;
    }

    fn read(&mut self, item: &Bytes) -> Result<Option<Box<EngineOutput>>, Trouble> {
        let output = match Annotated::decode(item, self.codec) {
            Ok(Annotated::Output(output)) => output,
            // Notes of the worker for whoever asked for them.
            Ok(Annotated::Event { name, .. }) => {
                tracing::debug!(peer = &*self.peer, name, "an event beside the tokens");
                return Ok(None);
            }
            Err(error) => return Err(Trouble::Unreadable(error.to_string())),
        };
        match &output.finish_reason {
            // An item without a token is no sign that the answer goes on.
            None if output.token_ids.is_empty() && output.text.is_none() => {}
            None => self.watch.tokens(),
            Some(FinishReason::Error(message)) if message.is_empty() => return Err(Trouble::Engine("it gave no reason".to_owned())),
            Some(FinishReason::Error(message)) => return Err(Trouble::Engine(message.clone())),
            Some(FinishReason::Cancelled) => return Err(Trouble::Aborted),
            Some(FinishReason::Eos | FinishReason::Length | FinishReason::Stop | FinishReason::ContentFilter) => {
                self.watch.tokens();
                self.watch.finished();
                self.state = State::Finished;
                self.pulse.succeeded();
            }
        }
        Ok(Some(output))
    }

    pub(super) fn fail(&mut self, trouble: Trouble) -> TokenFailure {
        self.state = State::Over;
        failed(&self.peer, &self.pulse, trouble)
    }
}

impl std::fmt::Debug for TokenReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenReply").field("peer", &self.peer).field("state", &self.state).finish_non_exhaustive()
    }
}

pub(super) fn trouble(error: &CallError) -> Trouble {
    Trouble::Call(error.cause().clone())
}

/// A failure, told to the worker's health where it speaks against the worker.
pub(super) fn failed(peer: &Arc<str>, pulse: &Pulse, trouble: Trouble) -> TokenFailure {
    let failure = TokenFailure { peer: peer.clone(), trouble, pulse: pulse.clone() };
    if let Some(fault) = failure.fault() {
        pulse.failed(fault, &failure.trouble.to_string());
    }
    failure
}
