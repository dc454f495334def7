//! Over ZMQ, and what holds for both planes.

use std::time::{Duration, Instant};

use testkit::servers::{Server, bind_again};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use transport::plane::{OpenError, PlaneEvent, PlanePublisher, PlaneSocket, PublisherOptions};
use transport::zmtp::{Endpoint, Options, Pub};
use wire::discovery::{ChannelTransport, EventChannel, topic};
use wire::envelope::Envelope;

use crate::peers::RawZmtp;
use crate::support::*;

fn port_of(publisher: &PlanePublisher) -> u16 {
    let ChannelTransport::Zmq { endpoint } = &publisher.channel().transport else { panic!("a ZMQ channel") };
    endpoint.rsplit_once(':').unwrap().1.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn both_planes_bring_everything_to_two_subscribers_in_order() {
    let server = Server::nats();
    let sockets = [PlaneSocket::loopback(), PlaneSocket::Nats(nats(&server.url()))];
    let readers = [subscriptions(&server.url(), 32 << 20), subscriptions(&server.url(), 32 << 20)];
    for (id, socket) in (1..).zip(sockets) {
        let publisher = publisher(socket, id).await;
        let mut followed: Vec<_> = readers.iter().map(|reader| reader.subscribe(publisher.channel())).collect();
        for subscription in &mut followed {
            connected(subscription).await;
        }
        for number in 0..5000 {
            assert!(publisher.publish(numbered(number)));
        }
        for subscription in &mut followed {
            for expected in 0..5000 {
                let got = envelope(subscription).await;
                assert_eq!((number(&got), got.sequence, got.publisher_id), (expected, expected, id));
            }
        }
        assert_eq!((publisher.counters().published, publisher.counters().dropped), (5000, 0));
    }
}

#[tokio::test]
async fn what_nobody_is_in_a_hurry_for_comes_first_at_once_and_then_together_and_all_of_it() {
    let rest = Duration::from_millis(500);
    let publisher = publisher(PlaneSocket::loopback(), 7).await;
    let mut subscription = without_nats().subscribe_at_leisure(publisher.channel(), rest);
    connected(&mut subscription).await;
    publisher.publish(numbered(0));
    assert_eq!(number(&envelope(&mut subscription).await), 0);
    // Not before it was read, so the rest has begun after this.
    let began = Instant::now();
    for number in 1..=5000 {
        publisher.publish(numbered(number));
    }
    let first = envelope(&mut subscription).await;
    let waited = began.elapsed();
    assert!(number(&first) == 1 && waited > rest / 2, "{waited:?}");
    all_of(&mut subscription, 2..5001).await;
    drop(publisher);
    disconnected(&mut subscription).await;
}

#[tokio::test]
async fn a_subscriber_that_stops_reading_costs_its_bound_and_nobody_else_a_message() {
    let publisher = bounded_publisher(PlaneSocket::loopback(), 7, 1 << 20).await;
    let mut stalled = RawZmtp::connect(port_of(&publisher)).await;
    stalled.say(&crate::captured::subscriber_hello(topic::KV_EVENTS)).await;
    let mut healthy = without_nats().subscribe(publisher.channel());
    connected(&mut healthy).await;
    until("two subscribers", || publisher.subscribers() == Some(2)).await;
    let mut refused = 0;
    let began = Instant::now();
    for number in 0..2000 {
        let payload = [&numbered(number)[..], &[0; 16 << 10]].concat();
        refused += u64::from(!publisher.publish(payload.into()));
        assert_eq!(crate::support::number(&envelope(&mut healthy).await), number);
    }
    assert!(refused > 500, "{refused} of 2000 messages of 16 KiB, where 64 fit the queue and the rest what the kernel takes");
    assert_eq!(publisher.counters().dropped, refused, "each is counted, and only for the one that stalls");
    assert!(began.elapsed() < Duration::from_secs(15));
    drop(stalled);
}

#[tokio::test]
async fn strangers_on_the_port_disturb_nobody() {
    let publisher = publisher(PlaneSocket::loopback(), 7).await;
    let mut subscription = without_nats().subscribe(publisher.channel());
    connected(&mut subscription).await;
    for junk in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 100], &[0; 4096], b""] {
        let mut stranger = TcpStream::connect(("127.0.0.1", port_of(&publisher))).await.unwrap();
        let _ = stranger.write_all(junk).await;
        publisher.publish(numbered(1));
        assert_eq!(number(&envelope(&mut subscription).await), 1);
    }
}

#[tokio::test]
async fn a_restarted_publisher_is_found_again_and_a_stranger_on_its_port_is_named() {
    let first = publisher(PlaneSocket::loopback(), 0xa).await;
    let channel = first.channel().clone();
    let mut subscription = without_nats().subscribe(&channel);
    connected(&mut subscription).await;
    let port = port_of(&first);
    first.shutdown(Duration::from_secs(5)).await;
    disconnected(&mut subscription).await;
    let endpoint = Endpoint::Tcp { host: "127.0.0.1".into(), port };
    let other = bind_again(async || Pub::bind(&endpoint, Options::default()).await).await;
    connected(&mut subscription).await;
    let speaks =
        |publisher_id| Envelope { publisher_id, sequence: 0, published_at_ms: 0, topic: channel.topic.clone(), payload: numbered(3) };
    other.send(speaks(0xb).zmq_frames());
    other.send(vec!["kv-events".into(), "junk".into()]);
    other.send(Envelope { topic: "kv-events-of-another-kind".into(), ..speaks(0xa) }.zmq_frames());
    other.send(speaks(0xa).zmq_frames());
    match next(&mut subscription).await {
        PlaneEvent::Malformed { reason } => assert!(reason.contains("publisher b speaks where a was announced"), "{reason}"),
        event => panic!("{event:?}"),
    }
    assert!(matches!(next(&mut subscription).await, PlaneEvent::Malformed { .. }));
    assert_eq!(number(&envelope(&mut subscription).await), 3, "the topic that only begins alike is passed over");
}

