//! One streamed answer as its client sees it, looked at while it comes.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::task::AbortOnDropHandle;

use crate::support::http;

/// How an answer ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum How {
    /// It has not.
    #[default]
    Going,
    /// Its body came to an end.
    Whole,
    /// The connection was closed before that.
    Broken,
    /// Its client waited no more.
    GivenUp,
}

/// What has come.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) status: u16,
    /// Token ids of choice 0, where they were asked for.
    pub(super) ids: Vec<u64>,
    /// Text of choice 0, of completions and chats.
    pub(super) text: String,
    /// Who made it, in order, each change once.
    pub(super) workers: Vec<u64>,
    /// Prompt and completion tokens.
    pub(super) usage: Option<(u64, u64)>,
    pub(super) errors: Vec<String>,
    pub(super) finish: Option<String>,
    /// `[DONE]` was the last.
    pub(super) done: bool,
    pub(super) longest_gap: Duration,
    pub(super) how: How,
}

impl Seen {
    pub(super) fn is_complete(&self) -> bool {
        self.status == 200 && self.how == How::Whole && self.done && self.errors.is_empty() && self.finish.is_some()
    }

    fn line(&mut self, line: &str) {
        let Some(data) = line.strip_prefix("data: ") else { return };
        assert!(!self.done, "something after [DONE]: {line}");
        if data == "[DONE]" {
            self.done = true;
            return;
        }
        let chunk: Value = serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {line}"));
        if !chunk["error"].is_null() {
            self.errors.push(data.to_owned());
        }
        let ids = chunk["nvext"]["completion_token_ids"].as_array();
        self.ids.extend(ids.into_iter().flatten().map(|id| id.as_u64().unwrap()));
        let choice = &chunk["choices"][0];
        for text in [&choice["text"], &choice["delta"]["content"]] {
            self.text.push_str(text.as_str().unwrap_or_default());
        }
        if let Some(finish) = choice["finish_reason"].as_str() {
            self.finish = Some(finish.to_owned());
        }
        if let Some(worker) = chunk["nvext"]["worker_id"]["decode_worker_id"].as_u64()
            && self.workers.last() != Some(&worker)
        {
            self.workers.push(worker);
        }
        let usage = &chunk["usage"];
        if let (Some(prompt), Some(completion)) = (usage["prompt_tokens"].as_u64(), usage["completion_tokens"].as_u64()) {
            self.usage = Some((prompt, completion));
        }
    }
}

/// A client that reads. Dropping it hangs up.
pub(super) struct Streaming {
    seen: Arc<Mutex<Seen>>,
    task: AbortOnDropHandle<()>,
}

impl Streaming {
    /// Sends a request, and reads its answer for so long at most.
    pub(super) fn start(address: SocketAddr, path: &'static str, body: Value, patience: Duration) -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        let told = seen.clone();
        let task = tokio::spawn(async move {
            let how = tokio::time::timeout(patience, read(address, path, body, &told)).await.unwrap_or(How::GivenUp);
            told.lock().how = how;
        });
        Self { seen, task: AbortOnDropHandle::new(task) }
    }

    pub(super) fn now(&self) -> Seen {
        self.seen.lock().clone()
    }

    /// All of it.
    pub(super) async fn end(self) -> Seen {
        self.task.await.unwrap();
        self.seen.lock().clone()
    }
}

async fn read(address: SocketAddr, path: &str, body: Value, seen: &Mutex<Seen>) -> How {
    let mut open = http::open(address, "POST", path, &[], &body).await;
    seen.lock().status = open.status.as_u16();
    let (mut rest, mut last) = (String::new(), None::<Instant>);
    loop {
        let Some(piece) = open.piece().await else { break };
        let Ok(piece) = piece else { return How::Broken };
        rest.push_str(std::str::from_utf8(&piece).unwrap());
        let mut seen = seen.lock();
        let now = Instant::now();
        seen.longest_gap = seen.longest_gap.max(last.map_or(Duration::ZERO, |last| now - last));
        last = Some(now);
        while let Some(end) = rest.find('\n') {
            let line: String = rest.drain(..=end).collect();
            seen.line(line.trim_end());
        }
    }
    if !rest.is_empty() {
        // An error that is no stream.
        seen.lock().errors.push(rest);
    }
    How::Whole
}
