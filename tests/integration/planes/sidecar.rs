//! `dynamo-worker` beside simulated engines: what a frontend learns over the planes is what it learns from the engine itself.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use mocker::{Config, Handle};
use serde_json::Value;

use super::Place;
use crate::support::{
    eventually,
    frontend::Frontend,
    seen,
    simulated::{self, BLOCK, cached_tokens, completion, prompt},
};

/// In kv mode, by events alone.
const KV: [&str; 4] = ["--router-mode", "kv", "--router-predicted-ttl-secs", "0"];

/// The process beside an engine. It is ended as an operator would.
pub(super) struct Sidecar(Child);

impl Sidecar {
    fn start(place: &Place, engine: &Handle) -> Self {
        Self::with(place, engine, &[])
    }

    pub(super) fn with(place: &Place, engine: &Handle, more: &[&str]) -> Self {
        let binary = Path::new(env!("CARGO_BIN_EXE_dynamo-frontend")).with_file_name("dynamo-worker");
        assert!(binary.exists(), "dynamo-worker is not built: cargo test --workspace, or cargo build -p worker");
        let mut command = Command::new(binary);
        command.args(["--engine", &engine.url()]).args(place.flags()).args(more);
        Self(command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    pub(super) fn process(&self) -> u32 {
        self.0.id()
    }

    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.0.id().to_string()]).status().unwrap().success());
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

async fn engine() -> Handle {
    simulated::start(Config { speedup: 0.0, blocks: 400, max_model_len: 4096, ..Config::default() }).await
}

/// The worker that is this engine; null while there is none that is not draining.
async fn worker(frontend: &Frontend, engine: &Handle) -> Value {
    let answer = frontend.get("/workers").await.json();
    let url = engine.url();
    let found = answer["workers"].as_array().unwrap().iter().find(|worker| worker["url"] == *url && worker["state"] != "draining");
    found.cloned().unwrap_or_default()
}

/// Waits until two frontends know the same of an engine, all of it.
async fn equal(one: &Frontend, other: &Frontend, engine: &Handle) {
    eventually("both know the same of the engine", async || {
        let (one, other) = (worker(one, engine).await, worker(other, engine).await);
        let (mine, theirs) = (&one["ranks"][0], &other["ranks"][0]);
        let known = [mine, theirs].iter().all(|rank| rank["trust"] == "exact" && rank["blocks"].as_u64() > Some(0));
        seen(known && mine["digest"] == theirs["digest"], (&one, &other))
    })
    .await;
}

/// Prompts with beginnings in common, so that caches fill, overflow and are hit; of so many that both of two engines get some.
async fn talk(frontend: &Frontend, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let (common, own) = (prompt(number % 14, 12 * BLOCK), prompt(100 + number, 6 * BLOCK));
        frontend.complete(&completion(&[&common[..], &own[..]].concat())).await;
    }
}

