//! Discovery, the event plane and the recovery queries between processes and the feed, with their faults, and the clock.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use feed::plane::{PlaneFeed, PlaneQuery, QueryId, Source};
use rand::{Rng, rngs::SmallRng};
use wire::{
    recovery::{Answer, Item, Listing, Part, Tail},
    router::{RouterEvent, RouterEventError, RouterFault},
};

use super::process::Process;

type Entry = Result<RouterEvent, RouterEventError>;

/// Something that reaches the feed, or a publisher.
#[derive(Debug)]
enum Arrival {
    Added(Source),
    Removed(u64),
    Connected(u64),
    Disconnected(u64),
    /// Events on this connection of a publisher.
    Envelope(u64, u32, Vec<Entry>),
    Dropped(u64, u32),
    Begins(QueryId),
    Asked(PlaneQuery),
    Answered(QueryId, Vec<Part>),
    Failed(QueryId, &'static str),
}

/// The connection to one publisher.
#[derive(Debug, Default)]
struct Connection {
    number: u32,
    /// Discovery names it.
    is_known: bool,
    is_up: bool,
    /// Events mostly arrive in order.
    last: Option<Instant>,
    recent: Vec<Entry>,
    /// Queries that wait until the publisher thaws.
    stuck: Vec<PlaneQuery>,
}

#[derive(Debug)]
pub(super) struct Link {
    now: Instant,
    pub(super) faults: bool,
    /// Queries of this world are answered badly while faults are on.
    flaky: bool,
    /// By time, and by order among equals.
    arrivals: BTreeMap<(Instant, u64), Arrival>,
    count: u64,
    connections: BTreeMap<u64, Connection>,
    pub(super) queries: u64,
}

impl Link {
    pub(super) fn new(flaky: bool) -> Self {
        let (arrivals, connections) = (BTreeMap::new(), BTreeMap::new());
        Self { now: Instant::now(), faults: true, flaky, arrivals, count: 0, connections, queries: 0 }
    }

    pub(super) fn now(&self) -> Instant {
        self.now
    }

    /// Discovery names a publisher, and we subscribe to it.
    pub(super) fn add(&mut self, rng: &mut SmallRng, process: &Process, after: Duration) {
        let source = Source { publisher_id: process.id, recoverable: process.recoverable };
        self.arrive(self.now + after, Arrival::Added(source));
        self.reconnect(process.id, after + millis(rng, 200));
    }

    /// Discovery does not name it any more.
    pub(super) fn remove(&mut self, id: u64, after: Duration) {
        self.arrive(self.now + after, Arrival::Removed(id));
    }

    /// Sends events, if there is a connection.
    pub(super) fn send(&mut self, rng: &mut SmallRng, id: u64, events: Vec<RouterEvent>) {
        let entries: Vec<Entry> = events.into_iter().map(Ok).collect();
        self.send_entries(rng, id, entries);
    }

    fn send_entries(&mut self, rng: &mut SmallRng, id: u64, entries: Vec<Entry>) {
        let connection = self.connections.entry(id).or_default();
        if !connection.is_up || entries.is_empty() {
            return;
        }
        let mut at = self.now + millis(rng, 150);
        if !rng.random_bool(0.05) {
            at = connection.last.map_or(at, |last| last.max(at));
            connection.last = Some(at);
        }
        connection.recent.clone_from(&entries);
        let number = connection.number;
        self.arrive(at, Arrival::Envelope(id, number, entries));
    }

    /// One event of these cannot be used; half of the time not even its number is readable.
    pub(super) fn send_odd(&mut self, rng: &mut SmallRng, id: u64, events: Vec<RouterEvent>) {
        let mut entries: Vec<Entry> = events.into_iter().map(Ok).collect();
        let at = rng.random_range(0..entries.len().max(1));
        let is_numbered = rng.random_bool(0.5);
        if let Some(entry) = entries.get_mut(at) {
            let event_id = entry.as_ref().ok().map(|event| event.event.event_id).filter(|_| is_numbered);
            *entry = Err(RouterEventError { event_id, fault: RouterFault::Data("warmed".to_owned()) });
        }
        self.send_entries(rng, id, entries);
    }

