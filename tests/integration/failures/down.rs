//! Workers that are not there: at the start, for a while, or all of them.

use std::time::Duration;

use http::StatusCode;
use mocker::Faults;
use serde_json::{Value, json};

use super::{
    rig::{Rig, Shape, completion, engine, routable, within},
    sse::assert_openai,
};
use crate::support::{
    eventually,
    frontend::Frontend,
    seen,
    simulated::{self, BLOCK},
};

const TOKENS: u32 = 3;

fn refusing() -> Faults {
    Faults { refuse: true, ..Faults::default() }
}

/// `/live` is 200 while the process runs; the others only while a request would be answered.
async fn assert_health(frontend: &Frontend, expected: StatusCode) {
    assert_eq!(frontend.get("/live").await.status, StatusCode::OK);
    for path in ["/health", "/ready"] {
        let answer = frontend.get(path).await;
        assert_eq!(answer.status, expected, "{path}: {}", answer.text());
        assert_eq!(answer.json()["status"] == "ready", expected == StatusCode::OK, "{}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_worker_leaves_the_choice_and_comes_back() {
    let rig = Rig::start(2, &[]).await;
    let (first, prompt) = rig.favourite().await;
    rig.break_worker(first, refusing());
    let body = completion(&prompt, Shape::Plain, TOKENS);
    within(Duration::from_secs(4), "leaving the choice", async {
        eventually("it is out, with the reason", async || {
            let candidate = rig.frontend.candidate(&rig.id(first), &body).await;
            seen(candidate["excluded"].is_string(), candidate)
        })
        .await;
    })
    .await;
    let worker = rig.frontend.worker(&rig.id(first)).await;
    assert_eq!(worker["reason"], "connection refused", "{worker}");
    assert_health(&rig.frontend, StatusCode::OK).await;
    let before = rig.frontend.metric("dynamo_frontend_retries_total").await;
    assert_eq!(rig.ask(&prompt, Shape::Plain, TOKENS).await.answer.worker(), rig.id(1 - first));
    assert_eq!(rig.frontend.metric("dynamo_frontend_retries_total").await, before, "nobody is sent there any more");
    rig.mend();
    rig.routable(2).await;
    let pin = [("x-dynamo-worker-instance-id", &*rig.id(first))];
    let answer = rig.frontend.open("/v1/completions", &pin, &body).await.whole().await;
    assert_eq!(answer.worker(), rig.id(first));
    rig.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_all_workers_down_requests_get_a_503_and_the_frontend_is_not_ready() {
    let rig = Rig::start(2, &[]).await;
    assert_health(&rig.frontend, StatusCode::OK).await;
    for position in 0..2 {
        rig.break_worker(position, refusing());
    }
    rig.routable(0).await;
    assert_health(&rig.frontend, StatusCode::SERVICE_UNAVAILABLE).await;
    for shape in Shape::BOTH {
        let ending = rig.ask(&rig.prompt(), shape, TOKENS).await;
        assert_eq!(ending.answer.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_openai(&ending.answer.json());
        assert_eq!(ending.answer.json()["error"]["type"], "server_error");
    }
    assert_eq!(rig.frontend.get("/v1/models").await.json()["data"], json!([]));
    rig.mend();
    rig.routable(2).await;
    assert_health(&rig.frontend, StatusCode::OK).await;
    assert_eq!(rig.ask(&rig.prompt(), Shape::Plain, TOKENS).await.answer.status, StatusCode::OK);
    rig.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_starts_without_a_worker_and_serves_one_that_is_added() {
    let frontend = Frontend::start(&["--router-mode", "kv"]);
    assert_health(&frontend, StatusCode::SERVICE_UNAVAILABLE).await;
    assert_eq!(frontend.get("/workers").await.json()["workers"], json!([]));
    let body = completion(&simulated::prompt(1, BLOCK), Shape::Plain, TOKENS);
    let answer = frontend.post("/v1/completions", &body).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "a client may try again later: {}", answer.text());
    assert_openai(&answer.json());

    let worker = simulated::start(engine()).await;
    let added = frontend.post("/workers", &json!({"url": worker.url(), "id": "late"})).await;
    assert_eq!(added.status, StatusCode::CREATED, "{}", added.text());
    assert_eq!(added.json()["id"], "late");
    routable(&frontend, 1).await;
    assert_health(&frontend, StatusCode::OK).await;
    assert_eq!(frontend.complete(&body).await.worker(), "late");
    let unknown = frontend.post("/v1/completions", &json!({"model": "nobody", "prompt": "x"})).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND, "once every worker has told what it serves: {}", unknown.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_starts_with_a_worker_down_and_takes_it_up_later() {
    let engines = [simulated::start(engine()).await, simulated::start(engine()).await];
    engines[0].set_faults(|faults| faults.refuse = true);
    eventually("the port is closed", async || match tokio::net::TcpStream::connect(engines[0].address()).await {
        Ok(_) => Err("it accepts".to_owned()),
        Err(_) => Ok(()),
    })
    .await;
    let workers = simulated::workers(&engines);
    let frontend = Frontend::start(&workers.iter().map(String::as_str).collect::<Vec<_>>());
    routable(&frontend, 1).await;
    assert_health(&frontend, StatusCode::OK).await;
    let body = completion(&simulated::prompt(1, BLOCK), Shape::Plain, TOKENS);
    for _ in 0..3 {
        assert_eq!(frontend.complete(&body).await.worker(), simulated::id(&engines[1]));
    }
    assert_eq!(frontend.metric("dynamo_frontend_retries_total").await, None, "it is never tried");
    let down = frontend.worker(&simulated::id(&engines[0])).await;
    assert_ne!(down["state"], "up", "{down}");
    assert_eq!(down["model"], Value::Null, "{down}");
    engines[0].set_faults(|faults| faults.refuse = false);
    routable(&frontend, 2).await;
    let mut seen_workers = Vec::new();
    for _ in 0..2 {
        seen_workers.push(frontend.complete(&body).await.worker().to_owned());
    }
    assert!(seen_workers.contains(&simulated::id(&engines[0])), "{seen_workers:?}");
}
