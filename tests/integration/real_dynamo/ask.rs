//! Requests to one worker each, through the real frontend.

use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::json;
use wire::discovery::EventSource;

use super::peers::{BLOCK, RealFrontend};
use crate::support::{eventually, frontend::Frontend, http, seen};

/// Prompts some of which begin as earlier ones did.
pub(super) struct Prompts {
    random: StdRng,
    earlier: Vec<Vec<u32>>,
}

impl Prompts {
    pub(super) fn new() -> Self {
        Self { random: StdRng::seed_from_u64(1), earlier: Vec::new() }
    }

    fn next(&mut self) -> Vec<u32> {
        let mut prompt = match self.earlier.len() {
            0 => Vec::new(),
            some => self.earlier[self.random.random_range(0..some)].clone(),
        };
        prompt.truncate(self.random.random_range(0..=prompt.len()));
        let more = self.random.random_range(BLOCK..8 * BLOCK);
        prompt.extend((0..more).map(|_| self.random.random_range(10..1000)));
        self.earlier.push(prompt.clone());
        prompt
    }

    /// Waits until the real frontend knows the workers: it follows discovery at its own pace, and answers 400 to who names one that it
    /// does not know. Nothing is cached by that.
    pub(super) async fn known(&self, real: &RealFrontend, sources: &[EventSource]) {
        for source in sources {
            eventually("the real frontend sends requests to the worker", async || {
                let answer = named(real, source.worker_id, &[10; BLOCK - 2], 1).await;
                seen(answer.status == 200, answer.text())
            })
            .await;
        }
    }

    /// Sends the next prompt to one of the workers; what it says was cached, in tokens.
    async fn sent(&self, real: &RealFrontend, worker: u64, prompt: &[u32]) -> u64 {
        let answer = named(real, worker, prompt, 20).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    }

    pub(super) async fn send(&mut self, real: &RealFrontend, sources: &[EventSource]) {
        let worker = sources[self.random.random_range(0..sources.len())].worker_id;
        let prompt = self.next();
        self.sent(real, worker, &prompt).await;
    }

    /// The same, and what we said the worker holds must be what it says was cached. 1 if that was anything.
    pub(super) async fn ask(&mut self, real: &RealFrontend, ours: &Frontend, sources: &[EventSource]) -> usize {
        let worker = sources[self.random.random_range(0..sources.len())].worker_id;
        let prompt = self.next();
        let query = ours.post("/query", &json!({"model": "tiny", "token_ids": prompt})).await.json();
        let targets = query["targets"].as_array().unwrap_or_else(|| panic!("{query}"));
        let id = worker.to_string();
        let of_worker = targets.iter().find(|target| target["worker_id"] == *id);
        let overlap = of_worker.map_or(0, |target| target["overlap_blocks"].as_u64().unwrap());
        let cached = self.sent(real, worker, &prompt).await;
        let usable = overlap.min((prompt.len() as u64 - 1) / BLOCK as u64) * BLOCK as u64;
        assert_eq!(cached, usable, "{} tokens, overlap {overlap}: {query}", prompt.len());
        usize::from(cached > 0)
    }
}

/// A request that names its worker.
async fn named(real: &RealFrontend, worker: u64, prompt: &[u32], max_tokens: usize) -> http::Answer {
    let body = json!({"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true});
    let pin = worker.to_string();
    let headers = [("x-dynamo-worker-instance-id", pin.as_str())];
    http::open(real.address, "POST", "/v1/completions", &headers, &body).await.whole().await
}
