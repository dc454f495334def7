//! A publisher's stream end to end: real sockets, the real feed, the real index. Expected block counts come from what
//! the scripted engine stored, not from the code under test.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use feed::{Demand, FeedConfig, Limits, Observation, RankRange, ReplayMode, StreamStatus, Trust};
use index::{BlockSize, Catalog, Lane, LocalHash, Seed, Target, Targets, Window, local_hashes};
use parking_lot::Mutex;
use testkit::servers::bind_again;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;
use transport::reins::{Link, Reins};
use transport::stream::{EventSource, StreamOptions, StreamSpec, Turns, spawn};
use transport::zmtp::{Endpoint, Options, Pub, Router};
use wire::encode::{Encoder, Generation, live};
use wire::{Event, Message, Stored, Tokens};
use zeromq::{PubSocket, Socket, SocketSend};

use crate::libzmq::Peer;
use crate::support::*;

const BLOCK: u32 = 16;
const GENERATION: Generation = Generation::Vllm026;

/// An engine as far as its event sockets: every message stores one block behind the one before.
struct Engine {
    publisher: Pub,
    replay: Endpoint,
    history: Arc<Mutex<Vec<Message>>>,
    /// What was asked for on the replay socket.
    asked: Arc<Mutex<Vec<u64>>>,
    _server: AbortOnDropHandle<()>,
}

/// How an engine answers a replay request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answers {
    Whole,
    /// Everything, and then no end marker.
    WithoutMarker,
    Never,
}

impl Engine {
    async fn start(events: &Endpoint, replay: &Endpoint, answers: Answers) -> Self {
        let publisher = bind_again(async || Pub::bind(events, Options::default()).await).await;
        let router = bind_again(async || Router::bind(replay, Options::default()).await).await;
        let replay = router.endpoint();
        let (history, asked) = <(Arc<Mutex<Vec<Message>>>, Arc<Mutex<Vec<u64>>>)>::default();
        let serve = serve(router, history.clone(), asked.clone(), answers);
        Self { publisher, replay, history, asked, _server: AbortOnDropHandle::new(tokio::spawn(serve)) }
    }

    async fn on_loopback(answers: Answers) -> Self {
        Self::start(&loopback(0), &loopback(0), answers).await
    }

    /// Makes `count` more messages without publishing them: a subscriber must ask for them.
    fn make(&self, count: u64) -> Vec<Message> {
        let mut history = self.history.lock();
        let first = history.len() as u64;
        history.extend((first..first + count).map(block));
        history[first as usize..].to_vec()
    }

    fn publish(&self, count: u64) {
        for message in self.make(count) {
            self.publisher.send(live(&Bytes::from_static(b"kv"), &message));
        }
    }

    /// Ends it as a crash does, and frees its endpoints.
    async fn crash(self) -> (Endpoint, Endpoint) {
        let endpoints = (self.publisher.endpoint(), self.replay.clone());
        self.publisher.shutdown(Duration::ZERO).await;
        self._server.abort();
        // Ends by the abort.
        let _ = self._server.await;
        endpoints
    }
}

/// Message `n` stores block `n + 1` of one long sequence.
fn block(n: u64) -> Message {
    let stored = Stored {
        block_hashes: vec![n + 1],
        parent: (n > 0).then_some(n),
        tokens: Tokens::Plain(tokens(n)),
        block_size: BLOCK,
        ..Stored::default()
    };
    let payload = Encoder::new(GENERATION).batch(1.0 + n as f64, 0, &[Event::Stored(stored)]);
    Message { seq: n, payload }
}

fn tokens(n: u64) -> Vec<u32> {
    let first = u32::try_from(n).unwrap() * BLOCK;
    (first..first + BLOCK).collect()
}

async fn serve(router: Router, history: Arc<Mutex<Vec<Message>>>, asked: Arc<Mutex<Vec<u64>>>, answers: Answers) {
    loop {
        let (identity, question) = router.recv().await;
        let start = wire::replay_start(&question).expect("a replay request");
        asked.lock().push(start);
        if answers == Answers::Never {
            continue;
        }
        let missing: Vec<Message> = history.lock().iter().filter(|message| message.seq >= start).cloned().collect();
        for message in missing {
            let _ = router.send(&identity, &GENERATION.replayed(&Bytes::new(), &message)).await;
        }
        if answers == Answers::Whole {
            let _ = router.send(&identity, &GENERATION.replay_end()).await;
        }
    }
}

