//! What subscribers receive, on ZMQ and on NATS, and planes that are away.

use std::time::{Duration, Instant};

use testkit::{dynamo, servers::Server};
use tokio::time::timeout;
use transport::{
    discovery::{Backend, EtcdConfig, MemStore},
    nats::{Nats, NatsOptions},
    plane::{PlaneEvent, PlaneKind, Subscription, SubscriptionOptions, Subscriptions},
};
use worker::{KvEventPublisher, KvPublisherOptions, Runtime, RuntimeConfig, StoredCall, Taken};

use crate::support::{Router, SIZE, SOON, source, stored};

/// Tokens of two blocks that a real worker published.
const TOKENS: [u32; 32] = [
    2007, 327, 278, 2408, 3144, 2249, 3034, 4035, 535, 374, 874, 87, 18, 1893, 2633, 291, 508, 374, 508, 553, 518, 544, 3012, 643, 429,
    367, 282, 2793, 365, 305, 614, 1221,
];
const NAMES: [u64; 2] = [253_508_761_202_344_201, 14_785_960_893_697_674_681];
/// The workers of the two recordings.
const STORER: u64 = 8_099_453_749_848_151_229;
const REMOVER: u64 = 8_901_546_468_733_654_713;

/// The recorded payload of a store of these two blocks and a third, without the third.
fn recorded_store() -> Vec<u8> {
    let record = &dynamo::records("zmq1_event_zmq_kv-events_stored")[0];
    let payload = dynamo::bytes(record["payload_hex"].as_str().unwrap());
    let block = b"\x83\xaablock_hash";
    let starts: Vec<_> = payload.windows(block.len()).enumerate().filter(|(_, at)| at == block).map(|(at, _)| at).collect();
    let end = payload.windows(8).position(|at| at == b"\xa7dp_rank").unwrap();
    assert_eq!(starts.len(), 3);
    let mut two = [&payload[..starts[2]], &payload[end..]].concat();
    assert_eq!(two[starts[0] - 1], 0x93, "an array of three");
    two[starts[0] - 1] = 0x92;
    two
}

/// The recorded payload of a removal, the block it names, and where in it the event's id is.
fn recorded_removal() -> (Vec<u8>, u64, usize) {
    let record = &dynamo::records("zmq2_event_zmq_kv-events_removed")[1];
    let payload = dynamo::bytes(record["payload_hex"].as_str().unwrap());
    let name = record["payload_decoded"][0]["event"]["data"]["removed"]["block_hashes"][0].as_u64().unwrap();
    let key = payload.windows(9).position(|at| at == b"\xa8event_id").unwrap();
    (payload, name, key + 9)
}

async fn next_payload(subscription: &mut Subscription) -> Vec<u8> {
    loop {
        match timeout(SOON, subscription.next()).await.unwrap() {
            PlaneEvent::Envelope(envelope) => return envelope.payload.to_vec(),
            PlaneEvent::Connected | PlaneEvent::Disconnected { .. } => {}
            other @ (PlaneEvent::Dropped { .. } | PlaneEvent::Malformed { .. }) => panic!("{other:?}"),
        }
    }
}

async fn bytes_equal_the_recorded(config: RuntimeConfig, subscriptions: Subscriptions) {
    let runtime = Runtime::start(config).await.unwrap();
    let of = |worker_id| KvPublisherOptions { worker_id: Some(worker_id), ..KvPublisherOptions::new(16) };
    let component = runtime.component("backend");
    let (storer, remover) = (of(STORER), of(REMOVER));
    let storer = KvEventPublisher::new(&component, storer).await.unwrap();
    let remover = KvEventPublisher::new(&component, remover).await.unwrap();
    let (mut stores, mut removals) = (subscriptions.subscribe(storer.channel()), subscriptions.subscribe(remover.channel()));
    for subscription in [&mut stores, &mut removals] {
        while timeout(SOON, subscription.next()).await.unwrap() != PlaneEvent::Connected {}
    }
    let call =
        StoredCall { token_ids: TOKENS.to_vec(), num_block_tokens: vec![16; 2], block_hashes: NAMES.to_vec(), ..StoredCall::default() };
    assert_eq!(storer.publish_stored(call.clone()), Ok(Taken::Queued));
    assert_eq!(next_payload(&mut stores).await, recorded_store());

    let (mut expected, name, id) = recorded_removal();
    assert_eq!(expected[id], 8);
    expected[id] = 2;
    remover.publish_stored(StoredCall { block_hashes: vec![name, 1], ..call }).unwrap();
    next_payload(&mut removals).await;
    // The same bits, signed.
    remover.publish_removed(&[name.cast_signed()]).unwrap();
    assert_eq!(next_payload(&mut removals).await, expected);
    storer.shutdown(SOON).await;
    remover.shutdown(SOON).await;
    runtime.shutdown(SOON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_zmq_a_subscriber_gets_1_6_1s_bytes() {
    let subscriptions = Subscriptions::new(|| panic!("no NATS here"), SubscriptionOptions::default());
    bytes_equal_the_recorded(RuntimeConfig::local(Backend::Mem(MemStore::new())), subscriptions).await;
}

fn over_nats(url: &str) -> RuntimeConfig {
    let local = RuntimeConfig::local(Backend::Mem(MemStore::new()));
    RuntimeConfig { event_plane: PlaneKind::Nats, nats_server: url.to_owned(), ..local }
}

fn nats_subscriptions(url: &str) -> Subscriptions {
    let nats = Nats::connect(url, NatsOptions::default()).unwrap();
    Subscriptions::new(move || nats.clone(), SubscriptionOptions::default())
}

#[tokio::test(flavor = "multi_thread")]
async fn on_nats_a_subscriber_gets_1_6_1s_bytes() {
    let server = Server::nats();
    bytes_equal_the_recorded(over_nats(&server.url()), nats_subscriptions(&server.url())).await;
}

/// How often this thread has waited for something so far. A thread that the machine takes away from its work does not wait.
fn waits() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok()).unwrap()
}

