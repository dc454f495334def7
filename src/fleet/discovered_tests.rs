//! How many snapshots a batch of changes costs, and what it costs whoever waits meanwhile.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

use std::sync::atomic::Ordering;

use clap::Parser;
use engine::{
    Client, Options,
    tokens::{TokenClient, TokenOptions},
};
use prompt::{Pool, PoolOptions};
use sched::Scheduler;
use serde_json::json;
use tokio::runtime::Handle;
use wire::discovery::{Key, Record};

use super::{adding::MOST_TEXT_BYTES, *};
use crate::{
    config::{Config, cli::Cli},
    fleet::Parts,
};

const MANY: u64 = 2_000;

pub(super) struct World {
    keeper: Keeper,
    pub(super) fleet: Arc<Fleet>,
    _folder: tempfile::TempDir,
}

impl World {
    async fn start() -> Self {
        Self::with(&[]).await
    }

    pub(super) async fn with(more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_str().unwrap();
        let args = ["dynamo-frontend", "--router-mode", "kv", "--discovery-backend", "file", "--file-kv", root];
        let args = [&args, more].concat();
        let config = Arc::new(Config::from_args(Cli::try_parse_from(args).unwrap().serve).unwrap());
        let planes = Planes::start(&config, Handle::current()).await.unwrap();
        let (client, scheduler) = (Client::new(Options::default()).unwrap(), Scheduler::new(config.sched.clone()).unwrap());
        let pool = Arc::new(Pool::new(PoolOptions { threads: 1, queue: 1 }).unwrap());
        let tokens = planes.requests().map(|calls| TokenClient::new(calls.clone(), TokenOptions::default()));
        let parts = Parts { client, tokens, scheduler, pool, events: Handle::current(), plane: planes.client().cloned() };
        let fleet = Fleet::start(config, parts).unwrap();
        let keeper = Keeper::new(fleet.clone(), planes, watch::channel(Peers::default()).0);
        Self { keeper, fleet, _folder: folder }
    }

    /// Snapshots that were made for exactly these records.
    pub(super) async fn tell(&mut self, all: impl Iterator<Item = Record>) -> u64 {
        let before = self.snapshots();
        let all: Vec<(Key, bytes::Bytes)> = all.map(|record| (record.key(), record.to_json())).collect();
        self.keeper.records.take(Change::Reset(all));
        self.keeper.hands.make(&self.keeper.records).await;
        self.snapshots() - before
    }

    /// Discovery was away, and its records are gone.
    pub(super) async fn lose(&mut self) {
        self.keeper.take(Change::Reset(Vec::new()));
        self.keeper.hands.make(&self.keeper.records).await;
    }

    fn snapshots(&self) -> u64 {
        self.fleet.snapshots.load(Ordering::Relaxed)
    }

    /// Workers that were not removed, as requests see them.
    fn present(&self) -> usize {
        self.fleet.view().workers.iter().filter(|worker| !worker.is_draining()).count()
    }
}

/// An engine that nobody hears of again: nothing listens on this port.
fn dead(instance_id: u64, life: u64) -> Record {
    let url = format!("http://127.{}.{}.{}:1", life, instance_id / 250, instance_id % 250 + 1);
    let document = json!({
        "type": "OpenAiWorker", "namespace": "dynamo", "component": "backend", "endpoint": "generate",
        "instance_id": instance_id, "url": url, "model": "m", "block_size": 16, "dp_start": 0, "dp_size": 1,
    });
    Record::from_json(document.to_string().as_bytes()).unwrap()
}

#[tokio::test]
async fn a_batch_of_changes_is_one_snapshot_and_no_change_is_none() {
    let mut world = World::start().await;
    assert_eq!((world.tell((0..MANY).map(|id| dead(id, 1))).await, world.present()), (1, MANY as usize));
    assert_eq!(world.tell((0..MANY).map(|id| dead(id, 1))).await, 0);
    // Each is another engine now.
    let before = world.snapshots();
    world.tell((0..MANY).map(|id| dead(id, 2))).await;
    assert_eq!(world.present(), MANY as usize);
    world.tell(std::iter::empty()).await;
    assert_eq!(world.present(), 0);
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while !world.fleet.view().workers.is_empty() {
        assert!(std::time::Instant::now() < deadline, "{} are left", world.fleet.view().workers.len());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Twice 2,000 tasks ended, each on its own.
    let made = world.snapshots() - before;
    assert!((2..200).contains(&made), "{made} snapshots for {} changes", 4 * MANY);
    world.fleet.stop().await;
}

#[tokio::test]
async fn a_record_with_an_endless_url_or_model_is_refused_in_few_words() {
    let mut world = World::start().await;
    let with = |instance_id, change: fn(&mut wire::discovery::OpenAiWorker)| {
        let Record::OpenAiWorker(mut record) = dead(instance_id, 1) else { panic!("a worker's record") };
        change(&mut record);
        Record::OpenAiWorker(record)
    };
    let long = [
        with(1, |record| record.url.push_str(&"a".repeat(500_000))),
        with(2, |record| record.model = "m".repeat(MOST_TEXT_BYTES + 1)),
        with(3, |record| record.model = "m".repeat(MOST_TEXT_BYTES)),
    ];
    world.tell(long.into_iter()).await;
    assert_eq!((world.present(), world.fleet.view().workers[0].id()), (1, "3"));
    let refused: Vec<_> = world.keeper.hands.refused.values().map(String::as_str).collect();
    assert_eq!(refused, ["its url has 500018 bytes, and 2048 are allowed", "its model has 2049 bytes, and 2048 are allowed"]);
    world.fleet.stop().await;
}

#[tokio::test]
async fn a_fleet_of_many_stops_without_a_snapshot() {
    let mut world = World::start().await;
    world.tell((0..MANY).map(|id| dead(id, 1))).await;
    let before = world.snapshots();
    world.fleet.stop().await;
    assert_eq!(world.snapshots(), before);
}

#[tokio::test]
async fn others_run_while_many_workers_are_added() {
    let mut world = World::start().await;
    let turns = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = turns.clone();
    let other = tokio::spawn(async move {
        loop {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    world.tell((0..MANY).map(|id| dead(id, 1))).await;
    other.abort();
    // A runtime of one thread, which every task of a new worker wants at once.
    let turns = turns.load(Ordering::Relaxed);
    assert!(turns > 3, "{turns}");
    world.fleet.stop().await;
}
