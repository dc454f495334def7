//! A frontend before simulated engines, and what must hold once nothing runs any more.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use mocker::{Config, Faults, Handle};
use serde_json::{Value, json};

use crate::support::{
    eventually,
    frontend::Frontend,
    http::{Ending, Open},
    seen,
    simulated::{self, BLOCK},
};

/// Tokens of every prompt here: whole blocks.
const PROMPT_TOKENS: usize = 8 * BLOCK;

/// Gauges that show work under way.
const GAUGES: [&str; 4] = [
    "dynamo_frontend_inflight_requests",
    "dynamo_frontend_worker_active_prefill_tokens",
    "dynamo_frontend_worker_active_decode_blocks",
    "dynamo_frontend_worker_active_requests",
];

/// Streaming or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Plain,
    Stream,
}

impl Shape {
    pub(super) const BOTH: [Self; 2] = [Self::Plain, Self::Stream];
}

/// A frontend in mode kv before simulated engines.
pub(super) struct Rig {
    pub(super) frontend: Frontend,
    pub(super) fleet: Vec<Handle>,
    prompts: AtomicU32,
}

impl Rig {
    /// `count` engines of 100 tokens a second.
    pub(super) async fn start(count: usize, flags: &[&str]) -> Self {
        Self::of(count, flags, engine()).await
    }

    /// `count` engines of one kind.
    pub(super) async fn of(count: usize, flags: &[&str], engine: Config) -> Self {
        let mut fleet = Vec::new();
        for _ in 0..count {
            fleet.push(simulated::start(engine.clone()).await);
        }
        let workers = simulated::workers(&fleet);
        let args: Vec<&str> = ["--router-mode", "kv"].iter().chain(flags).copied().chain(workers.iter().map(String::as_str)).collect();
        let rig = Self { frontend: Frontend::start(&args), fleet, prompts: AtomicU32::new(1) };
        rig.routable(count).await;
        rig
    }

    /// Waits until requests may be sent to `count` workers.
    pub(super) async fn routable(&self, count: usize) {
        routable(&self.frontend, count).await;
    }

    /// A prompt nobody has seen.
    pub(super) fn prompt(&self) -> Vec<u32> {
        simulated::prompt(self.prompts.fetch_add(1, Ordering::Relaxed), PROMPT_TOKENS)
    }

    /// A prompt that one worker holds, and the position of that worker: it is the first choice for the prompt.
    pub(super) async fn favourite(&self) -> (usize, Vec<u32>) {
        let prompt = self.prompt();
        let body = simulated::completion(&prompt);
        let holder = self.frontend.complete(&body).await.worker().to_owned();
        eventually("the prompt's holder is the first choice", async || {
            let route = self.frontend.route(&body).await;
            let candidate = route["candidates"].as_array().unwrap().iter().find(|candidate| candidate["worker_id"] == *holder);
            let holds = candidate.is_some_and(|candidate| candidate["overlap_blocks"] == PROMPT_TOKENS / BLOCK);
            seen(holds && route["chosen"]["worker_id"] == *holder, route)
        })
        .await;
        (self.position(&holder), prompt)
    }

    /// The place of a worker in the fleet.
    pub(super) fn position(&self, id: &str) -> usize {
        self.fleet.iter().position(|engine| simulated::id(engine) == id).unwrap_or_else(|| panic!("no worker {id}"))
    }

    /// What the frontend calls a worker.
    pub(super) fn id(&self, position: usize) -> String {
        simulated::id(&self.fleet[position])
    }

    pub(super) fn break_worker(&self, position: usize, faults: Faults) {
        self.fleet[position].set_faults(|now| *now = faults);
    }

    pub(super) fn mend(&self) {
        for engine in &self.fleet {
            engine.set_faults(|now| *now = Faults::default());
        }
    }

    /// Requests that each worker has been sent.
    pub(super) fn requests(&self) -> Vec<u64> {
        self.fleet.iter().map(|engine| engine.counters().requests).collect()
    }

    /// Sends a completion of `tokens` tokens and waits for the head of its answer.
    pub(super) async fn open(&self, prompt: &[u32], shape: Shape, tokens: u32) -> Open {
        self.frontend.open("/v1/completions", &[], &completion(prompt, shape, tokens)).await
    }

