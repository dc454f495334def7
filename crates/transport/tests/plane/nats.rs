//! A real nats-server: not there, killed, restarted, frozen, guarded; and what strangers and floods on it do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use testkit::servers::Server;
use transport::nats::{Nats, NatsAuth, NatsOptions};
use transport::plane::{PlaneEvent, PlaneSocket, Subscription};
use wire::discovery::ChannelTransport;
use wire::envelope::Envelope;

use crate::peers::RawNats;
use crate::support::*;

const SUBJECT: &str = "namespace.dynamo.component.backend.endpoint.generate.kv-events";

fn transport() -> ChannelTransport {
    ChannelTransport::Nats { subject_prefix: scope().subject_prefix() }
}

async fn fresh(nats: &Nats) {
    until("a connection to NATS", || nats.health().is_fresh()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_late_is_found_and_what_waited_for_it_is_sent() {
    let mut server = Server::nats();
    server.kill();
    let nats = nats(&server.url());
    let publisher = publisher(PlaneSocket::Nats(nats.clone()), 1).await;
    let mut subscription = subscriptions(&server.url(), 1 << 20).subscribe(publisher.channel());
    assert!(!disconnected(&mut subscription).await.is_empty());
    until("the reason", || nats.health().reason.contains("refused")).await;
    assert!(nats.health().stale_since.is_some());
    server.restart();
    connected(&mut subscription).await;
    fresh(&nats).await;
    publisher.publish(numbered(5));
    assert_eq!(number(&envelope(&mut subscription).await), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_is_told_once_and_after_it_nothing_is_missed_in_silence() {
    let mut server = Server::nats();
    let nats = nats(&server.url());
    let publisher = publisher(PlaneSocket::Nats(nats.clone()), 1).await;
    let mut subscription = subscriptions(&server.url(), 1 << 20).subscribe(publisher.channel());
    connected(&mut subscription).await;
    for round in 0..3u64 {
        server.kill();
        disconnected(&mut subscription).await;
        until("an outage", || !nats.health().is_fresh()).await;
        let began = Instant::now();
        for _ in 0..3000 {
            assert!(publisher.publish(numbered(round)));
        }
        assert!(began.elapsed() < Duration::from_secs(5), "publishing waits for nobody");
        server.restart();
        connected(&mut subscription).await;
        fresh(&nats).await;
        // Behind the reader's `Connected` all arrives that is published; some of what waited came earlier.
        publisher.publish(numbered(1000 + round));
        let mut last = None;
        while last != Some(1000 + round) {
            last = Some(number(&arrived(&mut subscription).await));
        }
    }
    assert_eq!(nats.reconnects(), 3);
    assert_eq!(publisher.counters().dropped, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_server_is_noticed_and_costs_publishers_their_bound_and_no_time() {
    let server = Server::nats();
    let nats = nats(&server.url());
    let publisher = bounded_publisher(PlaneSocket::Nats(nats.clone()), 1, 64 << 10).await;
    let mut subscription = subscriptions(&server.url(), 32 << 20).subscribe(publisher.channel());
    connected(&mut subscription).await;
    fresh(&nats).await;
    server.freeze();
    let began = Instant::now();
    let mut refused = 0u64;
    for number in 0..20_000 {
        refused += u64::from(!publisher.publish([&numbered(number)[..], &[0; 1000]].concat().into()));
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(refused > 0 && publisher.counters().dropped >= refused);
    disconnected(&mut subscription).await;
    until("the outage to show", || !nats.health().is_fresh()).await;
    server.thaw();
    connected(&mut subscription).await;
    fresh(&nats).await;
    publisher.publish(numbered(20_000));
    let mut last = 0;
    while last != 20_000 {
        last = number(&arrived(&mut subscription).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_message_after_connected_is_never_lost_on_a_quiet_line() {
    let server = Server::nats();
    let publisher = publisher(PlaneSocket::Nats(nats(&server.url())), 1).await;
    for round in 0..100 {
        let mut subscription = subscriptions(&server.url(), 1 << 20).subscribe(publisher.channel());
        connected(&mut subscription).await;
        publisher.publish(numbered(round));
        assert_eq!(number(&envelope(&mut subscription).await), round);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_flood_of_one_publisher_drops_nothing_of_another() {
    let server = Server::nats();
    let nats = nats(&server.url());
    let all = subscriptions(&server.url(), 256 << 10);
    let (loud, quiet) = (publisher(PlaneSocket::Nats(nats.clone()), 1).await, publisher(PlaneSocket::Nats(nats), 2).await);
    let (mut unread, mut read) = (all.subscribe(loud.channel()), all.subscribe(quiet.channel()));
    let mut all_of_it = subscriptions(&server.url(), 8 << 20).subscribe(loud.channel());
    for subscription in [&mut unread, &mut read, &mut all_of_it] {
        connected(subscription).await;
    }
    for number in 0..500 {
        for part in 0..10 {
            loud.publish([&numbered(number * 10 + part)[..], &[0; 1000]].concat().into());
        }
        quiet.publish(numbered(number));
        assert_eq!(crate::support::number(&envelope(&mut read).await), number);
    }
    // Once the server has sent all of the flood, what comes behind it on one connection has it in front.
    assert_eq!(drained(&mut all_of_it, 5000).await, (5000, 0));
    quiet.publish(numbered(500));
    assert_eq!(number(&envelope(&mut read).await), 500);
    let (read, dropped) = drained(&mut unread, 5000).await;
    assert!((100..300).contains(&read) && read + dropped == 5000, "{read} read, {dropped} dropped");
}

/// Reads until so many messages are accounted for: those that came, in order, and those that were dropped.
async fn drained(subscription: &mut Subscription, total: u64) -> (u64, u64) {
    let (mut read, mut dropped) = (0, 0);
    while read + dropped < total {
        match next(subscription).await {
            PlaneEvent::Envelope(envelope) => {
                assert_eq!(number(&envelope), read + dropped);
                read += 1;
            }
            PlaneEvent::Dropped { messages } => dropped += messages,
            event => panic!("{event:?}"),
        }
    }
    (read, dropped)
}

#[tokio::test]
async fn what_the_client_itself_dropped_is_told_to_those_whose_it_was() {
    // One thread and one message of room: whatever arrives in one piece overflows before our task has its turn.
    let server = Server::nats();
    let options = NatsOptions { subject_messages: 1, ..nats_options() };
    let url = server.url();
    let shared = Nats::connect(&url, options).unwrap();
    let all = transport::plane::Subscriptions::new(move || shared.clone(), Default::default());
    let (mut subscription, mut other) = (all.subscribe(&channel(1, transport())), all.subscribe(&channel(2, transport())));
    connected(&mut subscription).await;
    connected(&mut other).await;
    let mut peer = RawNats::connect(server.port()).await;
    let message = |publisher_id, sequence| {
        let topic = "kv-events".into();
        let envelope = Envelope { publisher_id, sequence, published_at_ms: 0, topic, payload: numbered(sequence) };
        RawNats::publication(SUBJECT, &envelope.encode())
    };
    peer.say(&(0..1000).flat_map(|sequence| message(1, sequence)).collect::<Vec<u8>>()).await;
    let (mut sent, mut expected, mut dropped) = (1000, 0, 0);
    // The end may be missing, too, and shows with a message after it.
    while dropped == 0 {
        peer.say(&message(1, sent)).await;
        sent += 1;
        while let Ok(event) = tokio::time::timeout(Duration::from_millis(20), subscription.next()).await {
            match event {
                PlaneEvent::Dropped { messages } => {
                    dropped += messages;
                    expected += messages;
                }
                PlaneEvent::Envelope(envelope) => {
                    assert_eq!(envelope.sequence, expected, "{dropped} were told as dropped");
                    expected += 1;
                }
                event => panic!("{event:?}"),
            }
        }
    }
    peer.say(&message(2, 7)).await;
    assert_eq!(envelope(&mut other).await.sequence, 7, "it is told nothing of what was another's");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_answers_no_question_is_subscribed_to_all_the_same_and_counted() {
    let config = std::env::temp_dir().join(format!("dynamo-nats-{}-{:?}.conf", std::process::id(), std::thread::current().id()));
    let users = r#"authorization { users = [{ user: "user", password: "user", permissions: { publish: { deny: "_DYNAMO.>" } } }] }"#;
    std::fs::write(&config, users).unwrap();
    let server = Server::nats_with(&["--config", config.to_str().unwrap()]);
    let nats = nats(&server.url());
    let shared = nats.clone();
    let all = transport::plane::Subscriptions::new(move || shared.clone(), Default::default());
    let mut subscription = all.subscribe(&channel(1, transport()));
    connected(&mut subscription).await;
    assert_eq!(nats.unconfirmed(), 1);
    publisher(PlaneSocket::Nats(nats), 1).await.publish(numbered(5));
    std::fs::remove_file(&config).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn junk_and_strangers_on_the_subject_are_counted_and_passed_over() {
    let server = Server::nats();
    let all = subscriptions(&server.url(), 1 << 20);
    let mut subscription = all.subscribe(&channel(1, transport()));
    connected(&mut subscription).await;
    let mut peer = RawNats::connect(server.port()).await;
    let good = Envelope { publisher_id: 1, sequence: 0, published_at_ms: 0, topic: "kv-events".into(), payload: numbered(9) };
    for junk in [&b""[..], b"hello", &[0xdf; 64], &[0x93; 1000]] {
        peer.publish(SUBJECT, junk).await;
    }
    peer.publish(SUBJECT, &Envelope { publisher_id: 99, ..good.clone() }.encode()).await;
    peer.publish(SUBJECT, &Envelope { topic: "kv_metrics".into(), ..good.clone() }.encode()).await;
    peer.publish(SUBJECT, &good.encode()).await;
    assert_eq!(envelope(&mut subscription).await, good);
    assert_eq!((all.malformed(), all.unknown_publishers()), (5, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subject_is_left_with_its_last_reader_and_can_be_followed_again() {
    let server = Server::nats();
    let all = subscriptions(&server.url(), 1 << 20);
    let publisher = publisher(PlaneSocket::Nats(nats(&server.url())), 1).await;
    for round in 0..5 {
        let (mut one, mut other) = (all.subscribe(publisher.channel()), all.subscribe(publisher.channel()));
        connected(&mut one).await;
        connected(&mut other).await;
        publisher.publish(numbered(round));
        assert_eq!(number(&envelope(&mut one).await), round);
        drop(one);
        publisher.publish(numbered(round + 100));
        assert_eq!(number(&envelope(&mut other).await), round);
        assert_eq!(number(&envelope(&mut other).await), round + 100);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn guarded_servers_take_what_variables_or_url_say_and_a_refusal_says_why() {
    let server = Server::nats_with(&["--user", "me", "--pass", "s3cret"]);
    let with = |url: &str, auth: NatsAuth| Nats::connect(url, NatsOptions { auth, ..nats_options() }).unwrap();
    let refused = nats(&server.url());
    until("a refusal", || refused.health().reason.contains("uthorization")).await;
    let by_variable = NatsAuth::UserPassword { user: "me".into(), password: "s3cret".into() };
    fresh(&with(&server.url(), by_variable)).await;
    let url = server.url().replace("nats://", "nats://me:s3cret@");
    let by_url = with(&url, NatsAuth::Url);
    fresh(&by_url).await;
    assert!(!by_url.servers().contains("s3cret"));

    let server = Server::nats_with(&["--auth", "t0ken"]);
    fresh(&with(&server.url(), NatsAuth::Token("t0ken".into()))).await;
    fresh(&with(&server.url().replace("nats://", "nats://t0ken@"), NatsAuth::Url)).await;
    let nowhere = nats("nats://no.such.host.invalid:4222");
    until("the kind of failure", || nowhere.health().reason.to_lowercase().contains("dns")).await;
    let missing = with(&server.url(), NatsAuth::CredentialsFile("/nowhere/at.all".into()));
    until("a reason", || missing.health().reason.contains("/nowhere/at.all")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_for_the_server_is_counted_and_the_rest_goes_on() {
    let server = Server::nats();
    let publisher = publisher(PlaneSocket::Nats(nats(&server.url())), 1).await;
    let mut subscription = subscriptions(&server.url(), 8 << 20).subscribe(publisher.channel());
    connected(&mut subscription).await;
    publisher.publish(Bytes::from(vec![0; 2 << 20]));
    publisher.publish(numbered(4));
    assert_eq!(number(&envelope(&mut subscription).await), 4);
    assert_eq!(publisher.counters().dropped, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_published_before_the_end_is_delivered() {
    let server = Server::nats();
    let mut subscription = subscriptions(&server.url(), 8 << 20).subscribe(&channel(1, transport()));
    connected(&mut subscription).await;
    let publisher = publisher(PlaneSocket::Nats(nats(&server.url())), 1).await;
    for number in 0..2000 {
        publisher.publish(numbered(number));
    }
    publisher.shutdown(Duration::from_secs(10)).await;
    all_of(&mut subscription, 0..2000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_nobody_holds_is_not_tried_again() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("nats://{}", listener.local_addr().unwrap());
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = attempts.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            drop(stream);
        }
    });
    let nats = nats(&url);
    let other = nats.clone();
    until("attempts", || attempts.load(Ordering::Relaxed) >= 3).await;
    drop(nats);
    let seen = attempts.load(Ordering::Relaxed);
    until("attempts of the clone", || attempts.load(Ordering::Relaxed) >= seen + 3).await;
    drop(other);
    let seen = attempts.load(Ordering::Relaxed);
    // Far longer than the longest delay between two attempts.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(attempts.load(Ordering::Relaxed) <= seen + 1);
}
