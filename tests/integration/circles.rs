//! Workers that are frontends: chains are served, circles are refused and cost nothing.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::support::{
    eventually,
    frontend::Frontend,
    seen,
    simulated::{completion, fleet, id, prompt, quick},
};

/// So that every worker that may get requests gets some.
const MODE: [&str; 2] = ["--router-mode", "round-robin"];

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

fn frontend(worker: &str) -> Frontend {
    Frontend::start(&[MODE[0], MODE[1], "--worker", worker])
}

async fn lists(frontend: &Frontend, worker: SocketAddr) {
    let added = frontend.post("/workers", &json!({"url": url(worker), "model": "mock-model"})).await;
    assert!(added.status.is_success(), "{}", added.text());
}

async fn is_excluded(frontend: &Frontend, worker: &str, reason: &str) {
    eventually("the worker is known to lead back", async || {
        let shown = frontend.worker(worker).await;
        seen(shown["state"] == "loop" && shown["reason"] == reason, shown)
    })
    .await;
}

/// Enough that each worker has its turn.
async fn all_are_answered(frontend: &Frontend) {
    for number in 0..8 {
        frontend.complete(&completion(&prompt(number, 20))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frontend_that_lists_itself_is_no_worker() {
    let engine = quick().await;
    let frontend = frontend(&engine.url());
    frontend.serves(1, "none").await;
    lists(&frontend, frontend.address).await;
    is_excluded(&frontend, &frontend.address.to_string(), "worker is this frontend itself").await;
    all_are_answered(&frontend).await;
    let pinned = [("x-dynamo-worker-instance-id", &*frontend.address.to_string())];
    let refused = frontend.open("/v1/completions", &pinned, &completion(&prompt(1, 20))).await.whole().await;
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(frontend.log().contains("worker is this frontend itself"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_of_frontends_is_served_and_broken_where_it_becomes_a_circle() {
    let engine = quick().await;
    let one = frontend(&engine.url());
    one.serves(1, "none").await;
    let other = frontend(&url(one.address));
    other.serves(1, "none").await;
    all_are_answered(&other).await;
    lists(&one, other.address).await;
    eventually("both are workers of the other", async || {
        let shown = one.worker(&other.address.to_string()).await;
        seen(shown["state"] == "up" || shown["state"] == "loop", shown)
    })
    .await;
    all_are_answered(&one).await;
    is_excluded(&one, &other.address.to_string(), "worker is a frontend that sends requests back to this one").await;
    // The other one's way to the engine goes on.
    all_are_answered(&other).await;
    assert_eq!(other.worker(&one.address.to_string()).await["state"], "up");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_has_passed_too_many_frontends_is_refused() {
    let engines = fleet(1).await;
    let frontend = frontend(&engines[0].url());
    frontend.serves(1, "none").await;
    let body = completion(&prompt(1, 20));
    for (passed, status) in [("a, b, c, d", 200), ("a, b, c, d, e", 508)] {
        let answer = frontend.open("/v1/completions", &[("x-dynamo-via", passed)], &body).await.whole().await;
        assert_eq!(answer.status, status, "{}", answer.text());
        if status == 508 {
            let error: &Value = &answer.json()["error"];
            assert_eq!(error["code"], "loop_detected", "{error}");
        } else {
            assert_eq!(answer.worker(), id(&engines[0]));
        }
    }
}
