//! Our sockets among themselves, over TCP and Unix sockets.

use std::io::ErrorKind;
use std::time::Duration;

use bytes::Bytes;
use testkit::servers::bind_again;
use transport::zmtp::{Dealer, Endpoint, Error, Options, Pub, Router, Sub, SubEvent};

use crate::support::*;

#[tokio::test]
async fn a_subscriber_gets_what_begins_with_its_topic_in_order() {
    let (_dir, endpoints) = endpoints();
    for endpoint in endpoints {
        let publisher = Pub::bind(&endpoint, Options::default()).await.unwrap();
        let mut sub = Sub::connect(publisher.endpoint(), b"kv", Options::default());
        let mut all = Sub::connect(publisher.endpoint(), b"", Options::default());
        assert_eq!(connected(&mut sub).await, 1);
        assert_eq!(connected(&mut all).await, 1);
        soon("two subscriptions", publisher.subscribed(2)).await;
        publisher.send(numbered("other", 0, 10));
        for n in 1..1000 {
            publisher.send(numbered("kv-events", n, usize::try_from(n).unwrap()));
        }
        publisher.send(numbered("kv", 1000, 5 << 20));
        for n in 1..=1000 {
            assert_eq!(number(&message(&mut sub).await), n);
        }
        for n in 0..=1000 {
            assert_eq!(number(&message(&mut all).await), n);
        }
        assert_eq!(publisher.dropped(), 0);
        publisher.shutdown(Duration::from_secs(5)).await;
    }
}

#[tokio::test]
async fn a_restarted_publisher_is_found_again_without_anyone_reading() {
    let (_dir, endpoints) = endpoints();
    for endpoint in endpoints {
        let mut publisher = Pub::bind(&endpoint, Options::default()).await.unwrap();
        let endpoint = publisher.endpoint();
        let mut sub = Sub::connect(endpoint.clone(), b"", quick());
        const LIVES: u64 = 4;
        for life in 0..LIVES {
            // Nobody calls `next`: the socket's own task notices the end of each life.
            soon("a subscription", publisher.subscribed(1)).await;
            publisher.send(numbered("", life, 1));
            publisher.shutdown(Duration::from_secs(5)).await;
            publisher = bind_again(async || Pub::bind(&endpoint, Options::default()).await).await;
        }
        soon("a subscription", publisher.subscribed(1)).await;
        for life in 0..LIVES {
            connected(&mut sub).await;
            assert_eq!(number(&message(&mut sub).await), life);
            assert!(matches!(next(&mut sub).await, SubEvent::Disconnected { .. }));
        }
        connected(&mut sub).await;
        proves_alive(&publisher, &mut sub).await;
    }
}

#[tokio::test]
async fn shutdown_of_a_publisher_loses_nothing_that_was_sent() {
    let (_dir, endpoints) = endpoints();
    for endpoint in endpoints {
        for _ in 0..10 {
            let publisher = Pub::bind(&endpoint, Options::default()).await.unwrap();
            let mut sub = Sub::connect(publisher.endpoint(), b"", Options::default());
            soon("a subscription", publisher.subscribed(1)).await;
            for n in 0..500 {
                publisher.send(numbered("", n, 4000));
            }
            publisher.shutdown(Duration::from_secs(10)).await;
            connected(&mut sub).await;
            for n in 0..500 {
                assert_eq!(number(&message(&mut sub).await), n);
            }
        }
    }
}

