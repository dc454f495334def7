//! Each router mode does what it says.

use std::collections::BTreeSet;

use mocker::{Config, Handle};
use serde_json::json;

use crate::support::{
    eventually,
    frontend::Frontend,
    http::Open,
    seen,
    simulated::{completion, fleet, id, idle, prompt, start, workers},
};

const PIN: &str = "x-dynamo-worker-instance-id";

async fn frontend(mode: &str, fleet: &[Handle]) -> Frontend {
    let workers = workers(fleet);
    let mut args = vec!["--router-mode", mode];
    args.extend(workers.iter().map(String::as_str));
    let frontend = Frontend::start(&args);
    frontend.serves(fleet.len(), "none").await;
    frontend
}

/// Workers of `count` requests, one after another.
async fn sequence(frontend: &Frontend, count: u32) -> Vec<String> {
    let mut workers = Vec::new();
    for number in 0..count {
        workers.push(frontend.complete(&completion(&prompt(number, 20))).await.worker().to_owned());
    }
    workers
}

/// Four answers that go on and on at the engine, begun before this returns.
async fn load(frontend: &Frontend, engine: &Handle) -> Vec<Open> {
    let mut body = completion(&prompt(99, 40));
    body["stream"] = json!(true);
    body["max_tokens"] = json!(2000);
    let id = id(engine);
    let mut streams = Vec::new();
    for _ in 0..4 {
        let mut stream = frontend.open("/v1/completions", &[(PIN, &id)], &body).await;
        assert_eq!((stream.status.as_u16(), stream.headers["x-dynamo-worker-id"].to_str().unwrap()), (200, id.as_str()));
        assert!(stream.next().await.is_some());
        streams.push(stream);
    }
    streams
}

/// An engine that takes its time with long answers.
async fn unhurried(count: usize) -> Vec<Handle> {
    let mut fleet = Vec::new();
    for _ in 0..count {
        fleet.push(start(Config { decode_tokens_per_s: 100.0, ..Config::default() }).await);
    }
    fleet
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn round_robin_alternates_exactly() {
    let fleet = fleet(3).await;
    let frontend = frontend("round-robin", &fleet).await;
    let workers = sequence(&frontend, 9).await;
    assert_eq!(workers[..3].iter().collect::<BTreeSet<_>>().len(), 3, "{workers:?}");
    assert!(workers.iter().zip(&workers[3..]).all(|(before, after)| before == after), "{workers:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_hits_all_in_no_order() {
    let fleet = fleet(3).await;
    let frontend = frontend("random", &fleet).await;
    let workers = sequence(&frontend, 60).await;
    // One of three is left out once in 10 billion runs, and 60 alternate by chance never.
    assert_eq!(workers.iter().collect::<BTreeSet<_>>().len(), 3, "{workers:?}");
    assert!(workers.iter().zip(&workers[3..]).any(|(before, after)| before != after), "{workers:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn power_of_two_avoids_the_loaded_worker() {
    let fleet = unhurried(3).await;
    let frontend = frontend("power-of-two", &fleet).await;
    let streams = load(&frontend, &fleet[0]).await;
    let workers = sequence(&frontend, 20).await;
    // Of any two that are drawn, one is idle; both idle ones are drawn sooner or later.
    assert!(!workers.contains(&id(&fleet[0])), "{workers:?}");
    assert_eq!(workers.iter().collect::<BTreeSet<_>>().len(), 2, "{workers:?}");
    drop(streams);
    idle(&frontend, &fleet).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn least_loaded_avoids_the_loaded_worker_and_forgets_clients_that_left() {
    let fleet = unhurried(2).await;
    let frontend = frontend("least-loaded", &fleet).await;
    let streams = load(&frontend, &fleet[0]).await;
    assert_eq!(frontend.rank(&id(&fleet[0])).await["active_requests"], 4);
    let workers = sequence(&frontend, 6).await;
    assert!(workers.iter().all(|worker| *worker == id(&fleet[1])), "{workers:?}");
    // The clients leave: the engine stops, and the worker is as good as the other again.
    drop(streams);
    idle(&frontend, &fleet).await;
    assert_eq!(fleet[0].gauges(0).unwrap().running, 0);
    let streams = load(&frontend, &fleet[1]).await;
    let workers = sequence(&frontend, 6).await;
    assert!(workers.iter().all(|worker| *worker == id(&fleet[0])), "{workers:?}");
    drop(streams);
    idle(&frontend, &fleet).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn direct_goes_where_the_header_says() {
    let fleet = fleet(2).await;
    let frontend = frontend("direct", &fleet).await;
    let body = completion(&prompt(1, 20));
    for engine in [&fleet[0], &fleet[1], &fleet[1], &fleet[0]] {
        let id = id(engine);
        let answer = frontend.open("/v1/completions", &[(PIN, &id)], &body).await.whole().await;
        assert_eq!(answer.worker(), id);
    }
    let before: u64 = fleet.iter().map(|engine| engine.counters().requests).sum();
    let refused = frontend.post("/v1/completions", &body).await;
    let error = refused.json()["error"].take();
    assert_eq!((refused.status.as_u16(), &error["param"]), (400, &json!(PIN)), "{error}");
    assert!(error["message"].as_str().unwrap().contains(PIN), "{error}");
    let refused = frontend.open("/v1/completions", &[(PIN, "nobody")], &body).await.whole().await;
    let error = refused.json()["error"].take();
    assert_eq!((refused.status.as_u16(), &error["param"]), (400, &json!(PIN)), "{error}");
    assert!(error["message"].as_str().unwrap().contains("nobody"), "{error}");
    assert_eq!(fleet.iter().map(|engine| engine.counters().requests).sum::<u64>(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_leaves_gets_no_more_requests_and_one_that_comes_does() {
    let fleet = fleet(3).await;
    let frontend = frontend("round-robin", &fleet[..2]).await;
    assert_eq!(sequence(&frontend, 6).await.iter().collect::<BTreeSet<_>>().len(), 2);
    assert_eq!(frontend.delete(&format!("/workers/{}", id(&fleet[0]))).await.status, 200);
    assert!(sequence(&frontend, 4).await.iter().all(|worker| *worker == id(&fleet[1])));
    eventually("it is gone", async || seen(frontend.worker(&id(&fleet[0])).await.is_null(), "still there")).await;
    assert_eq!(frontend.delete(&format!("/workers/{}", id(&fleet[0]))).await.status, 404);
    let added = frontend.post("/workers", &json!({"url": fleet[2].url()})).await;
    assert_eq!(added.status, 201, "{}", added.text());
    assert_eq!(frontend.post("/workers", &json!({"url": fleet[2].url()})).await.status, 409);
    frontend.serves(2, "none").await;
    let workers = sequence(&frontend, 4).await;
    assert_eq!(workers.iter().collect::<BTreeSet<_>>(), [&id(&fleet[1]), &id(&fleet[2])].into_iter().collect());
}
