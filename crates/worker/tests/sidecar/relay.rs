//! The relay alone, in this process.

use std::{collections::BTreeMap, sync::Arc};

use index::BlockSize;
use mocker::Config;
use transport::{
    discovery::{Backend, MemStore},
    stream::EventSource,
};
use worker::{KvEventPublisher, KvPublisherOptions, Relay, RelayCounters, RelaySource, Runtime, RuntimeConfig};

use crate::world::{complete, config, engine, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_larger_than_the_publishers_queue_waits_for_it() {
    let engine = engine(Config { blocks: 8192, ..config() }).await;
    for seed in 0..40 {
        complete(&engine, seed, 2000 + seed).await;
    }
    let truth = engine.cached_blocks(0).unwrap().len();
    assert!(truth > 2000, "{truth}");
    let runtime = Runtime::start(RuntimeConfig::local(Backend::Mem(MemStore::new()))).await.unwrap();
    let options = KvPublisherOptions { enable_local_indexer: true, queue_bytes: 64 << 10, ..KvPublisherOptions::new(16) };
    let publisher = Arc::new(KvEventPublisher::new(&runtime.component("backend"), options).await.unwrap());
    let sockets = engine.events().remove(0);
    let source = RelaySource {
        replay: sockets.replay,
        ..RelaySource::new("engine", EventSource::Connect(sockets.events), BlockSize::new(16).unwrap(), 0)
    };
    let relay = Relay::start(source, BTreeMap::from([(0, publisher.clone())]));
    let all = async {
        while publisher.standing().blocks != Some(truth) {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    soon("everything to be published", all).await;
    assert_eq!(relay.counters(), RelayCounters::default());
    let counters = publisher.counters();
    assert_eq!((counters.dropped_stores, counters.dropped_removals, counters.missed), (0, 0, 0));
    assert_eq!(counters.last_event_id, counters.events);
    relay.stop().await;
    publisher.shutdown(std::time::Duration::from_secs(2)).await;
}
