//! One subscription that carries many publishers, dealt to their readers by publisher id: a NATS subject, or a subject of a
//! ZMQ broker.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::Subject;
use futures_util::StreamExt;
use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use wire::envelope::Envelope;

use crate::nats::{Link, LinkState, Nats};
use crate::zmtp::{Endpoint, Options, Sub, SubEvent};

use super::PlaneEvent;
use super::seat::{Seat, own};

/// Pause before the next broker is tried.
const NEXT_BROKER: Duration = Duration::from_millis(200);

/// A subscription and its task, which ends with it.
#[derive(Debug)]
pub(super) struct Demux {
    seats: Arc<Seats>,
    _task: AbortOnDropHandle<()>,
}

/// Who reads what, and what all of them must be told.
#[derive(Debug)]
pub(super) struct Seats {
    topic: String,
    /// Guards readers and the state of the connection together, so that a new reader is told the right one; held while one
    /// message is queued, or one change for all.
    state: Mutex<State>,
    counters: Arc<Counters>,
}

/// Counted over all subscriptions.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Messages of publishers nobody follows here.
    pub(super) unknown: AtomicU64,
    /// Messages that are no envelopes of the topic; whose they were nobody knows.
    pub(super) malformed: AtomicU64,
}

#[derive(Debug)]
struct State {
    publishers: HashMap<u64, Publisher>,
    link: Result<(), String>,
}

/// One publisher, followed by somebody.
#[derive(Debug, Default)]
struct Publisher {
    readers: Vec<Arc<Seat>>,
    /// The number of its last message on this connection. What is lost at the end shows with the next one.
    last: Option<u64>,
}

impl Demux {
    /// Of a subject of NATS.
    pub(super) fn nats(nats: Nats, subject: String, topic: &str, counters: Arc<Counters>) -> Self {
        let seats = Seats::new(topic, counters);
        let task = tokio::spawn(follow_nats(nats, Subject::from(subject), seats.clone()));
        Self { seats, _task: AbortOnDropHandle::new(task) }
    }

    /// Of a subject of ZMQ brokers, one of which is enough: publishers send to all.
    pub(super) fn broker(endpoints: Vec<Endpoint>, subject: &str, topic: &str, options: Options, counters: Arc<Counters>) -> Self {
        let seats = Seats::new(topic, counters);
        let task = tokio::spawn(follow_brokers(endpoints, subject.to_owned(), options, seats.clone()));
        Self { seats, _task: AbortOnDropHandle::new(task) }
    }

    /// A reader of one publisher; it is told at once whether there is a connection.
    pub(super) fn join(&self, publisher_id: u64, queue_bytes: usize) -> Arc<Seat> {
        let seat = Arc::new(Seat::new(queue_bytes));
        let mut state = self.seats.state.lock();
        seat.push(told(&state.link));
        state.publishers.entry(publisher_id).or_default().readers.push(seat.clone());
        seat
    }

    pub(super) fn leave(&self, publisher_id: u64, seat: &Arc<Seat>) {
        let mut state = self.seats.state.lock();
        if let Some(publisher) = state.publishers.get_mut(&publisher_id) {
            publisher.readers.retain(|reader| !Arc::ptr_eq(reader, seat));
            if publisher.readers.is_empty() {
                state.publishers.remove(&publisher_id);
            }
        }
    }
}

impl Seats {
    fn new(topic: &str, counters: Arc<Counters>) -> Arc<Self> {
        let state = State { publishers: HashMap::new(), link: Err("not connected yet".to_owned()) };
        Arc::new(Self { topic: topic.to_owned(), state: Mutex::new(state), counters })
    }

    fn deliver(&self, envelope: Option<Envelope>) {
        let Some(envelope) = envelope.filter(|envelope| envelope.topic == self.topic) else {
            if self.counters.malformed.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::warn!(topic = self.topic, "a message is no envelope of its topic; further ones are counted");
            }
            return;
        };
        let mut state = self.state.lock();
        let Some(publisher) = state.publishers.get_mut(&envelope.publisher_id) else {
            self.counters.unknown.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let envelope = own(envelope);
        let messages = publisher.missing_before(envelope.sequence);
        for reader in &publisher.readers {
            if messages > 0 {
                reader.push(PlaneEvent::Dropped { messages });
            }
            reader.push(PlaneEvent::Envelope(envelope.clone()));
        }
    }

