//! The consuming side: one [`Subscription`] for each channel record.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use wire::discovery::{ChannelTransport, EventChannel};
use wire::envelope::{self, Envelope};

use crate::nats::Nats;
use crate::zmtp::{self, Endpoint, Sub, SubEvent};

use super::PlaneEvent;
use super::demux::{Counters, Demux};
use super::seat::Seat;

/// Longest NATS subject that is subscribed to, in bytes: records are written by others.
const MAX_SUBJECT_BYTES: usize = 1024;
/// Brokers of one record that are tried, in its order.
const MAX_BROKERS: usize = 8;

/// What subscriptions may spend.
#[derive(Clone, Debug)]
pub struct SubscriptionOptions {
    /// Bytes of unread messages of one publisher (32 MiB).
    pub queue_bytes: usize,
    /// The rest of the options of ZMQ sockets.
    pub sockets: zmtp::Options,
}

impl Default for SubscriptionOptions {
    fn default() -> Self {
        Self { queue_bytes: 32 << 20, sockets: zmtp::Options::default() }
    }
}

/// Makes subscriptions, and lets those of one subject share one connection. Cheap to clone.
#[derive(Clone)]
pub struct Subscriptions(Arc<Shared>);

struct Shared {
    nats: Box<dyn Fn() -> Nats + Send + Sync>,
    options: SubscriptionOptions,
    /// Live demultiplexers; held while one is looked up or made.
    demuxes: Mutex<HashMap<Source, Weak<Demux>>>,
    counters: Arc<Counters>,
}

/// What a demultiplexer is of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Source {
    Nats { subject: String, topic: String },
    Broker { endpoints: Vec<Endpoint>, subject: String, topic: String },
}

/// One channel, followed. Dropping it ends it.
pub struct Subscription {
    publisher_id: u64,
    topic: String,
    source: Followed,
}

enum Followed {
    Direct(Sub),
    Shared {
        demux: Arc<Demux>,
        seat: Arc<Seat>,
    },
    /// The record cannot be followed; told once.
    Refused(Option<String>),
}

impl Subscriptions {
    /// `nats` gives the shared connection; it is asked for when the first channel on NATS is subscribed to.
    pub fn new(nats: impl Fn() -> Nats + Send + Sync + 'static, options: SubscriptionOptions) -> Self {
        let (nats, counters) = (Box::new(nats), Arc::new(Counters::default()));
        Self(Arc::new(Shared { nats, options, demuxes: Mutex::default(), counters }))
    }

    /// Follows a channel, for as long as the subscription lives. Returns at once, also for a record that makes no sense:
    /// that is what the subscription then says. Must be called within a tokio runtime, which carries it.
    pub fn subscribe(&self, channel: &EventChannel) -> Subscription {
        self.subscribe_at(channel, None)
    }

    /// The same for messages that nobody is in a hurry for: a publisher's own socket is looked at no more often than this. What
    /// comes over a shared connection comes at once.
    pub fn subscribe_at_leisure(&self, channel: &EventChannel, rest: Duration) -> Subscription {
        self.subscribe_at(channel, Some(rest))
    }

    fn subscribe_at(&self, channel: &EventChannel, rest: Option<Duration>) -> Subscription {
        let source = self.follow(channel, rest).unwrap_or_else(|reason| Followed::Refused(Some(reason)));
        Subscription { publisher_id: channel.instance_id, topic: channel.topic.clone(), source }
    }

    /// Messages on shared subjects of publishers that nobody follows.
    pub fn unknown_publishers(&self) -> u64 {
        self.0.counters.unknown.load(Ordering::Relaxed)
    }

    /// Messages on shared subjects that were no envelopes.
    pub fn malformed(&self) -> u64 {
        self.0.counters.malformed.load(Ordering::Relaxed)
    }

    fn follow(&self, channel: &EventChannel, rest: Option<Duration>) -> Result<Followed, String> {
        let topic = channel.topic.clone();
        let source = match &channel.transport {
            ChannelTransport::Zmq { endpoint } => {
                let endpoint = parse(endpoint)?;
                return Ok(Followed::Direct(Sub::connect(endpoint, topic.as_bytes(), zmtp::Options { rest, ..self.sockets() })));
            }
            ChannelTransport::Nats { subject_prefix } => {
                let subject = envelope::subject(subject_prefix, &topic);
                check_subject(&subject)?;
                Source::Nats { subject, topic }
            }
            ChannelTransport::ZmqBroker { xpub_endpoints, .. } => {
                let endpoints = xpub_endpoints.iter().take(MAX_BROKERS).map(|endpoint| parse(endpoint)).collect::<Result<Vec<_>, _>>()?;
                if endpoints.is_empty() {
                    return Err("the record of a ZMQ broker names no endpoint for subscribers".to_owned());
                }
                let subject = envelope::subject(&channel.scope.subject_prefix(), &topic);
                Source::Broker { endpoints, subject, topic }
            }
        };
        let demux = self.demux(source);
        let seat = demux.join(channel.instance_id, self.0.options.queue_bytes);
        Ok(Followed::Shared { demux, seat })
    }

