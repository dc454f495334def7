//! Two real workers behind our frontend: every kind of prompt, answers whole and streamed, clients that leave, and prompts routed by
//! the workers' own events.

use std::{
    net::Ipv4Addr,
    net::TcpListener,
    path::Path,
    time::{Duration, Instant},
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use testkit::servers::Server;

use super::{
    super::{
        peers::{BLOCK, Peer, Peers, Planes},
        venv,
    },
    Streaming, completion, prompt, seen, streamed, up,
};
use crate::support::{eventually, frontend::Frontend, http};

/// Prompts that are routed by events.
const PROMPTS: usize = 60;
/// A worker whose client has left is at work no longer than this.
const STOPPED_WITHIN: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts real Dynamo processes: tests/run --dynamo"]
async fn real_workers_serve_over_file_and_zmq() {
    let folder = tempfile::tempdir().unwrap();
    served(&Peers::new(Path::new(&venv()), Planes::file_and_zmq(folder.path()))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts real Dynamo processes: tests/run --dynamo"]
async fn real_workers_serve_over_etcd_and_nats() {
    let (etcd, nats) = (Server::etcd(), Server::nats());
    served(&Peers::new(Path::new(&venv()), Planes::etcd_and_nats(&etcd.url(), &nats.url()))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts real Dynamo processes: tests/run --dynamo"]
async fn real_workers_serve_with_requests_over_nats() {
    let (etcd, nats) = (Server::etcd(), Server::nats());
    served(&Peers::new(Path::new(&venv()), Planes::etcd_and_nats(&etcd.url(), &nats.url()).requests_over_nats())).await;
}

/// A worker, and where its metrics are. It serves the files of its card too, so that the card names them by URLs.
struct Worker {
    _peer: Peer,
    port: u16,
}

impl Worker {
    fn start(peers: &Peers, name: &str) -> Self {
        // It reads its port as a signed number, and what the system gives is beyond that.
        let free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
        let port = std::iter::repeat_with(|| rand::rng().random_range(10_000..20_000)).find(free).unwrap();
        // A token takes a millisecond.
        let arguments = ["--speedup-ratio", "10", "--num-gpu-blocks-override", "2000"];
        let peer = peers.worker_with(name, &arguments, &[("DYN_SYSTEM_PORT", &port.to_string())]);
        Self { _peer: peer, port }
    }

    /// A count of its own endpoint of requests.
    async fn count(&self, name: &str) -> u64 {
        let page = http::open((Ipv4Addr::LOCALHOST, self.port).into(), "GET", "/metrics", &[], &Value::Null).await.whole().await.text();
        let mut lines = page.lines().filter(|line| line.starts_with(name) && line.contains("dynamo_endpoint=\"generate\""));
        lines.next().map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }
}

async fn total(workers: &[Worker; 2], name: &str) -> u64 {
    workers[0].count(name).await + workers[1].count(name).await
}

async fn served(peers: &Peers) {
    let workers = [Worker::start(peers, "w1"), Worker::start(peers, "w2")];
    let ours = Frontend::start(&peers.planes.flags());
    up(&ours, 2).await;
    completions(&ours).await;
    chats(&ours).await;
    assert_eq!(total(&workers, "dynamo_component_errors_total").await, 0);
    left(&ours, &workers).await;
    routed(&ours).await;
    // A whole answer is not counted as cancelled: those are the two clients that left.
    assert_eq!(total(&workers, "dynamo_component_cancellation_total").await, 2);
}

async fn completed(ours: &Frontend, prompt: Value, choices: usize, prompt_tokens: Option<u64>) -> Value {
    let mut body = completion(&[], 5);
    body["prompt"] = prompt;
    let answer = ours.complete(&body).await.json();
    assert_eq!(answer["choices"].as_array().unwrap().len(), choices, "{answer}");
    for (at, choice) in answer["choices"].as_array().unwrap().iter().enumerate() {
        assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(at), &json!("length")), "{answer}");
        assert!(!choice["text"].as_str().unwrap().is_empty(), "{answer}");
    }
    assert_eq!(answer["usage"]["completion_tokens"], 5 * choices, "{answer}");
    if let Some(tokens) = prompt_tokens {
        assert_eq!(answer["usage"]["prompt_tokens"], tokens, "{answer}");
    }
    answer
}

/// Text, token ids, and lists of both; several choices; a stream.
async fn completions(ours: &Frontend) {
    completed(ours, json!("once upon a time"), 1, None).await;
    completed(ours, json!(prompt(30)), 1, Some(30)).await;
    completed(ours, json!(["once upon", "a time", "there was"]), 3, None).await;
    completed(ours, json!([prompt(20), prompt(37)]), 2, Some(57)).await;

    let mut several = completion(&prompt(24), 6);
    several["n"] = json!(2);
    let answer = ours.complete(&several).await.json();
    let texts: Vec<&str> = answer["choices"].as_array().unwrap().iter().map(|choice| choice["text"].as_str().unwrap()).collect();
    assert!(texts.len() == 2 && texts[0] != texts[1], "{answer}");
    assert_eq!((&answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"]), (&json!(24), &json!(12)), "{answer}");

    let seen = Streaming::start(ours.address, "/v1/completions", streamed(&prompt(24), 50), Duration::from_secs(20)).end().await;
    assert!(seen.is_complete() && seen.ids.len() == 50 && seen.workers.len() == 1 && !seen.text.is_empty(), "{seen:?}");
    assert_eq!((seen.usage, seen.finish.as_deref()), (Some((24, 50)), Some("length")));

    let refused = ours.post("/v1/completions", &completion(&[90_000], 5)).await;
    assert_eq!(refused.status, 400, "{}", refused.text());
}

async fn chats(ours: &Frontend) {
    let mut body = json!({"model": "tiny", "messages": [{"role": "system", "content": "you are"}, {"role": "user", "content": "once upon a time"}],
        "max_tokens": 7, "ignore_eos": true});
    let answer = ours.post("/v1/chat/completions", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = answer.json();
    let message = &answer["choices"][0]["message"];
    assert!(message["role"] == "assistant" && !message["content"].as_str().unwrap().is_empty(), "{answer}");
    let tokens = answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(answer["usage"]["completion_tokens"], 7, "{answer}");
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let seen = Streaming::start(ours.address, "/v1/chat/completions", body, Duration::from_secs(20)).end().await;
    assert!(seen.is_complete() && !seen.text.is_empty(), "{seen:?}");
    assert_eq!(seen.usage, Some((tokens, 7)));
}

/// A client that leaves, while it waits for a whole answer or in the middle of a stream, ends the worker's work.
async fn left(ours: &Frontend, workers: &[Worker; 2]) {
    for body in [streamed(&prompt(40), 20_000), completion(&prompt(40), 20_000)] {
        let before = total(workers, "dynamo_component_cancellation_total").await;
        let reading = Streaming::start(ours.address, "/v1/completions", body, Duration::from_secs(20));
        eventually("a worker is at work", async || {
            let running = total(workers, "dynamo_component_inflight_requests").await;
            seen(running == 1, running)
        })
        .await;
        drop(reading);
        let dropped = Instant::now();
        eventually("the worker was told and has stopped", async || {
            let running = total(workers, "dynamo_component_inflight_requests").await;
            let stopped = total(workers, "dynamo_component_cancellation_total").await > before;
            seen(running == 0 && stopped, (running, stopped))
        })
        .await;
        // It would have gone on for 20 s.
        assert!(dropped.elapsed() < STOPPED_WITHIN, "{:?}", dropped.elapsed());
    }
}

/// Where each prompt goes, its worker had cached just what we said it holds.
async fn routed(ours: &Frontend) {
    let (mut random, mut earlier) = (StdRng::seed_from_u64(7), Vec::<Vec<u32>>::new());
    let (mut cached_ones, mut chosen) = (0, std::collections::BTreeSet::new());
    for number in 0..PROMPTS {
        let mut prompt = if earlier.is_empty() { Vec::new() } else { earlier[random.random_range(0..earlier.len())].clone() };
        prompt.truncate(random.random_range(0..=prompt.len()));
        let more = random.random_range(BLOCK..8 * BLOCK);
        prompt.extend((0..more).map(|_| random.random_range(10..1000)));
        settled(ours).await;
        let answer = ours.complete(&completion(&prompt, 3)).await;
        let overlap: u64 = answer.header("x-dynamo-overlap-blocks").parse().unwrap();
        let usable = overlap.min((prompt.len() as u64 - 1) / BLOCK as u64) * BLOCK as u64;
        let said = answer.json();
        let cached = said["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or_else(|| panic!("{said}"));
        assert_eq!(cached, usable, "prompt {number} of {} tokens, overlap {overlap}: {said}", prompt.len());
        cached_ones += usize::from(cached > 0);
        chosen.insert(answer.worker().to_owned());
        earlier.push(prompt);
    }
    assert!(cached_ones > PROMPTS / 3 && chosen.len() == 2, "{cached_ones} had anything cached, {chosen:?}");
}

/// Waits until no event comes any more: the numbers of two looks are the same.
async fn settled(ours: &Frontend) {
    let numbers = async || {
        let workers = ours.get("/workers").await.json();
        let ranks = workers["workers"].as_array().unwrap().iter().map(|worker| worker["ranks"][0]["last_seq"].clone());
        ranks.collect::<Vec<_>>()
    };
    eventually("no event comes any more", async || {
        let before = numbers().await;
        tokio::time::sleep(Duration::from_millis(40)).await;
        let after = numbers().await;
        seen(before == after, (before, after))
    })
    .await;
}
