//! The task of one rank: waits for its channels, its queries, commands and time, and tells the feed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use feed::plane::{PlaneFeed, PlaneQuery, QueryId};
use rand::Rng;
use wire::recovery::{self, Part};
use wire::router::{RouterEvent, RouterEventError, decode_events};

use crate::plane::PlaneEvent;
use crate::reins::{now, sleep_until};
use crate::stream::steps::{self, STEP_BLOCKS, Steps, undivided};
use crate::stream::turns::Turn;

use super::query::{self, Ask, Query, Step, blocks_in};
use super::sources::{Change, Sources};
use super::{FollowSpec, Outside, PlaneClient};

struct Driver {
    feed: PlaneFeed,
    spec: FollowSpec,
    plane: Arc<PlaneClient>,
    outside: Outside,
    sources: Sources,
    /// By publisher: the feed asks each at most one thing at a time.
    queries: BTreeMap<u64, Query>,
    /// Of answers that are complete and perhaps not yet in the index.
    turns: Vec<Turn>,
    steps: Steps,
}

/// Follows the rank until it is dropped.
pub(super) async fn run(spec: FollowSpec, feed: PlaneFeed, plane: Arc<PlaneClient>, outside: Outside) {
    let (sources, queries) = (Sources::default(), BTreeMap::new());
    let mut driver = Driver { feed, spec, plane, outside, sources, queries, turns: Vec::new(), steps: Steps::default() };
    loop {
        let due = driver.feed.deadline();
        // Each branch waits on something that keeps what it has not handed out, so losing the race loses nothing.
        tokio::select! {
            Ok(()) = driver.outside.sources.changed() => driver.sources(),
            (publisher, event) = driver.sources.next() => driver.event(publisher, event).await,
            (publisher, step) = query::next(&mut driver.queries) => driver.answered(publisher, step).await,
            word = driver.outside.told.next() => driver.outside.told.pass_on(word, &mut driver.feed),
            () = sleep_until(due) => driver.tick(),
        }
        driver.tidy();
        // Yield, so that applying a dump does not starve other tasks.
        driver.steps.rest().await;
    }
}

impl Driver {
    fn sources(&mut self) {
        let specs = self.outside.sources.borrow_and_update().clone();
        let most = self.spec.feed.limits.publishers;
        for change in self.sources.update(specs, most, &self.plane.subscriptions) {
            let query = match change {
                Change::Added(source) => self.feed.source_added(now(), source),
                Change::Removed(publisher) => {
                    self.queries.remove(&publisher);
                    self.feed.source_removed(now(), publisher)
                }
                Change::Moved(publisher) => self.feed.disconnected(now(), publisher),
            };
            self.ask(query, Duration::ZERO);
        }
        self.show_link();
    }

    async fn event(&mut self, publisher: u64, event: PlaneEvent) {
        self.outside.told.pass_on_demands(&mut self.feed);
        let query = match event {
            PlaneEvent::Connected => {
                if self.sources.note(publisher, Ok(())) {
                    tracing::info!(stream = %self.spec.feed.label, publisher = format_args!("{publisher:x}"), "event channel connected");
                }
                self.show_link();
                // With NATS, all ranks of all frontends are connected again at the same moment.
                let delay = self.spec.options.spread.mul_f64(rand::rng().random());
                let query = self.feed.connected(now(), publisher);
                return self.ask(query, delay);
            }
            PlaneEvent::Disconnected { reason } => {
                self.down(publisher, reason);
                self.feed.disconnected(now(), publisher)
            }
            PlaneEvent::Envelope(envelope) => return self.payload(publisher, &envelope.payload).await,
            PlaneEvent::Dropped { messages } => {
                tracing::warn!(stream = %self.spec.feed.label, messages, "event channel fell behind, messages were dropped");
                self.feed.dropped(now(), publisher, messages)
            }
            PlaneEvent::Malformed { reason } => {
                if self.outside.malformed.fetch_add(1, Ordering::Relaxed) == 0 {
                    tracing::warn!(stream = %self.spec.feed.label, reason, "a message on the event channel is none of the publisher's");
                }
                None
            }
        };
        self.ask(query, Duration::ZERO);
    }

    async fn payload(&mut self, publisher: u64, payload: &[u8]) {
        let events = match undivided(steps::blocks_in(payload.len()), || decode_events(payload)) {
            Ok(events) => events,
            Err(error) => {
                let query = self.feed.undecodable(now(), publisher, &error);
                return self.ask(query, Duration::ZERO);
            }
        };
        let (mut step, mut blocks) = (Vec::new(), 0);
        for event in events {
            blocks += event.as_ref().map_or(1, |event| blocks_in(event).max(1));
            step.push(event);
            if blocks >= STEP_BLOCKS {
                self.fold(publisher, std::mem::take(&mut step), std::mem::take(&mut blocks));
                self.steps.rest().await;
            }
        }
        self.fold(publisher, step, blocks);
    }

