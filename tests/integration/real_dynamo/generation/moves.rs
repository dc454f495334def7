//! Answers whose worker dies in their middle, word for word: our simulated engine says the same after the same beginning, so what a
//! client reads must be what it would have read without.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use mocker::{Config, DynamoConfig, Handle};
use serde_json::{Value, json};
use transport::discovery::Backend;
use worker::RuntimeConfig;

use super::{Seen, Streaming, completion, prompt, streamed, up};
use crate::support::{eventually, frontend::Frontend, http};

/// Tokens of an answer.
const LONG: usize = 150;
const TOKENS_PER_S: f64 = 60.0;
const PATIENCE: Duration = Duration::from_secs(20);
/// After so many tokens its worker dies.
const DEATH: u64 = 60;

/// A simulated worker on a runtime of its own, so that it can die like a process.
struct Mortal {
    /// `None` once it is dead.
    life: Option<(tokio::runtime::Runtime, Handle)>,
}

impl Mortal {
    async fn start(root: PathBuf, parsers: Parsers) -> Self {
        let made = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let config = DynamoConfig {
                tool_call_parser: parsers.tools.map(str::to_owned),
                reasoning_parser: parsers.reasoning.map(str::to_owned),
                ..DynamoConfig::new(RuntimeConfig::local(Backend::File { root }))
            };
            let config = Config {
                model: "tiny".to_owned(),
                model_path: Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/tiny-llama")),
                dynamo: Some(config),
                decode_tokens_per_s: TOKENS_PER_S,
                ..Config::default()
            };
            let handle = runtime.block_on(mocker::serve(config)).unwrap();
            (runtime, handle)
        });
        let (runtime, handle) = made.await.unwrap();
        Self { life: Some((runtime, handle)) }
    }

    fn generated(&self) -> u64 {
        self.life.as_ref().unwrap().1.totals(0).unwrap().generated_tokens
    }

    /// Its sockets close, and its records stay until they run out.
    fn kill(&mut self) {
        if let Some((runtime, handle)) = self.life.take() {
            runtime.shutdown_background();
            std::mem::forget(handle);
        }
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        self.kill();
    }
}

/// On the cards.
#[derive(Clone, Copy, Default)]
struct Parsers {
    tools: Option<&'static str>,
    reasoning: Option<&'static str>,
}

/// Two workers, a frontend, and the folder where they meet.
struct Stage {
    workers: Vec<Mortal>,
    ours: Frontend,
    parsers: Parsers,
    folder: tempfile::TempDir,
}

impl Stage {
    async fn start(parsers: Parsers) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_str().unwrap();
        let ours = Frontend::start(&["--router-mode", "kv", "--discovery-backend", "file", "--file-kv", root]);
        let mut stage = Self { workers: Vec::new(), ours, parsers, folder };
        stage.fill().await;
        stage
    }

    /// Two workers, again.
    async fn fill(&mut self) {
        while self.workers.len() < 2 {
            self.workers.push(Mortal::start(self.folder.path().to_owned(), self.parsers).await);
        }
        up(&self.ours, 2).await;
    }

    /// The worker that runs an answer dies after it has made `DEATH` tokens of it.
    async fn death(&mut self) {
        let before: Vec<u64> = self.workers.iter().map(Mortal::generated).collect();
        let victim = eventually("a worker is in the middle of it", async || {
            let made: Vec<u64> = self.workers.iter().zip(&before).map(|(worker, before)| worker.generated() - before).collect();
            made.iter().position(|made| *made >= DEATH).ok_or_else(|| format!("{made:?}"))
        })
        .await;
        self.workers.remove(victim).kill();
    }

    /// A stream that is bereaved.
    async fn bereaved(&mut self, path: &'static str, body: Value) -> Seen {
        self.fill().await;
        let streaming = Streaming::start(self.ours.address, path, body, PATIENCE);
        self.death().await;
        streaming.end().await
    }
}

fn assert_moved(what: &str, seen: &Seen, text: &str, usage: (u64, u64)) {
    assert!(seen.is_complete(), "{what}: {seen:?}");
    assert_eq!(seen.text, text, "{what}");
    assert_eq!(seen.usage, Some(usage), "{what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes half a minute: tests/run --dynamo"]
async fn what_a_client_reads_is_the_same_with_a_death_in_its_middle() {
    let mut stage = Stage::start(Parsers::default()).await;
    let tokens = prompt(50);
    let whole = stage.ours.complete(&completion(&tokens, LONG)).await.json();
    let text = whole["choices"][0]["text"].as_str().unwrap().to_owned();
    let usage = (50, LONG as u64);

    let streamed_answer = stage.bereaved("/v1/completions", streamed(&tokens, LONG)).await;
    assert_moved("stream", &streamed_answer, &text, usage);
    assert_eq!((streamed_answer.ids.len(), streamed_answer.workers.len()), (LONG, 2), "{streamed_answer:?}");

    // One body: the client waits, and sees nothing else of it.
    stage.fill().await;
    let (address, body) = (stage.ours.address, completion(&tokens, LONG));
    let unary = tokio::spawn(async move { http::open(address, "POST", "/v1/completions", &[], &body).await.whole().await });
    stage.death().await;
    let answer = unary.await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["choices"], whole["choices"]);
    assert_eq!(answer.json()["usage"]["completion_tokens"], LONG, "{}", answer.text());
    assert_eq!(answer.json()["usage"]["prompt_tokens"], 50, "{}", answer.text());

    // A stop string begun at one worker and ended at another.
    let words: Vec<&str> = text.split_inclusive(' ').collect();
    let stop: String = words[40..100].concat();
    let at = text.find(&stop).unwrap();
    let mut body = streamed(&tokens, LONG);
    body["stop"] = json!([stop]);
    let stopped = stage.bereaved("/v1/completions", body).await;
    assert!(stopped.is_complete(), "{stopped:?}");
    assert_eq!((stopped.text.as_str(), stopped.finish.as_deref()), (&text[..at], Some("stop")), "{stopped:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes half a minute: tests/run --dynamo"]
async fn a_chat_with_parsers_goes_on_where_it_was() {
    let mut stage = Stage::start(Parsers { tools: Some("hermes"), reasoning: Some("qwen3") }).await;
    let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": "once upon a time"}], "max_tokens": LONG, "ignore_eos": true,
        "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}]});
    let whole = stage.ours.post("/v1/chat/completions", &body).await;
    assert_eq!(whole.status, 200, "{}", whole.text());
    let whole = whole.json();
    let message = &whole["choices"][0]["message"];
    let text = message["content"].as_str().unwrap_or_else(|| panic!("{whole}")).to_owned();
    let count = |name: &str| whole["usage"][name].as_u64().unwrap();
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let streamed = stage.bereaved("/v1/chat/completions", body).await;
    assert_moved("chat", &streamed, &text, (count("prompt_tokens"), LONG as u64));
}
