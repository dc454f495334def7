//! A process on the planes, and a small router that follows one of its publishers as a frontend would.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use feed::{
    Trust,
    plane::{PlaneConfig, PlaneLimits},
};
use index::{BlockSize, Blocks, Catalog, Copies, EngineHash, KvIndexer, Lane, Limits, LocalHash, Parent, Seed, Target, Targets, Writer};
use tokio::time::timeout;
use transport::{
    discovery::{Backend, Change, MemStore},
    follow::{FollowOptions, FollowSpec, Follower, PlaneClient, SourceSpec, spawn},
    plane::{PlaneEvent, Subscription, SubscriptionOptions, Subscriptions},
    request::{Call, CallError, Client, ClientOptions},
    stream::Turns,
};
use wire::{
    discovery::{Endpoint, EventSource, Record},
    recovery::{Answer, Item, Query},
    router::{KvData, RouterEvent, decode_events},
};
use worker::{KvEventPublisher, KvPublisherOptions, Runtime, RuntimeConfig, StoredCall};

/// Longer than anything here takes.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// Tokens per block.
pub(crate) const SIZE: u32 = 4;

/// A process with discovery in memory and events over ZMQ.
pub(crate) async fn runtime() -> Runtime {
    Runtime::start(RuntimeConfig::local(Backend::Mem(MemStore::new()))).await.unwrap()
}

pub(crate) async fn publisher(runtime: &Runtime) -> KvEventPublisher {
    let options = KvPublisherOptions { enable_local_indexer: true, ..KvPublisherOptions::new(SIZE) };
    KvEventPublisher::new(&runtime.component("backend"), options).await.unwrap()
}

/// A store of consecutive names; a block's tokens follow from its name.
pub(crate) fn stored(parent_hash: Option<u64>, names: std::ops::Range<u64>) -> StoredCall {
    StoredCall {
        token_ids: names.clone().flat_map(|name| [name as u32, (name >> 32) as u32, 7, 8]).collect(),
        num_block_tokens: names.clone().map(|_| SIZE).collect(),
        block_hashes: names.collect(),
        parent_hash,
        ..StoredCall::default()
    }
}

/// The records of a process, once discovery has `count` of them.
pub(crate) async fn records(runtime: &Runtime, count: usize) -> Vec<Record> {
    let mut watch = runtime.discovery().watch("v1/");
    let mut records = std::collections::BTreeMap::new();
    let all = async {
        while let Some(change) = watch.next().await {
            match change {
                Change::Reset(all) => records = all.into_iter().collect(),
                Change::Add(key, value) => {
                    records.insert(key, value);
                }
                Change::Remove(key) => {
                    records.remove(&key);
                }
            }
            if records.len() == count {
                break;
            }
        }
    };
    timeout(SOON, all).await.unwrap_or_else(|_| panic!("waited for {count} records"));
    records.values().map(|value| Record::from_json(value).unwrap()).collect()
}

pub(crate) async fn source(runtime: &Runtime, count: usize) -> EventSource {
    let records = records(runtime, count).await;
    let source = records.into_iter().find_map(|record| match record {
        Record::EventSource(source) => Some(source),
        _ => None,
    });
    source.unwrap()
}

/// Asks a recovery endpoint.
pub(crate) async fn ask(client: &Client, target: &Endpoint, body: Bytes) -> Result<Vec<Item>, CallError> {
    let mut responses = client.call(Call::to(target, body).unwrap()).await?;
    let mut items = Vec::new();
    while let Some(item) = responses.next().await {
        items.push(Item::decode(&item?).unwrap().0);
    }
    Ok(items)
}

/// Follows one publisher as a frontend does, with trust.
pub(crate) async fn follower(publisher: &KvEventPublisher, source: &EventSource) -> Follower {
    let feed = PlaneConfig {
        label: "test".into(),
        model: "model".into(),
        block_size: BlockSize::new(SIZE),
        worker_id: source.worker_id,
        dp_rank: source.dp_rank,
        target: Targets::new().allocate().unwrap(),
        limits: PlaneLimits::default(),
    };
    let plane = PlaneClient {
        subscriptions: Subscriptions::new(|| panic!("no NATS here"), SubscriptionOptions::default()),
        requests: Client::new(ClientOptions::default()).await.unwrap(),
        turns: Turns::default(),
    };
    let spec = FollowSpec { feed, options: FollowOptions::default() };
    let follower = spawn(&tokio::runtime::Handle::current(), spec, Arc::new(plane), Arc::new(Catalog::new(Limits::default())));
    let channel = Some(publisher.channel().clone());
    follower.set_sources(vec![SourceSpec { publisher_id: source.publisher_id, channel, recovery: source.recovery_target.clone() }]);
    follower
}

/// Waits until a follower trusts its index so far.
pub(crate) async fn trusted(follower: &Follower, what: &str, trust: Trust) {
    let so = async {
        while follower.reins().status().ranks().iter().all(|rank| rank.trust != trust) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, so).await.unwrap_or_else(|_| panic!("{what}: {:?}", follower.reins().status().ranks()));
}

