//! A scripted publisher and the frontend's side of it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use feed::plane::{PlaneConfig, PlaneLimits};
use feed::{StreamStatus, Trust};
use index::{BlockSize, Catalog, Lane, Limits, LocalHash, Target, Targets};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use transport::follow::{FollowOptions, FollowSpec, Follower, PlaneClient, SourceSpec, spawn};
use transport::plane::{PlanePublisher, PlaneSocket, PublisherOptions, SubscriptionOptions, Subscriptions};
use transport::request::{Client, ClientOptions, Handled, Items, Request, Server, ServerOptions, one};
use transport::stream::Turns;
use transport::zmtp;
use wire::discovery::{Endpoint, EndpointId, recovery_endpoint_name, topic};
use wire::recovery::{Answer, Item, Query};
use wire::request::TypedError;
use wire::router::{Domain, KvCacheEvent, KvData, RouterEvent, StoredBlock, StoredBlocks, Tier, encode_events};

pub(crate) const WORKER: u64 = 0x6a6c_a22c_bde7_6608;
pub(crate) const RANK: u32 = 3;
const BLOCK: u32 = 16;

/// Event `n + 1` stores block `n + 1` of one long sequence.
pub(crate) fn block(n: u64) -> RouterEvent {
    let block = StoredBlock { block_hash: n + 1, tokens_hash: tokens_hash(n), media: None };
    stored(n + 1, (n > 0).then_some(n), vec![block])
}