    /// The same, to its end.
    pub(super) async fn ask(&self, prompt: &[u32], shape: Shape, tokens: u32) -> Ending {
        self.open(prompt, shape, tokens).await.ending().await
    }

    /// Waits until every gauge is back at zero, here and at the engines.
    pub(super) async fn idle(&self) {
        idle(&self.frontend).await;
        eventually("the engines have nothing to do", async || self.engines_idle()).await;
    }

    pub(super) fn engines_idle(&self) -> Result<(), String> {
        let busy = self.fleet.iter().map(|engine| engine.gauges(0).unwrap()).find(|gauges| gauges.running + gauges.waiting > 0);
        busy.map_or(Ok(()), |gauges| Err(format!("{gauges:?}")))
    }

    /// How many sequences an engine works at.
    pub(super) fn running(&self, position: usize) -> usize {
        let gauges = self.fleet[position].gauges(0).unwrap();
        gauges.running + gauges.waiting
    }
}

/// The engines of these tests: 100 tokens a second, and a prefill nobody waits for.
pub(super) fn engine() -> Config {
    Config { prefill_tokens_per_s: 1_000_000.0, decode_tokens_per_s: 100.0, ..Config::default() }
}

/// A completion that goes on until it has all its tokens.
pub(super) fn completion(prompt: &[u32], shape: Shape, tokens: u32) -> Value {
    json!({
        "model": "mock-model", "prompt": prompt, "max_tokens": tokens, "ignore_eos": true, "stream": shape == Shape::Stream,
    })
}

/// Waits until requests may be sent to `count` workers.
pub(super) async fn routable(frontend: &Frontend, count: usize) {
    eventually(&format!("{count} workers can be sent requests"), async || {
        let answer = frontend.get("/workers").await.json();
        let workers = answer["workers"].as_array().unwrap();
        let serves = |worker: &&Value| ["up", "suspect"].iter().any(|state| worker["state"] == *state) && worker["ranks"][0].is_object();
        seen(workers.iter().filter(serves).count() == count, &answer)?;
        // What requests see is made anew a moment later.
        let route = frontend.post("/route", &json!({"model": "mock-model", "prompt": [1]})).await.json();
        let free = |candidate: &&Value| candidate["excluded"].is_null();
        let found = route["candidates"].as_array().map_or(0, |candidates| candidates.iter().filter(free).count());
        seen(found >= count, &route)
    })
    .await;
}

/// Waits until every gauge of the frontend is at zero, and its list of workers says the same.
pub(super) async fn idle(frontend: &Frontend) {
    eventually("every gauge is back at zero", async || {
        let page = frontend.get("/metrics").await.text();
        for gauge in GAUGES {
            let shown: Vec<&str> = page.lines().filter(|line| line.strip_prefix(gauge).is_some_and(|rest| rest.starts_with('{'))).collect();
            seen(!shown.is_empty() && shown.iter().all(|line| line.ends_with(" 0")), (gauge, shown))?;
        }
        let answer = frontend.get("/workers").await.json();
        let ranks = answer["workers"].as_array().unwrap().iter().flat_map(|worker| worker["ranks"].as_array().unwrap());
        let load = |rank: &Value| ["active_requests", "prefill_tokens", "decode_blocks"].map(|load| rank[load].as_u64().unwrap());
        let booked: Vec<_> = ranks.map(load).collect();
        seen(booked.iter().all(|load| *load == [0, 0, 0]), booked)
    })
    .await;
}

/// Waits until a count of `/metrics` is above `above`; a metric that is not shown is zero.
pub(super) async fn counted(frontend: &Frontend, metric: &str, above: f64) {
    eventually(&format!("{metric} above {above}"), async || {
        let value = frontend.metric(metric).await.unwrap_or(0.0);
        seen(value > above, value)
    })
    .await;
}

/// Fails when `work` takes longer than `most`.
pub(super) async fn within<T>(most: Duration, what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(most, work).await.unwrap_or_else(|_| panic!("{what} takes longer than {most:?}"))
}
