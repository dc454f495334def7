//! The sockets between the engine and the feed, with their faults, and the virtual clock.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use feed::{Feed, Replay, ReplayEnd};
use rand::{Rng, rngs::SmallRng};
use wire::Message;

use super::publisher::Publisher;

/// What the replay socket is like while faults are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplayService {
    /// Answers each request in full.
    Sound,
    /// Loses messages, leaves the marker out, falls silent, refuses.
    Flaky,
    /// There is none.
    None,
}

/// Something that reaches the feed.
#[derive(Debug)]
enum Arrival {
    Connected,
    Disconnected,
    /// A live message of this connection.
    Live(u32, Message),
    /// The publisher reads the request of this replay.
    Asked(u32, Replay),
    Replayed(u32, Message),
    ReplayEnded(u32, ReplayEnd),
}

/// Both sockets and the clock.
#[derive(Debug)]
pub(crate) struct Link {
    now: Instant,
    service: ReplayService,
    faults: bool,
    /// By time, and by order among equals.
    arrivals: BTreeMap<(Instant, u64), Arrival>,
    count: u64,
    connection: u32,
    connected: bool,
    /// Live messages arrive in order.
    last_live: Instant,
    recent: Option<Message>,
    /// The replay the feed waits for; earlier ones are replaced.
    replay: u32,
}

impl Link {
    pub(crate) fn new(service: ReplayService) -> Self {
        let now = Instant::now();
        let mut link = Self {
            now,
            service,
            faults: true,
            arrivals: BTreeMap::new(),
            count: 0,
            connection: 0,
            connected: false,
            last_live: now,
            recent: None,
            replay: 0,
        };
        link.reconnect(Duration::ZERO);
        link
    }

    pub(crate) fn service(&self) -> ReplayService {
        self.service
    }

    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// Sends a live message, if there is a connection.
    pub(crate) fn send(&mut self, rng: &mut SmallRng, message: Message) {
        if self.connected {
            self.last_live = self.last_live.max(self.now + Duration::from_millis(rng.random_range(0..150)));
            self.recent = Some(message.clone());
            self.arrive(self.last_live, Arrival::Live(self.connection, message));
        }
    }

    /// Sends the last live message once more.
    pub(crate) fn repeat(&mut self, rng: &mut SmallRng) {
        if let Some(message) = self.recent.clone() {
            self.send(rng, message);
        }
    }

    /// The connection breaks: what is on its way is lost, and it takes a while to come back.
    pub(crate) fn cut(&mut self, rng: &mut SmallRng) {
        if !self.connected {
            return;
        }
        self.connected = false;
        self.connection += 1;
        self.recent = None;
        self.arrive(self.now, Arrival::Disconnected);
        self.reconnect(Duration::from_millis(rng.random_range(1..500)));
    }

    /// Sends the feed's request.
    pub(crate) fn ask(&mut self, rng: &mut SmallRng, replay: Option<Replay>) {
        if let Some(replay) = replay {
            self.replay += 1;
            self.arrive(self.now + Duration::from_millis(rng.random_range(0..100)), Arrival::Asked(self.replay, replay));
        }
    }

    /// No faults from here on.
    pub(crate) fn heal(&mut self) {
        self.faults = false;
    }

    pub(crate) fn break_again(&mut self) {
        self.faults = true;
    }

    /// Delivers what arrives during `pause`, or until nothing is to come.
    pub(crate) fn run(&mut self, rng: &mut SmallRng, feed: &mut Feed, publisher: &Publisher, pause: Option<Duration>) {
        let until = pause.map(|pause| self.now + pause);
        loop {
            let arrival = self.arrivals.keys().next().map(|(at, _)| *at);
            let next = [arrival, feed.deadline()].into_iter().flatten().min();
            let Some(at) = next.filter(|at| until.is_none_or(|until| *at <= until)) else { break };
            self.now = self.now.max(at);
            let replay = if arrival == Some(at) { self.deliver(rng, feed, publisher) } else { feed.tick(self.now) };
            self.ask(rng, replay);
        }
        self.now = until.unwrap_or(self.now).max(self.now);
    }

    fn deliver(&mut self, rng: &mut SmallRng, feed: &mut Feed, publisher: &Publisher) -> Option<Replay> {
        let (_, arrival) = self.arrivals.pop_first()?;
        match arrival {
            Arrival::Connected => {
                self.connected = true;
                self.last_live = self.now;
                feed.connected(self.now)
            }
            Arrival::Disconnected => {
                feed.disconnected(self.now);
                None
            }
            Arrival::Live(connection, message) if connection == self.connection => feed.live(self.now, message),
            Arrival::Asked(id, replay) if id == self.replay => {
                self.answer(rng, id, replay, publisher);
                None
            }
            Arrival::Replayed(id, message) if id == self.replay => {
                feed.replayed(self.now, message);
                None
            }
            Arrival::ReplayEnded(id, end) if id == self.replay => feed.replay_ended(self.now, end),
            Arrival::Live(..) | Arrival::Asked(..) | Arrival::Replayed(..) | Arrival::ReplayEnded(..) => None,
        }
    }

    /// The publisher answers with what it has at this moment.
    fn answer(&mut self, rng: &mut SmallRng, id: u32, replay: Replay, publisher: &Publisher) {
        let flaky = self.faults && self.service == ReplayService::Flaky;
        let silence = Duration::from_millis(500);
        let mut at = self.now;
        if flaky && rng.random_bool(0.2) {
            let refused = rng.random_bool(0.5);
            let end = if refused { ReplayEnd::Failed("connection refused".to_owned()) } else { ReplayEnd::Silent };
            self.arrive(at + if refused { Duration::ZERO } else { silence }, Arrival::ReplayEnded(id, end));
            return;
        }
        let loss = if flaky && rng.random_bool(0.4) { 0.2 } else { 0.0 };
        for message in publisher.replay(replay.from) {
            at += Duration::from_millis(rng.random_range(0..4));
            if !rng.random_bool(loss) {
                self.arrive(at, Arrival::Replayed(id, message));
            }
        }
        if flaky && rng.random_bool(0.3) {
            self.arrive(at + silence, Arrival::ReplayEnded(id, ReplayEnd::Silent));
        } else {
            self.arrive(at, Arrival::ReplayEnded(id, ReplayEnd::Marker));
        }
    }

    fn reconnect(&mut self, after: Duration) {
        self.arrive(self.now + after, Arrival::Connected);
    }

    fn arrive(&mut self, at: Instant, arrival: Arrival) {
        self.count += 1;
        self.arrivals.insert((at, self.count), arrival);
    }
}
