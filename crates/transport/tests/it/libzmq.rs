//! Against libzmq, through pyzmq: `libzmq_peer.py` holds one of its sockets and obeys these tests line by line. The
//! Python used is `DYNAMO_TEST_PYTHON`, or `python3`.

use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use testkit::servers::bind_again;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use transport::zmtp::{Dealer, Endpoint, Options, Pub, Router, Sub, SubEvent};

use crate::support::*;

/// A Python process with one libzmq socket; killed when dropped.
pub(crate) struct Peer {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    pub(crate) endpoint: Endpoint,
}

impl Peer {
    async fn start(kind: &str, mode: &str, endpoint: &Endpoint, heartbeat_ms: u32) -> Self {
        Self::open(&[kind, mode, &written(endpoint), &heartbeat_ms.to_string()]).await
    }

    /// A replay socket with the queue limit that engines leave at its default.
    pub(crate) async fn engine_like_router() -> Self {
        Self::open(&["ROUTER", "bind", &written(&loopback(0)), "0", "engine-like"]).await
    }

    async fn open(arguments: &[&str]) -> Self {
        let python = std::env::var("DYNAMO_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/libzmq_peer.py");
        let mut child = Command::new(&python)
            .arg(script)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {python}: {error}; set DYNAMO_TEST_PYTHON or use tests/run"));
        let input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = soon("a libzmq socket", output.next_line()).await.unwrap();
        let Some(bound) = ready.as_deref().and_then(|line| line.strip_prefix("ready ")) else {
            panic!("{python} did not open a libzmq socket ({ready:?}): it needs pyzmq, which tests/run installs");
        };
        let endpoint = bound.parse().unwrap();
        Self { child, input, output, endpoint }
    }

    pub(crate) async fn tell(&mut self, command: &str) {
        self.input.write_all(format!("{command}\n").as_bytes()).await.unwrap();
    }

    async fn answer(&mut self) -> String {
        soon("an answer of the libzmq peer", self.output.next_line()).await.unwrap().expect("the libzmq peer lives")
    }

    async fn ask(&mut self, command: &str) -> String {
        self.tell(command).await;
        self.answer().await
    }

    /// Ends it without a goodbye, as a crashed engine ends.
    async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}

/// libzmq writes a free port as `*`.
fn written(endpoint: &Endpoint) -> String {
    endpoint.to_string().replace("127.0.0.1:0", "127.0.0.1:*")
}

#[tokio::test]
async fn our_sub_follows_its_pub_through_restarts() {
    let (_dir, endpoints) = endpoints();
    for endpoint in endpoints {
        let mut publisher = Peer::start("XPUB", "bind", &endpoint, 0).await;
        let bound = publisher.endpoint.clone();
        let mut sub = Sub::connect(bound.clone(), b"kv", quick());
        for _ in 0..2 {
            assert_eq!(connected(&mut sub).await, 1);
            assert_eq!(publisher.ask("awaitsub").await, "subscription b'\\x01kv'");
            publisher.ask("send other 0 10 10").await;
            publisher.tell("send kv 0 3000 500").await;
            for n in 0..3000 {
                assert_eq!(number(&message(&mut sub).await), n);
            }
            assert_eq!(publisher.answer().await, "done");
            publisher.kill().await;
            disconnected(&mut sub).await;
            publisher = Peer::start("XPUB", "bind", &bound, 0).await;
        }
        assert_eq!(connected(&mut sub).await, 1);
        publisher.ask("awaitsub").await;
        publisher.ask("send kv 0 1 5000000").await;
        assert_eq!(message(&mut sub).await[2].len(), 5_000_000);
    }
}

#[tokio::test]
async fn a_confirmed_subscription_misses_nothing_from_connected_on() {
    let mut publisher = Peer::start("PUB", "bind", &loopback(0), 0).await;
    for n in 0..50 {
        let options = Options { confirm_subscription: true, ..quick() };
        let mut sub = Sub::connect(publisher.endpoint.clone(), b"kv", options);
        assert_eq!(connected(&mut sub).await, 1);
        publisher.tell(&format!("send kv {n} 1 10")).await;
        assert_eq!(number(&message(&mut sub).await), n);
        assert_eq!(publisher.answer().await, "done");
    }
}

