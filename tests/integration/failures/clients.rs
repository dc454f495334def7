//! A client that leaves: the engine's work ends at once, whatever the answer's shape and wherever it stands.

use std::time::Duration;

use mocker::{Config, Faults, Freeze};

use super::rig::{Rig, Shape, completion, counted, engine, within};
use crate::support::{eventually, http, seen};

/// How soon the engine's work must have ended.
const AT_ONCE: Duration = Duration::from_secs(1);
const LEFT: &str = "dynamo_frontend_disconnected_clients_total";

/// Longer than any of these tests.
const TOKENS: u32 = 5_000;

/// Waits until the work of the request is booked everywhere.
async fn at_work(rig: &Rig) {
    eventually("the request is at work", async || seen(rig.running(0) == 1, rig.running(0))).await;
    assert_eq!(rig.frontend.metric("dynamo_frontend_inflight_requests").await, Some(1.0));
    let rank = rig.frontend.rank(&rig.id(0)).await;
    assert_eq!(rank["active_requests"], 1, "{rank}");
    assert_ne!(rank["decode_blocks"], 0, "{rank}");
}

/// The engine stops at once, the client is counted, and nothing is left booked.
async fn is_over(rig: &Rig, left: f64) {
    within(AT_ONCE, "ending the engine's work", async {
        eventually("the engine has nothing to do", async || rig.engines_idle()).await;
    })
    .await;
    rig.idle().await;
    counted(&rig.frontend, LEFT, left - 0.5).await;
    let state = rig.frontend.worker(&rig.id(0)).await["state"].clone();
    assert_eq!(state, "up", "a client that leaves is not the worker's failure");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_in_the_middle_of_a_stream_ends_the_engines_work() {
    let rig = Rig::start(1, &[]).await;
    for round in 1..=3 {
        let mut stream = rig.open(&rig.prompt(), Shape::Stream, TOKENS).await;
        stream.next().await.unwrap();
        at_work(&rig).await;
        assert_eq!(rig.frontend.rank(&rig.id(0)).await["prefill_tokens"], 0, "the first event has come");
        drop(stream);
        is_over(&rig, f64::from(round)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_before_the_first_byte_ends_the_engines_work() {
    let slow = Config { prefill_tokens_per_s: 10.0, ..engine() };
    let rig = Rig::of(1, &[], slow).await;
    for (round, shape) in (1..).zip(Shape::BOTH) {
        let (address, body) = (rig.frontend.address, completion(&rig.prompt(), shape, TOKENS));
        let waiting = tokio::spawn(async move { http::open(address, "POST", "/v1/completions", &[], &body).await });
        at_work(&rig).await;
        waiting.abort();
        assert!(waiting.await.is_err_and(|error| error.is_cancelled()));
        is_over(&rig, f64::from(round)).await;
    }
    let page = rig.frontend.get("/metrics").await.text();
    for shape in ["unary", "stream"] {
        assert!(page.contains(&format!(r#"request_type="{shape}",status="client_left"}} 1"#)), "{page}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_a_frozen_worker_is_not_waited_for() {
    let rig = Rig::start(1, &[]).await;
    let mut stream = rig.open(&rig.prompt(), Shape::Stream, TOKENS).await;
    stream.next().await.unwrap();
    rig.break_worker(0, Faults { freeze: Freeze::Engine, ..Faults::default() });
    drop(stream);
    eventually("nothing is in flight", async || {
        let inflight = rig.frontend.metric("dynamo_frontend_inflight_requests").await;
        seen(inflight == Some(0.0), inflight)
    })
    .await;
    rig.mend();
    is_over(&rig, 1.0).await;
}
