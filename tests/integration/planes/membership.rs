//! Who is found, who is let go of, and what an outage of discovery does to requests: nothing.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wire::discovery::{Endpoint, Model, ModelCard, Record};

use super::{Place, announce, endpoint, open_ai_worker};
use crate::support::{
    PATIENCE, eventually,
    frontend::Frontend,
    seen,
    simulated::{self, completion, prompt, quick},
};

/// Waits until exactly these workers can be sent requests.
async fn routable(frontend: &Frontend, ids: &[u64]) {
    let mut wanted: Vec<String> = ids.iter().map(u64::to_string).collect();
    wanted.sort();
    eventually(&format!("{wanted:?} can be sent requests"), async || {
        let answer = frontend.get("/workers").await.json();
        let workers = answer["workers"].as_array().unwrap();
        let up = workers.iter().filter(|worker| worker["state"] == "up" && !worker["ranks"].as_array().unwrap().is_empty());
        let mut up: Vec<String> = up.map(|worker| worker["id"].as_str().unwrap().to_owned()).collect();
        up.sort();
        seen(up == wanted, answer)
    })
    .await;
}

async fn discovery_state(frontend: &Frontend, state: &str) -> Value {
    eventually(&format!("discovery is {state}"), async || {
        let health = frontend.get("/health").await.json();
        let discovery = health["planes"]["discovery"].clone();
        if discovery["state"] == state { Ok(discovery) } else { Err(health.to_string()) }
    })
    .await
}