/// Follows one publisher: live events, and recovery of what is missing.
pub(crate) struct Router {
    subscription: Subscription,
    pub(crate) client: Client,
    source: EventSource,
    pages: bool,
    names: BTreeSet<u64>,
    target: Target,
    writer: Writer,
    cursor: Option<u64>,
    pub(crate) gaps: usize,
    pub(crate) dumps: usize,
}

impl Router {
    pub(crate) async fn new(publisher: &KvEventPublisher, source: EventSource, pages: bool) -> Self {
        let subscriptions = Subscriptions::new(|| panic!("no NATS here"), SubscriptionOptions::default());
        Self::over(subscriptions, publisher, source, pages).await
    }

    pub(crate) async fn over(subscriptions: Subscriptions, publisher: &KvEventPublisher, source: EventSource, pages: bool) -> Self {
        let target = Targets::new().allocate().unwrap();
        let indexer = KvIndexer::new(BlockSize::new(SIZE).unwrap(), Limits::default());
        Self {
            subscription: subscriptions.subscribe(publisher.channel()),
            client: Client::new(ClientOptions::default()).await.unwrap(),
            source,
            pages,
            names: BTreeSet::new(),
            target,
            writer: indexer.writer(target, Lane::Device, Copies::Set),
            cursor: None,
            gaps: 0,
            dumps: 0,
        }
    }

    pub(crate) fn digest(&self) -> u64 {
        self.writer.indexer().digest(self.target)
    }

    pub(crate) fn held(&self) -> &BTreeSet<u64> {
        &self.names
    }

    /// The last event that is here.
    pub(crate) fn reached(&self) -> u64 {
        self.cursor.unwrap_or(0)
    }

    /// Asks now for what is missing.
    pub(crate) async fn recover_now(&mut self) {
        self.recover().await;
    }

    /// Until every event up to this one is here. A (re)connect asks for what was missed meanwhile.
    pub(crate) async fn reach(&mut self, last_event_id: u64) {
        while self.cursor.is_none_or(|cursor| cursor < last_event_id) {
            let event = timeout(SOON, self.subscription.next()).await;
            match event.unwrap_or_else(|_| panic!("at {:?}, waited for {last_event_id}", self.cursor)) {
                PlaneEvent::Connected => self.recover().await,
                PlaneEvent::Envelope(envelope) => {
                    for event in decode_events(&envelope.payload).unwrap() {
                        self.live(event.unwrap()).await;
                    }
                }
                PlaneEvent::Dropped { .. } | PlaneEvent::Disconnected { .. } => {}
                PlaneEvent::Malformed { reason } => panic!("{reason}"),
            }
        }
    }

    async fn live(&mut self, event: RouterEvent) {
        let id = event.event.event_id;
        let Some(cursor) = self.cursor else { return self.recover().await };
        if id == cursor + 1 {
            self.fold(&event);
            self.cursor = Some(id);
        } else if id > cursor + 1 {
            self.gaps += 1;
            self.recover().await;
        }
    }

    async fn recover(&mut self) {
        let Some(target) = self.source.recovery_target.clone() else { return };
        let (worker_id, dp_rank) = (self.source.worker_id, self.source.dp_rank);
        let query =
            Query { start_event_id: self.cursor.map(|cursor| cursor + 1), pages: self.pages, ..Query::everything(worker_id, dp_rank) };
        for (at, item) in ask(&self.client, &target, query.encode()).await.unwrap().into_iter().enumerate() {
            match item.answer {
                Answer::Events { events, last_event_id } => {
                    events.iter().for_each(|event| self.fold(event));
                    self.cursor = Some(last_event_id);
                }
                Answer::TreeDump { events, last_event_id, .. } => {
                    if at == 0 {
                        self.dumps += 1;
                        self.names.clear();
                        self.writer.clear();
                    }
                    events.iter().for_each(|event| self.fold(event));
                    self.cursor = Some(last_event_id);
                }
                Answer::TooNew { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// An event as sets mean it.
    pub(crate) fn fold(&mut self, event: &RouterEvent) {
        match &event.event.data {
            KvData::Stored(stored) => {
                let hashes: Vec<_> = stored.blocks.iter().map(|block| EngineHash(block.block_hash)).collect();
                let locals: Vec<_> = stored.blocks.iter().map(|block| LocalHash(block.tokens_hash)).collect();
                let parent = stored.parent_hash.map_or(Parent::Root(Seed::BASE), |hash| Parent::Block(EngineHash(hash)));
                self.writer.store(parent, Blocks::LocalHashes { locals: &locals, hashes: &hashes });
                self.names.extend(stored.blocks.iter().map(|block| block.block_hash));
            }
            KvData::Removed(names) => {
                for name in names {
                    self.names.remove(name);
                }
                self.writer.remove(&names.iter().map(|name| EngineHash(*name)).collect::<Vec<_>>());
            }
            KvData::Cleared => {
                self.names.clear();
                self.writer.clear();
            }
        }
    }
}
