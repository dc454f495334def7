//! What a sidecar publishes of a living engine.

use std::collections::BTreeSet;

use mocker::Config;
use transport::plane::PlaneEvent;
use wire::{
    load::ActiveLoad,
    recovery::{Answer, Query},
    router::decode_events,
};

use crate::world::{Frontend, Sidecar, complete, config, engine, fold, message, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stock_engine_is_on_record_and_what_it_caches_is_published() {
    let mut frontend = Frontend::new().await;
    let engine = engine(config()).await;
    complete(&engine, 1, 100).await;
    let _sidecar = Sidecar::start(frontend.folder.path(), &engine.url(), &["--namespace", "blue"]);
    let worker = frontend.until("the worker's record", Frontend::worker).await;
    assert_eq!((worker.url.as_str(), worker.model.as_str()), (engine.url().as_str(), "mock-model"));
    assert_eq!((worker.block_size, worker.dp_start, worker.dp_size), (Some(16), 0, 1));
    assert_eq!(worker.id.to_string(), "blue/backend/generate");
    let source = frontend.until("the source", |frontend| frontend.source(0)).await;
    assert_eq!((source.worker_id, &source.kv_state_endpoint), (worker.instance_id, &worker.id));

    // What was cached before the sidecar began came by the engine's replay.
    assert!(frontend.holds_the_truth(&source, &engine, 0).await >= 6);

    // What comes now is published live, numbered without a gap, and is the same.
    let channel = frontend.channel("kv-events", Some(source.publisher_id)).unwrap();
    let mut live = frontend.subscriptions.subscribe(&channel);
    assert!(matches!(soon("a connection", live.next()).await, PlaneEvent::Connected));
    let mut held = frontend.held(&source).await;
    let mut last = newest(&frontend, &source).await;
    for seed in 2..12 {
        complete(&engine, seed, 64 + seed * 7).await;
    }
    let truth: BTreeSet<u64> = engine.cached_blocks(0).unwrap().into_keys().collect();
    while held != truth {
        for event in decode_events(&message(&mut live).await).unwrap() {
            let event = event.unwrap();
            assert_eq!((event.worker_id, event.event.dp_rank), (worker.instance_id, 0));
            // A message that was published before the subscription is known already.
            if event.event.event_id > last {
                assert_eq!(event.event.event_id, last + 1);
                last += 1;
                fold(&[event], &mut held);
            }
        }
    }
}

/// The newest event of a source.
async fn newest(frontend: &Frontend, source: &wire::discovery::EventSource) -> u64 {
    let query = Query { start_event_id: Some(u64::MAX), ..Query::everything(source.worker_id, source.dp_rank) };
    match &frontend.ask(source, query).await[..] {
        [Answer::TooNew { newest_available, .. }] => *newest_available,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_the_engine_dropped_are_recovered_and_its_restart_is_a_clear() {
    let mut frontend = Frontend::new().await;
    let mut engine = engine(config()).await;
    let _sidecar = Sidecar::start(frontend.folder.path(), &engine.url(), &[]);
    let source = frontend.until("the source", |frontend| frontend.source(0)).await;
    complete(&engine, 1, 100).await;
    frontend.holds_the_truth(&source, &engine, 0).await;
    engine.set_faults(|faults| faults.drop_batches = 2);
    for seed in 2..6 {
        complete(&engine, seed, 100).await;
    }
    frontend.holds_the_truth(&source, &engine, 0).await;
    // Nothing was skipped: the answer has every number.
    let query = Query { start_event_id: Some(1), ..Query::everything(source.worker_id, 0) };
    let [Answer::Events { events, last_event_id }] = &frontend.ask(&source, query).await[..] else { panic!("no events") };
    assert!(events.iter().map(|event| event.event.event_id).eq(1..=*last_event_id));

    engine.restart().await.unwrap();
    complete(&engine, 9, 50).await;
    assert!(frontend.holds_the_truth(&source, &engine, 0).await <= 4);
    let after = frontend.until("the source", |frontend| frontend.source(0)).await;
    assert_eq!(after, source, "the same publisher goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_are_lost_are_a_skipped_number() {
    let mut frontend = Frontend::new().await;
    let engine = engine(config()).await;
    let _sidecar = Sidecar::start(frontend.folder.path(), &engine.url(), &[]);
    let source = frontend.until("the source", |frontend| frontend.source(0)).await;
    complete(&engine, 1, 100).await;
    frontend.holds_the_truth(&source, &engine, 0).await;
    engine.set_faults(|faults| faults.lose_batches = 1);
    complete(&engine, 2, 100).await;
    complete(&engine, 3, 100).await;
    let query = Query { start_event_id: Some(1), ..Query::everything(source.worker_id, 0) };
    let skipped = async {
        loop {
            if let [Answer::Events { events, last_event_id }] = &frontend.ask(&source, query).await[..]
                && events.len() < usize::try_from(*last_event_id).unwrap()
            {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    soon("a number to be skipped", skipped).await;
    // Who comes now and asks for everything is told, too.
    let everything = Query { pages: true, ..Query::everything(source.worker_id, 0) };
    assert!(frontend.items(&source, everything).await[0].lacking);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_rank_has_a_publisher_and_tells_its_load() {
    let mut frontend = Frontend::new().await;
    let engine = engine(Config { ranks: 2, ..config() }).await;
    let _sidecar = Sidecar::start(frontend.folder.path(), &engine.url(), &[]);
    let worker = frontend.until("the worker's record", Frontend::worker).await;
    assert_eq!(worker.dp_size, 2);
    let sources = frontend.until("two sources", |frontend| Some([frontend.source(0)?, frontend.source(1)?])).await;
    for seed in 0..8 {
        complete(&engine, seed, 80).await;
    }
    for (rank, source) in sources.iter().enumerate() {
        frontend.holds_the_truth(source, &engine, rank).await;
    }
    let channel = frontend.channel("kv_metrics", None).unwrap();
    let mut loads = frontend.subscriptions.subscribe(&channel);
    let mut ranks = BTreeSet::new();
    while ranks.len() < 2 {
        let load = ActiveLoad::decode(&message(&mut loads).await).unwrap();
        assert_eq!(load.worker_id, worker.instance_id);
        assert!(load.kv_used_blocks.is_some());
        ranks.insert(load.dp_rank);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_without_events_is_on_record_with_its_load_alone() {
    let mut frontend = Frontend::new().await;
    let engine = engine(Config { events: None, ..config() }).await;
    let _sidecar = Sidecar::start(frontend.folder.path(), &engine.url(), &[]);
    frontend.until("the worker's record", Frontend::worker).await;
    frontend.until("the load's channel", |frontend| frontend.channel("kv_metrics", None)).await;
    assert!(frontend.source(0).is_none());
}