#[tokio::test]
async fn a_reader_that_lags_gets_a_prefix_then_one_counted_hole() {
    let publisher = Pub::bind(&loopback(0), Options::default()).await.unwrap();
    let mut sub = Sub::connect(publisher.endpoint(), b"", Options { queue_bytes: 64 << 10, ..quick() });
    soon("a subscription", publisher.subscribed(1)).await;
    for n in 0..10_000 {
        publisher.send(numbered("", n, 1000));
    }
    // Returns when the subscriber has hung up, so it has read everything by then.
    publisher.shutdown(Duration::from_secs(10)).await;
    connected(&mut sub).await;
    let mut read = 0;
    loop {
        match next(&mut sub).await {
            SubEvent::Message(frames) => {
                assert_eq!(number(&frames), read);
                read += 1;
            }
            SubEvent::Dropped { messages } => {
                assert_eq!(read + messages, 10_000);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!((40..70).contains(&read), "{read} messages of 1 kB in 64 KiB");
    assert!(matches!(next(&mut sub).await, SubEvent::Disconnected { .. }));
}

#[tokio::test]
async fn a_dealer_and_a_router_exchange_long_and_large_answers() {
    let (_dir, endpoints) = endpoints();
    for endpoint in endpoints {
        let router = Router::bind(&endpoint, Options { queue_bytes: 64 << 10, ..Options::default() }).await.unwrap();
        let endpoint = router.endpoint();
        let ask = async {
            let mut dealer = Dealer::connect(&endpoint, &Options::default()).await.unwrap();
            dealer.send(&[Bytes::new(), Bytes::from_static(b"go")]).await.unwrap();
            for n in 0..5000 {
                assert_eq!(number(&dealer.recv().await.unwrap()), n);
            }
            assert_eq!(dealer.recv().await.unwrap()[2].len(), 3 << 20);
        };
        let answer = async {
            let (identity, frames) = router.recv().await;
            assert_eq!(frames, [Bytes::new(), Bytes::from_static(b"go")]);
            for n in 0..5000 {
                router.send(&identity, &numbered("", n, 100)).await.unwrap();
            }
            router.send(&identity, &numbered("", 5000, 3 << 20)).await.unwrap();
        };
        soon("the exchange", async { tokio::join!(ask, answer) }).await;
    }
}

#[tokio::test]
async fn equal_identities_neither_deadlock_nor_mix_their_answers() {
    let router = Router::bind(&loopback(0), Options::default()).await.unwrap();
    let options = Options { identity: Bytes::from_static(b"same"), ..Options::default() };
    let mut dealers = Vec::new();
    for n in 0..3u8 {
        let mut dealer = Dealer::connect(&router.endpoint(), &options).await.unwrap();
        dealer.send(&[Bytes::from(vec![n])]).await.unwrap();
        dealers.push(dealer);
    }
    let mut identities = Vec::new();
    for _ in 0..3 {
        let (identity, frames) = soon("a question", router.recv()).await;
        router.send(&identity, &frames).await.unwrap();
        assert!(!identities.contains(&identity));
        identities.push(identity);
    }
    assert_eq!(identities.iter().filter(|identity| identity.as_bytes() == b"same").count(), 1);
    for (n, dealer) in dealers.iter_mut().enumerate() {
        assert_eq!(soon("an answer", dealer.recv()).await.unwrap(), [vec![u8::try_from(n).unwrap()]]);
    }
    drop(dealers);
    // The identity is free again once its peer is gone; whoever still answers it is told.
    let gone = async {
        while router.send(&identities[0], &[Bytes::new()]).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    soon("the end of a peer", gone).await;
}

#[tokio::test]
async fn a_router_stops_waiting_for_a_peer_that_does_not_read() {
    let options = Options { queue_bytes: 64 << 10, send_timeout: Duration::from_millis(100), ..Options::default() };
    let router = Router::bind(&loopback(0), options).await.unwrap();
    let mut deaf = Raw::connect(port_of(&router.endpoint())).await;
    deaf.shake_hands(0, "DEALER").await;
    deaf.write(b"\x00\x01q").await;
    let (identity, _) = soon("a question", router.recv()).await;
    let fill = async {
        loop {
            if let Err(error) = router.send(&identity, &[Bytes::from(vec![0; 100 << 10])]).await {
                return error;
            }
        }
    };
    assert!(matches!(soon("a full queue", fill).await, Error::TimedOut { .. }));
    // Others are served meanwhile.
    let mut dealer = Dealer::connect(&router.endpoint(), &Options::default()).await.unwrap();
    dealer.send(&[Bytes::from_static(b"x")]).await.unwrap();
    let (identity, _) = soon("a question", router.recv()).await;
    router.send(&identity, &[Bytes::from_static(b"y")]).await.unwrap();
    assert_eq!(soon("an answer", dealer.recv()).await.unwrap(), ["y"]);
}

#[tokio::test]
async fn all_interfaces_on_a_free_port_are_reached_by_address_and_by_name() {
    let publisher = Pub::bind(&"tcp://*:0".parse().unwrap(), Options::default()).await.unwrap();
    assert!(publisher.endpoint().is_wildcard());
    let port = port_of(&publisher.endpoint());
    assert_ne!(port, 0);
    for host in ["127.0.0.1", "localhost"] {
        let mut sub = Sub::connect(publisher.endpoint().reached_at(host), b"kv", Options::default());
        connected(&mut sub).await;
        proves_alive(&publisher, &mut sub).await;
        sub.close().await;
        let none = async {
            while publisher.subscribers() > 0 {
                tokio::task::yield_now().await;
            }
        };
        soon("the end of a subscription", none).await;
    }
    let mut sub = Sub::connect(publisher.endpoint(), b"", quick());
    assert!(failed(&mut sub).await.contains("all interfaces"));
}

#[tokio::test]
async fn a_dead_socket_file_is_taken_over_and_a_live_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kv.sock");
    // A std listener leaves its file behind, as a killed process does.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let endpoint = Endpoint::Ipc(path.clone());
    let publisher = bind_again(async || Pub::bind(&endpoint, Options::default()).await).await;
    let error = Pub::bind(&endpoint, Options::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    let mut sub = Sub::connect(endpoint.clone(), b"kv", Options::default());
    proves_alive(&publisher, &mut sub).await;
    publisher.shutdown(Duration::from_secs(5)).await;
    assert!(!path.exists());
    std::fs::write(&path, "a file").unwrap();
    assert!(Pub::bind(&endpoint, Options::default()).await.is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a file");
}

#[tokio::test]
async fn a_bound_subscriber_follows_its_publisher_to_a_newer_connection() {
    let mut sub = Sub::bind(&loopback(0), b"kv", quick()).await.unwrap();
    let port = port_of(sub.endpoint());
    let mut first = Raw::connect(port).await;
    first.shake_hands(0, "PUB").await;
    assert_eq!(first.frame().await, (0, b"\x01kv".to_vec()));
    first.write(b"\x00\x03kv1").await;
    assert_eq!(connected(&mut sub).await, 0);
    assert_eq!(message(&mut sub).await, ["kv1"]);
    // Its host vanished without a word and came back.
    let mut second = Raw::connect(port).await;
    second.shake_hands(1, "PUB").await;
    second.write(b"\x00\x03kv2").await;
    assert!(disconnected(&mut sub).await.contains("newer"));
    assert_eq!(connected(&mut sub).await, 1);
    assert_eq!(message(&mut sub).await, ["kv2"]);
    first.hung_up().await;
    drop(second);
    disconnected(&mut sub).await;
}
