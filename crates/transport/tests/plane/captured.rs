//! Recordings of real Dynamo 1.6.1: what its subscribers get from us, and what we make of what its publishers send, over
//! real sockets.

use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use testkit::dynamo::{bytes, records};
use testkit::servers::Server;
use tokio::net::TcpListener;
use transport::plane::{PlanePublisher, PlaneSocket, PublisherOptions};
use wire::discovery::{ChannelTransport, EventChannel};
use wire::envelope::Envelope;

use crate::peers::*;
use crate::support::*;

const EVENTS: [&str; 9] = [
    "zmq1_event_zmq_active_sequences_events_prefilldone",
    "zmq1_event_zmq_kv-events_stored",
    "zmq1_event_zmq_kv_metrics",
    "zmq2_event_zmq_active_sequences_events_add",
    "zmq2_event_zmq_active_sequences_events_free",
    "zmq2_event_zmq_active_sequences_events_prefilldone",
    "zmq2_event_zmq_kv-events_removed",
    "zmq2_event_zmq_kv-events_stored",
    "zmq2_event_zmq_kv_metrics",
];

/// Greeting, READY and SUBSCRIBE as 1.6.1's frontend sent them, for this topic instead.
pub(crate) fn subscriber_hello(topic: &str) -> Vec<u8> {
    let mut hello = bytes_of(&records("zmq1_zmtp_handshake")[0]["hex"]);
    let old = b"kv_metrics";
    assert!(hello.ends_with(old));
    hello.truncate(hello.len() - old.len());
    let length = hello.len() - b"\x09SUBSCRIBE".len() - 1;
    hello[length] = u8::try_from(b"\x09SUBSCRIBE".len() + topic.len()).unwrap();
    hello.extend(topic.as_bytes());
    hello
}

/// Greeting and READY as 1.6.1's worker sent them: what comes before the first message.
fn publisher_hello() -> Vec<u8> {
    let hello = bytes_of(&records("zmq1_zmtp_handshake")[1]["hex"]);
    let topic = b"\x01\x0akv_metrics";
    let end = hello.windows(topic.len()).position(|window| window == topic).unwrap();
    hello[..end].to_vec()
}

fn bytes_of(hex: &Value) -> Vec<u8> {
    bytes(hex.as_str().unwrap())
}

/// An event's publisher, sequence, topic, payload and raw frames.
struct Event {
    publisher_id: u64,
    sequence: u64,
    published_at_ms: u64,
    topic: String,
    payload: Bytes,
    frames: Vec<Vec<u8>>,
}

impl Event {
    fn of(record: &Value) -> Self {
        let envelope = &record["envelope"];
        let number = |key: &str| envelope[key].as_u64().unwrap();
        Self {
            publisher_id: number("publisher_id"),
            sequence: number("sequence"),
            published_at_ms: number("published_at"),
            topic: envelope["topic"].as_str().unwrap().to_owned(),
            payload: bytes_of(&record["payload_hex"]).into(),
            frames: record["frames_hex"].as_array().unwrap().iter().map(bytes_of).collect(),
        }
    }

    fn envelope(&self) -> Envelope {
        let Self { publisher_id, sequence, published_at_ms, topic, payload, .. } = self;
        Envelope {
            publisher_id: *publisher_id,
            sequence: *sequence,
            published_at_ms: *published_at_ms,
            topic: topic.clone(),
            payload: payload.clone(),
        }
    }
}

/// Puts the recorded time in place of ours, the only thing in a message that is not its content.
fn at_time(mut bytes: Vec<u8>, ms: u64) -> Vec<u8> {
    let key = b"published_at\xcf";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap() + key.len();
    bytes[at..at + 8].copy_from_slice(&ms.to_be_bytes());
    bytes
}