/// The frontend's side: a stream and the index it fills.
struct Follower {
    stream: Reins,
    catalog: Arc<Catalog>,
    target: Target,
}

impl Follower {
    fn new(events: EventSource, replay: Option<Endpoint>, options: StreamOptions) -> Self {
        Self::with_limits(events, replay, options, Limits::default())
    }

    fn with_limits(events: EventSource, replay: Option<Endpoint>, options: StreamOptions, limits: Limits) -> Self {
        let target = Targets::new().allocate().unwrap();
        let catalog = Arc::new(Catalog::new(index::Limits::default()));
        let feed = FeedConfig {
            label: "test".into(),
            model: "model".into(),
            block_size: BlockSize::new(BLOCK),
            ranks: RankRange { start: 0, size: 1 },
            socket_rank: 0,
            targets: vec![target],
            adapters: BTreeMap::new(),
            replay: ReplayMode::Unavailable,
            limits,
        };
        let spec = StreamSpec { events, replay, topic: "kv".into(), feed, options };
        let stream = spawn(&Handle::current(), spec, catalog.clone());
        Self { stream, catalog, target }
    }

    fn of(engine: &Engine) -> Self {
        Self::new(EventSource::Connect(engine.publisher.endpoint()), Some(engine.replay.clone()), quick_stream())
    }

    fn blocks(&self) -> u64 {
        let indexer = self.catalog.indexer("model", BlockSize::new(BLOCK).unwrap());
        indexer.blocks(self.target, Lane::Device) as u64
    }

    fn trust(&self) -> Trust {
        self.stream.status().ranks()[0].trust
    }

    async fn until(&self, what: &str, good: impl Fn(&StreamStatus, &Self) -> bool) {
        let wait = async {
            while !good(&self.stream.status().stream(), self) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(20), wait).await.is_err() {
            panic!("not reached: {what}; {:?} {:?}", self.stream.status(), self.stream.link());
        }
    }

    async fn holds(&self, blocks: u64, trust: Trust) {
        self.until(&format!("{blocks} blocks, {}", trust.as_str()), |_, follower| follower.blocks() == blocks && follower.trust() == trust)
            .await;
    }
}

fn quick_stream() -> StreamOptions {
    StreamOptions { sockets: quick(), ..StreamOptions::default() }
}

#[tokio::test]
async fn what_an_engine_published_before_we_came_is_replayed_and_the_rest_is_followed() {
    let engine = Engine::on_loopback(Answers::Whole).await;
    engine.make(300);
    let follower = Follower::of(&engine);
    follower.holds(300, Trust::Exact).await;
    assert_eq!(follower.stream.link(), Link::Up);
    engine.publish(200);
    follower.holds(500, Trust::Exact).await;
    assert_eq!(*engine.asked.lock(), [0]);
    follower.stream.stop().await;
    let indexer = follower.catalog.indexer("model", BlockSize::new(BLOCK).unwrap());
    assert_eq!(indexer.blocks(follower.target, Lane::Device), 0, "a stopped stream retracts its blocks");
}

#[tokio::test]
async fn messages_lost_on_the_way_are_replayed() {
    let engine = Engine::on_loopback(Answers::Whole).await;
    let follower = Follower::of(&engine);
    follower.until("a connection", |stream, _| stream.connected && !stream.replay_pending).await;
    engine.publish(10);
    follower.holds(10, Trust::Exact).await;
    engine.make(5);
    engine.publish(1);
    follower.holds(16, Trust::Exact).await;
    let status = follower.stream.status().stream();
    assert_eq!((status.gaps, status.replayed, status.degraded_gaps), (1, 1, 0));
}

