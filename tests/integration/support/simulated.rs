//! Simulated engines in this process, and prompts for them.

use mocker::{Config, Handle};
use serde_json::{Value, json};

use super::{eventually, frontend::Frontend, http::Answer, seen};

/// Tokens per block of the simulated engines.
pub(crate) const BLOCK: usize = 16;

/// An engine that answers at once.
pub(crate) async fn quick() -> Handle {
    start(Config { speedup: 0.0, ..Config::default() }).await
}

pub(crate) async fn start(config: Config) -> Handle {
    mocker::serve(config).await.unwrap()
}

/// `count` engines that answer at once.
pub(crate) async fn fleet(count: usize) -> Vec<Handle> {
    let mut fleet = Vec::new();
    for _ in 0..count {
        fleet.push(quick().await);
    }
    fleet
}

/// The id the frontend gives an engine by default: its host and port.
pub(crate) fn id(engine: &Handle) -> String {
    engine.address().to_string()
}

/// The flags of a fleet.
pub(crate) fn workers(fleet: &[Handle]) -> Vec<String> {
    fleet.iter().flat_map(|engine| ["--worker".to_owned(), engine.url()]).collect()
}

/// A prompt of `tokens` token ids, another for each `number`.
pub(crate) fn prompt(number: u32, tokens: usize) -> Vec<u32> {
    let mut state = u64::from(number) + 1;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // The embedded vocabulary is larger than this.
        (state >> 33) as u32 % 200 + 10
    };
    std::iter::repeat_with(next).take(tokens).collect()
}

/// A completion of one token.
pub(crate) fn completion(prompt: &[u32]) -> Value {
    json!({"model": "mock-model", "prompt": prompt, "max_tokens": 1, "ignore_eos": true})
}

/// What the engine says it had cached.
pub(crate) fn cached_tokens(answer: &Answer) -> u64 {
    let json = answer.json();
    json["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or_else(|| panic!("no cached_tokens in {json}"))
}

/// A frontend in kv mode that has heard every event of the fleet.
pub(crate) async fn kv(fleet: &[Handle]) -> Frontend {
    let workers = workers(fleet);
    let mut args = vec!["--router-mode", "kv"];
    args.extend(workers.iter().map(String::as_str));
    let frontend = Frontend::start(&args);
    frontend.serves(fleet.len(), "exact").await;
    frontend
}

/// Waits until every event an engine has sent is applied.
pub(crate) async fn applied(frontend: &Frontend, engine: &Handle) {
    eventually("its events are applied", async || {
        let (rank, batches) = (frontend.rank(&id(engine)).await, engine.counters().batches);
        seen(rank["last_seq"].as_u64().map_or(0, |last| last + 1) == batches, (batches, &rank))
    })
    .await;
}

pub(crate) async fn all_applied(frontend: &Frontend, fleet: &[Handle]) {
    for engine in fleet {
        applied(frontend, engine).await;
    }
}

/// Everything that was booked for requests is free again.
pub(crate) async fn idle(frontend: &Frontend, fleet: &[Handle]) {
    for engine in fleet {
        eventually("nothing is booked", async || {
            let rank = frontend.rank(&id(engine)).await;
            let free = ["active_requests", "prefill_tokens", "decode_blocks"].iter().all(|gauge| rank[gauge] == 0);
            let running = engine.gauges(0).unwrap();
            seen(free && running.running == 0 && running.waiting == 0, (&rank, running))
        })
        .await;
    }
}
