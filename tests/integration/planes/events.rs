//! What publishers tell reaches the index of every frontend, whatever fails on the way, and requests go where their prefix is.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use transport::discovery::{Backend, MemStore};
use wire::discovery::{EndpointId, Model, ModelCard};
use worker::{KvEventPublisher, KvPublisherOptions, Load, LoadPublisher, Runtime, RuntimeConfig};

use super::{
    Place, announce,
    lossy::Wire,
    publishing::{END_WITHIN, Publishing, runtime},
};
use crate::support::{
    eventually,
    frontend::Frontend,
    seen,
    simulated::{BLOCK, completion, prompt},
};

/// In kv mode, by events alone.
const KV: [&str; 4] = ["--router-mode", "kv", "--router-predicted-ttl-secs", "0"];

async fn prompts_go_where_they_are_held(place: Place) {
    let (one, two) = (Publishing::start(&place).await, Publishing::start(&place).await);
    let frontends = [place.frontend(&KV), place.frontend(&KV)];
    for number in 0..8 {
        let holder = if number % 2 == 0 { &one } else { &two };
        holder.store(&prompt(number, 6 * BLOCK));
    }
    for frontend in &frontends {
        frontend.serves(2, "exact").await;
        one.equals(frontend).await;
        two.equals(frontend).await;
        for number in 0..8 {
            let holder = if number % 2 == 0 { &one } else { &two };
            let answer = frontend.complete(&completion(&prompt(number, 6 * BLOCK))).await;
            assert_eq!((answer.worker(), answer.header("x-dynamo-overlap-blocks")), (&*holder.id(), "6"), "{number}");
        }
    }
    // What is removed is removed; what is held twice, as after the first answer, is not.
    one.store(&prompt(0, 6 * BLOCK));
    one.remove(&prompt(0, 6 * BLOCK), 4);
    one.remove(&prompt(2, 6 * BLOCK), 4);
    one.publisher.flush().await.unwrap();
    for frontend in &frontends {
        one.equals(frontend).await;
        for (number, blocks) in [(0, 6), (2, 4)] {
            let candidate = frontend.candidate(&one.id(), &completion(&prompt(number, 6 * BLOCK))).await;
            assert_eq!(candidate["overlap_blocks"], blocks, "{number}: {candidate}");
        }
    }
    let digests = [digest(&frontends[0], &one).await, digest(&frontends[1], &one).await];
    assert_eq!(digests[0], digests[1]);
}

