//! What the frontend predicts against what simulated engines then report, over many requests: shared prefixes, turns,
//! adapters, salts, prompts of whole blocks, and caches that are too small.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
};

use mocker::{Config, Generation};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use crate::support::{
    eventually,
    frontend::Frontend,
    seen,
    simulated::{BLOCK, all_applied, cached_tokens, completion, id, kv, prompt, start},
};

/// Small enough that the requests below evict each other all the time.
fn cramped() -> Config {
    Config { adapters: vec!["sql".to_owned()], blocks: 40, max_model_len: 24 * BLOCK as u32, speedup: 0.0, ..Config::default() }
}

/// A request of one of a few families, whose members share a prefix.
fn any_body(rng: &mut StdRng) -> Value {
    let shared = prompt(rng.random_range(0..6), 12 * BLOCK);
    let kept = rng.random_range(1..=12) * BLOCK;
    let rest = match rng.random_range(0..3) {
        0 => Vec::new(),
        1 => prompt(rng.random(), rng.random_range(1..4 * BLOCK)),
        _ => prompt(rng.random_range(0..3), 3 * BLOCK),
    };
    let mut body = completion(&[&shared[..kept], &rest[..]].concat());
    body["max_tokens"] = json!(rng.random_range(1..40));
    if rng.random_bool(0.2) {
        body["model"] = json!("sql");
    }
    if rng.random_bool(0.2) {
        body["cache_salt"] = json!("tenant");
    }
    body
}

/// Rule 3: what an answer's header says was held, in usable tokens.
fn predicted(overlap_blocks: &str, body: &Value) -> u64 {
    let tokens = body["prompt"].as_array().unwrap().len();
    let overlap: usize = overlap_blocks.parse().unwrap();
    (BLOCK * overlap.min((tokens - 1) / BLOCK)) as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_after_another_every_prediction_is_what_the_engine_had() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let fleet = [start(cramped()).await, start(cramped()).await];
    let frontend = kv(&fleet).await;
    let mut hits = 0;
    let mut answers: BTreeMap<String, u32> = BTreeMap::new();
    for number in 0..150 {
        let body = any_body(&mut rng);
        let answer = frontend.complete(&body).await;
        let predicted = predicted(answer.header("x-dynamo-overlap-blocks"), &body);
        assert_eq!(predicted, cached_tokens(&answer), "request {number} of seed {seed}: {body}");
        hits += u32::from(predicted > 0);
        *answers.entry(answer.worker().to_owned()).or_default() += 1;
        all_applied(&frontend, &fleet).await;
    }
    assert!(hits > 30, "{hits} hits");
    for engine in &fleet {
        let totals = engine.totals(0).unwrap();
        assert!(totals.prompt_tokens - totals.cached_tokens > 2 * 40 * BLOCK as u64, "nothing was evicted: {totals:?}");
        // The frontend has compared each answer itself, and its blocks are the engine's own.
        let held = engine.cached_blocks(0).unwrap().len();
        let compared = json!({"observations": answers[&id(engine)], "equal": answers[&id(engine)], "over": 0, "under": 0});
        eventually(&format!("{held} blocks and {compared}"), async || {
            let rank = frontend.rank(&id(engine)).await;
            seen(rank["blocks"] == held && rank["accuracy"] == compared, &rank)
        })
        .await;
    }
}

/// While events are on their way a prediction may be too low; nothing here is evicted, so it is never too high.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_once_no_prediction_is_above_what_the_engine_had() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let roomy = || start(Config { blocks: 20_000, ..cramped() });
    let fleet = [roomy().await, roomy().await];
    let frontend = kv(&fleet).await;
    let one = async |frontend: &Frontend, seed: u64| {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut hits = 0;
        for _ in 0..30 {
            let body = any_body(&mut rng);
            let answer = frontend.complete(&body).await;
            let predicted = predicted(answer.header("x-dynamo-overlap-blocks"), &body);
            assert!(predicted <= cached_tokens(&answer), "{predicted} is too high: {body}: {}", answer.text());
            hits += u32::from(predicted > 0);
        }
        hits
    };
    let clients = (0..8).map(|client| one(&frontend, seed.wrapping_add(client)));
    let hits: u32 = futures_util::future::join_all(clients).await.into_iter().sum();
    assert!(hits > 20, "{hits} hits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_generation_of_engines_is_heard() {
    for generation in Generation::ALL {
        let block_size = NonZeroU32::new(32).unwrap();
        let fleet = [start(Config { generation, block_size, speedup: 0.0, ..Config::default() }).await];
        let frontend = kv(&fleet).await;
        let body = completion(&prompt(1, 3 * 32 + 1));
        frontend.complete(&body).await;
        all_applied(&frontend, &fleet).await;
        let second = frontend.complete(&body).await;
        assert_eq!((second.header("x-dynamo-overlap-blocks"), cached_tokens(&second)), ("3", 96), "{generation:?}");
    }
}

/// Data-parallel ranks have caches of their own; the choice of one reaches the engine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_rank_is_a_target_of_its_own() {
    let fleet = [start(Config { ranks: 3, speedup: 0.0, ..Config::default() }).await];
    let frontend = kv(&fleet).await;
    let mut used = BTreeSet::new();
    for number in 0..9 {
        let body = completion(&prompt(number, 4 * BLOCK + 1));
        let first = frontend.complete(&body).await;
        let rank = first.header("x-dynamo-dp-rank").to_owned();
        eventually("its rank holds it", async || {
            let route = frontend.route(&body).await;
            let holders: Vec<_> = route["candidates"].as_array().unwrap().iter().filter(|held| held["overlap_blocks"] == 4).collect();
            seen(holders.len() == 1 && holders[0]["dp_rank"].as_u64() == rank.parse().ok(), &route)
        })
        .await;
        let second = frontend.complete(&body).await;
        assert_eq!((second.header("x-dynamo-dp-rank"), cached_tokens(&second)), (rank.as_str(), 4 * BLOCK as u64));
        used.insert(rank);
    }
    assert!(used.len() > 1, "{used:?}");
}
