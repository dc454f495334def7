//! Requests to workers that take token ids: real frontend, real request plane, workers that play a script.

mod answers;
mod cards;
mod disaggregated;
mod migration;
mod mixed;
mod names;
mod refusals;
mod scripted;
mod text;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    eventually,
    frontend::Frontend,
    http::{Answer, Open},
};

/// Where the processes of one test meet.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A frontend that takes part, in kv mode unless another is given.
    fn frontend(&self, more: &[&str]) -> Frontend {
        let folder = self.0.path().to_str().unwrap();
        let mut args = vec!["--discovery-backend", "file", "--file-kv", folder];
        if !more.contains(&"--router-mode") {
            args.extend(["--router-mode", "kv"]);
        }
        args.extend(more);
        Frontend::start(&args)
    }
}

/// Waits until `ids` are up, all of them.
async fn up(frontend: &Frontend, ids: &[&str]) {
    for id in ids {
        eventually(&format!("{id} is up"), async || {
            let worker = frontend.worker(id).await;
            if worker["state"] == "up" { Ok(()) } else { Err(format!("{worker}\n{}", frontend.log())) }
        })
        .await;
    }
}

/// A completion of token ids whose answer tells its own token ids.
fn completion(prompt: &[u32], max_tokens: u32) -> Value {
    json!({"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true,
        "nvext": {"extra_fields": ["completion_token_ids", "worker_id"]}})
}

/// The same as a stream with usage.
fn streamed(prompt: &[u32], max_tokens: u32) -> Value {
    let mut body = completion(prompt, max_tokens);
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    body
}

/// The JSON of each `data:` line but `[DONE]`.
fn chunks(answer: &Answer) -> Vec<Value> {
    let text = answer.text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    data.map(|data| serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"))).collect()
}

/// The token ids of choice 0 in a stream.
fn streamed_ids(answer: &Answer) -> Vec<u64> {
    let ids = chunks(answer).into_iter().filter_map(|chunk| chunk["nvext"]["completion_token_ids"].as_array().cloned());
    ids.flatten().map(|id| id.as_u64().unwrap()).collect()
}

/// The usage chunk of a stream: prompt and completion tokens.
fn streamed_usage(answer: &Answer) -> (u64, u64) {
    let last = chunks(answer).into_iter().rev().find(|chunk| chunk["usage"].is_object());
    usage(&last.unwrap_or_else(|| panic!("no usage: {}", answer.text())))
}

fn usage(body: &Value) -> (u64, u64) {
    let count = |name: &str| body["usage"][name].as_u64().unwrap_or_else(|| panic!("no {name}: {body}"));
    (count("prompt_tokens"), count("completion_tokens"))
}

/// Reads a stream until it holds `chunks` of text; what was read.
async fn read_chunks(open: &mut Open, chunks: usize) -> String {
    let mut read = String::new();
    while read.matches("\"text\":").count() < chunks {
        let bytes = open.next().await.unwrap_or_else(|| panic!("ended early: {read}"));
        read.push_str(std::str::from_utf8(&bytes).unwrap());
    }
    read
}
