//! The answer of a worker that takes text: it is sent the client's body as it came, and streams OpenAI's chunks back, also to a client
//! that wants them in one piece.
//!
//! Bodies and chunks are JSON on the way, whatever codec the worker's record names: every worker reads that, and what is relayed are
//! then the worker's own bytes.

use std::{borrow::Cow, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, value::RawValue};
use transport::request::Cause;
use wire::request::Codec;

use super::{Destination, TokenClient, TokenFailure, TokenReply, Trouble};
use crate::{reply::BytesReply, upstream::Break};

/// OpenAI's chunks for one request, in order. Dropping it before its end stops the engine's work.
pub struct TextReply {
    reply: TokenReply,
    /// A choice has its finish reason.
    finished: bool,
    /// Longest silence in the middle of it.
    patience: Duration,
}

/// An item's data.
#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    event: Option<Cow<'a, str>>,
}

/// What must be known of a chunk.
#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    finish_reason: Option<IgnoredAny>,
}

impl TokenClient {
    /// Sends a body to a worker that takes text and waits until the worker says that there will be an answer. Dropping the future, or
    /// the reply, stops the engine's work.
    ///
    /// # Errors
    /// [`TokenFailure`]; what speaks against the worker has been told to its health.
    pub async fn send_text(
        &self,
        to: Destination<'_>,
        body: Bytes,
        id: &str,
        headers: &[(String, String)],
    ) -> Result<TextReply, TokenFailure> {
        let reply = self.call(to, (body, Codec::Json), id, headers).await?;
        // The reply's own time-outs are the shorter ones.
        Ok(TextReply { reply, finished: false, patience: self.options.between_tokens + Duration::from_secs(1) })
    }
}

impl TextReply {
    /// The next chunk, as JSON in one line; `None` after the last. A stream that ends without a finish reason has failed, and after a
    /// failure nothing more comes. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Bytes, TokenFailure>> {
        let finished = &mut self.finished;
        match self.reply.next_as(|reply, item| read(reply, item, finished)).await {
            Some(Err(TokenFailure { trouble: Trouble::Unfinished, .. })) if *finished => {
                self.reply.pulse.succeeded();
                None
            }
            next => next,
        }
    }

    /// What it said cannot be used, and why.
    pub fn unusable(&mut self, reason: String) -> TokenFailure {
        self.reply.fail(Trouble::Unreadable(reason))
    }

    /// The answer as server-sent events, with `first`, which has come already.
    pub fn events(self, first: &Bytes) -> BytesReply {
        let (first, patience) = (Ok(event(first)), self.patience);
        let rest = stream::unfold(Some(self), |reply| async move {
            let mut reply = reply?;
            Some(match reply.next().await {
                Some(Ok(chunk)) => (Ok(event(&chunk)), Some(reply)),
                Some(Err(failure)) => (Err(broken(&failure)), None),
                None => (Ok(Bytes::from_static(b"data: [DONE]\n\n")), None),
            })
        });
        BytesReply::events(Box::pin(stream::iter([first]).chain(rest)), patience)
    }
}

impl std::fmt::Debug for TextReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.reply.fmt(f)
    }
}

/// `None` for what stands beside the chunks.
fn read(reply: &mut TokenReply, item: &Bytes, finished: &mut bool) -> Result<Option<Bytes>, Trouble> {
    let unreadable = |error: serde_json::Error| Trouble::Unreadable(error.to_string());
    let Item { data, event } = serde_json::from_slice(item).map_err(unreadable)?;
    let data = match (data, event) {
        (Some(data), _) => data.get(),
        (None, Some(name)) => {
            tracing::debug!(peer = &*reply.peer, name = &*name, "an event beside the chunks");
            return Ok(None);
        }
        (None, None) => return Err(Trouble::Unreadable("an item without data".to_owned())),
    };
    let chunk: Chunk = serde_json::from_str(data).map_err(unreadable)?;
    if let Some(error) = chunk.error {
        return Err(Trouble::Engine(error["message"].as_str().map_or_else(|| error.to_string(), str::to_owned)));
    }
    *finished |= chunk.choices.iter().any(|choice| choice.finish_reason.is_some());
    reply.watch.tokens();
    let chunk = item.slice_ref(data.as_bytes());
    // A line end within an event would end its field.
    if !chunk.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
        return Ok(Some(chunk));
    }
    let value: Value = serde_json::from_slice(&chunk).map_err(unreadable)?;
    Ok(Some(value.to_string().into()))
}

fn event(chunk: &Bytes) -> Bytes {
    [b"data: ", &chunk[..], b"\n\n"].concat().into()
}

/// How an answer that had begun broke.
fn broken(failure: &TokenFailure) -> Break {
    match &failure.trouble {
        Trouble::Dead(reason) => Break::WorkerDead(reason.clone()),
        Trouble::Left(quiet) | Trouble::Stalled(quiet) | Trouble::NoFirstToken(quiet) => Break::Stalled(*quiet),
        Trouble::Unfinished => Break::Unfinished,
        Trouble::Stopping => Break::Stopping,
        Trouble::Call(Cause::Item(_) | Cause::Failed { .. }) | Trouble::Engine(_) | Trouble::Aborted => Break::Engine(failure.public()),
        Trouble::Call(_) | Trouble::Unreadable(_) => Break::Closed(failure.to_string()),
    }
}