#[tokio::test]
async fn messages_dropped_on_our_side_are_replayed_though_nothing_follows_them() {
    let engine = Engine::on_loopback(Answers::Whole).await;
    let sockets = Options { queue_bytes: 4 << 10, ..quick() };
    let options = StreamOptions { sockets, ..StreamOptions::default() };
    let events = EventSource::Connect(engine.publisher.endpoint());
    let follower = Follower::new(events, Some(engine.replay.clone()), options);
    follower.until("a connection", |stream, _| stream.connected && !stream.replay_pending).await;
    engine.publish(2000);
    follower.holds(2000, Trust::Exact).await;
    assert!(follower.stream.status().stream().dropped > 0, "the burst was to overflow the queue");
}

#[tokio::test]
async fn a_restarted_engine_is_followed_in_its_new_life() {
    let dir = tempfile::tempdir().unwrap();
    let events = Endpoint::Ipc(dir.path().join("events"));
    let replay = Endpoint::Ipc(dir.path().join("replay"));
    let engine = Engine::start(&events, &replay, Answers::Whole).await;
    engine.make(20);
    let follower = Follower::of(&engine);
    follower.holds(20, Trust::Exact).await;
    let (events, replay) = engine.crash().await;
    follower.until("a lost connection", |stream, _| !stream.connected).await;
    let engine = Engine::start(&events, &replay, Answers::Whole).await;
    engine.publish(3);
    follower.holds(3, Trust::Exact).await;
    assert_eq!(follower.stream.status().stream().restarts, 1);
}

#[tokio::test]
async fn a_lost_connection_is_a_gap_that_a_replay_fills() {
    let (listener, replayer) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), Engine::on_loopback(Answers::Whole).await);
    let events = loopback(listener.local_addr().unwrap().port());
    let follower = Follower::new(EventSource::Connect(events), Some(replayer.replay.clone()), quick_stream());
    replayer.make(4);
    let mut peer = Raw::accept(&listener).await;
    peer.shake_hands(0, "PUB").await;
    follower.holds(4, Trust::Exact).await;
    drop(peer);
    replayer.make(2);
    let mut again = Raw::accept(&listener).await;
    again.shake_hands(0, "PUB").await;
    follower.holds(6, Trust::Exact).await;
    assert_eq!(replayer.asked.lock()[..2], [0, 3], "from the last one seen, inclusive");
}

#[tokio::test]
async fn a_replay_without_its_end_marker_is_ended_by_silence() {
    let engine = Engine::on_loopback(Answers::WithoutMarker).await;
    engine.make(50);
    let limits = Limits { replay_silence: Duration::from_millis(100), ..Limits::default() };
    let events = EventSource::Connect(engine.publisher.endpoint());
    let follower = Follower::with_limits(events, Some(engine.replay.clone()), quick_stream(), limits);
    follower.until("the replayed blocks", |_, follower| follower.blocks() == 50).await;
    engine.publish(5);
    follower.until("the live blocks", |_, follower| follower.blocks() == 55).await;
    follower.until("the end of the replay", |stream, _| !stream.replay_pending).await;
}

#[tokio::test]
async fn a_replay_socket_that_never_answers_degrades_and_holds_nothing_up() {
    let engine = Engine::on_loopback(Answers::Never).await;
    engine.make(50);
    let limits = Limits { replay_silence: Duration::from_millis(50), ..Limits::default() };
    let events = EventSource::Connect(engine.publisher.endpoint());
    let follower = Follower::with_limits(events, Some(engine.replay.clone()), quick_stream(), limits);
    soon("a subscription", engine.publisher.subscribed(1)).await;
    engine.publish(5);
    follower.until("the live messages", |stream, _| stream.last_seq == Some(54)).await;
    assert_eq!(follower.trust(), Trust::Degraded);
    assert!(follower.stream.status().stream().replay_failures >= 1);
}

