//! A queue that is full: what is lost is counted, shows as a gap, and everybody ends with what is published.

use std::time::Duration;

use feed::Trust;
use tokio::time::timeout;
use worker::{KvEventPublisher, KvPublisherOptions, Taken};

use crate::support::{Router, SIZE, SOON, follower, runtime, source, stored, trusted};

async fn small(runtime: &worker::Runtime, queue_bytes: usize) -> KvEventPublisher {
    let options = KvPublisherOptions { enable_local_indexer: true, queue_bytes, ..KvPublisherOptions::new(SIZE) };
    KvEventPublisher::new(&runtime.component("backend"), options).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_beyond_the_queue_is_a_gap_that_consumers_recover_from() {
    let runtime = runtime().await;
    let publisher = small(&runtime, 100_000).await;
    let source = source(&runtime, 3).await;
    let mut router = Router::new(&publisher, source, true).await;
    publisher.publish_stored(stored(None, 0..1)).unwrap();
    publisher.flush().await.unwrap();
    router.reach(1).await;
    let (publisher, dropped) = tokio::task::spawn_blocking(move || {
        // One long call keeps the thread busy while the others come.
        publisher.publish_stored(stored(None, 1_000_000..1_060_000)).unwrap();
        let calls = (1..400_u64).map(|at| publisher.publish_stored(stored(None, at * 1000..at * 1000 + 500)).unwrap());
        let dropped = calls.filter(|taken| *taken == Taken::Dropped).count();
        (publisher, dropped)
    })
    .await
    .unwrap();
    timeout(SOON, publisher.flush()).await.unwrap().unwrap();
    publisher.publish_stored(stored(None, 900_000..900_001)).unwrap();
    timeout(SOON, publisher.flush()).await.unwrap().unwrap();
    let counters = publisher.counters();
    assert!(dropped > 0 && counters.dropped_stores == dropped as u64 && counters.missed > 0, "{counters:?}");
    assert_eq!(counters.queued_bytes, 0);
    router.reach(publisher.standing().last_event_id).await;
    assert!(router.gaps > 0);
    assert_eq!((Some(router.digest()), router.dumps), (publisher.standing().digest, 1));
    publisher.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn removals_that_are_lost_leave_nothing_behind_that_is_gone() {
    let runtime = runtime().await;
    let publisher = small(&runtime, 2_000_000).await;
    let source = source(&runtime, 3).await;
    let early = follower(&publisher, &source).await;
    trusted(&early, "is exact before anything was lost", Trust::Exact).await;
    // Half a million removals find no room, so nothing that was stored before can be trusted.
    let publisher = tokio::task::spawn_blocking(move || {
        publisher.publish_stored(stored(None, 0..60_000)).unwrap();
        let names: Vec<u64> = (0..20_000).collect();
        let lost = (0..1000).filter(|_| publisher.publish_removed(&names).unwrap() == Taken::Dropped).count();
        assert!(lost > 0);
        publisher
    })
    .await
    .unwrap();
    timeout(SOON, publisher.flush()).await.unwrap().unwrap();
    assert_eq!((publisher.standing().blocks, publisher.standing().digest), (Some(0), Some(0)));
    // The engine still holds most of what was given up.
    trusted(&early, "knows without a further event that it lacks something", Trust::Degraded).await;
    let late = follower(&publisher, &source).await;
    trusted(&late, "is told by the dump that it lacks something", Trust::Degraded).await;
    publisher.publish_stored(stored(None, 50_000..50_010)).unwrap();
    publisher.flush().await.unwrap();
    let mut router = Router::new(&publisher, source, false).await;
    router.reach(publisher.standing().last_event_id).await;
    assert_eq!((Some(router.digest()), router.held().len()), (publisher.standing().digest, 10));
    assert!(publisher.counters().dropped_removals > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_with_which_a_burst_ends_is_seen_although_nothing_follows() {
    let runtime = runtime().await;
    let publisher = small(&runtime, 100_000).await;
    let source = source(&runtime, 3).await;
    let follower = follower(&publisher, &source).await;
    trusted(&follower, "is exact before anything was lost", Trust::Exact).await;
    let publisher = tokio::task::spawn_blocking(move || {
        // One long call keeps the thread busy while the others come; one that finds no room is the last.
        publisher.publish_stored(stored(None, 1_000_000..1_060_000)).unwrap();
        let mut names = (1..100_000_u64).map(|at| at * 1000..at * 1000 + 500);
        assert!(names.any(|names| publisher.publish_stored(stored(None, names)).unwrap() == Taken::Dropped));
        publisher
    })
    .await
    .unwrap();
    timeout(SOON, publisher.flush()).await.unwrap().unwrap();
    trusted(&follower, "knows without a further event that it lacks something", Trust::Degraded).await;
}
