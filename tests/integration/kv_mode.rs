//! `--router-mode kv` in front of simulated engines: events in, requests to where their prefix is.

use mocker::Config;
use serde_json::json;

use crate::support::{
    eventually, seen,
    simulated::{BLOCK, all_applied, applied, cached_tokens, completion, fleet, id, idle, kv, prompt, start},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_prefix_goes_to_the_worker_that_holds_it() {
    let fleet = fleet(3).await;
    let frontend = kv(&fleet).await;
    // 6 whole blocks and a rest. Eight prompts land right by chance once in 6561 times.
    let prompts: Vec<_> = (0..8).map(|number| prompt(number, 6 * BLOCK + 4)).collect();
    let mut homes = Vec::new();
    for prompt in &prompts {
        let first = frontend.complete(&completion(prompt)).await;
        assert_eq!((first.header("x-dynamo-overlap-blocks"), cached_tokens(&first)), ("0", 0));
        homes.push(first.worker().to_owned());
    }
    all_applied(&frontend, &fleet).await;
    for (prompt, home) in prompts.iter().zip(&homes) {
        // The prefix with another continuation.
        let longer = completion(&[&prompt[..], &[7; 2 * BLOCK]].concat());
        let route = frontend.route(&longer).await;
        assert_eq!(route["chosen"]["worker_id"], **home, "{route}");
        let predicted = frontend.candidate(home, &longer).await["cached_tokens"].as_u64().unwrap();
        let second = frontend.complete(&longer).await;
        assert_eq!((second.worker(), second.header("x-dynamo-overlap-blocks")), (home.as_str(), "6"));
        assert_eq!((predicted, cached_tokens(&second)), (6 * BLOCK as u64, 6 * BLOCK as u64));
    }
}

/// Rule 3: a prompt of whole blocks is held as a whole, and its last block is computed anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_of_whole_blocks_is_credited_all_but_its_last() {
    let fleet = fleet(2).await;
    let frontend = kv(&fleet).await;
    let body = completion(&prompt(1, 4 * BLOCK));
    frontend.complete(&body).await;
    all_applied(&frontend, &fleet).await;
    let second = frontend.complete(&body).await;
    assert_eq!((second.header("x-dynamo-overlap-blocks"), cached_tokens(&second)), ("4", 3 * BLOCK as u64));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adapters_and_salts_are_keys_of_their_own() {
    let engine = start(Config { adapters: vec!["sql".to_owned()], speedup: 0.0, ..Config::default() }).await;
    let fleet = [engine];
    let frontend = kv(&fleet).await;
    let prompt = prompt(1, 4 * BLOCK + 1);
    let with = |model: &str, salt: Option<&str>| {
        let mut body = completion(&prompt);
        body["model"] = json!(model);
        if let Some(salt) = salt {
            body["cache_salt"] = json!(salt);
        }
        body
    };
    let kinds = [with("mock-model", None), with("sql", None), with("mock-model", Some("a")), with("sql", Some("a"))];
    for body in &kinds {
        let first = frontend.complete(body).await;
        assert_eq!((first.header("x-dynamo-overlap-blocks"), cached_tokens(&first)), ("0", 0), "{body}");
        all_applied(&frontend, &fleet).await;
    }
    for body in &kinds {
        let second = frontend.complete(body).await;
        assert_eq!((second.header("x-dynamo-overlap-blocks"), cached_tokens(&second)), ("4", 4 * BLOCK as u64), "{body}");
    }
}

/// Without a model folder the tokens come from an engine's `/tokenize`; the next turn of a chat finds the first one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_turn_of_a_chat_follows_the_first() {
    let fleet = fleet(3).await;
    let frontend = kv(&fleet).await;
    let ask = |messages: serde_json::Value| json!({"model": "mock-model", "messages": messages, "max_tokens": 1});
    for number in 0..6 {
        let question = format!("Question {number}: {}", "why is the sky blue and the sea green? ".repeat(10));
        let first = frontend.post("/v1/chat/completions", &ask(json!([{"role": "user", "content": question}]))).await;
        let home = first.worker().to_owned();
        all_applied(&frontend, &fleet).await;
        let turns = json!([
            {"role": "user", "content": question}, {"role": "assistant", "content": "Because."}, {"role": "user", "content": "Really?"},
        ]);
        let second = frontend.post("/v1/chat/completions", &ask(turns)).await;
        assert_eq!(second.worker(), home);
        let overlap: u64 = second.header("x-dynamo-overlap-blocks").parse().unwrap();
        assert!(overlap > 3, "{overlap}");
        assert_eq!(cached_tokens(&second), overlap * BLOCK as u64);
    }
    let rounds: f64 = frontend.metric("dynamo_frontend_requests_total").await.unwrap();
    assert!(rounds >= 12.0, "{rounds}");
}

/// Cold prompts spread: the second of two prompts at once goes to the worker that is idle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cold_prompts_at_once_spread_over_idle_workers() {
    let slow = || start(Config { prefill_tokens_per_s: 100_000.0, decode_tokens_per_s: 1.0, ..Config::default() });
    let fleet = [slow().await, slow().await, slow().await, slow().await];
    let frontend = kv(&fleet).await;
    let mut streams = Vec::new();
    for number in 0..4 {
        let mut body = completion(&prompt(number, 8 * BLOCK));
        body["stream"] = json!(true);
        body["max_tokens"] = json!(1000);
        streams.push(frontend.open("/v1/completions", &[], &body).await);
    }
    let mut used: Vec<_> = streams.iter().map(|stream| stream.headers["x-dynamo-worker-id"].to_str().unwrap().to_owned()).collect();
    used.sort();
    used.dedup();
    assert_eq!(used.len(), 4, "{used:?}");
    drop(streams);
    idle(&frontend, &fleet).await;
}

/// An engine that is killed and comes back is believed anew, and what it held is forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_engine_is_credited_with_nothing_it_lost() {
    let mut engine = start(Config { speedup: 0.0, ..Config::default() }).await;
    let frontend = kv(std::slice::from_ref(&engine)).await;
    let body = completion(&prompt(1, 4 * BLOCK + 1));
    frontend.complete(&body).await;
    applied(&frontend, &engine).await;
    assert_eq!(frontend.candidate(&id(&engine), &body).await["overlap_blocks"], 4);
    engine.restart().await.unwrap();
    eventually("its blocks are forgotten", async || {
        let candidate = frontend.candidate(&id(&engine), &body).await;
        seen(candidate["overlap_blocks"] == 0 && candidate["trust"] == "exact", candidate)
    })
    .await;
    let again = frontend.complete(&body).await;
    assert_eq!((again.header("x-dynamo-overlap-blocks"), cached_tokens(&again)), ("0", 0));
    eventually("its new blocks are known", async || {
        let candidate = frontend.candidate(&id(&engine), &body).await;
        seen(candidate["overlap_blocks"] == 4, candidate)
    })
    .await;
}