#[tokio::test]
async fn streams_that_share_turns_are_replayed_one_after_the_other_and_waiting_is_no_silence() {
    let turns = Turns::new(1);
    let follow = |engine: &Engine, limits: Limits| {
        let events = EventSource::Connect(engine.publisher.endpoint());
        let options = StreamOptions { turns: turns.clone(), ..quick_stream() };
        Follower::with_limits(events, Some(engine.replay.clone()), options, limits)
    };
    // Its replay goes on for as long as it likes.
    let endless = Engine::on_loopback(Answers::WithoutMarker).await;
    endless.make(20);
    let first = follow(&endless, Limits { replay_silence: Duration::from_secs(3600), ..Limits::default() });
    first.until("the first replay", |_, follower| follower.blocks() == 20).await;

    let limits = Limits {
        replay_silence: Duration::from_millis(500),
        replay_total: Duration::from_secs(1),
        held_bytes: 4 << 10,
        ..Limits::default()
    };
    let waiting = [Engine::on_loopback(Answers::Whole).await, Engine::on_loopback(Answers::Whole).await];
    let followers = waiting.each_ref().map(|engine| follow(engine, limits));
    for (engine, follower) in waiting.iter().zip(&followers) {
        engine.make(30);
        follower.until("the wait", |stream, _| stream.replay_waits == 1).await;
        soon("a subscription", engine.publisher.subscribed(1)).await;
        engine.publish(100);
        follower.until("live messages beyond what is held", |stream, _| stream.held_overflow > 0).await;
    }
    // Longer than they have for their replays, once those begin.
    tokio::time::sleep(limits.replay_total + limits.replay_silence).await;
    for (engine, follower) in waiting.iter().zip(&followers) {
        let status = follower.stream.status().stream();
        assert_eq!((follower.blocks(), follower.trust(), status.replay_failures), (0, Trust::Recovering, 0));
        assert!(status.held_bytes > 0 && status.held_bytes <= limits.held_bytes, "{status:?}");
        assert!(engine.asked.lock().is_empty());
    }
    first.stream.stop().await;
    for (engine, follower) in waiting.iter().zip(&followers) {
        follower.holds(130, Trust::Exact).await;
        assert_eq!(follower.stream.status().stream().replay_failures, 0);
        assert_eq!(engine.asked.lock()[0], 0);
    }
}

#[tokio::test]
async fn a_publisher_that_hangs_up_or_speaks_while_it_waits_gives_up_its_turn() {
    let turns = Turns::new(1);
    let options = || StreamOptions { turns: turns.clone(), ..quick_stream() };
    let endless = Engine::on_loopback(Answers::WithoutMarker).await;
    let limits = Limits { replay_silence: Duration::from_secs(3600), ..Limits::default() };
    let events = EventSource::Connect(endless.publisher.endpoint());
    let first = Follower::with_limits(events, Some(endless.replay.clone()), options(), limits);
    first.until("the first replay", |_, _| !endless.asked.lock().is_empty()).await;
    for speaks in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let replay = loopback(listener.local_addr().unwrap().port());
        let other = Engine::on_loopback(Answers::Whole).await;
        let follower = Follower::new(EventSource::Connect(other.publisher.endpoint()), Some(replay), options());
        let mut peer = Raw::accept(&listener).await;
        peer.shake_hands(0, "ROUTER").await;
        follower.until("the wait", |stream, _| stream.replay_waits == 1).await;
        if speaks {
            peer.write(b"\0\x03abc").await;
        } else {
            drop(peer);
        }
        follower.until("the failure", |stream, _| stream.replay_failures == 1).await;
    }
}

#[tokio::test]
async fn a_replay_beyond_its_bounds_is_cut_and_told() {
    for options in [StreamOptions { max_replay_messages: 10, ..quick_stream() }, StreamOptions { max_replay_bytes: 1000, ..quick_stream() }]
    {
        let engine = Engine::on_loopback(Answers::Whole).await;
        engine.make(100);
        let limits = Limits { requests: 2, ..Limits::default() };
        let events = EventSource::Connect(engine.publisher.endpoint());
        let follower = Follower::with_limits(events, Some(engine.replay.clone()), options, limits);
        follower.until("the end of the replays", |stream, _| stream.replay_failures > 0).await;
        assert_ne!(follower.trust(), Trust::Exact);
        assert!(follower.blocks() < 100);
    }
}