    /// Tells everybody; the same twice is told once.
    fn link(&self, link: Result<(), String>) {
        let mut state = self.state.lock();
        if state.link != link {
            state.link = link;
            let State { publishers, link } = &mut *state;
            for publisher in publishers.values_mut() {
                // What is missing between two connections was not dropped.
                publisher.last = None;
                publisher.readers.iter().for_each(|reader| reader.push(told(link)));
            }
        }
    }
}

impl Publisher {
    /// How many of its messages are missing before this one, which is its last from now on. A lower number is a publisher that
    /// began anew.
    fn missing_before(&mut self, sequence: u64) -> u64 {
        let last = self.last.replace(sequence);
        last.map_or(0, |last| sequence.saturating_sub(last).saturating_sub(1))
    }
}

fn told(link: &Result<(), String>) -> PlaneEvent {
    match link {
        Ok(()) => PlaneEvent::Connected,
        Err(reason) => PlaneEvent::Disconnected { reason: reason.clone() },
    }
}

async fn follow_nats(nats: Nats, subject: Subject, seats: Arc<Seats>) {
    let mut link = nats.link();
    loop {
        if let LinkState::Down { reason } = link.look() {
            seats.link(Err(reason));
            link.changed().await;
            continue;
        }
        let mut subscriber = match link.subscribe(&subject).await {
            Ok(subscriber) => subscriber,
            Err(refused) => {
                seats.link(Err(format!("subject {subject}: {refused}")));
                return std::future::pending().await;
            }
        };
        relay(&mut link, &mut subscriber, (&subject, &seats)).await;
    }
}

/// Until the client is gone, which ends its subscriptions.
async fn relay(link: &mut Link, subscriber: &mut async_nats::Subscriber, (subject, seats): (&Subject, &Seats)) {
    let mut connection = None;
    let mut confirmation = None;
    loop {
        match link.look() {
            LinkState::Down { reason } => {
                seats.link(Err(reason));
                (connection, confirmation) = (None, None);
            }
            LinkState::Up { epoch } if connection != Some(epoch) => {
                if connection.is_some() {
                    seats.link(Err("the connection was lost".to_owned()));
                }
                connection = Some(epoch);
                // A subscription counts when the server has it; the client sends it anew with each connection.
                confirmation = Some(Box::pin(link.confirmed(subject)));
            }
            LinkState::Up { .. } => {}
        }
        // In this order: what arrived before a change is handed on before it is told. All branches are cancel-safe.
        tokio::select! {
            biased;
            message = subscriber.next() => match message {
                Some(message) => seats.deliver(Envelope::decode(&message.payload).ok()),
                None => return,
            },
            () = async { match &mut confirmation { Some(confirmed) => confirmed.await, None => std::future::pending().await } } => {
                confirmation = None;
                seats.link(Ok(()));
            }
            () = link.changed() => {}
        }
    }
}

/// The next broker when one is away, for ever.
async fn follow_brokers(endpoints: Vec<Endpoint>, subject: String, options: Options, seats: Arc<Seats>) {
    for endpoint in endpoints.iter().cycle() {
        let sub = Sub::connect(endpoint.clone(), subject.as_bytes(), options.clone());
        follow_broker(sub, &subject, &seats, endpoints.len() > 1).await;
        sleep(NEXT_BROKER).await;
    }
}

/// For ever, or while it is there.
async fn follow_broker(mut sub: Sub, subject: &str, seats: &Seats, has_others: bool) {
    loop {
        match sub.next().await {
            SubEvent::Connected { .. } => seats.link(Ok(())),
            SubEvent::Disconnected { reason } | SubEvent::Failed { reason } => {
                seats.link(Err(reason));
                if has_others {
                    return;
                }
            }
            // The numbers of those that follow tell whose they were.
            SubEvent::Dropped { .. } => {}
            SubEvent::Message(frames) if frames.first().is_some_and(|first| first[..] == *subject.as_bytes()) => {
                seats.deliver(Envelope::from_zmq(&frames).ok());
            }
            // Of another subject that begins alike.
            SubEvent::Message(_) => {}
        }
    }
}