    fn fold(&mut self, publisher: u64, events: Vec<Result<RouterEvent, RouterEventError>>, blocks: usize) {
        self.steps.did(blocks);
        let query = undivided(blocks, || self.feed.events(now(), publisher, events));
        self.ask(query, Duration::ZERO);
    }

    async fn answered(&mut self, publisher: u64, step: Step) {
        self.outside.told.pass_on_demands(&mut self.feed);
        let Some(id) = self.queries.get(&publisher).map(|query| query.id) else { return };
        match step {
            Step::Waits => self.feed.query_waits(now(), id),
            Step::Begins(turn) => {
                if let Some(query) = self.queries.get_mut(&publisher) {
                    query.turn = Some(turn);
                }
                self.feed.query_begins(now(), id);
            }
            Step::Parts { parts, last } => {
                for part in parts {
                    self.part(id, part);
                    self.steps.rest().await;
                }
                if let Some(query) = self.queries.get_mut(&publisher).filter(|query| last && query.id == id) {
                    query.complete = true;
                    self.turns.extend(query.turn.take());
                }
            }
            Step::End(end) => {
                self.queries.remove(&publisher);
                if let Err(reason) = end {
                    let query = self.feed.query_failed(now(), id, &reason);
                    self.ask(query, Duration::ZERO);
                }
            }
        }
    }

    fn part(&mut self, id: QueryId, part: Part) {
        let blocks = match &part {
            Part::Event(Ok(event)) => blocks_in(event),
            // With the end of an answer comes all that was held back, and a dump is put in order and compared with what is held.
            Part::End(_) => STEP_BLOCKS + 1,
            Part::Event(Err(_)) | Part::Begin(_) | Part::Other(_) => 1,
        };
        self.steps.did(blocks);
        let query = undivided(blocks, || self.feed.answered(now(), id, part));
        self.ask(query, Duration::ZERO);
    }

    fn tick(&mut self) {
        let behind = self.is_behind();
        // The feed takes larger steps than others should wait for.
        let blocks = if behind { STEP_BLOCKS + 1 } else { 0 };
        self.steps.did(blocks);
        let query = undivided(blocks, || self.feed.tick(now()));
        self.ask(query, Duration::ZERO);
    }

    /// Whether the feed has more to do at once.
    fn is_behind(&self) -> bool {
        self.feed.deadline().is_some_and(|due| due <= now())
    }

    /// Ends the queries whose answers are of no use any more, and the turns of answers that are in the index, or never will be.
    fn tidy(&mut self) {
        self.queries.retain(|_, query| query.complete || self.feed.is_asking(query.id));
        if !self.turns.is_empty() && !self.is_behind() {
            self.turns.clear();
        }
    }

    /// Carries out what the feed asks for, after `delay`, in place of what the same publisher was asked before.
    fn ask(&mut self, query: Option<PlaneQuery>, delay: Duration) {
        let mut wanted = query;
        while let Some(query) = wanted.take() {
            tracing::debug!(stream = %self.spec.feed.label, publisher = query.publisher_id, start = query.start_event_id, "recovery query");
            match self.sources.recovery(query.publisher_id) {
                Some(endpoint) => {
                    let ask = Ask {
                        query: recovery::Query {
                            start_event_id: query.start_event_id,
                            pages: true,
                            ..recovery::Query::everything(self.spec.feed.worker_id, self.spec.feed.dp_rank)
                        },
                        endpoint: endpoint.clone(),
                        options: self.spec.options.clone(),
                        total: self.spec.feed.limits.query_total,
                        silence: self.spec.feed.limits.query_silence,
                        delay,
                    };
                    self.queries.insert(query.publisher_id, Query::start(query.id, ask, self.plane.clone()));
                }
                None => wanted = self.feed.query_failed(now(), query.id, "it names no recovery endpoint"),
            }
        }
    }

    fn down(&mut self, publisher: u64, reason: String) {
        let shared = self.sources.is_shared(publisher);
        if self.sources.note(publisher, Err(reason.clone())) {
            let (stream, publisher) = (&self.spec.feed.label, format_args!("{publisher:x}"));
            if shared {
                tracing::debug!(%stream, publisher, reason, "no event channel");
            } else {
                tracing::warn!(%stream, publisher, reason, "no event channel");
            }
        }
        self.show_link();
    }

    fn show_link(&self) {
        self.outside.told.show_link(self.sources.link());
    }
}
