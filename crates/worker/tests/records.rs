//! What discovery is told, and when it goes.

use std::time::Duration;

use wire::discovery::Record;
use worker::{KvEventPublisher, KvPublisherOptions, ModelSpec};

use crate::support::{publisher, records, runtime, stored};

fn kinds(records: &[Record]) -> Vec<&'static str> {
    let kind = |record: &Record| match record {
        Record::Endpoint(_) => "endpoint",
        Record::Model(_) => "model",
        Record::EventChannel(_) => "channel",
        Record::EventSource(_) => "source",
        Record::OpenAiWorker(_) => "openai",
    };
    records.iter().map(kind).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_is_found_by_its_records_and_gone_with_them() {
    let runtime = runtime().await;
    let publisher = publisher(&runtime).await;
    let found = records(&runtime, 3).await;
    assert_eq!(kinds(&found), ["channel", "source", "endpoint"]);
    let (id, hex) = (runtime.instance_id(), format!("{:x}", publisher.publisher_id()));
    let (Record::EventChannel(channel), Record::EventSource(source), Record::Endpoint(endpoint)) = (&found[0], &found[1], &found[2]) else {
        panic!("{found:?}");
    };
    assert_eq!(channel, publisher.channel());
    let scope = "namespace/dynamo/component/backend/endpoint/generate";
    assert_eq!(channel.key().as_str(), format!("v1/event_channels/{scope}/topic/kv-events/{hex}"));
    assert_eq!(source.key().as_str(), format!("v1/event_sources/{scope}/topic/kv-events/{hex}"));
    assert_eq!((source.worker_id, source.dp_rank, source.recovery_target.as_ref()), (id, 0, Some(endpoint)));
    assert_eq!(source.kv_state_endpoint.to_string(), "dynamo/backend/generate");
    assert_eq!(endpoint.key().as_str(), format!("v1/instances/dynamo/backend/worker_kv_query_source_{hex}/{id:x}"));
    let (_, path) = endpoint.transport.tcp_parts().unwrap();
    assert_eq!(path, format!("{id:x}/dynamo/backend/worker_kv_query_source_{hex}"));

    publisher.shutdown(Duration::from_secs(5)).await;
    assert!(records(&runtime, 0).await.is_empty());
    assert!(publisher.publish_stored(stored(None, 1..2)).is_err(), "a publisher that was shut down takes nothing");
    publisher.shutdown(Duration::from_secs(5)).await;
    runtime.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_that_is_live_only_names_nobody_to_recover_from() {
    let runtime = runtime().await;
    let options = KvPublisherOptions { dp_rank: 3, worker_id: Some(77), ..KvPublisherOptions::new(16) };
    let publisher = KvEventPublisher::new(&runtime.namespace("blue").component("gpu").endpoint("serve"), options).await.unwrap();
    let found = records(&runtime, 2).await;
    let Record::EventSource(source) = &found[1] else { panic!("{found:?}") };
    assert_eq!((source.worker_id, source.dp_rank, &source.recovery_target), (77, 3, &None));
    assert_eq!(source.kv_state_endpoint.to_string(), "blue/gpu/serve");
    // Dropped without a shutdown, it goes all the same.
    drop(publisher);
    assert!(records(&runtime, 0).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_registered_and_a_block_size_of_0_is_none() {
    let runtime = runtime().await;
    let endpoint = runtime.component("backend").endpoint("generate");
    let registration = endpoint.register_model(&ModelSpec::new("tiny", 16));
    let found = records(&runtime, 1).await;
    let Record::Model(model) = &found[0] else { panic!("{found:?}") };
    assert_eq!((model.card.display_name(), model.card.block_size()), (Some("tiny"), Some(16)));
    registration.withdraw().await;
    let refused = KvEventPublisher::new(&endpoint, KvPublisherOptions::new(0)).await.unwrap_err();
    assert_eq!(refused.to_string(), "kv_block_size is 0");
}