/// How often many calls made their thread wait, and the time of the median one.
fn call_often(publisher: &KvEventPublisher, calls: u64) -> (u64, Duration) {
    let before = waits();
    let mut times: Vec<_> = (0..calls)
        .map(|at| {
            let call = stored(None, at * 4..at * 4 + 4);
            let began = Instant::now();
            publisher.publish_stored(call).unwrap();
            publisher.publish_removed(&[at * 4]).unwrap();
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    (waits() - before, times[times.len() / 2])
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_planes_keep_nobody_waiting_and_are_caught_up_with() {
    let (mut nats, mut etcd) = (Server::nats(), Server::etcd());
    nats.kill();
    etcd.kill();
    let endpoints = EtcdConfig { endpoints: vec![etcd.url()], ..EtcdConfig::default() };
    let config = RuntimeConfig { discovery: Backend::Etcd(endpoints), ..over_nats(&nats.url()) };
    let runtime = Runtime::start(config).await.unwrap();
    let publisher = crate::support::publisher(&runtime).await;
    let (publisher, (waits, median)) = tokio::task::spawn_blocking(move || {
        let calls = call_often(&publisher, 10_000);
        (publisher, calls)
    })
    .await
    .unwrap();
    // The allocator may wait for another thread now and then; a call that waited for a plane would do so each time.
    assert!(waits <= 100 && median < Duration::from_millis(1), "{waits} waits in 20,000 calls, the median took {median:?}");
    timeout(SOON, publisher.flush()).await.unwrap().unwrap();
    assert_eq!(publisher.standing().blocks, Some(30_000));
    assert!(runtime.health().iter().all(|(_, health)| !health.is_fresh()), "both planes are known to be away");

    nats.restart();
    etcd.restart();
    let source = source(&runtime, 3).await;
    let mut router = Router::over(nats_subscriptions(&nats.url()), &publisher, source, true).await;
    publisher.publish_stored(stored(None, 1_000_000..1_000_004)).unwrap();
    timeout(SOON, publisher.flush()).await.unwrap().unwrap();
    router.reach(publisher.standing().last_event_id).await;
    assert_eq!((Some(router.digest()), router.held().len()), (publisher.standing().digest, 30_004));
    publisher.shutdown(SOON).await;
    runtime.shutdown(SOON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_was_dropped_is_followed_by_one_that_shows_it() {
    let mut nats = Server::nats();
    let runtime = Runtime::start(over_nats(&nats.url())).await.unwrap();
    let mut options = KvPublisherOptions { enable_local_indexer: true, ..KvPublisherOptions::new(SIZE) };
    options.plane.queue_bytes = 2000;
    let publisher = KvEventPublisher::new(&runtime.component("backend"), options).await.unwrap();
    let mut router = Router::over(nats_subscriptions(&nats.url()), &publisher, source(&runtime, 3).await, true).await;
    publisher.publish_stored(stored(None, 0..10)).unwrap();
    publisher.flush().await.unwrap();
    router.reach(1).await;
    nats.kill();
    let mut at = 10;
    while publisher.counters().dropped_messages == 0 {
        publisher.publish_stored(stored(Some(at - 1), at..at + 10)).unwrap();
        publisher.flush().await.unwrap();
        at += 10;
    }
    let silent = publisher.counters().events;
    nats.restart();
    // Nothing more is called, and yet an event comes.
    router.reach(silent + 1).await;
    assert_eq!((Some(router.digest()), router.held().len()), (publisher.standing().digest, at as usize));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_handed_over_before_the_shutdown_is_published() {
    let runtime = crate::support::runtime().await;
    let publisher = crate::support::publisher(&runtime).await;
    let source = source(&runtime, 3).await;
    let mut router = Router::new(&publisher, source, true).await;
    publisher.publish_stored(stored(None, 0..1)).unwrap();
    publisher.flush().await.unwrap();
    router.reach(1).await;
    for at in 1..2000_u64 {
        publisher.publish_stored(stored(Some(at - 1), at..at + 1)).unwrap();
    }
    let closing = async {
        publisher.shutdown(SOON).await;
        publisher.standing().last_event_id
    };
    let reading = async {
        // Consecutive stores travel as one event.
        while router.held().len() < 2000 {
            let next = router.reached() + 1;
            router.reach(next).await;
        }
    };
    let (last, ()) = tokio::join!(closing, reading);
    assert_eq!((router.reached(), router.gaps), (last, 0));
    assert_eq!(Some(router.digest()), publisher.standing().digest);
}
