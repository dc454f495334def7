//! Rules 4 and 13: requests that make an engine's events ambiguous cost their rank its trust, whatever the engine then says.

use mocker::{Config, Generation, Handle};
use serde_json::{Value, json};

use crate::support::{
    eventually,
    frontend::Frontend,
    seen,
    simulated::{BLOCK, applied, cached_tokens, completion, id, prompt, start},
};

/// An engine of a generation with an adapter, alone behind a frontend that does not predict.
async fn rig(generation: Generation, keys: &str) -> (Handle, Frontend) {
    let engine = start(Config { generation, adapters: vec!["sql".to_owned()], speedup: 0.0, ..Config::default() }).await;
    let worker = format!("{}{keys}", engine.url());
    let frontend = Frontend::start(&["--router-mode", "kv", "--router-predicted-ttl-secs", "0", "--worker", &worker]);
    frontend.serves(1, "exact").await;
    (engine, frontend)
}

fn body(number: u32) -> Value {
    completion(&prompt(number, 4 * BLOCK + 1))
}

fn with(mut body: Value, key: &str, value: Value) -> Value {
    body[key] = value;
    body
}

/// Sends it and waits until what came of it is applied.
async fn sent(frontend: &Frontend, engine: &Handle, body: &Value) -> Value {
    frontend.complete(body).await;
    applied(frontend, engine).await;
    frontend.rank(&id(engine)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_engines_events_cannot_say_degrades_it_for_such_requests() {
    let salted = with(body(1), "cache_salt", json!("tenant"));
    let adapted = with(body(2), "model", json!("sql"));
    // Which of the two degrade, and what the reason names.
    for (generation, keys, by_salt, by_adapter) in [
        (Generation::Sglang056, "", Some("salt"), Some("adapter")),
        (Generation::Sglang056, ",lora=1:sql", Some("salt"), Some("adapter")),
        (Generation::Vllm012, "", Some("salt"), Some("lora=ID:NAME")),
        (Generation::Vllm012, ",lora=1:sql", Some("salt"), None),
        (Generation::Vllm016, "", Some("salt"), None),
        (Generation::Vllm023, "", None, None),
        (Generation::Sglang0523, "", None, None),
    ] {
        for (request, named) in [(&salted, by_salt), (&adapted, by_adapter)] {
            let (engine, frontend) = rig(generation, keys).await;
            let rank = sent(&frontend, &engine, &body(9)).await;
            assert_eq!(rank["trust"], "exact", "{generation}{keys}: {rank}");
            let degraded = if named.is_some() { "degraded" } else { "exact" };
            let candidate = frontend.candidate(&id(&engine), request).await;
            assert_eq!(
                (&candidate["trust"], &candidate["overlap_blocks"]),
                (&json!(degraded), &json!(0)),
                "{generation}{keys}: {candidate}"
            );
            assert_eq!(frontend.rank(&id(&engine)).await["trust"], "exact", "{generation}{keys}: asking has no effect");
            let rank = sent(&frontend, &engine, request).await;
            assert_eq!(rank["trust"], degraded, "{generation}{keys}: {rank}");
            let reason = rank["trust_reason"].as_str().unwrap();
            assert!(reason.contains(named.unwrap_or_default()) && reason.is_empty() == named.is_none(), "{generation}{keys}: {reason}");
            let overlap = if named.is_some() { 0 } else { 4 };
            assert_eq!(frontend.candidate(&id(&engine), request).await["overlap_blocks"], overlap, "{generation}{keys}");
        }
    }
}

/// The blocks of a salted request look like those of the prompt without. The first answer that shows they are not takes the
/// credit back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credit_given_by_mistake_is_taken_back_by_the_answer() {
    let (engine, frontend) = rig(Generation::Vllm016, "").await;
    let unrelated = body(2);
    sent(&frontend, &engine, &unrelated).await;
    sent(&frontend, &engine, &with(body(1), "cache_salt", json!("tenant"))).await;
    let overlap = async |body: &Value| frontend.candidate(&id(&engine), body).await["overlap_blocks"].as_u64().unwrap();
    assert_eq!(overlap(&body(1)).await, 4, "nothing tells them apart");
    let longer = |number| with(body(number), "prompt", json!([&prompt(number, 2 * BLOCK)[..], &[7; 2 * BLOCK + 1]].concat()));
    let answer = frontend.complete(&longer(1)).await;
    assert_eq!((answer.header("x-dynamo-overlap-blocks"), cached_tokens(&answer)), ("2", 0));
    eventually("the salted blocks are not credited any more", async || {
        let rank = frontend.rank(&id(&engine)).await;
        let overlaps = (overlap(&body(1)).await, overlap(&longer(1)).await, overlap(&unrelated).await);
        seen(rank["accuracy"]["over"] == 1 && overlaps == (2, 4, 4), (overlaps, &rank))
    })
    .await;
    let again = frontend.complete(&longer(1)).await;
    assert_eq!((again.header("x-dynamo-overlap-blocks"), cached_tokens(&again)), ("4", 4 * BLOCK as u64));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_reports_degrade_whatever_the_form_of_events() {
    let (engine, frontend) = rig(Generation::Vllm033, "").await;
    let full = with(body(1), "vllm_xargs", json!({"kv_cache_report_mode": "full"}));
    assert_eq!(frontend.candidate(&id(&engine), &full).await["trust"], "exact", "what it holds is not in doubt");
    let rank = sent(&frontend, &engine, &full).await;
    assert_eq!(rank["trust"], "degraded", "{rank}");
    assert!(rank["trust_reason"].as_str().unwrap().contains("full reports"), "{rank}");
}
