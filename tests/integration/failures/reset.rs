//! A cache reset that passes through: the engines' caches and the router's index are empty at once (rule 5).

use http::StatusCode;
use mocker::{Faults, Freeze};
use serde_json::json;

use super::rig::{Rig, Shape, completion};
use crate::support::{
    eventually, seen,
    simulated::{self, BLOCK, cached_tokens},
};

/// Blocks of the prompts here.
const BLOCKS: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_empties_the_engines_and_the_index_at_once() {
    let rig = Rig::start(2, &[]).await;
    rig.frontend.serves(2, "exact").await;
    let mut prompts = Vec::new();
    for _ in 0..4 {
        prompts.push(rig.favourite().await);
    }
    for round in 0..3 {
        let answer = rig.frontend.post("/reset_prefix_cache", &json!(null)).await;
        assert_eq!(answer.status, StatusCode::OK);
        let answer = answer.json();
        for position in 0..2 {
            assert!(
                answer["workers"].as_array().unwrap().contains(&json!({"id": rig.id(position), "reset": true, "error": null})),
                "{answer}"
            );
        }
        // No waiting: an engine's own event leaves only with its next step.
        for (_, prompt) in &prompts {
            let route = rig.frontend.route(&completion(prompt, Shape::Plain, 1)).await;
            for candidate in route["candidates"].as_array().unwrap() {
                assert_eq!(candidate["overlap_blocks"], 0, "round {round}: {candidate}");
                assert_eq!(candidate["predicted_blocks"], 0, "round {round}: {candidate}");
                let trust = &candidate["trust"];
                assert!(trust == "exact" || trust == "recovering", "until the engine says so itself: {candidate}");
            }
        }
        for engine in &rig.fleet {
            assert_eq!(engine.cached_blocks(0).unwrap().len(), 0);
        }
        // Stores after it count again, on whichever worker.
        for (holder, prompt) in &mut prompts {
            let body = simulated::completion(prompt);
            let first = rig.frontend.complete(&body).await;
            assert_eq!(cached_tokens(&first), 0);
            *holder = rig.position(first.worker());
            eventually("its blocks are known again", async || {
                let candidate = rig.frontend.candidate(&rig.id(*holder), &body).await;
                seen(candidate["overlap_blocks"] == BLOCKS && candidate["trust"] == "exact", candidate)
            })
            .await;
            let second = rig.frontend.complete(&body).await;
            assert_eq!(rig.position(second.worker()), *holder);
            assert_eq!(cached_tokens(&second), ((BLOCKS - 1) * BLOCK) as u64, "rule 3");
        }
    }
    for position in 0..2 {
        let rank = rig.frontend.rank(&rig.id(position)).await;
        assert!(rank["resets"].as_u64().unwrap() >= 3, "{rank}");
        assert_eq!((rank["gaps"].clone(), rank["accuracy"]["over"].clone()), (json!(0), json!(0)), "{rank}");
    }
    rig.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_cannot_be_reset_keeps_its_blocks_and_is_named() {
    let rig = Rig::start(2, &[]).await;
    let (holder, prompt) = rig.favourite().await;
    // An engine refuses while blocks are in use.
    let mut running = rig.open(&prompt, Shape::Stream, 5_000).await;
    running.next().await.unwrap();
    rig.break_worker(1 - holder, Faults { refuse: true, ..Faults::default() });
    let answer = rig.frontend.post("/reset_prefix_cache", &json!(null)).await.json();
    for worker in answer["workers"].as_array().unwrap() {
        assert_eq!(worker["reset"], false, "{answer}");
        let named = if worker["id"] == *rig.id(holder) { "blocks are in use" } else { "connection" };
        assert!(worker["error"].as_str().unwrap().contains(named), "{answer}");
    }
    let candidate = rig.frontend.candidate(&rig.id(holder), &simulated::completion(&prompt)).await;
    assert_eq!(candidate["overlap_blocks"], BLOCKS, "{candidate}");
    drop(running);
    rig.mend();
    rig.routable(2).await;
    rig.idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_worker_does_not_keep_the_others_from_being_reset() {
    let rig = Rig::start(2, &[]).await;
    let (holder, prompt) = rig.favourite().await;
    rig.break_worker(1 - holder, Faults { freeze: Freeze::Process, ..Faults::default() });
    let reset = rig.frontend.post("/reset_prefix_cache", &json!(null));
    let others = async {
        eventually("the other worker is reset meanwhile", async || {
            let candidate = rig.frontend.candidate(&rig.id(holder), &simulated::completion(&prompt)).await;
            seen(candidate["overlap_blocks"] == 0, candidate)
        })
        .await;
        rig.mend();
    };
    let (answer, ()) = tokio::join!(reset, others);
    assert_eq!(answer.status, StatusCode::OK);
    rig.routable(2).await;
    rig.idle().await;
}
