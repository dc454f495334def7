//! The recovery service: the recorded queries, pages, many askers, and dumps beside publishing.

use std::time::Duration;

use testkit::dynamo;
use tokio::{task::JoinSet, time::timeout};
use transport::request::{Call, Client, ClientOptions};
use wire::{
    recovery::{Answer, Item, Query},
    request::{RequestFrame, TwoPart},
};
use worker::{KvEventPublisher, KvPublisherOptions};

use crate::support::{Router, SIZE, SOON, ask, publisher, runtime, source, stored};

/// The worker that was asked in the recordings.
const ASKED: u64 = 2_445_869_777_105_934_068;

/// The body of a recorded query, and the data of the item it was answered with, if it was answered.
fn recorded(name: &str) -> (bytes::Bytes, Option<Vec<u8>>) {
    let lines = dynamo::exchange(name);
    let bytes = |kind: &str, at: usize| lines.iter().filter(|(other, _)| other == kind).nth(at).map(|(_, bytes)| bytes.clone());
    let frame = RequestFrame::take(&mut bytes("request", 0).unwrap().as_slice().into(), 1 << 20).unwrap().unwrap();
    let body = TwoPart::decode(&frame.payload).unwrap().body;
    // {"data": X, "complete_final": false}, behind the two lengths and the checksum.
    let data = bytes("f", 1).map(|item| item[24 + 6..item.len() - 16].to_vec());
    (body, data)
}

