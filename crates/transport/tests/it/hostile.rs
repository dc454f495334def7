//! Peers that break the rules, each named for the trap it sets, and what must go on around them.

use std::time::{Duration, Instant};

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use socket2::SockRef;
use testkit::servers::bind_again;
use tokio::net::TcpListener;
use transport::zmtp::{Dealer, Error, Options, Pub, Router, Sub, SubEvent};

use crate::support::*;

async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Frees the port for a real publisher, which the subscriber must then find.
async fn replaced_by_a_publisher(listener: TcpListener, port: u16, sub: &mut Sub) {
    drop(listener);
    let publisher = bind_again(async || Pub::bind(&loopback(port), Options::default()).await).await;
    proves_alive(&publisher, sub).await;
}

#[tokio::test]
async fn a_publisher_that_shakes_hands_and_closes_is_connected_to_again_every_time() {
    for reset in [false, true] {
        let (listener, port) = listener().await;
        let mut sub = Sub::connect(loopback(port), b"kv", quick());
        for _ in 0..20 {
            let mut peer = Raw::accept(&listener).await;
            peer.shake_hands(0, "PUB").await;
            if reset {
                SockRef::from(&peer.stream).set_linger(Some(Duration::ZERO)).unwrap();
            }
            drop(peer);
        }
        for _ in 0..20 {
            // A reset may overtake our reading of the READY; then the attempt failed instead.
            if !reset {
                connected(&mut sub).await;
                disconnected(&mut sub).await;
            }
        }
        replaced_by_a_publisher(listener, port, &mut sub).await;
    }
}