#[tokio::test]
async fn a_port_that_is_no_replay_socket_degrades() {
    let engine = Engine::on_loopback(Answers::Whole).await;
    engine.make(3);
    let events = engine.publisher.endpoint();
    let follower = Follower::new(EventSource::Connect(events.clone()), Some(events), quick_stream());
    follower.until("a failed replay", |stream, _| stream.replay_failures > 0).await;
    engine.publish(1);
    follower.until("the live message", |stream, _| stream.last_seq == Some(3)).await;
    assert_eq!(follower.trust(), Trust::Degraded);
}

#[tokio::test]
async fn a_deaf_socket_of_zmtp_3_0_is_told_from_an_idle_one_by_asking() {
    let (listener, replayer) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), Engine::on_loopback(Answers::Whole).await);
    let events = loopback(listener.local_addr().unwrap().port());
    let options = StreamOptions { poll_after: Duration::from_millis(50), ..quick_stream() };
    let follower = Follower::new(EventSource::Connect(events), Some(replayer.replay.clone()), options);
    replayer.make(4);
    let mut peer = Raw::accept(&listener).await;
    peer.shake_hands(0, "PUB").await;
    follower.holds(4, Trust::Exact).await;
    // Idle: polls ask for the last message and change nothing.
    follower.until("three polls", |_, _| replayer.asked.lock().len() >= 4).await;
    assert!(replayer.asked.lock()[1..].iter().all(|from| *from == 3));
    assert_eq!(follower.trust(), Trust::Exact);
    // Deaf: what was published meanwhile never came on this socket.
    replayer.make(3);
    follower.holds(7, Trust::Exact).await;
    drop(peer);
}

#[tokio::test]
async fn an_idle_publisher_of_zmtp_3_1_is_pinged_and_not_polled() {
    let engine = Engine::on_loopback(Answers::Whole).await;
    engine.make(2);
    let options = StreamOptions { poll_after: Duration::from_millis(5), ..quick_stream() };
    let events = EventSource::Connect(engine.publisher.endpoint());
    let follower = Follower::new(events, Some(engine.replay.clone()), options);
    follower.holds(2, Trust::Exact).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(*engine.asked.lock(), [0]);
    assert_eq!(follower.stream.link(), Link::Up);
}

#[tokio::test]
async fn resets_and_observations_reach_the_feed() {
    let engine = Engine::on_loopback(Answers::Whole).await;
    engine.make(4);
    let follower = Follower::of(&engine);
    follower.holds(4, Trust::Exact).await;
    let mut chain: Vec<LocalHash> = Vec::new();
    let prompt: Vec<u32> = (0..4).flat_map(tokens).collect();
    local_hashes(&prompt, BlockSize::new(BLOCK).unwrap(), Seed::BASE, Window::Plain, &mut chain);
    follower.stream.observe(Observation {
        rank: 0,
        chain,
        seed: Seed::BASE,
        dispatched: Instant::now(),
        predicted_blocks: 3,
        reported_blocks: 3,
    });
    follower.until("the comparison", |_, f| f.stream.status().ranks()[0].accuracy.equal == 1).await;
    follower.stream.reset().await;
    assert_eq!((follower.blocks(), follower.stream.status().ranks()[0].resets), (0, 1), "at once");
    assert_eq!(follower.stream.observations_dropped(), 0);
}

#[tokio::test]
async fn a_demand_reaches_the_feed_by_itself_and_before_what_it_made_the_engine_publish() {
    let engine = Engine::on_loopback(Answers::Whole).await;
    engine.make(1);
    let follower = Follower::of(&engine);
    follower.holds(1, Trust::Exact).await;
    // Other ranks, and the same again and again, are nothing to wait for.
    for _ in 0..10_000 {
        follower.stream.demand(1, Demand::FullReports);
        follower.stream.demand(0, Demand::Salt);
        follower.stream.demand(0, Demand::NumberedAdapter);
    }
    engine.publish(1);
    follower.holds(2, Trust::Exact).await;
    follower.stream.demand(0, Demand::FullReports);
    follower.holds(2, Trust::Degraded).await;
    engine.publish(1);
    follower.holds(3, Trust::Degraded).await;
}