    /// Sends the last events once more.
    pub(super) fn repeat(&mut self, rng: &mut SmallRng, id: u64) {
        let recent = self.connections.get(&id).map(|connection| connection.recent.clone());
        self.send_entries(rng, id, recent.unwrap_or_default());
    }

    /// Events were dropped on our side, and we are told.
    pub(super) fn drop_told(&mut self, id: u64) {
        let connection = self.connections.entry(id).or_default();
        if connection.is_up {
            let (number, at) = (connection.number, connection.last.unwrap_or(self.now).max(self.now));
            connection.last = Some(at);
            self.arrive(at, Arrival::Dropped(id, number));
        }
    }

    /// The connection breaks: what is on its way is lost, and it takes a while to come back.
    pub(super) fn cut(&mut self, rng: &mut SmallRng, id: u64) {
        let connection = self.connections.entry(id).or_default();
        if !connection.is_up {
            return;
        }
        connection.is_up = false;
        connection.number += 1;
        connection.recent.clear();
        self.arrive(self.now, Arrival::Disconnected(id));
        self.reconnect(id, millis(rng, 3_000));
    }

    /// Carries out what the feed asks for.
    pub(super) fn ask(&mut self, rng: &mut SmallRng, feed: &mut PlaneFeed, query: Option<PlaneQuery>) {
        let Some(query) = query else { return };
        self.queries += 1;
        let mut at = self.now + millis(rng, 100);
        if self.faults && rng.random_bool(0.1) {
            feed.query_waits(self.now, query.id);
            let turn = millis(rng, 60_000);
            self.arrive(self.now + turn, Arrival::Begins(query.id));
            at += turn;
        }
        self.arrive(at, Arrival::Asked(query));
    }

    /// A process thaws: what it was asked meanwhile it answers now.
    pub(super) fn thaw(&mut self, id: u64) {
        let stuck = std::mem::take(&mut self.connections.entry(id).or_default().stuck);
        for query in stuck {
            self.arrive(self.now, Arrival::Asked(query));
        }
    }

    /// Delivers what arrives during `pause`.
    pub(super) fn run(
        &mut self,
        rng: &mut SmallRng,
        (feed, processes): (&mut PlaneFeed, &mut [Process]),
        pause: Duration,
        mut look: impl FnMut(&PlaneFeed, &[Process]) -> Result<(), String>,
    ) -> Result<(), String> {
        let until = self.now + pause;
        loop {
            let arrival = self.arrivals.keys().next().map(|(at, _)| *at);
            let next = [arrival, feed.deadline()].into_iter().flatten().min();
            let Some(at) = next.filter(|at| *at <= until) else { break };
            self.now = self.now.max(at);
            let query = if arrival == Some(at) { self.deliver(rng, feed, processes) } else { feed.tick(self.now) };
            look(feed, processes)?;
            self.ask(rng, feed, query);
        }
        self.now = until;
        Ok(())
    }

    fn deliver(&mut self, rng: &mut SmallRng, feed: &mut PlaneFeed, processes: &mut [Process]) -> Option<PlaneQuery> {
        let (_, arrival) = self.arrivals.pop_first()?;
        let now = self.now;
        match arrival {
            Arrival::Added(source) => {
                self.connections.entry(source.publisher_id).or_default().is_known = true;
                feed.source_added(now, source)
            }
            Arrival::Removed(id) => {
                let connection = self.connections.entry(id).or_default();
                (connection.is_known, connection.is_up) = (false, false);
                connection.number += 1;
                feed.source_removed(now, id)
            }
            Arrival::Connected(id) => {
                let alive = processes.iter().any(|process| process.id == id && process.is_alive);
                let connection = self.connections.entry(id).or_default();
                if !alive || !connection.is_known || connection.is_up {
                    return None;
                }
                connection.is_up = true;
                connection.last = None;
                feed.connected(now, id)
            }
            Arrival::Disconnected(id) => feed.disconnected(now, id),
            Arrival::Envelope(id, number, entries) if self.connections.get(&id).is_some_and(|c| c.number == number) => {
                feed.events(now, id, entries)
            }
            Arrival::Dropped(id, number) if self.connections.get(&id).is_some_and(|c| c.number == number) => feed.dropped(now, id, 1),
            Arrival::Envelope(..) | Arrival::Dropped(..) => None,
            Arrival::Begins(id) => {
                feed.query_begins(now, id);
                None
            }
            Arrival::Asked(query) => {
                self.answer(rng, query, processes);
                None
            }
            Arrival::Answered(id, parts) => {
                let mut query = None;
                for part in parts {
                    query = query.or(feed.answered(now, id, part));
                }
                query
            }
            Arrival::Failed(id, reason) => feed.query_failed(now, id, reason),
        }
    }