pub(crate) fn tokens_hash(n: u64) -> u64 {
    (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

pub(crate) fn stored(event_id: u64, parent_hash: Option<u64>, blocks: Vec<StoredBlock>) -> RouterEvent {
    let data = KvData::Stored(StoredBlocks { parent_hash, start_position: None, blocks });
    RouterEvent {
        worker_id: WORKER,
        storage_tier: Tier::Device,
        domain: Domain::Worker,
        event: KvCacheEvent { event_id, data, dp_rank: RANK },
        state_source: None,
        session_id: None,
    }
}

/// How a publisher answers a recovery query.
#[derive(Clone)]
pub(crate) enum Answers {
    /// With all it has; a dump in pages of so many events.
    Whole { page: usize },
    /// Acknowledged, and then nothing.
    Never,
    /// What it has, once told; the worker has said by then that it will.
    When(Arc<Notify>),
    /// With this text.
    Error(&'static str),
}

#[derive(Clone)]
struct Script {
    history: Arc<Mutex<Vec<RouterEvent>>>,
    answers: Arc<Mutex<Answers>>,
    /// The starts that were asked for.
    asked: Arc<Mutex<Vec<Option<u64>>>>,
}

/// A worker as far as its events and its recovery endpoint.
pub(crate) struct Publisher {
    plane: PlanePublisher,
    script: Script,
    endpoint: Endpoint,
    server: Server,
    _handled: Handled,
}

impl Publisher {
    pub(crate) async fn start(id: u64) -> Self {
        Self::on(PlaneSocket::loopback(), id).await
    }

    pub(crate) async fn on(socket: PlaneSocket, id: u64) -> Self {
        let generate = EndpointId::new("dynamo", "backend", "generate");
        let opened = PlanePublisher::open(socket, generate.scope(), topic::KV_EVENTS, id, PublisherOptions::default()).await;
        let server = Server::bind("127.0.0.1:0", ServerOptions::default()).await.unwrap();
        let recovery = generate.sibling(recovery_endpoint_name(id));
        let answers = Arc::new(Mutex::new(Answers::Whole { page: usize::MAX }));
        let script = Script { history: Arc::default(), answers, asked: Arc::default() };
        let answering = script.clone();
        let handler = move |request: Request| answer(answering.clone(), request);
        let handled = server.handle(&recovery.request_path(WORKER), Arc::new(handler)).unwrap();
        let endpoint = Endpoint::tcp(recovery, WORKER, &server.advertised_address());
        Self { plane: opened.unwrap(), script, endpoint, server, _handled: handled }
    }

    pub(crate) fn answers(&self, answers: Answers) {
        *self.script.answers.lock() = answers;
    }

    /// Makes `count` more events without publishing them: a subscriber must ask for them.
    pub(crate) fn make(&self, count: u64) -> Vec<RouterEvent> {
        let mut history = self.script.history.lock();
        let first = history.len() as u64;
        history.extend((first..first + count).map(block));
        history[usize::try_from(first).unwrap()..].to_vec()
    }

    pub(crate) fn set_history(&self, events: Vec<RouterEvent>) {
        *self.script.history.lock() = events;
    }

    pub(crate) fn publish(&self, count: u64) {
        for event in self.make(count) {
            self.plane.publish(encode_events(&[event]));
        }
    }

    pub(crate) fn publish_raw(&self, payload: Bytes) {
        self.plane.publish(payload);
    }

    pub(crate) fn asked(&self) -> Vec<Option<u64>> {
        self.script.asked.lock().clone()
    }

    /// As discovery would tell it.
    pub(crate) fn source(&self) -> SourceSpec {
        let channel = self.plane.channel().clone();
        SourceSpec { publisher_id: channel.instance_id, channel: Some(channel), recovery: Some(self.endpoint.clone()) }
    }

    pub(crate) fn live_only(&self) -> SourceSpec {
        SourceSpec { recovery: None, ..self.source() }
    }

    pub(crate) async fn end(self) {
        self.plane.shutdown(Duration::from_secs(5)).await;
        self.server.drain(Duration::ZERO).await;
    }
}

async fn answer(script: Script, request: Request) -> Result<Items, TypedError> {
    let query = Query::decode(&request.body).expect("a recovery query");
    assert_eq!((query.worker_id, query.dp_rank, query.pages), (WORKER, RANK, true));
    script.asked.lock().push(query.start_event_id);
    let answers = script.answers.lock().clone();
    match answers {
        Answers::Whole { page } => Ok(items(whole(&script.history.lock(), query.start_event_id, page))),
        Answers::Never => std::future::pending().await,
        Answers::When(told) => {
            let item = async move {
                told.notified().await;
                let items = whole(&script.history.lock(), query.start_event_id, usize::MAX);
                Ok(items[0].encode())
            };
            Ok(Box::pin(futures_util::stream::once(item)))
        }
        Answers::Error(text) => Ok(one(Item::from(Answer::Error(text.to_owned())).encode())),
    }
}

fn items(items: Vec<Item>) -> Items {
    Box::pin(futures_util::stream::iter(items.into_iter().map(|item| Ok(item.encode()))))
}

/// Events from a number on, or a dump.
fn whole(history: &[RouterEvent], start: Option<u64>, page: usize) -> Vec<Item> {
    let last_event_id = history.last().map_or(0, |event| event.event.event_id);
    let Some(start) = start else {
        let mut pages: Vec<&[RouterEvent]> = history.chunks(page).collect();
        if pages.is_empty() {
            pages.push(&[]);
        }
        let last = pages.len() - 1;
        let dump = |events: &[RouterEvent]| Answer::TreeDump { events: events.to_vec(), last_event_id, reset_scope: "all".into() };
        let item = |(at, events)| Item { answer: dump(events), page: u32::try_from(at).unwrap(), last: at == last, lacking: false };
        return pages.into_iter().enumerate().map(item).collect();
    };
    if start > last_event_id {
        let answer = Answer::TooNew { requested_start: start, requested_end: last_event_id, newest_available: last_event_id };
        return vec![answer.into()];
    }
    let events = history.iter().filter(|event| event.event.event_id >= start).cloned().collect();
    vec![Answer::Events { events, last_event_id }.into()]
}

pub(crate) fn limits() -> PlaneLimits {
    PlaneLimits {
        query_silence: Duration::from_millis(500),
        pause_first: Duration::from_millis(10),
        pause_longest: Duration::from_millis(50),
        retry_longest: Duration::from_millis(50),
        idle: Duration::from_millis(200),
        idle_again: Duration::from_millis(200),
        linger: Duration::from_secs(2),
        ..PlaneLimits::default()
    }
}

pub(crate) async fn plane_client(queue_bytes: usize, nats: Option<transport::nats::Nats>) -> PlaneClient {
    let reconnect_max = Duration::from_millis(50);
    let sockets = zmtp::Options { reconnect_min: Duration::from_millis(5), reconnect_max, ..zmtp::Options::default() };
    let nats = move || nats.clone().expect("nobody needs NATS here");
    let subscriptions = Subscriptions::new(nats, SubscriptionOptions { queue_bytes, sockets });
    let options = ClientOptions {
        ack_timeout: Duration::from_millis(500),
        call_home_timeout: Duration::from_millis(500),
        ..ClientOptions::default()
    };
    PlaneClient { subscriptions, requests: Client::new(options).await.unwrap(), turns: Turns::new(4) }
}

/// The frontend's side: a follower and the index it fills.
pub(crate) struct Frontend {
    pub(crate) follower: Follower,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) target: Target,
}

impl Frontend {
    pub(crate) async fn new() -> Self {
        Self::with(plane_client(32 << 20, None).await, FollowOptions::default())
    }

    pub(crate) fn with(plane: PlaneClient, options: FollowOptions) -> Self {
        Self::limited(plane, options, limits())
    }

    pub(crate) fn limited(plane: PlaneClient, options: FollowOptions, limits: PlaneLimits) -> Self {
        let target = Targets::new().allocate().unwrap();
        let catalog = Arc::new(Catalog::new(Limits::default()));
        let feed = PlaneConfig {
            label: "test".into(),
            model: "model".into(),
            block_size: BlockSize::new(BLOCK),
            worker_id: WORKER,
            dp_rank: RANK,
            target,
            limits,
        };
        let follower = spawn(&Handle::current(), FollowSpec { feed, options }, Arc::new(plane), catalog.clone());
        Self { follower, catalog, target }
    }

    pub(crate) fn follow(&self, publishers: &[&Publisher]) {
        self.follower.set_sources(publishers.iter().map(|publisher| publisher.source()).collect());
    }

    pub(crate) fn blocks(&self) -> u64 {
        let indexer = self.catalog.indexer("model", BlockSize::new(BLOCK).unwrap());
        indexer.blocks(self.target, Lane::Device) as u64
    }

    /// How deep the long sequence is held.
    pub(crate) fn depth(&self, blocks: u64) -> u32 {
        let indexer = self.catalog.indexer("model", BlockSize::new(BLOCK).unwrap());
        let chain: Vec<LocalHash> = (0..blocks).map(|n| LocalHash(tokens_hash(n))).collect();
        let mut levels = index::Levels::new();
        indexer.lookup(&chain, index::Lanes::DEVICE, &mut levels);
        levels.depth(self.target.slot)
    }

    pub(crate) fn trust(&self) -> Trust {
        self.follower.reins().status().ranks()[0].trust
    }

    pub(crate) fn stream(&self) -> StreamStatus {
        self.follower.reins().status().stream()
    }

    pub(crate) async fn until(&self, what: &str, good: impl Fn(&StreamStatus, &Self) -> bool) {
        let wait = async {
            while !good(&self.stream(), self) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(20), wait).await.is_err() {
            panic!(
                "not reached: {what}; {} blocks, {:?} {:?}",
                self.blocks(),
                self.follower.reins().status(),
                self.follower.reins().link()
            );
        }
    }

    pub(crate) async fn holds(&self, blocks: u64, trust: Trust) {
        let good = |_: &StreamStatus, frontend: &Self| frontend.blocks() == blocks && frontend.trust() == trust;
        self.until(&format!("{blocks} blocks, {}", trust.as_str()), good).await;
    }
}
