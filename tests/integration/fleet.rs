//! What a worker says of itself: taken over where it is an answer, left where it is none, and no reason to disbelieve its
//! events.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::support::{
    engine::{ScriptedEngine, Setup},
    eventually,
    frontend::Frontend,
    seen,
    simulated::prompt,
};

/// Value to MessagePack, as far as event batches need it.
fn pack(value: &Value, to: &mut Vec<u8>) {
    match value {
        Value::Null => to.push(0xc0),
        Value::Number(number) if number.is_f64() => {
            to.push(0xcb);
            to.extend(number.as_f64().unwrap().to_be_bytes());
        }
        Value::Number(number) => {
            to.push(0xcf);
            to.extend(number.as_u64().unwrap().to_be_bytes());
        }
        Value::String(text) => {
            to.extend([0xd9, text.len() as u8]);
            to.extend(text.bytes());
        }
        Value::Array(items) => {
            to.push(0xdc);
            to.extend((items.len() as u16).to_be_bytes());
            items.iter().for_each(|item| pack(item, to));
        }
        Value::Bool(_) | Value::Object(_) => panic!("{value}"),
    }
}

/// A batch that stores `tokens` in blocks of `size`.
fn stored(sequence: u64, tokens: &[u32], size: usize) -> [Bytes; 3] {
    let hashes: Vec<u64> = (0..tokens.len() / size).map(|block| 1_000 * (sequence + 1) + block as u64).collect();
    let event = json!(["BlockStored", hashes, null, tokens, size, null, "GPU", null]);
    let mut payload = Vec::new();
    pack(&json!([1.5, [event], 0]), &mut payload);
    [Bytes::from_static(b"kv-events"), Bytes::copy_from_slice(&sequence.to_be_bytes()), payload.into()]
}

fn body(tokens: &[u32]) -> Value {
    json!({"model": "tiny", "prompt": tokens, "max_tokens": 1})
}