async fn answered(client: &Client, runtime: &worker::Runtime, name: &str) -> (Vec<u8>, Option<Vec<u8>>) {
    let target = source(runtime, 3).await.recovery_target.unwrap();
    let (body, expected) = recorded(name);
    let mut responses = client.call(Call::to(&target, body).unwrap()).await.unwrap();
    let data = responses.next().await.unwrap().unwrap().to_vec();
    assert!(responses.next().await.is_none(), "one item");
    (data, expected)
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_queries_are_answered_as_they_were() {
    let runtime = runtime().await;
    let options = KvPublisherOptions { enable_local_indexer: true, worker_id: Some(ASKED), ..KvPublisherOptions::new(SIZE) };
    let publisher = KvEventPublisher::new(&runtime.component("backend"), options).await.unwrap();
    let client = Client::new(ClientOptions::default()).await.unwrap();
    // Four events, as the worker of the recordings had published.
    for at in 0..4_u64 {
        publisher.publish_stored(stored(None, at * 10..at * 10 + 3)).unwrap();
        publisher.flush().await.unwrap();
    }
    for name in ["worker_query_inverted", "worker_query_toonew"] {
        let (data, expected) = answered(&client, &runtime, name).await;
        assert_eq!(Some(data), expected, "{name}");
    }
    for (name, ids) in [
        ("worker_query_range_1_3", Some(vec![1, 2, 3, 4])),
        ("worker_query_range_2_open", Some(vec![2, 3, 4])),
        ("worker_query_recovery_all", None),
        ("worker_query_from_0", None),
        ("worker_query_nokind", None),
    ] {
        let (data, expected) = answered(&client, &runtime, name).await;
        let (ours, theirs) = (Item::decode(&data).unwrap().0, Item::decode(&expected.unwrap()).unwrap().0);
        assert_eq!((ours.page, ours.last), (0, true));
        match (ours.answer, theirs.answer) {
            (Answer::Events { events, last_event_id: 4 }, Answer::Events { events: theirs, last_event_id: 4 }) => {
                let told: Vec<_> = events.iter().map(|event| event.event.event_id).collect();
                assert_eq!(told, theirs.iter().map(|event| event.event.event_id).collect::<Vec<_>>(), "{name}");
                assert_eq!(Some(told), ids, "{name}");
            }
            (Answer::TreeDump { reset_scope, last_event_id: 4, .. }, Answer::TreeDump { reset_scope: theirs, last_event_id: 4, .. }) => {
                assert_eq!((ids, reset_scope), (None, theirs), "{name}");
            }
            (ours, theirs) => panic!("{name}: {ours:?} for {theirs:?}"),
        }
    }
    let (data, expected) = answered(&client, &runtime, "worker_query_wrong_worker").await;
    for data in [data, expected.unwrap()] {
        let Answer::Error(reason) = Item::decode(&data).unwrap().0.answer else { panic!("no error") };
        assert!(reason.contains("worker_id mismatch") && reason.contains(&ASKED.to_string()), "{reason}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_query_is_told_so_instead_of_silence() {
    let runtime = runtime().await;
    let _publisher = publisher(&runtime).await;
    let target = source(&runtime, 3).await.recovery_target.unwrap();
    let client = Client::new(ClientOptions::default()).await.unwrap();
    for name in ["worker_query_empty", "worker_query_kind_live"] {
        let error = ask(&client, &target, recorded(name).0).await.unwrap_err();
        assert!(error.to_string().contains("query"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_missed_events_get_them_and_late_ones_everything() {
    let runtime = runtime().await;
    let publisher = publisher(&runtime).await;
    publisher.publish_stored(stored(None, 0..3000)).unwrap();
    publisher.publish_removed(&(100..200).collect::<Vec<u64>>()).unwrap();
    publisher.flush().await.unwrap();
    let source = source(&runtime, 3).await;
    for pages in [true, false] {
        let mut router = Router::new(&publisher, source.clone(), pages).await;
        router.reach(publisher.standing().last_event_id).await;
        assert_eq!((Some(router.digest()), router.held().len()), (publisher.standing().digest, 2900));
        publisher.publish_stored(stored(Some(2999), 5000..5010)).unwrap();
        publisher.publish_removed(&[5000_i64]).unwrap();
        publisher.flush().await.unwrap();
        router.recover_now().await;
        assert_eq!((Some(router.digest()), router.dumps), (publisher.standing().digest, 1));
        publisher.publish_removed(&(5001..5010).collect::<Vec<u64>>()).unwrap();
        publisher.flush().await.unwrap();
    }
    assert_eq!(publisher.find_matches(&stored(None, 0..3000).token_ids, None, None), Some(100));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_million_blocks_are_published_and_dumped_in_pages_beside_publishing() {
    const BLOCKS: u64 = 1_000_000;
    let runtime = runtime().await;
    let publisher = publisher(&runtime).await;
    let publisher = tokio::task::spawn_blocking(move || {
        for at in 0..BLOCKS / 1000 {
            publisher.publish_stored(stored(None, at * 1000..(at + 1) * 1000)).unwrap();
        }
        publisher
    })
    .await
    .unwrap();
    timeout(Duration::from_secs(60), publisher.flush()).await.unwrap().unwrap();
    let counters = publisher.counters();
    assert_eq!((publisher.standing().blocks, counters.dropped_stores, counters.refused), (Some(1_000_000), 0, 0));

    let standing = publisher.standing();
    let source = source(&runtime, 3).await;
    let target = source.recovery_target.clone().unwrap();
    let mut router = Router::new(&publisher, source.clone(), true).await;
    let query = Query { pages: true, ..Query::everything(source.worker_id, 0) };
    let mut responses = router.client.call(Call::to(&target, query.encode()).unwrap()).await.unwrap();
    let (mut pages, mut last) = (0, false);
    while let Some(page) = responses.next().await {
        let page = Item::decode(&page.unwrap()).unwrap().0;
        assert_eq!((page.page, last), (pages, false));
        (pages, last) = (pages + 1, page.last);
        let Answer::TreeDump { events, last_event_id, .. } = page.answer else { panic!("no dump") };
        assert_eq!(last_event_id, standing.last_event_id);
        events.iter().for_each(|event| router.fold(event));
        if pages == 1 {
            // A dump that is not read on does not keep the publisher from its work.
            publisher.publish_stored(stored(Some(999), 2_000_000..2_000_100)).unwrap();
            timeout(SOON, publisher.flush()).await.unwrap().unwrap();
            assert_ne!(publisher.standing(), standing);
        }
    }
    assert!(last && pages > 100, "{pages} pages");
    assert_eq!((Some(router.digest()), router.held().len()), (standing.digest, 1_000_000), "it is of the instant it was asked for");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_ask_at_once_and_all_end_equal() {
    let runtime = runtime().await;
    let publisher = publisher(&runtime).await;
    publisher.publish_stored(stored(None, 0..20_000)).unwrap();
    publisher.flush().await.unwrap();
    let source = source(&runtime, 3).await;
    let standing = publisher.standing();
    let mut routers = JoinSet::new();
    for at in 0..24 {
        let mut router = Router::new(&publisher, source.clone(), at % 2 == 0).await;
        routers.spawn(async move {
            router.reach(standing.last_event_id).await;
            router.digest()
        });
    }
    let digests = timeout(Duration::from_secs(60), routers.join_all()).await.unwrap();
    assert!(digests.iter().all(|digest| Some(*digest) == standing.digest));
}
