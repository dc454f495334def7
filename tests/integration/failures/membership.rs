//! Workers added and removed by the admin API while requests run.

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    rig::{Rig, Shape, completion, engine},
    sse::{assert_finished, assert_openai},
};
use crate::support::{
    eventually,
    frontend::Frontend,
    seen,
    simulated::{self, BLOCK},
};

const TOKENS: u32 = 3;

/// Whether `POST /route` lists the worker.
async fn is_candidate(frontend: &Frontend, id: &str, body: &Value) -> bool {
    let route = frontend.route(body).await;
    route["candidates"].as_array().unwrap().iter().any(|candidate| candidate["worker_id"] == id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_worker_finishes_its_stream_and_gets_nothing_new() {
    let rig = Rig::start(2, &[]).await;
    let (first, prompt) = rig.favourite().await;
    let (id, body) = (rig.id(first), completion(&prompt, Shape::Plain, TOKENS));
    let mut stream = rig.open(&prompt, Shape::Stream, 100).await;
    let begun = stream.next().await.unwrap();
    let before = rig.requests()[first];

    let removed = rig.frontend.delete(&format!("/workers/{id}")).await;
    assert_eq!((removed.status, removed.json()["id"].clone()), (StatusCode::OK, json!(id)), "{}", removed.text());
    assert!(rig.running(first) == 1, "the answer does not wait for the stream");
    assert!(!is_candidate(&rig.frontend, &id, &body).await);
    for _ in 0..3 {
        assert_eq!(rig.ask(&prompt, Shape::Plain, TOKENS).await.answer.worker(), rig.id(1 - first));
    }
    assert_eq!(rig.requests()[first], before, "no request reaches it any more");
    let pin = [("x-dynamo-worker-instance-id", &*id)];
    assert_eq!(rig.frontend.open("/v1/completions", &pin, &body).await.status, StatusCode::BAD_REQUEST, "nor one that names it");

    let mut ending = stream.ending().await;
    ending.answer.body = [begun, ending.answer.body].concat().into();
    assert_finished(&ending, 100);
    rig.idle().await;
    let again = rig.frontend.delete(&format!("/workers/{id}")).await;
    assert_eq!(again.status, StatusCode::NOT_FOUND);
    assert_openai(&again.json());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_blocks_of_a_removed_worker_are_gone_whoever_gets_its_place() {
    let rig = Rig::start(1, &[]).await;
    let (_, prompt) = rig.favourite().await;
    let body = completion(&prompt, Shape::Plain, TOKENS);
    // Without events nothing is known of it but what is left over from its last life.
    for events in ["none", "auto", "none"] {
        assert_eq!(rig.frontend.delete(&format!("/workers/{}", rig.id(0))).await.status, StatusCode::OK);
        let spec = json!({"url": rig.fleet[0].url(), "events": events, "block_size": BLOCK});
        let added = rig.frontend.post("/workers", &spec).await;
        assert_eq!(added.status, StatusCode::CREATED, "{}", added.text());
        rig.routable(1).await;
        let overlap = async || rig.frontend.candidate(&rig.id(0), &body).await["overlap_blocks"].clone();
        match events {
            "none" => assert_eq!(overlap().await, 0),
            _ => eventually("its events are replayed", async || seen(overlap().await == 8, overlap().await)).await,
        }
    }
    rig.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_there_already_is_a_conflict() {
    let rig = Rig::start(1, &[]).await;
    let other = simulated::start(engine()).await;
    for spec in [json!({"url": other.url(), "id": rig.id(0)}), json!({"url": rig.fleet[0].url(), "id": "another"})] {
        let answer = rig.frontend.post("/workers", &spec).await;
        assert_eq!(answer.status, StatusCode::CONFLICT, "{spec}: {}", answer.text());
        assert_openai(&answer.json());
    }
    assert_eq!(rig.frontend.get("/workers").await.json()["workers"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_cannot_be_right_is_a_400_that_names_the_key() {
    let frontend = Frontend::start(&[]);
    for (spec, named) in [
        (json!({}), "url"),
        (json!({"id": "a"}), "url"),
        (json!({"url": "gpu1:8000"}), "gpu1:8000"),
        (json!({"url": "http://h", "colour": "red"}), "colour"),
        (json!({"url": "http://h", "block_size": 0}), "block_size"),
        (json!({"url": "http://h", "block_size": "big"}), "block_size"),
        (json!({"url": "http://h", "dp_size": 100_000}), "dp_size"),
        (json!({"url": "http://h", "events": "udp://x:1"}), "events"),
        (json!({"url": "http://h", "events": ["tcp://h:1", "tcp://h:2"], "replay": "tcp://h:3"}), "replay"),
        (json!({"url": "http://h", "role": "chef"}), "role"),
        (json!({"url": "http://h", "lora": ["sql"]}), "lora"),
        (json!({"url": "http://h", "id": "a/b"}), "id"),
        (json!([1]), "JSON"),
    ] {
        let answer = frontend.post("/workers", &spec).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{spec}: {}", answer.text());
        let body = answer.json();
        assert_openai(&body);
        assert!(body["error"]["message"].as_str().unwrap().contains(named), "{spec}: {body}");
    }
    assert_eq!(frontend.get("/workers").await.json()["workers"], json!([]));
    assert_eq!(frontend.delete("/workers/nobody").await.status, StatusCode::NOT_FOUND);
}
