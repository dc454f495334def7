//! Bounded waits, publishers and subscriptions with options fit for a test.

use std::time::Duration;

use bytes::Bytes;
pub(crate) use testkit::waits::{soon, until};
use transport::nats::{Nats, NatsOptions};
use transport::plane::{PlaneEvent, PlanePublisher, PlaneSocket, PublisherOptions, Subscription, SubscriptionOptions, Subscriptions};
use transport::zmtp;
use wire::discovery::{EndpointId, EventChannel, Scope, topic};
use wire::envelope::Envelope;

pub(crate) fn scope() -> Scope {
    EndpointId::new("dynamo", "backend", "generate").scope()
}

pub(crate) fn nats_options() -> NatsOptions {
    NatsOptions {
        ping_interval: Duration::from_millis(300),
        connect_timeout: Duration::from_secs(1),
        call_timeout: Duration::from_millis(500),
        reconnect_min: Duration::from_millis(5),
        reconnect_max: Duration::from_millis(50),
        ..NatsOptions::default()
    }
}

pub(crate) fn nats(url: &str) -> Nats {
    Nats::connect(url, nats_options()).unwrap()
}

pub(crate) fn sockets() -> zmtp::Options {
    zmtp::Options { reconnect_min: Duration::from_millis(5), reconnect_max: Duration::from_millis(50), ..zmtp::Options::default() }
}

/// Subscriptions whose readers may have so many bytes unread. Those that need NATS dial `url`.
pub(crate) fn subscriptions(url: &str, queue_bytes: usize) -> Subscriptions {
    let url = url.to_owned();
    // As the frontend does it: one connection, made when first needed.
    let shared = std::sync::OnceLock::new();
    let options = SubscriptionOptions { queue_bytes, sockets: sockets() };
    Subscriptions::new(move || shared.get_or_init(|| nats(&url)).clone(), options)
}

/// For channels on ZMQ: asking for NATS fails the test.
pub(crate) fn without_nats() -> Subscriptions {
    Subscriptions::new(|| panic!("nobody needs NATS here"), SubscriptionOptions { sockets: sockets(), ..SubscriptionOptions::default() })
}

pub(crate) async fn publisher(socket: PlaneSocket, id: u64) -> PlanePublisher {
    bounded_publisher(socket, id, 32 << 20).await
}

pub(crate) async fn bounded_publisher(socket: PlaneSocket, id: u64, queue_bytes: usize) -> PlanePublisher {
    let options = PublisherOptions { queue_bytes, ..PublisherOptions::default() };
    PlanePublisher::open(socket, scope(), topic::KV_EVENTS, id, options).await.unwrap()
}

/// The same channel as a record of another transport.
pub(crate) fn channel(id: u64, transport: wire::discovery::ChannelTransport) -> EventChannel {
    EventChannel { scope: scope(), topic: topic::KV_EVENTS.to_owned(), instance_id: id, transport }
}

pub(crate) fn numbered(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

pub(crate) fn number(envelope: &Envelope) -> u64 {
    u64::from_be_bytes(envelope.payload[..8].try_into().unwrap())
}

pub(crate) async fn next(subscription: &mut Subscription) -> PlaneEvent {
    soon("an event of a subscription", subscription.next()).await
}

/// Passes over other events until it is connected.
pub(crate) async fn connected(subscription: &mut Subscription) {
    while next(subscription).await != PlaneEvent::Connected {}
}

/// Passes over other events until it is not; the reason.
pub(crate) async fn disconnected(subscription: &mut Subscription) -> String {
    loop {
        if let PlaneEvent::Disconnected { reason } = next(subscription).await {
            return reason;
        }
    }
}

/// The next event, which must be an envelope.
pub(crate) async fn envelope(subscription: &mut Subscription) -> Envelope {
    match next(subscription).await {
        PlaneEvent::Envelope(envelope) => envelope,
        other => panic!("an envelope was expected, not {other:?}"),
    }
}

/// The next envelope, whatever was dropped before it.
pub(crate) async fn arrived(subscription: &mut Subscription) -> Envelope {
    loop {
        match next(subscription).await {
            PlaneEvent::Envelope(envelope) => return envelope,
            PlaneEvent::Dropped { .. } => {}
            other => panic!("an envelope was expected, not {other:?}"),
        }
    }
}

/// All of these, in this order, and nothing else between them.
pub(crate) async fn all_of(subscription: &mut Subscription, numbers: std::ops::Range<u64>) {
    for expected in numbers {
        assert_eq!(number(&envelope(subscription).await), expected);
    }
}
