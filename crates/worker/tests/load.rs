//! Load figures on the plane.

use tokio::time::timeout;
use transport::plane::{PlaneEvent, SubscriptionOptions, Subscriptions};
use wire::load::ActiveLoad;
use worker::{Load, LoadPublisher};

use crate::support::{SOON, records, runtime};

#[tokio::test(flavor = "multi_thread")]
async fn load_is_told_when_it_changes_and_again_for_those_who_missed_it() {
    let runtime = runtime().await;
    let publisher = LoadPublisher::new(&runtime.component("backend"), None).await.unwrap();
    let subscriptions = Subscriptions::new(|| panic!("no NATS here"), SubscriptionOptions::default());
    let mut subscription = subscriptions.subscribe(publisher.channel());
    assert_eq!(timeout(SOON, subscription.next()).await.unwrap(), PlaneEvent::Connected);
    let load = Load { kv_used_blocks: Some(10), ..Load::default() };
    for _ in 0..100 {
        publisher.update(0, load);
    }
    publisher.update(1, Load { active_prefill_tokens: Some(7), ..load });
    let mut next = async || match timeout(SOON, subscription.next()).await.unwrap() {
        PlaneEvent::Envelope(envelope) => ActiveLoad::decode(&envelope.payload).unwrap(),
        other => panic!("{other:?}"),
    };
    let worker_id = runtime.instance_id();
    let first = ActiveLoad { worker_id, dp_rank: 0, kv_used_blocks: Some(10), ..ActiveLoad::default() };
    let second = ActiveLoad { dp_rank: 1, active_prefill_tokens: Some(7), ..first };
    assert_eq!((next().await, next().await), (first, second), "a figure that did not change is not told");
    assert_eq!((next().await, next().await), (first, second), "but again after a while");
    assert_eq!(records(&runtime, 1).await.len(), 1);
    publisher.shutdown(SOON).await;
    assert!(records(&runtime, 0).await.is_empty());
}