#[tokio::test]
async fn a_plain_pub_that_starts_later_is_found() {
    let placeholder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = loopback(placeholder.local_addr().unwrap().port());
    drop(placeholder);
    let mut sub = Sub::connect(endpoint.clone(), b"", quick());
    failed(&mut sub).await;
    let mut publisher = Peer::start("PUB", "bind", &endpoint, 0).await;
    connected(&mut sub).await;
    // The subscription is on its way: what is sent before it arrives is lost.
    publisher.tell("send kv 0 200 10 2").await;
    let first = number(&message(&mut sub).await);
    for n in first + 1..200 {
        assert_eq!(number(&message(&mut sub).await), n);
    }
}

#[tokio::test]
async fn a_heartbeating_libzmq_publisher_loses_nothing() {
    let mut publisher = Peer::start("XPUB", "bind", &loopback(0), 20).await;
    let mut sub = Sub::connect(publisher.endpoint.clone(), b"kv", Options::default());
    connected(&mut sub).await;
    publisher.ask("awaitsub").await;
    // Some 50 heartbeats, between messages and between their frames.
    publisher.tell("send kv 0 500 20000 2").await;
    for n in 0..500 {
        assert_eq!(number(&message(&mut sub).await), n);
    }
    assert_eq!(publisher.answer().await, "done");
}