async fn workers_come_and_go(place: Place) {
    let (one, two) = (quick().await, quick().await);
    let discovery = place.discovery();
    let first = announce(&discovery, open_ai_worker("dynamo", 1, &one.url())).await;
    let frontend = place.frontend(&[]);
    routable(&frontend, &[1]).await;
    let _second = announce(&discovery, open_ai_worker("dynamo", u64::MAX, &two.url())).await;
    routable(&frontend, &[1, u64::MAX]).await;
    let shown = frontend.worker("1").await;
    assert_eq!(
        (&shown["origin"], &shown["endpoint"], &shown["url"]),
        (&json!("discovery"), &json!("dynamo/backend/generate"), &json!(one.url()))
    );
    first.withdraw().await;
    routable(&frontend, &[u64::MAX]).await;
    assert_eq!(frontend.complete(&completion(&prompt(1, 20))).await.worker(), u64::MAX.to_string());
    // The engine's sidecar is started anew: its engine is there once.
    let _third = announce(&place.discovery(), open_ai_worker("dynamo", 3, &two.url())).await;
    routable(&frontend, &[3]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_in_a_folder_come_and_go() {
    workers_come_and_go(Place::folder()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_in_etcd_come_and_go() {
    workers_come_and_go(Place::etcd()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_removed_finishes_what_it_has() {
    let place = Place::folder();
    let slow = simulated::start(mocker::Config { decode_tokens_per_s: 50.0, ..mocker::Config::default() }).await;
    let registration = announce(&place.discovery(), open_ai_worker("dynamo", 1, &slow.url())).await;
    let frontend = place.frontend(&[]);
    routable(&frontend, &[1]).await;
    let mut body = completion(&prompt(1, 20));
    (body["stream"], body["max_tokens"]) = (json!(true), json!(30));
    let stream = frontend.open("/v1/completions", &[], &body).await;
    registration.withdraw().await;
    eventually("it drains", async || seen(frontend.worker("1").await["state"] == "draining", ())).await;
    assert_eq!(frontend.post("/v1/completions", &body).await.status, 503);
    assert!(stream.whole().await.text().ends_with("data: [DONE]\n\n"));
    eventually("it is gone", async || seen(frontend.worker("1").await.is_null(), ())).await;
}

/// Requests go on while etcd is away, is started again, and is started again with nothing left of its data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_is_away_or_wiped_costs_no_request() {
    let mut place = Place::etcd();
    let (engine, discovery) = (quick().await, place.discovery());
    let _registration = announce(&discovery, open_ai_worker("dynamo", 1, &engine.url())).await;
    let frontend = place.frontend(&[]);
    routable(&frontend, &[1]).await;
    discovery_state(&frontend, "ok").await;
    for wipe in [false, true] {
        place.etcd_server().kill();
        let stale = discovery_state(&frontend, "stale").await;
        assert!(stale["stale_since"].as_u64().unwrap() > 0 && !stale["reason"].as_str().unwrap().is_empty(), "{stale}");
        assert_eq!(frontend.metric("dynamo_frontend_plane_stale").await, Some(1.0));
        if wipe {
            place.etcd_server().wipe();
        }
        place.etcd_server().restart();
        // Longer than the worker needs to be in place again.
        let until = Instant::now() + Duration::from_secs(3);
        let mut number = 0;
        while Instant::now() < until {
            number += 1;
            frontend.complete(&completion(&prompt(number, 20))).await;
            assert_eq!(frontend.worker("1").await["state"], "up");
        }
        discovery_state(&frontend, "ok").await;
    }
    assert_eq!(frontend.metric("dynamo_frontend_worker_routable").await, Some(1.0));
}

/// A worker of Dynamo's own whose card names no tokenizer: shown, never chosen, and said why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_model_cannot_be_loaded_is_shown_and_never_chosen() {
    let place = Place::folder();
    let discovery = place.discovery();
    let card = |name: &str| {
        let runtime = json!({"data_parallel_size": 2, "data_parallel_start_rank": 4});
        ModelCard(json!({"display_name": name, "kv_cache_block_size": 16, "runtime_config": runtime}))
    };
    let id = endpoint("dynamo");
    let _endpoint = announce(&discovery, Endpoint::tcp(id.clone(), 7, "127.0.0.1:1")).await;
    let _model = announce(&discovery, Model { id: id.clone(), instance_id: 7, suffix: None, card: card("mock-model") }).await;
    let frontend = place.frontend(&["--router-mode", "kv"]);
    eventually("it is shown with its ranks", async || {
        let worker = frontend.worker("7").await;
        let ranks: Vec<_> = worker["ranks"].as_array().into_iter().flatten().map(|rank| rank["dp_rank"].as_u64()).collect();
        seen(worker["state"] == "unloadable" && ranks == [Some(4), Some(5)] && worker["model"] == "mock-model", worker)
    })
    .await;
    let body = completion(&prompt(1, 40));
    assert_eq!(frontend.get("/v1/models").await.json()["data"], json!([]));
    assert_eq!(frontend.get("/ready").await.status, 503);
    let refused = frontend.post("/v1/completions", &body).await;
    assert_eq!(refused.status, 503, "{}", refused.text());
    let candidate = frontend.candidate("7", &body).await;
    assert!(candidate["excluded"].as_str().unwrap().contains("names no tokenizer"), "{candidate}");
    // An engine that can be sent requests serves the same model beside it.
    let engine = quick().await;
    let _server = announce(&discovery, open_ai_worker("dynamo", 8, &engine.url())).await;
    routable(&frontend, &[8]).await;
    for number in 0..4 {
        assert_eq!(frontend.complete(&completion(&prompt(number, 40))).await.worker(), "8");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_of_other_namespaces_are_not_taken() {
    let place = Place::folder();
    let (one, two, discovery) = (quick().await, quick().await, place.discovery());
    let _one = announce(&discovery, open_ai_worker("prod", 1, &one.url())).await;
    let _two = announce(&discovery, open_ai_worker("test", 2, &two.url())).await;
    let (prod, all) = (place.frontend(&["--namespace", "prod"]), place.frontend(&[]));
    routable(&all, &[1, 2]).await;
    routable(&prod, &[1]).await;
    assert!(prod.worker("2").await.is_null());
}

/// What an operator removes stays out for as long as its record is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_an_operator_removed_comes_back_when_it_registers_anew() {
    let place = Place::folder();
    let (engine, other) = (quick().await, quick().await);
    let discovery = place.discovery();
    let record = announce(&discovery, open_ai_worker("dynamo", 1, &engine.url())).await;
    let frontend = place.frontend(&[]);
    routable(&frontend, &[1]).await;
    assert_eq!(frontend.delete("/workers/1").await.status, 200);
    let _other = announce(&discovery, open_ai_worker("dynamo", 2, &other.url())).await;
    routable(&frontend, &[2]).await;
    eventually("it is gone", async || seen(frontend.worker("1").await.is_null(), ())).await;
    record.withdraw().await;
    eventually("its record is gone", async || {
        let records = frontend.metric("dynamo_frontend_discovery_records").await;
        seen(records == Some(1.0), records)
    })
    .await;
    let _again = announce(&discovery, open_ai_worker("dynamo", 1, &engine.url())).await;
    routable(&frontend, &[1, 2]).await;
}

/// What an operator lists stays the operator's: a record of the same engine waits until it is removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listed_worker_is_not_doubled_by_its_record() {
    let place = Place::folder();
    let (engine, discovery) = (quick().await, place.discovery());
    let listed = simulated::id(&engine);
    let _record = announce(&discovery, open_ai_worker("dynamo", 1, &engine.url())).await;
    let frontend = place.frontend(&["--worker", &engine.url()]);
    eventually("it is up", async || seen(frontend.worker(&listed).await["state"] == "up", ())).await;
    assert!(frontend.worker("1").await.is_null());
    assert_eq!(frontend.delete(&format!("/workers/{listed}")).await.status, 200);
    routable(&frontend, &[1]).await;
}

/// Records that outlived their workers are no reason to wait, neither for requests nor for the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_dead_workers_delay_neither_requests_nor_the_end() {
    const DEAD: u64 = 2_000;
    let place = Place::folder();
    let (engine, discovery) = (quick().await, place.discovery());
    let _live = announce(&discovery, open_ai_worker("dynamo", DEAD, &engine.url())).await;
    // Nothing listens there.
    let gone = |id: u64| Record::from(open_ai_worker("dynamo", id, &format!("http://127.1.{}.{}:1", id / 250, id % 250 + 1)));
    for there_at_the_end in [true, false] {
        let mut frontend = place.frontend(&[]);
        routable(&frontend, &[DEAD]).await;
        let records: Vec<_> = (0..DEAD).map(gone).map(|record| discovery.register(record.key(), record.to_json())).collect();
        answered_until(&frontend, DEAD, DEAD + 1).await;
        if !there_at_the_end {
            drop(records);
            answered_until(&frontend, DEAD, 1).await;
        }
        let asked = Instant::now();
        frontend.terminate();
        // Nothing runs that must be drained.
        eventually("it has ended", async || seen(frontend.ended().is_some(), ())).await;
        assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    }
}

/// Sends requests, which `worker` answers in good time, until so many records are known.
async fn answered_until(frontend: &Frontend, worker: u64, records: u64) {
    let deadline = Instant::now() + PATIENCE;
    for number in 0.. {
        let asked = Instant::now();
        assert_eq!(frontend.complete(&completion(&prompt(number, 20))).await.worker(), worker.to_string());
        assert!(asked.elapsed() < Duration::from_secs(2), "request {number} took {:?}", asked.elapsed());
        let known = frontend.metric("dynamo_frontend_discovery_records").await;
        if known == Some(records as f64) {
            return;
        }
        assert!(Instant::now() < deadline, "{known:?} records are known");
    }
}