/// The overlap of these tokens is the number of their blocks, under this block size.
async fn known(frontend: &Frontend, id: &str, tokens: &[u32], size: usize) {
    eventually("its blocks are known", async || {
        let (rank, candidate) = (frontend.rank(id).await, frontend.candidate(id, &body(tokens)).await);
        let holds = rank["block_size"] == size
            && rank["trust"] == "exact"
            && candidate["block_size"] == size
            && candidate["overlap_blocks"] == tokens.len() / size;
        seen(holds, (rank, candidate))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_believed_where_the_engines_metrics_name_another_block_size() {
    let mut engine = ScriptedEngine::start(Setup { block_size: 32, ..Setup::default() }).await;
    let id = engine.address.to_string();
    let frontend = Frontend::start(&["--router-mode", "kv", "--router-predicted-ttl-secs", "0", "--worker", &engine.url()]);
    engine.subscribed().await;
    let tokens = prompt(1, 64);
    engine.publish(&stored(0, &tokens, 16));
    known(&frontend, &id, &tokens, 16).await;
    // Another process with other blocks.
    engine.restart().await;
    engine.subscribed().await;
    engine.publish(&stored(0, &tokens, 8));
    known(&frontend, &id, &tokens, 8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_size_the_operator_states_is_not_overruled_by_events() {
    let engine = ScriptedEngine::start(Setup { block_size: 16, ..Setup::default() }).await;
    let id = engine.address.to_string();
    let worker = format!("{},block-size=32", engine.url());
    let frontend = Frontend::start(&["--router-mode", "kv", "--worker", &worker]);
    engine.subscribed().await;
    engine.publish(&stored(0, &prompt(1, 64), 16));
    eventually("both numbers are named", async || {
        let rank = frontend.rank(&id).await;
        let reason = rank["trust_reason"].as_str().unwrap_or_default();
        seen(rank["trust"] == "blind" && reason.contains("16") && reason.contains("32") && rank["block_size"] == 32, &rank)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_does_not_answer_again_keeps_its_index() {
    let engine = ScriptedEngine::start(Setup { block_size: 16, ..Setup::default() }).await;
    let id = engine.address.to_string();
    let frontend = Frontend::start(&["--router-mode", "kv", "--router-predicted-ttl-secs", "0", "--worker", &engine.url()]);
    engine.subscribed().await;
    let tokens = prompt(1, 64);
    engine.publish(&stored(0, &tokens, 16));
    known(&frontend, &id, &tokens, 16).await;
    for path in ["/metrics", "/kv_event_sources"] {
        engine.reply(path, 500, &Value::Null);
    }
    // It is asked anew when its health comes back.
    engine.reply("/health", 503, &Value::Null);
    eventually("it is out", async || seen(frontend.worker(&id).await["state"] == "failing", ())).await;
    let asked = engine.asked("/metrics");
    engine.reply("/health", 200, &Value::Null);
    eventually("it was asked again", async || seen(engine.asked("/metrics") > asked + 1, ())).await;
    known(&frontend, &id, &tokens, 16).await;
    assert_eq!(frontend.rank(&id).await["messages"], 1, "nothing was asked for again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_tells_no_block_size_is_predicted_all_the_same() {
    let engine = ScriptedEngine::start(Setup::default()).await;
    engine.reply("/metrics", 404, &Value::Null);
    engine.reply("/v1/completions", 200, &json!({"id": "x", "object": "text_completion", "choices": [{"index": 0, "text": "a"}]}));
    let id = engine.address.to_string();
    let frontend = Frontend::start(&["--router-mode", "kv", "--no-router-kv-events", "--worker", &engine.url()]);
    frontend.serves(1, "none").await;
    let tokens = prompt(1, 64);
    frontend.complete(&body(&tokens)).await;
    let candidate = frontend.candidate(&id, &body(&tokens)).await;
    assert_eq!((&candidate["block_size"], &candidate["predicted_blocks"]), (&json!(16), &json!(4)), "{candidate}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_listed_by_another_model_first_reaches_whose_own_it_is() {
    let other = ScriptedEngine::start(Setup { model: "other".to_owned(), block_size: 16, ..Setup::default() }).await;
    let own = ScriptedEngine::start(Setup { block_size: 16, ..Setup::default() }).await;
    let cards = ["other", "tiny"].map(|id| json!({"id": id, "object": "model", "parent": null}));
    other.reply("/v1/models", 200, &json!({"object": "list", "data": cards}));
    let answer = json!({"id": "x", "object": "text_completion", "choices": [{"index": 0, "text": "a"}]});
    for engine in [&other, &own] {
        engine.reply("/v1/completions", 200, &answer);
    }
    let workers = [format!("{},model=other", other.url()), own.url()];
    let options = ["--router-mode", "kv", "--router-predicted-ttl-secs", "0"];
    let frontend = Frontend::start(&[&options[..], &["--worker", &workers[0], "--worker", &workers[1]]].concat());
    eventually("both are candidates", async || {
        let route = frontend.post("/route", &body(&prompt(1, 64))).await.json();
        seen(route["candidates"].as_array().is_some_and(|candidates| candidates.len() == 2), route)
    })
    .await;
    // Each is credited with what it holds, though their indexes have different names.
    for (engine, tokens) in [(&other, prompt(1, 64)), (&own, prompt(2, 64))] {
        engine.subscribed().await;
        engine.publish(&stored(0, &tokens, 16));
        known(&frontend, &engine.address.to_string(), &tokens, 16).await;
        assert_eq!(frontend.complete(&body(&tokens)).await.worker(), engine.address.to_string());
        let pinned = [("x-dynamo-worker-instance-id", &*engine.address.to_string())];
        let answer = frontend.open("/v1/completions", &pinned, &body(&prompt(3, 64))).await.whole().await;
        assert_eq!((answer.status.as_u16(), answer.worker()), (200, &*engine.address.to_string()), "{}", answer.text());
    }
    other.reply("/health", 503, &Value::Null);
    eventually("the other is out", async || seen(frontend.worker(&other.address.to_string()).await["state"] == "failing", ())).await;
    assert_eq!(frontend.complete(&body(&prompt(1, 64))).await.worker(), own.address.to_string());
}