#[tokio::test]
async fn a_publisher_that_hangs_up_after_each_handshake_is_not_asked_in_a_busy_loop() {
    let (listener, port) = listener().await;
    let options = Options { reconnect_min: Duration::from_millis(10), reconnect_max: Duration::from_millis(80), ..quick() };
    let _sub = Sub::connect(loopback(port), b"", options);
    let start = Instant::now();
    for _ in 0..10 {
        Raw::accept(&listener).await.shake_hands(0, "PUB").await;
    }
    // At least half of 10 + 20 + 40 + 6 x 80.
    assert!(start.elapsed() >= Duration::from_millis(275), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_peer_that_accepts_and_stays_silent_is_given_up_and_tried_again() {
    let (listener, port) = listener().await;
    let mut sub = Sub::connect(loopback(port), b"kv", quick());
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.push(Raw::accept(&listener).await);
    }
    assert!(failed(&mut sub).await.contains("handshake"));
    replaced_by_a_publisher(listener, port, &mut sub).await;
}

#[tokio::test]
async fn a_half_open_connection_is_noticed_by_ping() {
    let (listener, port) = listener().await;
    let mut sub = Sub::connect(loopback(port), b"kv", impatient());
    let mut peer = Raw::accept(&listener).await;
    peer.shake_hands(1, "PUB").await;
    assert_eq!(peer.frame().await.1, b"\x09SUBSCRIBEkv");
    assert_eq!(connected(&mut sub).await, 1);
    for _ in 0..3 {
        let (flags, ping) = peer.frame().await;
        assert_eq!((flags, &ping[..5]), (4, &b"\x04PING"[..]));
        peer.write(b"\x04\x05\x04PONG").await;
    }
    // From now on it says nothing, as a host without power does.
    assert!(disconnected(&mut sub).await.contains("silent"));
    replaced_by_a_publisher(listener, port, &mut sub).await;
}

#[tokio::test]
async fn an_idle_publisher_of_zmtp_3_0_is_neither_pinged_nor_dropped() {
    let (listener, port) = listener().await;
    let options = Options { heartbeat_idle: Duration::from_millis(5), heartbeat_timeout: Duration::from_millis(5), ..quick() };
    let mut sub = Sub::connect(loopback(port), b"kv", options);
    let mut peer = Raw::accept(&listener).await;
    peer.shake_hands(0, "PUB").await;
    assert_eq!(peer.frame().await, (0, b"\x01kv".to_vec()));
    assert_eq!(connected(&mut sub).await, 0);
    // Long enough for ten pings; the next thing either side sees is the message.
    let nothing = tokio::time::timeout(Duration::from_millis(100), sub.next()).await;
    assert!(nothing.is_err(), "{nothing:?}");
    peer.write(b"\x00\x02kv").await;
    assert_eq!(message(&mut sub).await, ["kv"]);
    peer.stream.try_read(&mut [0; 64]).expect_err("nothing was sent to it");
}

#[tokio::test]
async fn pings_between_messages_and_frames_lose_nothing() {
    let (listener, port) = listener().await;
    let mut sub = Sub::connect(loopback(port), b"", quick());
    let mut peer = Raw::accept(&listener).await;
    peer.shake_hands(0, "PUB").await;
    peer.frame().await;
    connected(&mut sub).await;
    for n in 0..100u8 {
        peer.write(&[&b"\x04\x0a\x04PING\0\0ctx\x01\x01a\x04\x09\x04PING\0\0cd\x00\x01"[..], &[n]].concat()).await;
        assert_eq!(peer.frame().await, (4, b"\x04PONGctx".to_vec()));
        assert_eq!(peer.frame().await, (4, b"\x04PONGcd".to_vec()));
        assert_eq!(message(&mut sub).await, [Bytes::from_static(b"a"), Bytes::from(vec![n])]);
    }
}

#[tokio::test]
async fn pings_whose_answers_are_not_read_cost_a_bounded_backlog() {
    let router = Router::bind(&loopback(0), Options::default()).await.unwrap();
    let mut flood = Raw::connect(port_of(&router.endpoint())).await;
    flood.shake_hands(0, "DEALER").await;
    let pings = b"\x04\x07\x04PING\0\0".repeat(10_000);
    // Once kernel buffers both ways are full the router stops reading, and so this stops, far below 1 GB.
    let mut sent = 0;
    while tokio::time::timeout(Duration::from_millis(300), flood.write(&pings)).await.is_ok() {
        sent += pings.len();
        assert!(sent < 1 << 30, "{sent} bytes of pings were taken");
    }
    let mut dealer = Dealer::connect(&router.endpoint(), &Options::default()).await.unwrap();
    dealer.send(&[Bytes::from_static(b"x")]).await.unwrap();
    assert_eq!(soon("a question", router.recv()).await.1, ["x"]);
}

#[tokio::test]
async fn an_http_server_on_the_port_is_named_and_outlived() {
    let (listener, port) = listener().await;
    let mut sub = Sub::connect(loopback(port), b"kv", quick());
    let mut server = Raw::accept(&listener).await;
    server.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n").await;
    let reason = failed(&mut sub).await;
    assert!(reason.contains("does not speak ZMTP") && reason.contains("HTTP/1.1 400"), "{reason}");
    replaced_by_a_publisher(listener, port, &mut sub).await;
}

#[tokio::test]
async fn peers_of_old_versions_other_mechanisms_and_wrong_kinds_are_named() {
    let old = [0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 1, 1].to_vec();
    let mut curve = greeting(0).to_vec();
    curve[12..17].copy_from_slice(b"CURVE");
    let wrong = [&greeting(1)[..], &ready("ROUTER")].concat();
    let error = [&greeting(1)[..], b"\x04\x0d\x05ERROR\x06denied"].concat();
    for (script, named) in [(old, "ZMTP 2"), (curve, "CURVE"), (wrong, "ROUTER"), (error, "denied")] {
        let (listener, port) = listener().await;
        let mut sub = Sub::connect(loopback(port), b"kv", quick());
        let mut peer = Raw::accept(&listener).await;
        peer.write(&script).await;
        let reason = failed(&mut sub).await;
        assert!(reason.contains(named), "{reason}");
        peer.hung_up().await;
    }
}

#[tokio::test]
async fn garbage_after_the_greeting_or_the_handshake_only_ends_its_connection() {
    let (listener, port) = listener().await;
    let publisher = Pub::bind(&loopback(0), Options::default()).await.unwrap();
    let router = Router::bind(&loopback(0), Options::default()).await.unwrap();
    let mut sub = Sub::connect(loopback(port), b"kv", quick());
    let mut rng = SmallRng::seed_from_u64(3);
    let mut junk = [0; 64];
    for round in 0..60 {
        rng.fill_bytes(&mut junk);
        let mut peer = Raw::accept(&listener).await;
        if round % 2 == 0 {
            peer.write(&greeting(1)).await;
        } else {
            peer.shake_hands(1, "PUB").await;
        }
        peer.write(&junk).await;
        // Junk may by chance announce a long frame and wait for it; hanging up ends that too.
        drop(peer);
        for (bound, kind) in [(publisher.endpoint(), "SUB"), (router.endpoint(), "REQ")] {
            let mut client = Raw::connect(port_of(&bound)).await;
            client.write(&[&greeting(1)[..], &ready(kind), &junk].concat()).await;
        }
    }
    replaced_by_a_publisher(listener, port, &mut sub).await;
    let mut good = Sub::connect(publisher.endpoint(), b"kv", quick());
    proves_alive(&publisher, &mut good).await;
}

#[tokio::test]
async fn a_header_that_claims_a_huge_length_ends_its_connection_at_once() {
    let (listener, port) = listener().await;
    let publisher = Pub::bind(&loopback(0), Options::default()).await.unwrap();
    let router = Router::bind(&loopback(0), Options::default()).await.unwrap();
    let mut sub = Sub::connect(loopback(port), b"kv", quick());
    for claim in [1u64 << 30, 1 << 40, 1 << 47, 1 << 61, 1 << 62, u64::MAX] {
        let header = [&[2][..], &claim.to_be_bytes()].concat();
        let mut peer = Raw::accept(&listener).await;
        peer.shake_hands(1, "PUB").await;
        peer.write(&header).await;
        peer.hung_up().await;
        let reason = disconnected(&mut sub).await;
        assert!(reason.contains(&claim.to_string()), "{reason}");
        for (bound, kind) in [(publisher.endpoint(), "SUB"), (router.endpoint(), "DEALER")] {
            let mut client = Raw::connect(port_of(&bound)).await;
            client.shake_hands(1, kind).await;
            client.write(&header).await;
            client.hung_up().await;
            let mut stranger = Raw::connect(port_of(&bound)).await;
            stranger.write(&[&greeting(0)[..], &header].concat()).await;
            stranger.hung_up().await;
        }
    }
    replaced_by_a_publisher(listener, port, &mut sub).await;
    let mut good = Sub::connect(publisher.endpoint(), b"kv", quick());
    proves_alive(&publisher, &mut good).await;
}

#[tokio::test]
async fn two_hundred_half_open_probes_do_not_disturb_a_bound_publisher() {
    let publisher = Pub::bind(&loopback(0), Options::default()).await.unwrap();
    let port = port_of(&publisher.endpoint());
    let mut probes = Vec::new();
    for n in 0..200 {
        let mut probe = Raw::connect(port).await;
        match n % 4 {
            0 => {}
            1 => probe.write(&greeting(0)[..n % 64]).await,
            2 => probe.write(&greeting(1)).await,
            _ => probe.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await,
        }
        probes.push(probe);
    }
    for _ in 0..50 {
        let mut mute = Raw::connect(port).await;
        mute.shake_hands(0, "SUB").await;
        probes.push(mute);
    }
    let start = Instant::now();
    let mut sub = Sub::connect(publisher.endpoint(), b"kv", Options::default());
    proves_alive(&publisher, &mut sub).await;
    assert!(start.elapsed() < Options::default().handshake_timeout, "it waited for the probes to be given up");
    for (n, probe) in probes.iter_mut().enumerate().filter(|(n, _)| *n < 200 && n % 4 == 3) {
        soon(&format!("the end of HTTP probe {n}"), probe.hung_up()).await;
    }
}

#[tokio::test]
async fn a_subscriber_that_does_not_read_costs_its_queue_and_nobody_else() {
    let publisher = Pub::bind(&loopback(0), Options { queue_bytes: 1 << 20, ..Options::default() }).await.unwrap();
    let mut deaf = Raw::connect(port_of(&publisher.endpoint())).await;
    deaf.shake_hands(0, "SUB").await;
    deaf.write(b"\x00\x01\x01").await;
    soon("a subscription", publisher.subscribed(1)).await;
    let mut sub = Sub::connect(publisher.endpoint(), b"", Options::default());
    soon("a subscription", publisher.subscribed(2)).await;
    connected(&mut sub).await;
    const COUNT: u64 = 300;
    for n in 0..COUNT {
        publisher.send(numbered("", n, 100 << 10));
        assert_eq!(number(&message(&mut sub).await), n);
    }
    let dropped = publisher.dropped();
    assert!(dropped > COUNT / 2 && dropped < COUNT, "{dropped} of {COUNT} dropped");
    // What it did take, and what waits for it, arrives whole once it reads.
    let mut first = [0; 9];
    soon("a frame", tokio::io::AsyncReadExt::read_exact(&mut deaf.stream, &mut first)).await.unwrap();
    assert_eq!(&first[..4], &[1, 0, 1, 8]);
}

#[tokio::test]
async fn a_peer_with_too_many_subscriptions_is_disconnected() {
    let options = Options { max_subscriptions: 10, max_subscription_bytes: 100, ..Options::default() };
    let publisher = Pub::bind(&loopback(0), options).await.unwrap();
    let port = port_of(&publisher.endpoint());
    let mut many = Raw::connect(port).await;
    many.shake_hands(0, "SUB").await;
    many.write(&b"\x00\x02\x01a".repeat(11)).await;
    many.hung_up().await;
    let mut long = Raw::connect(port).await;
    long.shake_hands(1, "SUB").await;
    let topic = [&b"\x04\x64\x09SUBSCRIBE"[..], &[b'x'; 90]].concat();
    long.write(&topic.repeat(2)).await;
    long.hung_up().await;
    let mut good = Sub::connect(publisher.endpoint(), b"kv", quick());
    proves_alive(&publisher, &mut good).await;
}

#[tokio::test]
async fn connections_beyond_the_cap_are_refused_and_counted() {
    let publisher = Pub::bind(&loopback(0), Options { max_connections: 2, ..Options::default() }).await.unwrap();
    let one = Sub::connect(publisher.endpoint(), b"", quick());
    let _two = Sub::connect(publisher.endpoint(), b"", quick());
    soon("two subscriptions", publisher.subscribed(2)).await;
    let mut three = Sub::connect(publisher.endpoint(), b"kv", quick());
    connected(&mut three).await;
    disconnected(&mut three).await;
    assert!(publisher.refused() >= 1);
    one.close().await;
    proves_alive(&publisher, &mut three).await;
}

#[tokio::test]
async fn a_publisher_that_is_away_for_long_is_found_within_2_s_of_its_return() {
    let (listener, port) = listener().await;
    drop(listener);
    let mut sub = Sub::connect(loopback(port), b"kv", Options::default());
    let reason = failed(&mut sub).await;
    assert!(reason.to_lowercase().contains("refused"), "{reason}");
    // By now delays would have reached a second, as after a minute; the longest stays 2 s for ever.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let publisher = bind_again(async || Pub::bind(&loopback(port), Options::default()).await).await;
    let back = Instant::now();
    connected(&mut sub).await;
    assert!(back.elapsed() <= Duration::from_millis(2200), "{:?}", back.elapsed());
    proves_alive(&publisher, &mut sub).await;
}

#[tokio::test]
async fn a_name_without_an_address_is_tried_for_ever() {
    let endpoint = "tcp://no-such-host.invalid:5557".parse().unwrap();
    let mut sub = Sub::connect(endpoint, b"kv", quick());
    failed(&mut sub).await;
}

#[tokio::test]
async fn each_of_two_subscribers_of_one_publisher_gets_each_message_once() {
    let publisher = Pub::bind(&loopback(0), Options::default()).await.unwrap();
    let mut subs = Vec::new();
    for _ in 0..2 {
        subs.push(Sub::connect(publisher.endpoint(), b"", Options::default()));
    }
    // The same subscription twice from one peer is still one delivery.
    let mut twice = Raw::connect(port_of(&publisher.endpoint())).await;
    twice.shake_hands(0, "SUB").await;
    twice.write(b"\x00\x01\x01\x00\x01\x01\x00\x02\x01k").await;
    soon("three subscriptions", publisher.subscribed(3)).await;
    for n in 0..10u8 {
        publisher.send(vec![Bytes::from_static(b"k"), Bytes::from(vec![n])]);
    }
    for sub in &mut subs {
        connected(sub).await;
        for n in 0..10u8 {
            assert_eq!(message(sub).await[1], [n][..]);
        }
    }
    for n in 0..10u8 {
        assert_eq!(twice.frame().await, (1, b"k".to_vec()));
        assert_eq!(twice.frame().await, (0, vec![n]));
    }
}

#[tokio::test]
async fn a_dealer_reports_a_router_that_dies_or_never_answers() {
    let (listener, port) = listener().await;
    let silent = Dealer::connect(&loopback(port), &quick()).await.unwrap_err();
    assert!(matches!(silent, Error::TimedOut { .. }), "{silent}");
    let serve = async {
        let mut peer = Raw::accept(&listener).await;
        // The first connection, which was given up.
        peer.hung_up().await;
        let mut peer = Raw::accept(&listener).await;
        peer.shake_hands(1, "ROUTER").await;
        peer.frame().await;
    };
    let ask = async {
        let mut dealer = Dealer::connect(&loopback(port), &quick()).await.unwrap();
        dealer.send(&[Bytes::from_static(b"q")]).await.unwrap();
        dealer.recv().await.unwrap_err()
    };
    let ((), error) = soon("the exchange", async { tokio::join!(serve, ask) }).await;
    assert!(matches!(error, Error::Closed { during_handshake: false } | Error::Io(_)), "{error}");
}

#[tokio::test]
async fn what_a_full_reader_missed_is_told_before_the_next_connection() {
    let (listener, port) = listener().await;
    let mut sub = Sub::connect(loopback(port), b"", Options { queue_bytes: 1000, ..quick() });
    let mut peer = Raw::accept(&listener).await;
    peer.shake_hands(0, "PUB").await;
    peer.write(&b"\x00\x64".iter().chain(&[b'x'; 100]).copied().collect::<Vec<u8>>().repeat(50)).await;
    drop(peer);
    let mut again = Raw::accept(&listener).await;
    again.shake_hands(0, "PUB").await;
    let (mut read, mut log) = (0, Vec::new());
    while log.len() < 4 {
        match next(&mut sub).await {
            SubEvent::Message(_) => read += 1,
            other => log.push(other),
        }
    }
    let SubEvent::Dropped { messages } = log[1] else { panic!("{log:?}") };
    assert_eq!(read + messages, 50);
    assert!(matches!(log[2], SubEvent::Disconnected { .. }), "{log:?}");
    assert!(matches!(log[3], SubEvent::Connected { zmtp_minor: 0 }), "{log:?}");
}