#[tokio::test]
async fn an_idle_libzmq_publisher_answers_our_pings() {
    let mut publisher = Peer::start("XPUB", "bind", &loopback(0), 0).await;
    let options = Options { heartbeat_idle: Duration::from_millis(30), heartbeat_timeout: Duration::from_secs(5), ..Options::default() };
    let mut sub = Sub::connect(publisher.endpoint.clone(), b"kv", options);
    connected(&mut sub).await;
    publisher.ask("awaitsub").await;
    let quiet = tokio::time::timeout(Duration::from_millis(400), sub.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    publisher.ask("send kv 5 1 1").await;
    assert_eq!(number(&message(&mut sub).await), 5);
}

#[tokio::test]
async fn a_libzmq_publisher_that_gets_busy_after_our_ping_does_not_hang_up() {
    let mut publisher = Peer::start("XPUB", "bind", &loopback(0), 0).await;
    let (heartbeat_idle, heartbeat_timeout) = (Duration::from_millis(200), Duration::from_millis(800));
    let options = Options { heartbeat_idle, heartbeat_timeout, ..Options::default() };
    let mut sub = Sub::connect(publisher.endpoint.clone(), b"kv", options);
    connected(&mut sub).await;
    publisher.ask("awaitsub").await;
    let quiet = tokio::time::timeout(Duration::from_millis(300), sub.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    // It is pinged by now. While it publishes it hears nothing of us, for longer than it was to wait for a sign of life.
    publisher.tell("send kv 0 50 1 40").await;
    for n in 0..50 {
        assert_eq!(number(&message(&mut sub).await), n);
    }
}

#[tokio::test]
async fn its_sub_follows_our_pub_through_restarts_of_either() {
    let (_dir, endpoints) = endpoints();
    for endpoint in endpoints {
        let mut publisher = Pub::bind(&endpoint, Options::default()).await.unwrap();
        let bound = publisher.endpoint();
        let mut sub = Peer::start("SUB", "connect", &bound, 50).await;
        sub.ask("subscribe kv").await;
        for _ in 0..2 {
            // After a reconnect libzmq subscribes again only while its user is inside a call.
            sub.tell("recv 2000").await;
            soon("a subscription", publisher.subscribed(1)).await;
            publisher.send(numbered("other", 0, 1));
            for n in 10..2010 {
                publisher.send(numbered("kv", n, 500));
            }
            assert_eq!(sub.answer().await, "got 2000 10 2009 ordered");
            publisher.shutdown(Duration::from_secs(5)).await;
            publisher = bind_again(async || Pub::bind(&bound, Options::default()).await).await;
        }
        sub.tell("recv 1").await;
        soon("a subscription", publisher.subscribed(1)).await;
        sub.kill().await;
        let gone = async {
            while publisher.subscribers() > 0 {
                tokio::task::yield_now().await;
            }
        };
        soon("the end of their subscriber", gone).await;
        let mut sub = Peer::start("SUB", "connect", &bound, 0).await;
        sub.ask("subscribe").await;
        soon("a subscription", publisher.subscribed(1)).await;
        sub.ask("subscribe k").await;
        sub.ask("unsubscribe k").await;
        publisher.send(numbered("kv", 3, 3_000_000));
        assert_eq!(sub.ask("recv 1").await, "got 1 3 3 ordered");
    }
}

#[tokio::test]
async fn our_bound_sub_takes_its_connecting_pub_and_its_next_life() {
    let mut sub = Sub::bind(&loopback(0), b"kv", quick()).await.unwrap();
    for _ in 0..2 {
        let mut publisher = Peer::start("XPUB", "connect", sub.endpoint(), 0).await;
        assert_eq!(connected(&mut sub).await, 1);
        publisher.ask("awaitsub").await;
        publisher.ask("send kv 0 100 10").await;
        for n in 0..100 {
            assert_eq!(number(&message(&mut sub).await), n);
        }
        publisher.kill().await;
        disconnected(&mut sub).await;
    }
}

#[tokio::test]
async fn our_dealer_reads_a_whole_replay_of_its_router() {
    let mut router = Peer::start("ROUTER", "bind", &loopback(0), 0).await;
    for (style, frames) in [("plain", 3), ("topic", 4)] {
        router.tell(&format!("replay 9900 400 {style}")).await;
        let mut dealer = Dealer::connect(&router.endpoint, &Options::default()).await.unwrap();
        dealer.send(&[Bytes::new(), Bytes::copy_from_slice(&7u64.to_be_bytes())]).await.unwrap();
        for n in 7..9900 {
            let answer = soon("an answer", dealer.recv()).await.unwrap();
            assert_eq!((answer.len(), number(&answer)), (frames, n));
        }
        let marker = soon("the marker", dealer.recv()).await.unwrap();
        assert_eq!((number(&marker), marker[marker.len() - 1].len()), (u64::MAX, 0));
        assert_eq!(router.answer().await, "asked 7");
    }
}

#[tokio::test]
async fn our_router_serves_its_dealers_and_reqs() {
    let router = Router::bind(&loopback(0), Options::default()).await.unwrap();
    let serve = async {
        loop {
            let (identity, question) = router.recv().await;
            assert_eq!(question[..1], [Bytes::new()]);
            let start = u64::from_be_bytes(question[1][..].try_into().unwrap());
            for n in start..5000 {
                // A REQ is gone after the first answer.
                let mut answer = vec![Bytes::new()];
                answer.extend(numbered("", n, 400).split_off(1));
                let _ = router.send(&identity, &answer).await;
            }
        }
    };
    let ask = async {
        for (kind, count, last) in [("DEALER", 4990, 4999), ("REQ", 1, 10), ("DEALER", 4990, 4999)] {
            let mut peer = Peer::start(kind, "connect", &router.endpoint(), 0).await;
            peer.ask("ask 10").await;
            assert_eq!(peer.ask(&format!("recv {count}")).await, format!("got {count} 10 {last} ordered"));
        }
    };
    tokio::select! {
        () = ask => {}
        () = serve => {}
    }
}

#[tokio::test]
async fn a_publisher_frozen_by_a_signal_is_noticed_and_waking_up_reconnects() {
    let publisher = Peer::start("XPUB", "bind", &loopback(0), 0).await;
    let mut sub = Sub::connect(publisher.endpoint.clone(), b"kv", impatient());
    connected(&mut sub).await;
    let pid = publisher.child.id().unwrap().to_string();
    let signal = async |name: &str| {
        assert!(Command::new("kill").args([name, &pid]).status().await.unwrap().success());
    };
    signal("-STOP").await;
    assert!(disconnected(&mut sub).await.contains("silent"));
    signal("-CONT").await;
    loop {
        if let SubEvent::Connected { .. } = next(&mut sub).await {
            break;
        }
    }
}
