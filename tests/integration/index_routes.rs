//! `POST /query` and `GET /dump`: what the index knows, for other programs.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::support::{
    frontend::Frontend,
    simulated::{BLOCK, all_applied, completion, fleet, id, kv, prompt},
};

/// What every target of `/query` is said to hold.
async fn overlaps(frontend: &Frontend, body: &Value) -> BTreeMap<String, u64> {
    let answer = frontend.post("/query", body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let json = answer.json();
    assert_eq!(json["block_size"], BLOCK, "{json}");
    let target = |target: &Value| (target["worker_id"].as_str().unwrap().to_owned(), target["overlap_blocks"].as_u64().unwrap());
    json["targets"].as_array().unwrap().iter().map(target).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_tells_what_each_target_holds_and_books_nothing() {
    let fleet = fleet(2).await;
    let frontend = kv(&fleet).await;
    let prompt = prompt(1, 6 * BLOCK + 3);
    let home = frontend.complete(&completion(&prompt)).await.worker().to_owned();
    all_applied(&frontend, &fleet).await;
    let ask = |tokens: &[u32]| json!({"model": "mock-model", "token_ids": tokens});
    for (tokens, blocks) in [(&prompt[..], 6), (&prompt[..2 * BLOCK + 1], 2), (&prompt[1..], 0), (&[], 0)] {
        let overlaps = overlaps(&frontend, &ask(tokens)).await;
        for engine in &fleet {
            assert_eq!(overlaps[&id(engine)], if id(engine) == home { blocks } else { 0 }, "{} tokens: {overlaps:?}", tokens.len());
        }
    }
    // Another key, though the same tokens.
    for (key, value) in [("lora_name", "sql"), ("cache_salt", "a")] {
        let mut body = ask(&prompt);
        body[key] = json!(value);
        assert!(overlaps(&frontend, &body).await.values().all(|blocks| *blocks == 0), "{key}");
    }
    assert_eq!(frontend.rank(&home).await["active_requests"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_cannot_be_right_is_refused() {
    let fleet = fleet(1).await;
    let frontend = kv(&fleet).await;
    for (body, status, named) in [
        (json!({"model": "other", "token_ids": []}), 404, "other"),
        (json!({"token_ids": []}), 400, "model"),
        (json!({"model": "mock-model"}), 400, "token_ids"),
        (json!({"model": "mock-model", "token_ids": [-1]}), 400, "-1"),
        (json!({"model": "mock-model", "token_ids": [4_294_967_296u64]}), 400, "4294967296"),
        (json!({"model": "mock-model", "token_ids": "abc"}), 400, "abc"),
        (json!({"model": "mock-model", "token_ids": [], "lora": "sql"}), 400, "lora"),
        (json!({"model": "mock-model", "token_ids": [], "cache_salt": ""}), 400, "cache_salt"),
        (json!([]), 400, "token_ids"),
    ] {
        let answer = frontend.post("/query", &body).await;
        assert_eq!(answer.status, status, "{body}: {}", answer.text());
        assert!(answer.json()["error"]["message"].as_str().unwrap().contains(named), "{body}: {}", answer.text());
    }
}

/// The index's fingerprint of a set of blocks, as its documentation says.
fn digest(blocks: &BTreeSet<u64>) -> String {
    let mix = |block: &u64| {
        let mut x = *block;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    format!("{:016x}", blocks.iter().map(mix).fold(0, u64::wrapping_add))
}

/// Whoever applies the lines in order holds what each target holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dump_rebuilds_every_target() {
    let fleet = fleet(3).await;
    let frontend = kv(&fleet).await;
    let shared = prompt(0, 20 * BLOCK);
    for number in 1..40 {
        let own = prompt(number, 8 * BLOCK);
        // Some share a beginning, which keeps them together; the others spread.
        let common = if number % 2 == 0 { 0 } else { (number as usize % 20) * BLOCK };
        frontend.complete(&completion(&[&shared[..common], &own[..]].concat())).await;
    }
    all_applied(&frontend, &fleet).await;
    let answer = frontend.get("/dump").await;
    assert_eq!((answer.status.as_u16(), answer.header("content-type")), (200, "application/x-ndjson"));
    let mut held: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    let mut next_ids: BTreeMap<String, u64> = BTreeMap::new();
    for line in answer.text().lines() {
        let event: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(
            (&event["model"], &event["block_size"], &event["storage_tier"]),
            (&json!("mock-model"), &json!(BLOCK), &json!("device"))
        );
        let worker = event["worker"].as_str().unwrap().to_owned();
        let next_id = next_ids.entry(worker.clone()).or_default();
        assert_eq!(event["event"]["event_id"], *next_id, "{line}");
        *next_id += 1;
        let (held, data) = (held.entry(worker).or_default(), &event["event"]["data"]);
        if let Some(stored) = data.get("stored") {
            let parent = stored["parent_hash"].as_u64();
            assert!(parent.is_none_or(|parent| held.contains(&parent)), "a parent after its child: {line}");
            held.extend(stored["blocks"].as_array().unwrap().iter().map(|block| block["block_hash"].as_u64().unwrap()));
        } else {
            for hash in data["removed"]["block_hashes"].as_array().unwrap() {
                assert!(held.remove(&hash.as_u64().unwrap()), "{line}");
            }
        }
    }
    assert!(held.len() > 1, "all went to one worker");
    for engine in &fleet {
        let rank = frontend.rank(&id(engine)).await;
        let held = held.get(&id(engine)).cloned().unwrap_or_default();
        assert_eq!((rank["blocks"].as_u64(), rank["digest"].as_str()), (Some(held.len() as u64), Some(digest(&held).as_str())), "{rank}");
    }
}