async fn what_comes_over_the_planes_is_what_the_engine_says(place: Place) {
    let engines = [engine().await, engine().await];
    let _sidecars = [Sidecar::start(&place, &engines[0]), Sidecar::start(&place, &engines[1])];
    let frontend = place.frontend(&KV);
    frontend.serves(2, "exact").await;
    let direct = simulated::kv(&engines).await;
    talk(&frontend, 0..80).await;
    for engine in &engines {
        equal(&frontend, &direct, engine).await;
    }
    // Requests go to where their prefix is, and find there what was promised.
    for number in 0..5 {
        let body = completion(&[&prompt(number, 12 * BLOCK)[..], &[7; 5]].concat());
        let route = frontend.route(&body).await;
        let chosen = &route["chosen"]["worker_id"];
        let candidate = route["candidates"].as_array().unwrap().iter().find(|candidate| candidate["worker_id"] == *chosen).unwrap();
        let answer = frontend.complete(&body).await;
        assert_eq!(answer.worker(), chosen.as_str().unwrap());
        assert_eq!(candidate["cached_tokens"].as_u64(), Some(cached_tokens(&answer)), "{route}");
        assert!(cached_tokens(&answer) > 0);
        for engine in &engines {
            equal(&frontend, &direct, engine).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_over_zmq_is_what_the_engine_says() {
    what_comes_over_the_planes_is_what_the_engine_says(Place::folder()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_over_nats_is_what_the_engine_says() {
    what_comes_over_the_planes_is_what_the_engine_says(Place::etcd_and_nats()).await;
}

/// One of two engines loses its sidecar, which is started again: no request fails, and nothing is missing afterwards.
async fn a_sidecar_that_is_killed_and_started_again_costs_nothing(place: Place) {
    let engines = [engine().await, engine().await];
    let mut sidecars = vec![Sidecar::start(&place, &engines[0]), Sidecar::start(&place, &engines[1])];
    let frontend = place.frontend(&KV);
    frontend.serves(2, "exact").await;
    let direct = simulated::kv(&engines).await;
    talk(&frontend, 0..30).await;
    let before = worker(&frontend, &engines[0]).await["id"].clone();
    sidecars.remove(0).kill();
    talk(&frontend, 30..60).await;
    sidecars.push(Sidecar::start(&place, &engines[0]));
    eventually("the new one has taken its place", async || {
        talk(&frontend, 60..62).await;
        let now = worker(&frontend, &engines[0]).await;
        seen(now["state"] == "up" && now["id"] != before, now)
    })
    .await;
    talk(&frontend, 62..90).await;
    for engine in &engines {
        equal(&frontend, &direct, engine).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sidecar_that_is_killed_and_started_again_costs_nothing_over_zmq() {
    a_sidecar_that_is_killed_and_started_again_costs_nothing(Place::folder()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sidecar_that_is_killed_and_started_again_costs_nothing_over_nats() {
    a_sidecar_that_is_killed_and_started_again_costs_nothing(Place::etcd_and_nats()).await;
}

/// Longer than the time after which its records count as those of a dead process.
const FROZEN: Duration = Duration::from_secs(12);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sidecar_that_is_frozen_comes_back_whole() {
    let place = Place::folder();
    let engines = [engine().await, engine().await];
    let sidecars = [Sidecar::start(&place, &engines[0]), Sidecar::start(&place, &engines[1])];
    let frontend = place.frontend(&KV);
    frontend.serves(2, "exact").await;
    let direct = simulated::kv(&engines).await;
    talk(&frontend, 0..20).await;
    sidecars[0].signal("-STOP");
    let (until, mut number) = (Instant::now() + FROZEN, 20);
    while Instant::now() < until {
        talk(&frontend, number..number + 1).await;
        // The engine goes on: others send to it too.
        talk(&direct, number..number + 1).await;
        number += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    sidecars[0].signal("-CONT");
    for engine in &engines {
        equal(&frontend, &direct, engine).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sidecar_that_ends_withdraws_its_engine_and_an_engine_that_dies_is_withdrawn() {
    let place = Place::etcd_and_nats();
    let engine = engine().await;
    let sidecar = Sidecar::start(&place, &engine);
    let frontend = place.frontend(&KV);
    frontend.serves(1, "exact").await;
    talk(&frontend, 0..3).await;
    engine.set_faults(|faults| faults.refuse = true);
    eventually("it is withdrawn", async || seen(worker(&frontend, &engine).await.is_null(), ())).await;
    engine.set_faults(|faults| faults.refuse = false);
    frontend.serves(1, "exact").await;
    talk(&frontend, 3..6).await;
    drop(sidecar);
    eventually("it is withdrawn again", async || seen(worker(&frontend, &engine).await.is_null(), ())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_comes_back_without_events_says_so_behind_its_sidecar_too() {
    let place = Place::folder();
    let first = engine().await;
    let _sidecar = Sidecar::start(&place, &first);
    let frontend = place.frontend(&KV);
    frontend.serves(1, "exact").await;
    let http = first.address();
    first.shutdown().await;
    let second = simulated::start(Config { http, events: None, speedup: 0.0, ..Config::default() }).await;
    frontend.serves(1, "none").await;
    let shown = worker(&frontend, &second).await;
    assert!(shown["events"].as_str().is_some_and(|events| events.starts_with("none: the engine publishes no KV events")), "{shown}");
}