#[tokio::test]
async fn a_slow_reader_is_told_how_much_it_missed() {
    let publisher = publisher(PlaneSocket::loopback(), 7).await;
    let mut subscription = subscriptions("nats://127.0.0.1:1", 64 << 10).subscribe(publisher.channel());
    connected(&mut subscription).await;
    // A healthy one tells when all of it has arrived.
    let mut other = without_nats().subscribe(publisher.channel());
    connected(&mut other).await;
    for number in 0..4000 {
        publisher.publish([&numbered(number)[..], &[0; 1000]].concat().into());
    }
    for expected in 0..4000 {
        assert_eq!(number(&envelope(&mut other).await), expected);
    }
    let (mut read, mut dropped) = (0, 0);
    while read + dropped < 4000 {
        match next(&mut subscription).await {
            PlaneEvent::Envelope(envelope) => {
                assert_eq!(number(&envelope), read + dropped);
                read += 1;
            }
            PlaneEvent::Dropped { messages } => dropped += messages,
            event => panic!("{event:?}"),
        }
    }
    assert!(dropped > 3000, "{dropped}");
}

#[tokio::test]
async fn records_that_cannot_be_followed_say_so() {
    let all = without_nats();
    let odd = [
        ChannelTransport::Zmq { endpoint: "udp://nowhere".into() },
        ChannelTransport::Nats { subject_prefix: "namespace.*".into() },
        ChannelTransport::Nats { subject_prefix: "a b".into() },
        ChannelTransport::Nats { subject_prefix: String::new() },
        ChannelTransport::Nats { subject_prefix: "x".repeat(5000) },
        ChannelTransport::ZmqBroker { xsub_endpoints: vec![], xpub_endpoints: vec![] },
    ];
    for transport in odd {
        let mut subscription = all.subscribe(&channel(1, transport.clone()));
        let reason = disconnected(&mut subscription).await;
        assert!(!reason.is_empty() && reason.len() < 300, "{transport:?}: {reason}");
    }
}

#[tokio::test]
async fn a_broker_that_is_there_is_followed_by_subject_and_dealt_by_publisher() {
    let broker = Pub::bind(&Endpoint::Tcp { host: "127.0.0.1".into(), port: 0 }, Options::default()).await.unwrap();
    // Nobody listens on the first.
    let endpoints = vec!["tcp://127.0.0.1:1".to_owned(), broker.endpoint().to_string()];
    let transport = ChannelTransport::ZmqBroker { xsub_endpoints: vec!["tcp://127.0.0.1:1".into()], xpub_endpoints: endpoints };
    let all = without_nats();
    let mut followed: Vec<_> = [1, 2].map(|id| all.subscribe(&channel(id, transport.clone()))).into();
    for subscription in &mut followed {
        connected(subscription).await;
    }
    soon("one subscription for both", broker.subscribed(1)).await;
    assert_eq!(broker.subscribers(), 1);
    for number in 0..100 {
        for publisher_id in [1, 2, 3] {
            let topic = topic::KV_EVENTS.to_owned();
            let envelope = Envelope { publisher_id, sequence: number, published_at_ms: 0, topic, payload: numbered(number * publisher_id) };
            let mut frames = envelope.zmq_frames();
            frames[0] = wire::envelope::subject(&scope().subject_prefix(), topic::KV_EVENTS).into();
            broker.send(frames);
        }
    }
    for (factor, subscription) in (1..).zip(&mut followed) {
        for expected in 0..100 {
            assert_eq!(number(&envelope(subscription).await), expected * factor);
        }
    }
    assert_eq!(all.unknown_publishers(), 100);
}

#[tokio::test]
async fn what_is_advertised_can_be_reached_or_is_refused() {
    let open = |bind: &str, advertise: Option<&str>| {
        let socket = PlaneSocket::Zmq { bind_host: bind.to_owned(), advertise_host: advertise.map(str::to_owned) };
        PlanePublisher::open(socket, scope(), topic::KV_METRICS, 1, PublisherOptions::default())
    };
    let endpoint = |opened: Result<PlanePublisher, OpenError>| match &opened.unwrap().channel().transport {
        ChannelTransport::Zmq { endpoint } => endpoint.clone(),
        other => panic!("{other:?}"),
    };
    assert!(endpoint(open("127.0.0.1", None).await).starts_with("tcp://127.0.0.1:"));
    assert!(endpoint(open("0.0.0.0", Some("node7.example")).await).starts_with("tcp://node7.example:"));
    assert!(endpoint(open("127.0.0.1", Some("fd00::7")).await).starts_with("tcp://[fd00::7]:"));
    assert!(matches!(open("0.0.0.0", None).await, Err(OpenError::Unreachable(_))));
    assert!(matches!(open("192.0.2.1", None).await, Err(OpenError::Bind { .. })));
    let record: EventChannel = open("127.0.0.1", None).await.unwrap().channel().clone();
    assert_eq!((record.instance_id, record.topic.as_str(), record.scope), (1, "kv_metrics", scope()));
}

#[tokio::test]
async fn what_was_published_before_the_end_is_delivered() {
    let publisher = publisher(PlaneSocket::loopback(), 7).await;
    let mut subscription = without_nats().subscribe(publisher.channel());
    connected(&mut subscription).await;
    for number in 0..2000 {
        publisher.publish(numbered(number));
    }
    publisher.shutdown(Duration::from_secs(10)).await;
    all_of(&mut subscription, 0..2000).await;
    disconnected(&mut subscription).await;
}
