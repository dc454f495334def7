//! A worker that accepts and says nothing. Slow is not dead: it keeps its place, and each wait has an end.

use std::time::{Duration, Instant};

use http::StatusCode;
use mocker::{Faults, Freeze};

use super::{
    rig::{Rig, Shape, within},
    sse::{assert_finished, assert_openai},
};
use crate::support::{eventually, seen};

/// The first-byte time-out of these tests, in seconds.
const FIRST_BYTE: &str = "0.5";
const TOKENS: u32 = 3;

fn frozen(freeze: Freeze) -> Faults {
    Faults { freeze, ..Faults::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_worker_gets_a_504_after_the_first_byte_time_out_and_keeps_its_place() {
    let rig = Rig::start(2, &["--engine-first-byte-timeout-secs", FIRST_BYTE]).await;
    for freeze in [Freeze::Engine, Freeze::Process] {
        for shape in Shape::BOTH {
            let (first, prompt) = rig.favourite().await;
            let other = rig.requests()[1 - first];
            rig.break_worker(first, frozen(freeze));
            let asked = Instant::now();
            let ending = within(Duration::from_secs(5), "the time-out", rig.ask(&prompt, shape, TOKENS)).await;
            assert!(asked.elapsed() >= Duration::from_millis(500), "{:?}", asked.elapsed());
            assert_eq!(ending.answer.status, StatusCode::GATEWAY_TIMEOUT, "{}", ending.answer.text());
            assert_openai(&ending.answer.json());
            assert_eq!(rig.requests()[1 - first], other, "the time for the request has passed: it is not sent elsewhere");
            let state = rig.frontend.worker(&rig.id(first)).await["state"].clone();
            assert!(state == "up" || state == "suspect", "slow is not dead: {state}");
            rig.mend();
            let ending = rig.ask(&prompt, shape, TOKENS).await;
            assert_eq!(ending.answer.worker(), rig.id(first));
            rig.idle().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_health_is_no_death_and_cuts_nothing() {
    let rig = Rig::start(1, &[]).await;
    let prompt = rig.prompt();
    let mut stream = rig.open(&prompt, Shape::Stream, 900).await;
    stream.next().await.unwrap();
    rig.break_worker(0, Faults { health_latency_ms: 60_000, ..Faults::default() });
    // The probe gives up after 5 s; the stream goes on beside it and for longer.
    let ending = stream.ending().await;
    assert!(ending.whole && ending.answer.text().ends_with("data: [DONE]\n\n"));
    assert_finished(&rig.ask(&prompt, Shape::Stream, TOKENS).await, TOKENS);
    eventually("its health is found slow once nothing else comes", async || {
        let state = rig.frontend.worker(&rig.id(0)).await["state"].clone();
        seen(state == "suspect", state)
    })
    .await;
    assert_eq!(rig.frontend.get("/ready").await.status, StatusCode::OK);
    assert_finished(&rig.ask(&prompt, Shape::Stream, TOKENS).await, TOKENS);
    rig.mend();
    eventually("its health is good again", async || {
        let state = rig.frontend.worker(&rig.id(0)).await["state"].clone();
        seen(state == "up", state)
    })
    .await;
    rig.idle().await;
}
