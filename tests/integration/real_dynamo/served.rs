//! The real frontend in front of two workers of ours: it prepares requests by our model cards, sends them over the request plane, routes
//! by our publishers' events, and asks our recovery service after its restart.

use std::{path::Path, time::Duration};

use mocker::{Config, DynamoConfig, HandOver, Handle, Role};
use serde_json::{Value, json};
use testkit::servers::Server;

use super::{
    peers::{BLOCK, Peers, Planes, RealFrontend},
    venv,
};
use crate::support::{eventually, http, seen};

/// In kv mode. A request that a leaving worker has and has not yet called home for is given up by 1.6.1 when the worker's record goes: for
/// this moment it may move.
const KV: [&str; 4] = ["--router-mode", "kv", "--migration-limit", "3"];
/// Prompts that are asked again and again.
const PROMPTS: u32 = 8;
/// Tokens of each: four blocks, and a token that is always computed.
const TOKENS: u32 = 4 * BLOCK as u32 + 1;
/// Tokens of an answer that takes a while.
const LONG: u64 = 60;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts real Dynamo processes: tests/run --dynamo"]
async fn a_real_frontend_is_served_by_our_workers_over_file_and_zmq() {
    let folder = tempfile::tempdir().unwrap();
    served(&Peers::new(Path::new(&venv()), Planes::file_and_zmq(folder.path()))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts real Dynamo processes: tests/run --dynamo"]
async fn a_real_frontend_is_served_by_our_workers_over_etcd_and_nats() {
    let (etcd, nats) = (Server::etcd(), Server::nats());
    served(&Peers::new(Path::new(&venv()), Planes::etcd_and_nats(&etcd.url(), &nats.url()).requests_over_nats())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts real Dynamo processes: tests/run --dynamo"]
async fn a_real_frontend_takes_what_our_prefill_worker_hands_over_to_our_decode_worker() {
    for hand_over in [HandOver::Answer, HandOver::Bootstrap { port: 0 }] {
        let folder = tempfile::tempdir().unwrap();
        handed_over(&Peers::new(Path::new(&venv()), Planes::file_and_zmq(folder.path())), hand_over).await;
    }
}

/// A decode worker answers only what a prefill worker has handed over, once.
async fn handed_over(peers: &Peers, hand_over: HandOver) {
    let prefill = of_role(peers, Role::Prefill, hand_over).await;
    let decode = of_role(peers, Role::Decode, hand_over).await;
    let real = peers.frontend_with("frontend", &KV, &[]).await;
    both_serve(&real, [&prefill, &decode]).await;
    let mut texts = Vec::new();
    for _ in 0..3 {
        let answer = post(&real, "/v1/completions", &completion(&prompt(1), 6)).await;
        let by = &answer["nvext"]["worker_id"];
        assert_eq!((&by["prefill_worker_id"], &by["decode_worker_id"]), (&json!(id(&prefill)), &json!(id(&decode))), "{answer}");
        assert_eq!(answer["usage"]["completion_tokens"], 6, "{answer}");
        texts.push(answer["choices"][0]["text"].clone());
    }
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    let cached = prefill.totals(0).unwrap().cached_tokens;
    assert_eq!(cached, 2 * u64::from(TOKENS - 1), "the prefill worker computed the prompt once");
}

/// A worker of ours with the model that the real frontend can tokenise.
async fn worker(peers: &Peers) -> Handle {
    of_role(peers, Role::Aggregated, HandOver::Answer).await
}

async fn of_role(peers: &Peers, role: Role, hand_over: HandOver) -> Handle {
    let config = Config {
        model: "tiny".to_owned(),
        model_path: Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/tiny-llama")),
        dynamo: Some(DynamoConfig { role, hand_over, ..DynamoConfig::new(peers.planes.of_worker()) }),
        ..Config::default()
    };
    mocker::serve(config).await.unwrap()
}

fn id(worker: &Handle) -> u64 {
    worker.instance().unwrap().1
}

/// No two of the first 500 begin alike.
fn prompt(number: u32) -> Vec<u32> {
    (0..TOKENS).map(|at| 10 + (number * 131 + at * 7) % 500).collect()
}

fn completion(prompt: &[u32], max_tokens: u64) -> Value {
    json!({"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true, "nvext": {"extra_fields": ["worker_id", "timing"]}})
}

async fn post(real: &RealFrontend, path: &str, body: &Value) -> Value {
    let answer = http::open(real.address, "POST", path, &[], body).await.whole().await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// Who answered, and how many tokens it had cached.
async fn asked(real: &RealFrontend, prompt: &[u32]) -> (u64, u64) {
    let answer = post(real, "/v1/completions", &completion(prompt, 2)).await;
    let by = answer["nvext"]["worker_id"]["decode_worker_id"].as_u64().unwrap_or_else(|| panic!("{answer}"));
    (by, answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or_else(|| panic!("{answer}")))
}

async fn served(peers: &Peers) {
    let (one, other) = (worker(peers).await, worker(peers).await);
    let real = peers.frontend_with("frontend", &KV, &[]).await;
    both_serve(&real, [&one, &other]).await;
    answers(&real).await;
    hung_up(&real, [&one, &other]).await;

    // Each prompt goes where it is cached: the frontend heard our events.
    let mut holders = Vec::new();
    for number in 0..PROMPTS {
        let (holder, cached) = asked(&real, &prompt(number)).await;
        assert_eq!(cached, 0, "prompt {number}");
        eventually("its events are heard", async || {
            let chosen = would_choose(&real, &prompt(number)).await?;
            seen(chosen == holder, (chosen, holder))
        })
        .await;
        holders.push(holder);
    }
    found_again(&real, &holders).await;
    assert!([&one, &other].iter().all(|worker| holders.contains(&id(worker))), "both hold some: {holders:?}");

    // A frontend that starts anew learns it from our recovery service.
    drop(real);
    let real = peers.frontend_with("frontend", &KV, &[]).await;
    eventually("the new frontend knows who holds what", async || {
        let mut chosen = Vec::new();
        for number in 0..PROMPTS {
            chosen.push(would_choose(&real, &prompt(number)).await?);
        }
        seen(chosen == holders, (&chosen, &holders))
    })
    .await;
    found_again(&real, &holders).await;
    drained(peers, &real, one, &other).await;
}

/// Prompts go to who holds them, and are cached there; a few may go elsewhere, where there is less to do.
async fn found_again(real: &RealFrontend, holders: &[u64]) {
    let mut found = 0;
    for (number, holder) in (0..).zip(holders) {
        let (by, cached) = asked(real, &prompt(number)).await;
        assert!(by != *holder || cached == u64::from(TOKENS - 1), "prompt {number}: {cached} tokens were cached");
        found += u32::from(by == *holder);
    }
    assert!(found > PROMPTS / 2, "only {found} prompts went to who holds them");
}

/// Waits until the frontend has heard of both workers and prepared itself to ask them, which takes it a moment more.
async fn both_serve(real: &RealFrontend, workers: [&Handle; 2]) {
    eventually("requests reach both workers", async || {
        let answer = http::open(real.address, "GET", "/health", &[], &Value::Null).await.whole().await;
        seen(workers.iter().all(|worker| answer.text().contains(&id(worker).to_string())), answer.text())?;
        for number in 0..4 {
            let body = completion(&prompt(150 + number), 1);
            let answer = http::open(real.address, "POST", "/v1/completions", &[], &body).await.whole().await;
            seen(answer.status == 200, answer.text())?;
        }
        Ok(())
    })
    .await;
}

/// Completions and chat, whole and as streams.
async fn answers(real: &RealFrontend) {
    let ids = completion(&prompt(100), 5);
    let whole = post(real, "/v1/completions", &ids).await;
    assert_eq!((&whole["usage"]["prompt_tokens"], &whole["usage"]["completion_tokens"]), (&json!(TOKENS), &json!(5)), "{whole}");
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    let text = whole["choices"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!(text.split_whitespace().count(), 5, "words of the model's vocabulary: {text:?}");
    let mut streamed = ids.clone();
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({"include_usage": true});
    let answer = http::open(real.address, "POST", "/v1/completions", &[], &streamed).await.whole().await;
    let events: Vec<Value> = answer.text().lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
    let joined: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(joined, text, "the same prompt is answered alike");
    assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], 5, "{}", answer.text());
    assert!(answer.text().ends_with("data: [DONE]\n\n"));

    let chat = json!({"model": "tiny", "messages": [{"role": "user", "content": "once upon a time"}], "max_tokens": 5, "ignore_eos": true, "logprobs": true, "top_logprobs": 2});
    let answer = post(real, "/v1/chat/completions", &chat).await;
    let choice = &answer["choices"][0];
    assert!(!choice["message"]["content"].as_str().unwrap().is_empty(), "{answer}");
    let logprobs = choice["logprobs"]["content"].as_array().unwrap_or_else(|| panic!("{answer}"));
    assert!(logprobs.len() == 5 && logprobs.iter().all(|entry| entry["top_logprobs"].as_array().unwrap().len() == 2), "{answer}");
    // A stop string is the frontend's to find, which with `ignore_eos` it does not look for.
    let word = text.split_whitespace().nth(2).unwrap();
    let mut stopped = ids;
    stopped["stop"] = json!([word]);
    stopped["ignore_eos"] = json!(false);
    let answer = post(real, "/v1/completions", &stopped).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
    assert!(!answer["choices"][0]["text"].as_str().unwrap().contains(word), "{answer}");
    let refused = http::open(real.address, "POST", "/v1/completions", &[], &completion(&[90_000], 5)).await.whole().await;
    assert_eq!(refused.status, 400, "{}", refused.text());
}

/// A client that leaves ends the engine's work.
async fn hung_up(real: &RealFrontend, workers: [&Handle; 2]) {
    let aborted = || workers.iter().map(|worker| worker.totals(0).unwrap().aborted).sum::<u64>();
    let before = aborted();
    let mut body = completion(&prompt(101), 4000);
    body["stream"] = json!(true);
    let mut open = http::open(real.address, "POST", "/v1/completions", &[], &body).await;
    open.next().await.unwrap();
    drop(open);
    eventually("the engine stops", async || seen(aborted() == before + 1, (before, aborted()))).await;
}

/// Which worker a request would go to: a dry run, by 1.6.1's annotation. A frontend that has just started refuses it for a moment.
async fn would_choose(real: &RealFrontend, prompt: &[u32]) -> Result<u64, String> {
    let mut body = completion(prompt, 1);
    body["stream"] = json!(true);
    body["nvext"]["annotations"] = json!(["query_instance_id:"]);
    let answer = http::open(real.address, "POST", "/v1/completions", &[], &body).await.whole().await;
    let text = answer.text();
    let events: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
    events.iter().find_map(|event| event["nvext"]["worker_id"]["decode_worker_id"].as_u64()).ok_or(text)
}

/// A worker that ends finishes what it runs, and nobody sees an error.
async fn drained(peers: &Peers, real: &RealFrontend, leaving: Handle, staying: &Handle) {
    let address = real.address;
    let gone = id(&leaving);
    let long = |number: u32| {
        let mut body = completion(&prompt(200 + number), LONG);
        body["stream"] = json!(true);
        tokio::spawn(async move { http::open(address, "POST", "/v1/completions", &[], &body).await.whole().await })
    };
    let streams: Vec<_> = (0..8).map(long).collect();
    eventually("both workers are at work", async || {
        let running = [&leaving, staying].map(|worker| worker.gauges(0).unwrap().running);
        seen(running.iter().all(|running| *running > 0), running)
    })
    .await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let asking = tokio::spawn(async move {
        let (mut asked, mut stopped) = (0_u32, stopped);
        while stopped.try_recv() == Err(tokio::sync::oneshot::error::TryRecvError::Empty) {
            let answer = http::open(address, "POST", "/v1/completions", &[], &completion(&prompt(300 + asked % 90), 1)).await.whole().await;
            if answer.status != 200 {
                return Err(format!("request {asked}: {}", answer.text()));
            }
            asked += 1;
        }
        Ok(asked)
    });
    let left = tokio::time::timeout(Duration::from_secs(20), leaving.shutdown());
    assert!(left.await.is_ok(), "a worker that is asked to end does so");
    for stream in streams {
        let text = stream.await.unwrap().text();
        let finished = text.contains("\"finish_reason\":\"length\"") && text.ends_with("data: [DONE]\n\n");
        assert!(finished && !text.contains("\"error\""), "{text}; {}", peers.log("frontend"));
    }
    // It listens no more where it has failed.
    let _ = stop.send(());
    let asked_meanwhile = asking.await.unwrap().unwrap_or_else(|failure| panic!("{failure}; {}", peers.log("frontend")));
    assert!(asked_meanwhile > 0);
    for number in 0..4 {
        let (by, _) = asked(real, &prompt(400 + number)).await;
        assert_ne!(by, gone);
    }
}