#[tokio::test]
async fn a_demand_made_before_the_task_runs_is_not_lost() {
    let engine = Engine::on_loopback(Answers::Whole).await;
    let follower = Follower::of(&engine);
    // This thread has not let the task run yet.
    follower.stream.demand(0, Demand::FullReports);
    follower.holds(0, Trust::Degraded).await;
}

#[tokio::test]
async fn observations_beyond_the_queue_are_dropped_and_counted() {
    // No message ever comes, and this thread never lets the task run.
    let follower = Follower::new(EventSource::Connect(loopback(1)), None, quick_stream());
    for _ in 0..2000 {
        follower.stream.observe(Observation {
            rank: 0,
            chain: Vec::new(),
            seed: Seed::BASE,
            dispatched: Instant::now(),
            predicted_blocks: 0,
            reported_blocks: 0,
        });
    }
    assert_eq!(follower.stream.observations_dropped(), 2000 - 1024);
}

#[tokio::test]
async fn engines_that_connect_to_us_are_followed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events");
    // In the way at first: the stream says so and tries again.
    let occupant = Pub::bind(&Endpoint::Ipc(path.clone()), Options::default()).await.unwrap();
    let follower = Follower::new(EventSource::Bind(Endpoint::Ipc(path.clone())), None, quick_stream());
    follower.until("a refusal", |_, f| matches!(f.stream.link(), Link::Down { .. })).await;
    occupant.shutdown(Duration::ZERO).await;
    let mut publisher = PubSocket::new();
    publisher.connect(&format!("ipc://{}", path.display())).await.unwrap();
    follower.until("a connection", |stream, _| stream.connected).await;
    let mut sent = 0;
    while follower.blocks() == 0 {
        // Lost until the subscription has arrived; the first that comes through makes a late join.
        let frames = live(&Bytes::from_static(b"kv"), &block(sent));
        publisher.send(frames.try_into().unwrap()).await.unwrap();
        sent += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(sent < 1000);
    }
}

#[tokio::test]
async fn a_replay_that_libzmq_cuts_short_is_asked_for_until_it_is_whole() {
    const COUNT: u64 = 5000;
    let mut router = Peer::engine_like_router().await;
    router.tell(&format!("serve {COUNT} 1000")).await;
    let publisher = Pub::bind(&loopback(0), Options::default()).await.unwrap();
    let events = EventSource::Connect(publisher.endpoint());
    let follower = Follower::new(events, Some(router.endpoint.clone()), quick_stream());
    follower.until("the whole replay", |stream, f| stream.last_seq == Some(COUNT - 1) && f.trust() == Trust::Exact).await;
    assert!(follower.stream.status().stream().messages >= COUNT);
}

/// Message `n` stores `blocks` blocks of a sequence of its own.
fn wide(n: u64, blocks: u64) -> Message {
    let first = n * blocks + 1;
    let tokens = (first..first + blocks).flat_map(|block| (0..BLOCK).map(move |at| u32::try_from(block).unwrap() * BLOCK + at)).collect();
    let stored =
        Stored { block_hashes: (first..first + blocks).collect(), tokens: Tokens::Plain(tokens), block_size: BLOCK, ..Stored::default() };
    Message { seq: n, payload: Encoder::new(GENERATION).batch(1.0, 0, &[Event::Stored(stored)]) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_huge_message_keeps_nobody_from_their_work() {
    const BLOCKS: u64 = 200_000;
    let engine = Engine::on_loopback(Answers::Whole).await;
    engine.history.lock().push(wide(0, BLOCKS));
    let began = Instant::now();
    let follower = Arc::new(Follower::of(&engine));
    // Another task of the only thread: how long it had to wait for its turn, at most.
    let waited = {
        let follower = follower.clone();
        tokio::spawn(async move {
            let (mut last, mut longest) = (began, Duration::ZERO);
            while follower.blocks() < BLOCKS {
                longest = longest.max(last.elapsed());
                last = Instant::now();
                tokio::task::yield_now().await;
            }
            longest.max(last.elapsed())
        })
    };
    follower.holds(BLOCKS, Trust::Exact).await;
    let (waited, whole) = (waited.await.unwrap(), began.elapsed());
    assert!(waited * 2 < whole, "another task waited {waited:?} of the {whole:?} that the message took");
}
