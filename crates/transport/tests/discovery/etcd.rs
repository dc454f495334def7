//! A real etcd, and everything that can happen to it.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use testkit::servers::Server;
use tokio::task::block_in_place;
use transport::discovery::{Backend, Discovery, Ended, EtcdConfig, Standing};
use wire::discovery::{Bucket, Key};

use crate::{
    owner::Owner,
    support::{Records, Seen, eventually, key, open, value},
};

fn at(urls: &[String]) -> Discovery {
    open(Backend::Etcd(EtcdConfig { endpoints: urls.to_vec(), ..EtcdConfig::default() }))
}

fn of(server: &Server) -> Discovery {
    at(&[server.url()])
}

/// Asks etcd itself.
fn post(server: &Server, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let length = body.len();
    write!(stream, "POST /v3/{path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// `v1/`, `v10`: all keys of discovery.
const ALL: &str = r#"{"key":"djEv","range_end":"djEw"}"#;

#[tokio::test]
async fn keys_hang_on_a_lease_whose_id_is_the_instance_and_go_with_it_at_once() {
    let etcd = Server::etcd();
    let (owner, consumer) = (of(&etcd), of(&etcd));
    let mut seen = Seen::of(&consumer);
    let registrations = ["a1", "b2"].map(|name| owner.register(key(name), value(name)));
    seen.until("both keys", |records| records.len() == 2).await;
    let stored = post(&etcd, "kv/range", ALL);
    // "v1/instances/dynamo/backend/generate/a1" = "a1"
    assert!(stored.contains(r#""key":"djEvaW5zdGFuY2VzL2R5bmFtby9iYWNrZW5kL2dlbmVyYXRlL2Ex""#), "{stored}");
    assert!(stored.contains(r#""value":"YTE=""#), "{stored}");
    assert_eq!(stored.matches(&format!(r#""lease":"{}""#, owner.instance_id())).count(), 2, "{stored}");
    let renewed = owner.register(key("a1"), value("new"));
    seen.until("the new value", |records| records[key("a1").as_str()] == value("new")).await;
    let [_, other] = registrations;
    other.withdraw().await;
    seen.until("one key", |records| records.len() == 1).await;
    let start = Instant::now();
    owner.close().await;
    seen.until("no key", Records::is_empty).await;
    assert!(start.elapsed() < Duration::from_secs(1));
    assert_eq!(renewed.standing(), Standing::Withdrawn);
}

async fn what_was_registered_outlives_an_etcd_that_is_killed() {
    let mut etcd = block_in_place(Server::etcd);
    let (owner, consumer) = (of(&etcd), of(&etcd));
    let _registration = owner.register(key("a1"), value("one"));
    let mut seen = Seen::of(&consumer);
    seen.until("the key", |records| records.len() == 1).await;
    block_in_place(|| etcd.kill());
    eventually("both are stale", || !owner.health().is_fresh() && !consumer.health().is_fresh()).await;
    let reason = consumer.health().reason;
    assert!(reason.contains(&etcd.url()), "{reason}");
    // Longer than lease and grace.
    seen.during(Duration::from_secs(5)).await;
    block_in_place(|| etcd.restart());
    seen.until_resets(2).await;
    seen.during(Duration::from_secs(4)).await;
    assert!(!seen.lost_any(), "{:?}", seen.told);
    assert!(owner.health().is_fresh() && consumer.health().is_fresh());
    assert_eq!(consumer.counts().losses, 1);
}

async fn wiped_data_is_registered_again_before_anyone_misses_it() {
    let mut etcd = block_in_place(Server::etcd);
    let (one, other, consumer) = (of(&etcd), of(&etcd), of(&etcd));
    let instance = one.instance_id();
    let _registrations = [one.register(key("a1"), value("one")), other.register(key("b2"), value("two"))];
    let mut seen = Seen::of(&consumer);
    seen.until("both keys", |records| records.len() == 2).await;
    for wipe in 2..4 {
        block_in_place(|| etcd.kill());
        block_in_place(|| etcd.wipe());
        block_in_place(|| etcd.restart());
        let back = Instant::now();
        eventually("registered again", || post(&etcd, "kv/range", ALL).contains(r#""count":"2""#)).await;
        assert!(back.elapsed() < Duration::from_secs(5), "{:?}", back.elapsed());
        seen.until_resets(wipe).await;
    }
    seen.during(Duration::from_secs(4)).await;
    if seen.lost_any() {
        eprintln!("DEBUG {:?} {:?} {:?} {:?} {}", one.counts(), other.counts(), one.health(), other.health(), post(&etcd, "kv/range", ALL));
    }
    assert!(!seen.lost_any(), "{:?}", seen.told);
    assert_eq!(one.instance_id(), instance, "the instance stays what its records say");
    assert!(post(&etcd, "kv/range", ALL).contains(&format!(r#""lease":"{instance}""#)));
    assert!(one.counts().leases_lost >= 2);
}

async fn an_owner_that_died_with_the_data_is_removed_after_the_grace_and_not_before() {
    let mut etcd = block_in_place(Server::etcd);
    let consumer = of(&etcd);
    let _alive = consumer.register(key("alive"), value("alive"));
    let owner = block_in_place(|| Owner::in_etcd(&etcd.url(), "dead"));
    let mut seen = Seen::of(&consumer);
    seen.until("both keys", |records| records.len() == 2).await;
    block_in_place(|| etcd.kill());
    block_in_place(|| drop(owner));
    block_in_place(|| etcd.wipe());
    block_in_place(|| etcd.restart());
    seen.until_resets(2).await;
    assert_eq!(seen.records.len(), 2, "kept");
    let kept = seen.until("the dead one's end", |records| records.len() == 1).await;
    assert!(kept > Duration::from_millis(2500), "{kept:?}");
    assert!(seen.records.contains_key(key("alive").as_str()));
}

async fn a_frozen_etcd_whose_leases_lapse_when_it_thaws_loses_nobody() {
    let etcd = block_in_place(Server::etcd);
    let (owner, consumer) = (of(&etcd), of(&etcd));
    let registration = owner.register(key("a1"), value("one"));
    let mut seen = Seen::of(&consumer);
    seen.until("the key", |records| records.len() == 1).await;
    block_in_place(|| etcd.freeze());
    eventually("both are stale", || !owner.health().is_fresh() && !consumer.health().is_fresh()).await;
    let reason = consumer.health().reason;
    assert!(reason.contains("did not answer"), "{reason}");
    seen.during(Duration::from_secs(5)).await;
    block_in_place(|| etcd.thaw());
    let back = Instant::now();
    eventually("both are fresh", || owner.health().is_fresh() && consumer.health().is_fresh()).await;
    assert!(back.elapsed() < Duration::from_secs(5), "{:?}", back.elapsed());
    seen.during(Duration::from_secs(4)).await;
    assert!(!seen.lost_any(), "{:?}", seen.told);
    assert_eq!(registration.standing(), Standing::Held);
}

async fn a_killed_owner_goes_with_its_lease_and_a_thawed_one_comes_back() {
    let etcd = block_in_place(Server::etcd);
    let mut seen = Seen::of(&of(&etcd));
    let killed = block_in_place(|| Owner::in_etcd(&etcd.url(), "killed"));
    let frozen = block_in_place(|| Owner::in_etcd(&etcd.url(), "frozen"));
    seen.until("both", |records| records.len() == 2).await;
    block_in_place(|| drop(killed));
    frozen.freeze();
    seen.until("neither", Records::is_empty).await;
    frozen.thaw();
    let back = seen.until("the thawed one", |records| records.contains_key(key("frozen").as_str())).await;
    assert!(back < Duration::from_secs(5), "{back:?}");
}

async fn keys_deleted_by_hand_are_put_again_and_all_at_once_counts_as_a_loss() {
    let etcd = block_in_place(Server::etcd);
    let (one, other, consumer) = (of(&etcd), of(&etcd), of(&etcd));
    let _registrations = [one.register(key("a1"), value("one")), other.register(key("b2"), value("two"))];
    let mut seen = Seen::of(&consumer);
    seen.until("both keys", |records| records.len() == 2).await;
    post(&etcd, "kv/deleterange", ALL);
    eventually("put again", || post(&etcd, "kv/range", ALL).contains(r#""count":"2""#)).await;
    seen.during(Duration::from_secs(4)).await;
    assert!(!seen.lost_any(), "{:?}", seen.told);
    // "v1/instances/dynamo/backend/generate/a1" alone
    post(&etcd, "kv/deleterange", r#"{"key":"djEvaW5zdGFuY2VzL2R5bmFtby9iYWNrZW5kL2dlbmVyYXRlL2Ex"}"#);
    seen.until("told as gone", |records| records.len() == 1).await;
    let back = seen.until("put again", |records| records.len() == 2).await;
    assert!(back < Duration::from_secs(5), "{back:?}");
}

#[tokio::test]
async fn a_key_of_another_owner_is_contested_until_it_is_gone() {
    let etcd = Server::etcd();
    let (first, second) = (of(&etcd), of(&etcd));
    let mut seen = Seen::of(&second);
    let theirs = first.register(key("a1"), value("theirs"));
    theirs.held().await.unwrap();
    let ours = second.register(key("a1"), value("ours"));
    eventually("contested", || ours.standing() == Standing::Contested).await;
    seen.until("theirs", |records| records.values().eq([&value("theirs")])).await;
    theirs.withdraw().await;
    ours.held().await.unwrap();
    seen.until("ours", |records| records.values().eq([&value("ours")])).await;
}

#[tokio::test]
async fn junk_in_the_buckets_is_counted_and_breaks_nothing() {
    let etcd = Server::etcd();
    // A key that is no text, "v1/other/x" and "v1/instances/": neither is a record's.
    for key in ["djEv/w==", "djEvb3RoZXIveA==", "djEvaW5zdGFuY2VzLw=="] {
        post(&etcd, "kv/put", &format!(r#"{{"key":"{key}","value":"e30="}}"#));
    }
    let discovery = of(&etcd);
    let mut seen = Seen::of(&discovery);
    seen.next().await.unwrap();
    assert_eq!((seen.records.len(), discovery.counts().junk), (0, 3));
    post(&etcd, "kv/put", r#"{"key":"djEv/w==","value":"e30="}"#);
    post(&etcd, "kv/deleterange", r#"{"key":"djEv/w=="}"#);
    let empty = discovery.register(Key::new(Bucket::Mdc, "an empty document"), value(""));
    seen.until("the record", |records| records.len() == 1).await;
    empty.withdraw().await;
    seen.until("its end", Records::is_empty).await;
    assert_eq!((seen.resets(), discovery.counts().junk), (1, 4));
}

#[tokio::test]
async fn a_large_fleet_is_listed_in_pages() {
    let etcd = Server::etcd();
    let owner = of(&etcd);
    let registrations: Vec<_> = (0..600).map(|n| owner.register(key(&format!("{n:x}")), value("x"))).collect();
    for registration in &registrations {
        registration.held().await.unwrap();
    }
    let mut seen = Seen::of(&of(&etcd));
    seen.next().await.unwrap();
    assert_eq!(seen.records.len(), 600);
}

async fn an_etcd_that_comes_late_and_an_address_that_is_dead_are_no_obstacle() {
    let mut etcd = block_in_place(Server::etcd);
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let http = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = http.local_addr().unwrap();
    // Some other server: it ends with the test's process.
    std::thread::spawn(move || {
        for stream in http.incoming() {
            let _ = stream.and_then(|mut stream| stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno"));
        }
    });
    block_in_place(|| etcd.kill());
    let discovery = at(&[format!("http://{dead}"), silent.local_addr().unwrap().to_string(), format!("http://{address}"), etcd.url()]);
    let mut seen = Seen::of(&discovery);
    let _registration = discovery.register(key("a1"), value("one"));
    eventually("stale", || !discovery.health().is_fresh()).await;
    block_in_place(|| etcd.restart());
    seen.until("the key", |records| records.len() == 1).await;
    eventually("fresh", || discovery.health().is_fresh()).await;
}

async fn users_are_authenticated_and_a_lost_token_is_replaced() {
    let mut etcd = block_in_place(Server::etcd);
    for (path, body) in [
        ("auth/user/add", r#"{"name":"root","password":"secret"}"#),
        ("auth/role/add", r#"{"name":"root"}"#),
        ("auth/user/grant", r#"{"user":"root","role":"root"}"#),
        ("auth/enable", "{}"),
    ] {
        let answer = post(&etcd, path, body);
        assert!(answer.contains("200 OK"), "{path}: {answer}");
    }
    let credentials = |password: &str| Some(("root".to_owned(), password.to_owned()));
    let with = |credentials| open(Backend::Etcd(EtcdConfig { endpoints: vec![etcd.url()], credentials, ..EtcdConfig::default() }));
    let (known, unknown, wrong) = (with(credentials("secret")), with(None), with(credentials("guess")));
    let mut seen = Seen::of(&known);
    let _watches = [Seen::of(&unknown), Seen::of(&wrong)];
    let registration = known.register(key("a1"), value("one"));
    seen.until("the key", |records| records.len() == 1).await;
    eventually("the others are stale", || !unknown.health().is_fresh() && !wrong.health().is_fresh()).await;
    let reason = wrong.health().reason;
    assert!(reason.contains("invalid user ID or password"), "{reason}");
    assert!(!format!("{known:?}{reason}").contains("secret"));
    // Tokens of etcd are in memory only.
    block_in_place(|| etcd.kill());
    block_in_place(|| etcd.restart());
    seen.until_resets(2).await;
    eventually("fresh", || known.health().is_fresh()).await;
    registration.withdraw().await;
    seen.until("no key", Records::is_empty).await;
}

/// A server of HTTP that answers everything with a refusal, and counts.
fn refusing(code: u32) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    // It ends with the test's process.
    std::thread::spawn(move || {
        let body = format!(r#"{{"code":{code},"message":"no"}}"#);
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            count.fetch_add(1, Ordering::Relaxed);
            let head = format!("HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
            let _ = stream.write_all(format!("{head}{body}").as_bytes());
            // Closed at once it would be reset, if more of the request came.
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
            while matches!(stream.read(&mut request), Ok(1..)) {}
        }
    });
    (url, asked)
}

async fn who_is_refused_asks_ever_less_often_and_who_is_not_heard_does_not() {
    const PERMISSION_DENIED: u32 = 7;
    const UNAVAILABLE: u32 = 14;
    let (refuses, asked) = refusing(PERMISSION_DENIED);
    let (away, asked_in_vain) = refusing(UNAVAILABLE);
    let discoveries = [at(&[refuses]), at(&[away])];
    let _registrations = discoveries.each_ref().map(|discovery| discovery.register(key("a1"), value("one")));
    tokio::time::sleep(Duration::from_secs(6)).await;
    let (asked, in_vain) = (asked.load(Ordering::Relaxed), asked_in_vain.load(Ordering::Relaxed));
    // After at least 0.6, 1.2, 2.4 and 4.8 s; after at most 1 s each.
    assert!((2..=4).contains(&asked) && in_vain > asked, "{asked} {in_vain}");
}

/// Values of which etcd says that they are too large.
fn refused_by(etcd: &Server) -> usize {
    let mut stream = TcpStream::connect(("127.0.0.1", etcd.port())).unwrap();
    write!(stream, "GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let line = answer.lines().find(|line| {
        line.starts_with("grpc_server_handled_total") && line.contains("InvalidArgument") && line.contains(r#"grpc_method="Txn""#)
    });
    line.and_then(|line| line.rsplit_once(' ')?.1.parse().ok()).unwrap_or(0)
}

async fn a_document_that_etcd_refuses_is_not_sent_again_and_another_one_is() {
    let etcd = block_in_place(Server::etcd);
    let owner = of(&etcd);
    // More than etcd takes unless told, and more than it reads.
    let large = owner.register(key("a1"), vec![b'x'; 1_800_000].into());
    let larger = owner.register(key("b2"), vec![b'x'; 3_000_000].into());
    for registration in [&large, &larger] {
        eventually("refused", || matches!(registration.standing(), Standing::Refused(_))).await;
    }
    // Several passes, in which the lease is renewed.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(refused_by(&etcd), 1);
    let small = owner.register(key("a1"), value("one"));
    small.held().await.unwrap();
    assert_eq!(large.held().await, Err(Ended), "its key was registered once more");
}

/// A port that leads to a server until it is closed.
struct Door {
    port: u16,
    task: tokio::task::JoinHandle<()>,
}

impl Door {
    async fn to(server: &Server) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, target) = (listener.local_addr().unwrap().port(), server.port());
        let task = tokio::spawn(async move {
            // Closed with this task.
            let mut open = tokio::task::JoinSet::new();
            while let Ok((mut outside, _)) = listener.accept().await {
                open.spawn(async move {
                    let mut inside = tokio::net::TcpStream::connect(("127.0.0.1", target)).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut outside, &mut inside).await;
                });
            }
        });
        Self { port, task }
    }

    async fn close(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

async fn an_owner_says_farewell_by_another_member_where_the_first_refuses() {
    let etcd = block_in_place(Server::etcd);
    let door = Door::to(&etcd).await;
    let owner = at(&[format!("http://127.0.0.1:{}", door.port), etcd.url()]);
    let mut seen = Seen::of(&of(&etcd));
    let registration = owner.register(key("a1"), value("one"));
    registration.held().await.unwrap();
    seen.until("the key", |records| records.len() == 1).await;
    door.close().await;
    let start = Instant::now();
    owner.close().await;
    assert_eq!(registration.standing(), Standing::Withdrawn);
    seen.until("no key", Records::is_empty).await;
    // Sooner than the lease would have ended.
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

/// They wait for leases most of the time, so they wait together; each has an etcd of its own. What blocks does not hold up the
/// others' tasks.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn etcd_in_trouble() {
    let all = [
        tokio::spawn(a_killed_owner_goes_with_its_lease_and_a_thawed_one_comes_back()),
        tokio::spawn(an_etcd_that_comes_late_and_an_address_that_is_dead_are_no_obstacle()),
        tokio::spawn(an_owner_says_farewell_by_another_member_where_the_first_refuses()),
        tokio::spawn(who_is_refused_asks_ever_less_often_and_who_is_not_heard_does_not()),
        tokio::spawn(a_document_that_etcd_refuses_is_not_sent_again_and_another_one_is()),
        tokio::spawn(users_are_authenticated_and_a_lost_token_is_replaced()),
        tokio::spawn(what_was_registered_outlives_an_etcd_that_is_killed()),
        tokio::spawn(wiped_data_is_registered_again_before_anyone_misses_it()),
        tokio::spawn(an_owner_that_died_with_the_data_is_removed_after_the_grace_and_not_before()),
        tokio::spawn(a_frozen_etcd_whose_leases_lapse_when_it_thaws_loses_nobody()),
        tokio::spawn(keys_deleted_by_hand_are_put_again_and_all_at_once_counts_as_a_loss()),
    ];
    for one in all {
        one.await.unwrap();
    }
}