    /// The publisher answers with what it has at this moment.
    fn answer(&mut self, rng: &mut SmallRng, query: PlaneQuery, processes: &mut [Process]) {
        let Some(process) = processes.iter_mut().find(|process| process.id == query.publisher_id && process.is_alive) else {
            return self.arrive(self.now, Arrival::Failed(query.id, "connection refused"));
        };
        if process.is_frozen {
            return self.connections.entry(process.id).or_default().stuck.push(query);
        }
        let flaky = self.faults && self.flaky;
        if flaky && rng.random_bool(0.3) {
            match rng.random_range(0..4) {
                // Nothing comes, ever.
                0 => {}
                1 => self.arrive(self.now, Arrival::Failed(query.id, "connection reset")),
                2 => {
                    let failed = Answer::TreeDumpFailed { last_event_id: 1, message: "no room".to_owned() };
                    self.arrive(self.now, Arrival::Answered(query.id, vec![Part::Other(failed)]));
                }
                _ => {
                    let error = Answer::Error("not now".to_owned());
                    self.arrive(self.now, Arrival::Answered(query.id, vec![Part::Other(error)]));
                }
            }
            return;
        }
        let Item { answer, lacking, .. } = process.answer(query.start_event_id);
        let (listing, events, last_event_id) = match answer {
            Answer::Events { events, last_event_id } => (Listing::Events, events, last_event_id),
            Answer::TreeDump { events, last_event_id, .. } => (Listing::TreeDump, events, last_event_id),
            other => return self.arrive(self.now, Arrival::Answered(query.id, vec![Part::Other(other)])),
        };
        let breaks = flaky && rng.random_bool(0.15);
        let tail = Tail { listing, last_event_id, reset_scope: "all".to_owned(), page: 0, last: true, lacking };
        let pages = pages(rng, events, &tail);
        self.tell(rng, query.id, pages, breaks);
    }

    /// The pages come one after the other; or the last does not.
    fn tell(&mut self, rng: &mut SmallRng, id: QueryId, mut pages: Vec<Vec<Part>>, breaks: bool) {
        let mut at = self.now;
        if breaks && let Some(last) = pages.last_mut() {
            last.truncate(rng.random_range(0..last.len()));
        }
        for page in pages {
            at += millis(rng, 300);
            self.arrive(at, Arrival::Answered(id, page));
        }
        if breaks && rng.random_bool(0.5) {
            self.arrive(at, Arrival::Failed(id, "connection closed"));
        }
    }

    fn reconnect(&mut self, id: u64, after: Duration) {
        self.arrive(self.now + after, Arrival::Connected(id));
    }

    fn arrive(&mut self, at: Instant, arrival: Arrival) {
        self.count += 1;
        self.arrivals.insert((at, self.count), arrival);
    }
}

/// Cuts an answer into pages.
fn pages(rng: &mut SmallRng, events: Vec<RouterEvent>, tail: &Tail) -> Vec<Vec<Part>> {
    let size = if rng.random_bool(0.5) { events.len().max(1) } else { rng.random_range(1..20) };
    let count = events.len().div_ceil(size).max(1) as u32;
    let mut events = events.into_iter();
    let page = |page| {
        let tail = Tail { page, last: page + 1 == count, ..tail.clone() };
        let body = events.by_ref().take(size).map(|event| Part::Event(Ok(event)));
        std::iter::once(Part::Begin(tail.listing)).chain(body).chain([Part::End(tail)]).collect()
    };
    (0..count).map(page).collect()
}

fn millis(rng: &mut SmallRng, below: u64) -> Duration {
    Duration::from_millis(rng.random_range(0..below))
}
