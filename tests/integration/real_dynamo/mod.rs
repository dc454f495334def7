//! Real Dynamo 1.6.1 workers and publishers, followed over both pairs of planes. What our index holds of each is compared
//! with what the worker's own recovery endpoint dumps.
//!
//! `tests/run --dynamo` installs Dynamo and runs this, where nothing but loopback exists: its publishers listen everywhere.

mod ask;
mod generation;
mod held;
mod parsers;
mod peers;
mod served;
mod theirs;

use std::{collections::BTreeSet, path::Path, time::Duration};

use serde_json::json;
use testkit::servers::Server;

use crate::support::{eventually, frontend::Frontend, seen};
use ask::Prompts;
use held::Held;
use peers::{Peers, Planes, Publisher, RANKS};
use theirs::Theirs;

/// A virtual environment with Dynamo in it.
const VENV: &str = "DYNAMO_TEST_DYNAMO";
/// Requests before each comparison.
const REQUESTS: usize = 60;
/// How long the records of a worker that was killed may stay: its lease in etcd is 30 s.
const GONE_WITHIN: Duration = Duration::from_secs(60);

fn venv() -> String {
    std::env::var(VENV).expect("DYNAMO_TEST_DYNAMO names a virtual environment with Dynamo, as tests/dynamo/install makes one")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts real Dynamo processes: tests/run --dynamo"]
async fn the_index_is_what_real_workers_hold_over_file_and_zmq() {
    let folder = tempfile::tempdir().unwrap();
    let planes = Planes::file_and_zmq(folder.path());
    followed(&Peers::new(Path::new(&venv()), planes)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts real Dynamo processes: tests/run --dynamo"]
async fn the_index_is_what_real_workers_hold_over_etcd_and_nats() {
    let (etcd, nats) = (Server::etcd(), Server::nats());
    let planes = Planes::etcd_and_nats(&etcd.url(), &nats.url());
    followed(&Peers::new(Path::new(&venv()), planes)).await;
}

/// The whole story on one pair of planes.
async fn followed(peers: &Peers) {
    let theirs = Theirs::open(&peers.planes).await;
    let mut workers = vec![peers.worker("w1"), peers.worker("w2")];
    let real = peers.frontend().await;
    let mut ours = Frontend::start(&peers.planes.flags());
    let mut prompts = Prompts::new();

    // Events as they come: each request is sent to one worker, and what we knew of it before is what it then has cached.
    two_workers(&theirs).await;
    prompts.known(&real, &theirs.sources()).await;
    let mut checked = 0;
    for _ in 0..REQUESTS {
        equal(&theirs, &ours).await;
        checked += prompts.ask(&real, &ours, &theirs.sources()).await;
    }
    assert!(checked > REQUESTS / 3, "only {checked} requests had anything cached");
    equal(&theirs, &ours).await;

    // A frontend that comes late knows all of it, and so does one that missed things.
    drop(ours);
    for _ in 0..5 {
        prompts.send(&real, &theirs.sources()).await;
    }
    ours = Frontend::start(&peers.planes.flags());
    equal(&theirs, &ours).await;

    // A worker that dies is gone; the one in its place is known by what it holds.
    let before: BTreeSet<u64> = theirs.sources().iter().map(|source| source.worker_id).collect();
    drop(workers.remove(0));
    workers.push(peers.worker("w3"));
    let exchanged = async {
        loop {
            let now: BTreeSet<u64> = theirs.sources().iter().map(|source| source.worker_id).collect();
            if now.len() == 2 && now != before {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(GONE_WITHIN, exchanged).await.expect("the dead worker's record is gone, the new one's is there");
    prompts.known(&real, &theirs.sources()).await;
    for _ in 0..5 {
        prompts.send(&real, &theirs.sources()).await;
    }
    equal(&theirs, &ours).await;

    // Somebody's own engine, with real publishers.
    let mut publisher = Publisher::start(peers).await;
    published(&mut publisher).await;
    eventually("the publisher's own index has it all", async || {
        let dumped = theirs.held().await?;
        let blocks: Vec<usize> = (0..RANKS).map(|rank| dumped.blocks(publisher.worker_id, rank)).collect();
        seen(blocks == [29; RANKS as usize], &blocks)
    })
    .await;
    equal(&theirs, &ours).await;
    let held = Held::of_frontend(&ours).await;
    for rank in 0..RANKS {
        assert_eq!(held.blocks(publisher.worker_id, rank), 29, "rank {rank}");
    }
}

async fn two_workers(theirs: &Theirs) {
    eventually("both workers' sources are registered", async || {
        let sources = theirs.sources();
        seen(sources.len() == 2, &sources)
    })
    .await;
}

/// Waits until each target of ours holds what the worker's own dump says.
async fn equal(theirs: &Theirs, ours: &Frontend) {
    eventually("our index is what the workers dump", async || {
        let (dumped, held) = (theirs.held().await?, Held::of_frontend(ours).await);
        let differences = dumped.differences(&held);
        seen(differences.is_empty(), &differences)?;
        let workers = ours.get("/workers").await.json();
        let ranks = workers["workers"].as_array().unwrap().iter().flat_map(|worker| worker["ranks"].as_array().unwrap());
        let exact = ranks.filter(|rank| rank["trust"] == "exact").count();
        seen(exact >= dumped.targets(), &workers)
    })
    .await;
}

/// On each rank: a chain of 20 blocks of which the last is removed again, and one of 10 for an adapter that follows nothing.
async fn published(publisher: &mut Publisher) {
    for rank in 0..RANKS {
        let hash = |at: i64| at * if at % 2 == 0 { 1 } else { -1 } - i64::from(rank) * 1000;
        let chain: Vec<i64> = (1..=20).map(hash).collect();
        let tokens: Vec<u32> = (0..20 * 16).map(|token| token + rank).collect();
        let (first, rest) = chain.split_at(12);
        let stored = |tokens: &[u32], hashes: &[i64], parent: Option<i64>, adapter: Option<&str>| json!({"rank": rank, "stored": {"token_ids": tokens, "block_hashes": hashes, "parent_hash": parent, "lora_name": adapter}});
        publisher.tell(&stored(&tokens[..12 * 16], first, None, None)).await;
        publisher.tell(&stored(&tokens[12 * 16..], rest, Some(first[11]), None)).await;
        let adapted: Vec<i64> = (101..=110).map(hash).collect();
        publisher.tell(&stored(&tokens[..10 * 16], &adapted, None, Some("sql"))).await;
        publisher.tell(&json!({"rank": rank, "removed": [chain[19]]})).await;
    }
}
