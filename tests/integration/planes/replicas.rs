//! Frontends that tell each other what they have in flight.

use serde_json::json;

use super::{Place, announce, open_ai_worker};
use crate::support::{
    eventually,
    frontend::Frontend,
    seen,
    simulated::{self, BLOCK, completion, prompt},
};

const SYNC: [&str; 3] = ["--router-mode", "kv", "--router-replica-sync"];

/// Waits until the frontend counts so many requests, prompt blocks and prefill tokens at its worker.
async fn load(frontend: &Frontend, requests: u64, blocks: u64, prefill: bool) {
    eventually(&format!("{requests} requests, {blocks} blocks, prefill {prefill}"), async || {
        let rank = frontend.rank("1").await;
        let right = rank["active_requests"] == requests && rank["decode_blocks"] == blocks;
        seen(right && (rank["prefill_tokens"].as_u64() > Some(0)) == prefill, rank)
    })
    .await;
}

async fn each_books_what_the_other_has_in_flight(place: Place) {
    let slow = mocker::Config { prefill_tokens_per_s: 100.0, decode_tokens_per_s: 20.0, ..mocker::Config::default() };
    let engine = simulated::start(slow).await;
    let _record = announce(&place.discovery(), open_ai_worker("dynamo", 1, &engine.url())).await;
    let (one, other) = (place.frontend(&SYNC), place.frontend(&SYNC));
    for frontend in [&one, &other] {
        eventually("it serves", async || seen(frontend.worker("1").await["state"] == "up", ())).await;
        eventually("it has ranks", async || seen(!frontend.rank("1").await.is_null(), ())).await;
    }
    // Until both follow each other nothing is told: small requests show when they do.
    for (from, to) in [(&one, &other), (&other, &one)] {
        let mut number = 100;
        eventually("one tells the other", async || {
            number += 1;
            from.complete(&completion(&prompt(number, 2))).await;
            let applied = to.metric("dynamo_router_replica_events_applied_total").await;
            seen(applied > Some(0.0), applied)
        })
        .await;
    }
    for frontend in [&one, &other] {
        load(frontend, 0, 0, false).await;
    }
    let mut body = completion(&prompt(1, 6 * BLOCK + 5));
    (body["stream"], body["max_tokens"]) = (json!(true), json!(1000));
    let from_one = one.open("/v1/completions", &[], &body);
    let watched = async {
        load(&other, 1, 6, true).await;
        load(&other, 1, 6, false).await;
    };
    let (from_one, ()) = tokio::join!(from_one, watched);
    // The same prompt from the other side: its blocks are there already.
    let from_other = other.open("/v1/completions", &[], &body).await;
    load(&one, 2, 6, false).await;
    drop(from_one);
    load(&other, 1, 6, false).await;
    drop(from_other);
    for frontend in [&one, &other] {
        load(frontend, 0, 0, false).await;
    }
    // What the one has in flight is gone with it.
    let _left = one.open("/v1/completions", &[], &body).await;
    load(&other, 1, 6, false).await;
    drop(one);
    load(&other, 0, 0, false).await;
    assert_eq!(other.metric("dynamo_router_replica_requests").await, Some(0.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frontends_share_their_load_over_zmq() {
    each_books_what_the_other_has_in_flight(Place::folder()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frontends_share_their_load_over_nats() {
    each_books_what_the_other_has_in_flight(Place::etcd_and_nats()).await;
}