async fn digest(frontend: &Frontend, of: &Publishing) -> String {
    frontend.rank(&of.id()).await["digest"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompts_go_where_they_are_held_over_zmq() {
    prompts_go_where_they_are_held(Place::folder()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompts_go_where_they_are_held_over_nats() {
    prompts_go_where_they_are_held(Place::etcd_and_nats()).await;
}

async fn a_frontend_that_starts_late_knows_all(place: Place) {
    let worker = Publishing::start(&place).await;
    for number in 0..500 {
        worker.store(&prompt(number, 10 * BLOCK));
    }
    worker.publisher.flush().await.unwrap();
    for _ in 0..2 {
        // The second is the first, started again.
        let frontend = place.frontend(&KV);
        eventually("it is ready", async || {
            let ready = frontend.get("/ready").await;
            seen(ready.status == 200, ready.text())
        })
        .await;
        assert_eq!(frontend.rank(&worker.id()).await["trust"], "exact");
        worker.equals(&frontend).await;
        worker.store(&prompt(1000, 3 * BLOCK));
        worker.equals(&frontend).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frontend_that_starts_late_knows_all_over_zmq() {
    a_frontend_that_starts_late_knows_all(Place::folder()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frontend_that_starts_late_knows_all_over_nats() {
    a_frontend_that_starts_late_knows_all(Place::etcd_and_nats()).await;
}

/// Requests for `time`, and what is published meanwhile.
async fn serve_for(time: Duration, frontend: &Frontend, worker: &Publishing) {
    let until = Instant::now() + time;
    let mut number = 10_000;
    while Instant::now() < until {
        number += 1;
        worker.store(&prompt(number, 5 * BLOCK));
        frontend.complete(&completion(&prompt(number, 20))).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Neither server is a lifeline: requests go on without them, and afterwards nothing is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_are_away_cost_no_request_and_no_block() {
    let mut place = Place::etcd_and_nats();
    let worker = Publishing::start(&place).await;
    let frontends = [place.frontend(&KV), place.frontend(&KV)];
    for frontend in &frontends {
        frontend.serves(1, "exact").await;
    }
    place.nats_server().kill();
    stale(&frontends[0], "nats").await;
    serve_for(Duration::from_secs(2), &frontends[0], &worker).await;
    place.nats_server().restart();
    for frontend in &frontends {
        worker.equals(frontend).await;
        let health = frontend.get("/health").await.json();
        assert_eq!((&health["planes"]["nats"]["state"], &health["planes"]["discovery"]["state"]), (&json!("ok"), &json!("ok")), "{health}");
    }
    for wipe in [false, true] {
        place.etcd_server().kill();
        stale(&frontends[0], "discovery").await;
        serve_for(Duration::from_secs(1), &frontends[0], &worker).await;
        worker.equals(&frontends[0]).await;
        if wipe {
            place.etcd_server().wipe();
        }
        place.etcd_server().restart();
        serve_for(Duration::from_secs(3), &frontends[0], &worker).await;
        for frontend in &frontends {
            worker.equals(frontend).await;
        }
    }
    // No dump more than the one at the start, and what NATS lost was asked for, not dumped.
    let asked = frontends[0].metric("dynamo_router_kv_replay_requests_total").await;
    assert!(asked.is_some_and(|asked| asked <= 12.0), "{asked:?}");
}

async fn stale(frontend: &Frontend, plane: &str) {
    eventually(&format!("{plane} is stale"), async || {
        let health = frontend.get("/health").await.json();
        let shown = &health["planes"][plane];
        seen(shown["state"] == "stale" && shown["stale_since"].as_u64() > Some(0) && shown["reason"] != "", &health)
    })
    .await;
}

/// A wire that loses and doubles messages for a while: afterwards nothing is missing, what was lost was asked for, and nobody
/// asked for everything again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lossy_minute_is_made_up_for_and_is_no_storm_of_dumps() {
    let (place, store) = (Place::folder(), MemStore::new());
    let wire = Wire::between(&store, place.discovery());
    let runtime = Runtime::start(RuntimeConfig::local(Backend::Mem(store.clone()))).await.unwrap();
    let worker = Publishing::on(runtime, true).await;
    for number in 0..2000 {
        worker.store(&prompt(number, 10 * BLOCK));
    }
    let frontends = [place.frontend(&KV), place.frontend(&KV)];
    for frontend in &frontends {
        worker.equals(frontend).await;
    }
    wire.set(5, 5);
    let (until, mut number) = (Instant::now() + Duration::from_secs(5), 2000);
    while Instant::now() < until {
        for _ in 0..20 {
            number += 1;
            worker.store(&prompt(number, 4 * BLOCK));
            worker.remove(&prompt(number - 1000, 4 * BLOCK), 2);
        }
        // Requests are served meanwhile; what they are told may lag behind.
        frontends[0].complete(&completion(&prompt(number, 20))).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    wire.set(0, 0);
    let since = Instant::now();
    for frontend in &frontends {
        worker.equals(frontend).await;
    }
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
    assert!(wire.faults.lost.load(Ordering::Relaxed) > 20);
    for frontend in &frontends {
        let rank = frontend.rank(&worker.id()).await;
        assert!(rank["gaps"].as_u64() > Some(0) && rank["duplicates"].as_u64() > Some(0), "{rank}");
        // One query a second at most, and the one at the start is the only dump: the ring holds the rest.
        let asked = frontend.metric("dynamo_router_kv_replay_requests_total").await.unwrap();
        let dumps = frontend.metric("dynamo_router_kv_gaps_rebuilt_total").await.unwrap();
        assert!(asked <= 20.0 && dumps <= 1.0, "{asked} queries, {dumps} dumps: {rank}");
    }
}

/// A sidecar that is started anew beside the running one: the index is served from one of them at every moment.
async fn an_update_of_the_publisher_loses_nothing(place: Place) {
    let mut worker = Publishing::start(&place).await;
    let frontend = place.frontend(&KV);
    let prompts: Vec<Vec<u32>> = (0..20).map(|number| prompt(number, 6 * BLOCK)).collect();
    prompts.iter().for_each(|prompt| worker.store(prompt));
    worker.equals(&frontend).await;
    let all: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    let older = worker.update(&all).await;
    let body = completion(&prompts[7]);
    let newer = worker.publisher.publisher_id().to_string();
    let overlap = async || frontend.candidate(&worker.id(), &body).await["overlap_blocks"].clone();
    eventually("both publishers are known", async || {
        assert_eq!(overlap().await, 6);
        let rank = frontend.rank(&worker.id()).await;
        let known = rank["publishers"].as_array().unwrap().iter().filter(|publisher| publisher["published"] == true);
        seen(known.count() == 2, rank)
    })
    .await;
    older.shutdown(END_WITHIN).await;
    eventually("the newer one is left", async || {
        assert_eq!(overlap().await, 6);
        let rank = frontend.rank(&worker.id()).await;
        seen(rank["publishers"].as_array().unwrap().len() == 1 && rank["publishers"][0]["publisher_id"] == *newer, rank)
    })
    .await;
    assert_eq!(overlap().await, 6);
    worker.store(&prompt(100, 4 * BLOCK));
    worker.equals(&frontend).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_of_the_publisher_loses_nothing_over_zmq() {
    an_update_of_the_publisher_loses_nothing(Place::folder()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_of_the_publisher_loses_nothing_over_nats() {
    an_update_of_the_publisher_loses_nothing(Place::etcd_and_nats()).await;
}

/// A publisher that cannot be asked: what was before is not known, what comes is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_only_publisher_that_is_found_late_is_degraded() {
    let place = Place::folder();
    let worker = Publishing::of(&place, false).await;
    worker.store(&prompt(1, 4 * BLOCK));
    worker.publisher.flush().await.unwrap();
    let frontend = place.frontend(&KV);
    eventually("it serves", async || seen(frontend.worker(&worker.id()).await["state"] == "up", ())).await;
    let mut number = 1;
    eventually("live events count", async || {
        number += 1;
        worker.store(&prompt(number, 4 * BLOCK));
        let rank = frontend.rank(&worker.id()).await;
        seen(rank["trust"] == "degraded" && rank["blocks"].as_u64() >= Some(4), rank)
    })
    .await;
    assert_eq!(frontend.rank(&worker.id()).await["publishers"][0]["recoverable"], false);
}

/// A worker of Dynamo's own kind gets no requests; its index is exact all the same, and others can ask for it.
async fn the_index_of_a_worker_of_tokens_is_kept(place: Place) {
    let runtime = runtime(&place).await;
    let id = EndpointId::new("dynamo", "backend", "generate");
    let card = ModelCard(json!({"display_name": "tiny", "kv_cache_block_size": BLOCK}));
    let instance_id = runtime.instance_id();
    let _endpoint = announce(runtime.discovery(), wire::discovery::Endpoint::tcp(id.clone(), instance_id, "127.0.0.1:1")).await;
    let _model = announce(runtime.discovery(), Model { id, instance_id, suffix: None, card }).await;
    let endpoint = runtime.component("backend").endpoint("generate");
    let options = KvPublisherOptions { enable_local_indexer: true, ..KvPublisherOptions::new(BLOCK as u32) };
    let publisher = KvEventPublisher::new(endpoint.clone(), options).await.unwrap();
    let loads = LoadPublisher::new(endpoint, None).await.unwrap();
    let tokens = prompt(1, 5 * BLOCK);
    publisher
        .publish_stored(worker::StoredCall {
            token_ids: tokens.clone(),
            num_block_tokens: vec![BLOCK as u32; 5],
            block_hashes: vec![11, 12, 13, 14, 15],
            ..worker::StoredCall::default()
        })
        .unwrap();
    loads.update(0, Load { kv_used_blocks: Some(5), ..Load::default() });
    let frontend = place.frontend(&KV);
    let id = instance_id.to_string();
    eventually("its index is exact", async || {
        let rank = frontend.rank(&id).await;
        seen(rank["trust"] == "exact" && rank["blocks"] == 5, rank)
    })
    .await;
    let overlap = frontend.post("/query", &json!({"model": "tiny", "token_ids": tokens})).await.json();
    assert_eq!(overlap["targets"], json!([{"worker_id": id, "dp_rank": 0, "block_size": BLOCK, "overlap_blocks": 5}]));
    let dump = frontend.get("/dump").await.text();
    let event: Value = serde_json::from_str(dump.lines().next().unwrap()).unwrap();
    assert_eq!((&event["worker_id"], event["event"]["data"]["stored"]["blocks"].as_array().unwrap().len()), (&json!(instance_id), 5));
    assert_eq!(frontend.post("/v1/completions", &json!({"model": "tiny", "prompt": tokens})).await.status, 503);
    eventually("its load is shown", async || {
        let rank = frontend.rank(&id).await;
        seen(rank["reported_load"]["kv_used_blocks"] == 5, rank)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_index_of_a_worker_of_tokens_is_kept_over_zmq() {
    the_index_of_a_worker_of_tokens_is_kept(Place::folder()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_index_of_a_worker_of_tokens_is_kept_over_nats() {
    the_index_of_a_worker_of_tokens_is_kept(Place::etcd_and_nats()).await;
}

/// The 95th percentile of how long requests take while `until` is not done.
async fn p95(frontend: &Frontend, mut until: impl AsyncFnMut() -> bool) -> Duration {
    let (mut took, mut number) = (Vec::new(), 50_000);
    while !until().await {
        number += 1;
        let since = Instant::now();
        frontend.complete(&completion(&prompt(number % 7, 40 * BLOCK))).await;
        took.push(since.elapsed());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    took.sort();
    took[took.len() * 95 / 100]
}

/// A worker with a large cache is found while requests are served: it is shown recovering, requests go on at their pace, and
/// in the end all of it is known, to a frontend that was there and to one that comes later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_cache_is_recovered_beside_requests() {
    let place = Place::folder();
    let small = Publishing::start(&place).await;
    let frontend = place.frontend(&KV);
    frontend.serves(1, "exact").await;
    // A process that is not announced yet.
    let hidden = MemStore::new();
    let large = Publishing::on(Runtime::start(RuntimeConfig::local(Backend::Mem(hidden.clone()))).await.unwrap(), true).await;
    for number in 0..LARGE_PROMPTS {
        large.store(&prompt(1_000_000 + number, 100 * BLOCK));
        if number % 100 == 0 {
            large.publisher.flush().await.unwrap();
        }
    }
    large.publisher.flush().await.unwrap();
    let mut looks = 0;
    let quiet = p95(&frontend, async || {
        looks += 1;
        looks > 300
    })
    .await;
    let _wire = Wire::between(&hidden, place.discovery());
    let (mut recovering, since) = (false, Instant::now());
    let busy = p95(&frontend, async || {
        let rank = frontend.rank(&large.id()).await;
        recovering |= rank["trust"] == "recovering";
        rank["trust"] == "exact" && rank["blocks"] == LARGE_PROMPTS * 100
    })
    .await;
    println!("p95 quiet {quiet:?}, while {LARGE_PROMPTS}00 blocks are recovered {busy:?}; recovered in {:?}", since.elapsed());
    assert!(recovering);
    // And what a busy machine adds to either.
    assert!(busy <= 2 * quiet + Duration::from_millis(20), "{quiet:?} {busy:?}");
    large.equals(&frontend).await;
    small.equals(&frontend).await;
    let late = place.frontend(&KV);
    large.equals(&late).await;
}

/// Prompts of a hundred blocks each.
const LARGE_PROMPTS: u32 = 3_000;
