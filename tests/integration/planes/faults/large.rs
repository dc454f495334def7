//! Two million blocks are recovered while requests are served.

use std::time::{Duration, Instant};

use serde_json::json;
use transport::discovery::{Backend, Discovery, Options};

use super::{
    publisher::{Plan, Publisher},
    stand,
};
use crate::{
    planes::{Place, announce, lossy::Wire, open_ai_worker},
    support::{
        eventually,
        frontend::Frontend,
        seen,
        simulated::{BLOCK, prompt, quick},
    },
};

const BLOCKS: usize = 2_000_000;
/// The worker whose cache it is.
const WORKER: u64 = 1001;
/// Prompt of a measured request, in blocks.
const ASKED: usize = 100;
/// Looks at a quiet frontend.
const QUIET: usize = 2_000;
/// What a machine of few cores adds to single measurements.
const SLACK: Duration = Duration::from_millis(1);
/// The longest the recovery may take.
const RECOVERED_WITHIN: Duration = Duration::from_secs(60);

/// The 95th percentiles of how long `POST /route` takes at two frontends that are asked in turns, so that what else the machine
/// does is in both.
async fn p95(frontends: [&Frontend; 2], mut until: impl AsyncFnMut() -> bool) -> [Duration; 2] {
    let mut took = [Vec::new(), Vec::new()];
    let mut number = 0;
    while !until().await {
        number += 1;
        let body = json!({"model": "mock-model", "prompt": prompt(number % 50, ASKED * BLOCK), "max_tokens": 1});
        for (frontend, took) in frontends.iter().zip(&mut took) {
            let since = Instant::now();
            frontend.route(&body).await;
            took.push(since.elapsed());
        }
    }
    took.map(|mut took| {
        took.sort();
        took[took.len() * 95 / 100]
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: tests/run --faults"]
async fn two_million_blocks_are_recovered_beside_requests() {
    let hidden = tempfile::tempdir().unwrap();
    let root = hidden.path().to_owned();
    let planes = [("DYN_DISCOVERY_BACKEND", "file"), ("DYN_FILE_KV", root.to_str().unwrap()), ("DYN_EVENT_PLANE", "zmq")];
    let planes = planes.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let mut publisher = Publisher::start(Plan { worker_id: WORKER, blocks: BLOCKS, events_per_second: 1000, ttl: None, planes });
    let report = publisher.fill();
    // The second never hears of the publisher.
    let places = [Place::folder(), Place::folder()];
    let engines = [quick().await, quick().await];
    let mut records = Vec::new();
    for place in &places {
        for (worker, engine) in [WORKER, WORKER + 1].into_iter().zip(&engines) {
            records.push(announce(&place.discovery(), open_ai_worker("dynamo", worker, &engine.url())).await);
        }
    }
    let (frontend, control) = (stand::frontend(&places[0]), stand::frontend(&places[1]));
    for frontend in [&frontend, &control] {
        eventually("both workers serve", async || {
            let workers = frontend.get("/workers").await.json();
            let up = workers["workers"].as_array().unwrap().iter().filter(|worker| worker["state"] == "up").count();
            seen(up == 2, workers)
        })
        .await;
    }
    let mut looks = 0;
    let quiet = p95([&frontend, &control], async || {
        looks += 1;
        looks > QUIET
    })
    .await;
    let from = Discovery::open(Backend::File { root }, Options::default()).unwrap();
    let _wire = Wire::with(std::sync::Arc::default(), from, places[0].discovery());
    let (mut recovering, mut recovery, mut asked) = (false, None, 0);
    let since = Instant::now();
    let busy = p95([&frontend, &control], async || {
        assert!(since.elapsed() < RECOVERED_WITHIN, "{}", frontend.rank(&WORKER.to_string()).await);
        asked += 1;
        if asked % 10 != 0 {
            return false;
        }
        let trust = stand::trust(&frontend, &WORKER.to_string()).await;
        if trust == "recovering" && !recovering {
            (recovering, recovery) = (true, Some(Instant::now()));
        }
        trust == "exact"
    })
    .await;
    let rank = frontend.rank(&WORKER.to_string()).await;
    let recovery = recovery.map(|began| began.elapsed());
    println!(
        "{} blocks recovered in {recovery:?}; p95 of POST /route with {ASKED} blocks, recovering frontend beside its control:",
        report.blocks
    );
    println!(
        "  quiet {:?} beside {:?}, while recovering {:?} beside {:?} ({asked} requests to each)",
        quiet[0], quiet[1], busy[0], busy[1]
    );
    assert!(recovering, "it was never shown recovering");
    assert_eq!((&rank["digest"], &rank["blocks"]), (&json!(report.digest), &json!(report.blocks)));
    assert!(busy[0] <= 2 * busy[1].max(quiet[0]) + SLACK, "{quiet:?} {busy:?}");
}
