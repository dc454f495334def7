//! The task of one stream: waits for the socket, the replay, commands and time, and tells the feed.

use std::time::{Duration, Instant};

use feed::{Feed, Relayed, Replay};
use tokio::sync::mpsc;
use tokio::time::sleep;
use wire::Framed;

use crate::reins::{Link, Told, now, sleep_until};
use crate::zmtp::{Endpoint, Sub, SubEvent};

use super::replay::{Bounds, Request, Step};
use super::steps::{Steps, blocks_in, undivided};
use super::{EventSource, StreamOptions, StreamSpec};

/// Pause before a port that could not be bound is tried again.
const BIND_PAUSE: Duration = Duration::from_secs(1);

struct Driver {
    feed: Feed,
    told: Told,
    label: String,
    endpoint: Endpoint,
    replay: Option<Endpoint>,
    bounds: Bounds,
    options: StreamOptions,
    /// At most one: the feed replaces a pending replay by asking for another.
    request: Option<Request>,
    /// When a publisher that cannot be pinged was last heard or asked; `None` while there is nobody to ask.
    heard: Option<Instant>,
    steps: Steps,
}

/// Follows the publisher until it is dropped, and passes on what it says where somebody wants that.
pub(super) async fn run(spec: StreamSpec, feed: Feed, told: Told, relay: Option<mpsc::Sender<(u32, Relayed)>>) {
    let limits = spec.feed.limits;
    let (EventSource::Connect(endpoint) | EventSource::Bind(endpoint)) = &spec.events;
    let mut driver = Driver {
        feed,
        told,
        label: spec.feed.label.clone(),
        endpoint: endpoint.clone(),
        replay: spec.replay.clone(),
        bounds: Bounds { silence: limits.replay_silence, total: limits.replay_total },
        options: spec.options.clone(),
        request: None,
        heard: None,
        steps: Steps::default(),
    };
    let mut sub = driver.open(&spec).await;
    loop {
        let due = driver.due();
        // Each branch waits on something that keeps what it has not handed out, so losing the race loses nothing.
        tokio::select! {
            event = sub.next() => driver.socket(event),
            step = step(&mut driver.request) => driver.replayed(step),
            word = driver.told.next() => driver.told.pass_on(word, &mut driver.feed),
            () = sleep_until(due) => driver.tick(),
        }
        if let Some(to) = &relay {
            for relayed in driver.feed.relayed() {
                // Whoever took it is gone: the stream is soon ended.
                let _ = to.send(relayed).await;
            }
        }
        // A full queue, or a replay of millions of blocks, must not keep other tasks of the thread from their work; the replay's
        // reader is one of them.
        driver.steps.rest().await;
    }
}

impl Driver {
    async fn open(&mut self, spec: &StreamSpec) -> Sub {
        let topic = spec.topic.as_bytes();
        match &spec.events {
            EventSource::Connect(endpoint) => Sub::connect(endpoint.clone(), topic, self.options.sockets.clone()),
            EventSource::Bind(endpoint) => loop {
                match Sub::bind(endpoint, topic, self.options.sockets.clone()).await {
                    Ok(sub) => return sub,
                    Err(error) => self.down(&format!("cannot listen: {error}")),
                }
                tokio::select! {
                    () = sleep(BIND_PAUSE) => {}
                    word = self.told.next() => self.told.pass_on(word, &mut self.feed),
                }
            },
        }
    }

    fn socket(&mut self, event: SubEvent) {
        self.told.pass_on_demands(&mut self.feed);
        let now = now();
        let replay = match event {
            SubEvent::Connected { zmtp_minor } => {
                tracing::info!(stream = %self.label, endpoint = %self.endpoint, zmtp_minor, "event stream connected");
                self.told.show_link(Link::Up);
                self.request = None;
                self.heard = (zmtp_minor == 0).then_some(now);
                self.feed.connected(now)
            }
            SubEvent::Disconnected { reason } => {
                self.down(&reason);
                self.request = None;
                self.heard = None;
                self.feed.disconnected(now);
                None
            }
            SubEvent::Failed { reason } => {
                self.down(&reason);
                None
            }
            SubEvent::Dropped { messages } => {
                tracing::warn!(stream = %self.label, messages, "event stream fell behind, live messages were dropped");
                self.feed.dropped(now, messages)
            }
            SubEvent::Message(frames) => {
                self.heard = self.heard.map(|_| now);
                match wire::message(&frames) {
                    Ok(Framed::Batch(message)) => {
                        let blocks = blocks_in(message.payload.len());
                        self.steps.did(blocks);
                        undivided(blocks, || self.feed.live(now, message))
                    }
                    // A publisher says this on its replay socket only; here it numbers nothing.
                    Ok(Framed::EndOfReplay) => None,
                    Err(error) => {
                        self.feed.malformed(now, &error);
                        None
                    }
                }
            }
        };
        self.ask(replay);
    }

    fn replayed(&mut self, step: Step) {
        self.told.pass_on_demands(&mut self.feed);
        match step {
            Step::Waits => self.feed.replay_waits(now()),
            Step::Begins => self.feed.replay_begins(now()),
            Step::Message(message) => {
                let blocks = blocks_in(message.payload.len());
                self.steps.did(blocks);
                undivided(blocks, || self.feed.replayed(now(), message));
            }
            Step::End(end) => {
                tracing::debug!(stream = %self.label, ?end, "replay ended");
                self.request = None;
                // With it comes all that was held back.
                let blocks = blocks_in(self.feed.status().stream().held_bytes);
                self.steps.did(blocks);
                let replay = undivided(blocks, || self.feed.replay_ended(now(), end));
                self.ask(replay);
            }
        }
    }

    fn tick(&mut self) {
        let now = now();
        let replay = self.feed.tick(now);
        self.ask(replay);
        if self.poll_due().is_some_and(|due| due <= now) {
            self.heard = Some(now);
            let replay = self.feed.poll(now);
            self.ask(replay);
        }
    }

    /// Carries out what the feed asked for, in place of a replay still under way.
    fn ask(&mut self, replay: Option<Replay>) {
        if let (Some(replay), Some(endpoint)) = (replay, &self.replay) {
            tracing::debug!(stream = %self.label, %endpoint, from = replay.from, "asking for a replay");
            self.request = Some(Request::start(replay, endpoint.clone(), self.bounds, self.options.clone()));
        }
    }

    fn poll_due(&self) -> Option<Instant> {
        self.heard.map(|heard| heard + self.options.poll_after)
    }

    fn due(&self) -> Option<Instant> {
        self.feed.deadline().into_iter().chain(self.poll_due()).min()
    }

    fn down(&self, reason: &str) {
        tracing::warn!(stream = %self.label, endpoint = %self.endpoint, reason, "no event stream");
        self.told.show_link(Link::Down { reason: reason.to_owned() });
    }
}

async fn step(request: &mut Option<Request>) -> Step {
    match request {
        Some(request) => request.next().await,
        None => std::future::pending().await,
    }
}
