//! One replay request: a DEALER of its own that is read into memory as fast as it brings replies. An engine's ROUTER
//! drops silently once a slow reader lets a thousand messages wait, so nothing is worked on in between.

use std::time::Duration;

use feed::{Replay, ReplayEnd};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use wire::{Framed, Message};

use crate::zmtp::{Dealer, Endpoint};

use super::{StreamOptions, turns::Turn};

/// A replay under way; dropping it ends it and discards what it has read.
#[derive(Debug)]
pub(super) struct Request {
    steps: mpsc::UnboundedReceiver<Step>,
    _reader: AbortOnDropHandle<()>,
}

/// What comes of a replay: where it has to wait for its turn that and its beginning, then messages, then one end.
#[derive(Debug)]
pub(super) enum Step {
    Waits,
    Begins,
    Message(Message),
    End(ReplayEnd),
}

/// Bounds of one replay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Without a reply for so long it is over.
    pub(super) silence: Duration,
    /// It may take this long in all, from its turn on.
    pub(super) total: Duration,
}

impl Request {
    pub(super) fn start(replay: Replay, endpoint: Endpoint, bounds: Bounds, options: StreamOptions) -> Self {
        // Unbounded in itself: the reader stops at the bounds of the whole replay, in bytes and messages.
        let (sender, steps) = mpsc::unbounded_channel();
        let reader = Reader { replay, endpoint, bounds, options, steps: sender };
        let reader = tokio::spawn(reader.run());
        Self { steps, _reader: AbortOnDropHandle::new(reader) }
    }

    /// The next step; waits for it. Cancel-safe.
    pub(super) async fn next(&mut self) -> Step {
        let ended = || Step::End(ReplayEnd::Failed("its task ended".to_owned()));
        self.steps.recv().await.unwrap_or_else(ended)
    }
}

/// What the reading task knows.
struct Reader {
    replay: Replay,
    endpoint: Endpoint,
    bounds: Bounds,
    options: StreamOptions,
    steps: mpsc::UnboundedSender<Step>,
}

impl Reader {
    async fn run(self) {
        let (turn, end) = match self.begin().await {
            Ok((turn, dealer)) => (Some(turn), timeout(self.bounds.total, self.read(dealer)).await),
            Err(why) => (None, Ok(Err(why))),
        };
        let end = end.unwrap_or_else(|_| Err(format!("it took over {} ms", self.bounds.total.as_millis())));
        // Nobody listens any more if the request was dropped.
        let _ = self.steps.send(Step::End(end.unwrap_or_else(ReplayEnd::Failed)));
        // What was read is in memory until the stream's task has taken it; then that drops the request.
        self.steps.closed().await;
        drop(turn);
    }

    /// Connects, and then waits for the turn: a publisher that is not there keeps nobody waiting.
    async fn begin(&self) -> Result<(Turn, Dealer), String> {
        let mut dealer = Dealer::connect(&self.endpoint, &self.options.sockets).await.map_err(|error| self.explain(&error))?;
        if let Some(turn) = self.options.turns.at_once() {
            return Ok((turn, dealer));
        }
        self.tell(Step::Waits)?;
        // The connection is kept alive meanwhile.
        let turn = tokio::select! {
            turn = self.options.turns.wait() => turn,
            answer = dealer.recv() => return Err(match answer {
                Ok(_) => format!("{}: it answered before it was asked", self.endpoint),
                Err(error) => self.explain(&error),
            }),
        };
        self.tell(Step::Begins)?;
        Ok((turn, dealer))
    }

    /// Asks, and reads one answer. `Ok` is how the publisher ended it, `Err` why it could not be had.
    async fn read(&self, mut dealer: Dealer) -> Result<ReplayEnd, String> {
        let options = &self.options;
        dealer.send(&wire::replay_request(self.replay.from)).await.map_err(|error| self.explain(&error))?;
        let (mut bytes, mut messages) = (0usize, 0usize);
        loop {
            let Ok(frames) = timeout(self.bounds.silence, dealer.recv()).await else {
                return Ok(ReplayEnd::Silent);
            };
            let frames = frames.map_err(|error| self.explain(&error))?;
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
                    self.tell(Step::Message(message))?;
                }
                Err(error) => return Err(format!("{}: a reply is no numbered batch: {error}", self.endpoint)),
            }
        }
    }

    fn tell(&self, step: Step) -> Result<(), String> {
        self.steps.send(step).map_err(|_| "nobody wants it any more".to_owned())
    }

    fn explain(&self, error: &crate::zmtp::Error) -> String {
        format!("{}: {error}", self.endpoint)
    }
}
