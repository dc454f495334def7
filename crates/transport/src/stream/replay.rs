//! One replay request: a DEALER of its own that is read into memory as fast as it brings replies. An engine's ROUTER
//! drops silently once a slow reader lets a thousand messages wait, so nothing is worked on in between.

use std::time::Duration;

use feed::{Replay, ReplayEnd};
use tokio::sync::mpsc;
use tokio::time::{timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;
use wire::{Framed, Message};

use crate::zmtp::{Dealer, Endpoint};

use super::StreamOptions;

/// A replay under way; dropping it ends it and discards what it has read.
#[derive(Debug)]
pub(super) struct Request {
    steps: mpsc::UnboundedReceiver<Step>,
    _reader: AbortOnDropHandle<()>,
}

/// What comes of a replay: messages, then one end.
#[derive(Debug)]
pub(super) enum Step {
    Message(Message),
    End(ReplayEnd),
}

/// Bounds of one replay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Without a reply for so long it is over.
    pub(super) silence: Duration,
    /// It may take this long in all.
    pub(super) total: Duration,
}

impl Request {
    pub(super) fn start(replay: Replay, endpoint: Endpoint, bounds: Bounds, options: StreamOptions) -> Self {
        // Unbounded in itself: the reader stops at the bounds of the whole replay, in bytes and messages.
        let (sender, steps) = mpsc::unbounded_channel();
        let reader = tokio::spawn(async move {
            let deadline = tokio::time::Instant::now() + bounds.total;
            let read = read(replay, &endpoint, bounds.silence, &options, &sender);
            let end = timeout_at(deadline, read).await.unwrap_or_else(|_| Err(format!("it took over {} ms", bounds.total.as_millis())));
            // Nobody listens any more if the request was dropped.
            let _ = sender.send(Step::End(end.unwrap_or_else(ReplayEnd::Failed)));
        });
        Self { steps, _reader: AbortOnDropHandle::new(reader) }
    }

    /// The next step; waits for it. Cancel-safe.
    pub(super) async fn next(&mut self) -> Step {
        let ended = || Step::End(ReplayEnd::Failed("its task ended".to_owned()));
        self.steps.recv().await.unwrap_or_else(ended)
    }
}

/// Reads one answer. `Ok` is how the publisher ended it, `Err` why it could not be had.
async fn read(
    replay: Replay,
    endpoint: &Endpoint,
    silence: Duration,
    options: &StreamOptions,
    steps: &mpsc::UnboundedSender<Step>,
) -> Result<ReplayEnd, String> {
    let explain = |error: crate::zmtp::Error| format!("{endpoint}: {error}");
    let mut dealer = Dealer::connect(endpoint, &options.sockets).await.map_err(explain)?;
    dealer.send(&wire::replay_request(replay.from)).await.map_err(explain)?;
    let (mut bytes, mut messages) = (0usize, 0usize);
    loop {
        let Ok(frames) = timeout(silence, dealer.recv()).await else {
            return Ok(ReplayEnd::Silent);
        };
        let frames = frames.map_err(explain)?;
        match wire::message(&frames) {
            Ok(Framed::EndOfReplay) => return Ok(ReplayEnd::Marker),
            Ok(Framed::Batch(message)) => {
                bytes = bytes.saturating_add(message.payload.len());
                messages += 1;
                if bytes > options.max_replay_bytes {
                    return Err(format!("it is over {} bytes", options.max_replay_bytes));
                }
                if messages > options.max_replay_messages {
                    return Err(format!("it is over {} messages", options.max_replay_messages));
                }
                if steps.send(Step::Message(message)).is_err() {
                    return Err("nobody wants it any more".to_owned());
                }
            }
            Err(error) => return Err(format!("{endpoint}: a reply is no numbered batch: {error}")),
        }
    }
}