    fn sockets(&self) -> zmtp::Options {
        let SubscriptionOptions { queue_bytes, sockets } = &self.0.options;
        zmtp::Options { queue_bytes: *queue_bytes, confirm_subscription: true, ..sockets.clone() }
    }

    fn demux(&self, source: Source) -> Arc<Demux> {
        let mut demuxes = self.0.demuxes.lock();
        if let Some(demux) = demuxes.get(&source).and_then(Weak::upgrade) {
            return demux;
        }
        demuxes.retain(|_, demux| demux.strong_count() > 0);
        let counters = self.0.counters.clone();
        let demux = Arc::new(match &source {
            Source::Nats { subject, topic } => Demux::nats((self.0.nats)(), subject.clone(), topic, counters),
            Source::Broker { endpoints, subject, topic } => Demux::broker(endpoints.clone(), subject, topic, self.sockets(), counters),
        });
        demuxes.insert(source, Arc::downgrade(&demux));
        demux
    }
}

impl Subscription {
    /// The publisher followed.
    pub fn publisher_id(&self) -> u64 {
        self.publisher_id
    }

    /// What happened next; waits for it. Cancel-safe.
    pub async fn next(&mut self) -> PlaneEvent {
        match &mut self.source {
            Followed::Direct(sub) => loop {
                if let Some(event) = direct(self.publisher_id, &self.topic, sub.next().await) {
                    return event;
                }
            },
            Followed::Shared { seat, .. } => seat.next().await,
            Followed::Refused(reason) => match reason.take() {
                Some(reason) => PlaneEvent::Disconnected { reason },
                None => std::future::pending().await,
            },
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Followed::Shared { demux, seat } = &self.source {
            demux.leave(self.publisher_id, seat);
        }
    }
}

/// An event of the publisher's own socket; nothing for a message of a topic that only begins alike.
fn direct(publisher_id: u64, topic: &str, event: SubEvent) -> Option<PlaneEvent> {
    Some(match event {
        SubEvent::Connected { .. } => PlaneEvent::Connected,
        SubEvent::Disconnected { reason } | SubEvent::Failed { reason } => PlaneEvent::Disconnected { reason },
        SubEvent::Dropped { messages } => PlaneEvent::Dropped { messages },
        SubEvent::Message(frames) => {
            if frames.first().is_some_and(|first| first[..] != *topic.as_bytes()) {
                return None;
            }
            match Envelope::from_zmq(&frames) {
                Ok(envelope) if envelope.publisher_id == publisher_id => PlaneEvent::Envelope(envelope),
                // A port that another process has by now.
                Ok(envelope) => {
                    let other = envelope.publisher_id;
                    PlaneEvent::Malformed { reason: format!("publisher {other:x} speaks where {publisher_id:x} was announced") }
                }
                Err(error) => PlaneEvent::Malformed { reason: error.to_string() },
            }
        }
    })
}

fn parse(endpoint: &str) -> Result<Endpoint, String> {
    endpoint.parse().map_err(|error: zmtp::EndpointError| error.to_string())
}

/// A record could otherwise make us subscribe to everything there is.
fn check_subject(subject: &str) -> Result<(), String> {
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '*' | '>');
    let wrong = subject.len() > MAX_SUBJECT_BYTES || subject.contains(odd) || subject.split('.').any(str::is_empty);
    let shown: String = subject.chars().take(80).collect();
    if wrong { Err(format!("{shown:?} is not a NATS subject that can be followed")) } else { Ok(()) }
}

impl fmt::Debug for Subscriptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriptions").field("options", &self.0.options).finish_non_exhaustive()
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.source {
            Followed::Direct(_) => "direct",
            Followed::Shared { .. } => "shared",
            Followed::Refused(_) => "refused",
        };
        f.debug_struct("Subscription").field("publisher_id", &self.publisher_id).field("topic", &self.topic).field("kind", &kind).finish()
    }
}