#[tokio::test]
async fn a_subscriber_of_1_6_1_gets_from_us_what_its_own_publishers_send() {
    for name in EVENTS {
        let events: Vec<Event> = records(name).iter().map(Event::of).collect();
        let first = &events[0];
        let publisher =
            PlanePublisher::open(PlaneSocket::loopback(), scope(), &first.topic, first.publisher_id, PublisherOptions::default()).await;
        let publisher = publisher.unwrap();
        let ChannelTransport::Zmq { endpoint } = &publisher.channel().transport else { panic!("a ZMQ channel") };
        let port = endpoint.rsplit_once(':').unwrap().1.parse().unwrap();
        let mut subscriber = RawZmtp::connect(port).await;
        subscriber.say(&subscriber_hello(&first.topic)).await;
        subscriber.hear_hello("PUB").await;
        until("a subscriber", || publisher.subscribers() == Some(1)).await;
        // Ours counts from 0, as theirs did; a recording may begin later.
        for number in 0..=events.iter().map(|event| event.sequence).max().unwrap() {
            let event = events.iter().find(|event| event.sequence == number && event.publisher_id == first.publisher_id);
            assert!(publisher.publish(event.map_or_else(|| first.payload.clone(), |event| event.payload.clone())));
            let expected = match event {
                Some(event) => zmtp_message(&event.frames),
                None => zmtp_message(&frames_of(&Envelope { sequence: number, ..first.envelope() })),
            };
            let got = subscriber.hear(expected.len()).await;
            if let Some(event) = event {
                assert_eq!(at_time(got, event.published_at_ms), expected, "{name}, message {number}");
            }
        }
    }
}

fn frames_of(envelope: &Envelope) -> Vec<Vec<u8>> {
    envelope.zmq_frames().iter().map(|frame| frame.to_vec()).collect()
}

#[tokio::test]
async fn what_publishers_of_1_6_1_send_over_zmq_is_read_as_it_was_meant() {
    for name in EVENTS {
        let events: Vec<Event> = records(name).iter().map(Event::of).collect();
        let first = &events[0];
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
        let channel = EventChannel { topic: first.topic.clone(), ..channel(first.publisher_id, ChannelTransport::Zmq { endpoint }) };
        let mut subscription = without_nats().subscribe(&channel);
        let mut publisher = RawZmtp::accept(&listener).await;
        publisher.say(&publisher_hello()).await;
        publisher.hear_hello("SUB").await;
        // Theirs ends with this; ours asks behind it for a PONG, which tells that it has arrived.
        let hello = subscriber_hello(&first.topic);
        let subscribe = &hello[hello.len() - b"\x04\x00\x09SUBSCRIBE".len() - first.topic.len()..];
        assert_eq!(publisher.hear(subscribe.len()).await, subscribe);
        for _ in 0..2 {
            let early = tokio::time::timeout(Duration::from_millis(20), subscription.next()).await;
            assert!(early.is_err(), "{early:?} before the subscription is known to have arrived");
            assert_eq!(publisher.hear(9).await, b"\x04\x07\x04PING\x00\x00");
            publisher.say(b"\x04\x05\x04PONG").await;
        }
        connected(&mut subscription).await;
        for event in events.iter().filter(|event| event.publisher_id == first.publisher_id) {
            publisher.say(&zmtp_message(&event.frames)).await;
            assert_eq!(envelope(&mut subscription).await, event.envelope(), "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_messages_are_those_of_1_6_1_in_both_directions() {
    let server = Server::nats();
    let mut peer = RawNats::connect(server.port()).await;
    for record in records("nats_events") {
        let line = record["protocol_line"].as_str().unwrap().to_owned();
        let subject = line.split(' ').nth(1).unwrap().to_owned();
        let body = bytes_of(&record["raw_hex"]);
        let recorded = Envelope::decode(&body.clone().into()).unwrap();
        let nats = nats(&server.url());
        let options = PublisherOptions::default();
        let opened = PlanePublisher::open(PlaneSocket::Nats(nats), scope(), &recorded.topic, recorded.publisher_id, options).await;
        let publisher = opened.unwrap();
        let channel = publisher.channel().clone();
        assert_eq!(
            channel.transport,
            ChannelTransport::Nats { subject_prefix: "namespace.dynamo.component.backend.endpoint.generate".into() }
        );

        peer.subscribe(&subject).await;
        for _ in 0..=recorded.sequence {
            publisher.publish(recorded.payload.clone());
        }
        for number in 0..=recorded.sequence {
            let (to, got) = peer.message().await;
            assert_eq!(to, subject);
            if number == recorded.sequence {
                assert_eq!(at_time(got, recorded.published_at_ms), body, "{line}");
            }
        }
        peer.say(b"UNSUB 1\r\n").await;

        let mut subscription = subscriptions(&server.url(), 1 << 20).subscribe(&channel);
        connected(&mut subscription).await;
        peer.publish(&subject, &body).await;
        assert_eq!(envelope(&mut subscription).await, recorded, "{line}");
    }
}
