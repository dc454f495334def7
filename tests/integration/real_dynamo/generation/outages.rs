//! Discovery goes down for a minute and comes back empty. Our workers and frontend live through it; of theirs one of each is watched
//! beside them.

use std::{
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use mocker::{Config, DynamoConfig, Handle};
use testkit::servers::Server;

use super::{
    super::{
        peers::{Peers, Planes},
        venv,
    },
    Probes, completion, prompt, row, up, warm,
};
use crate::support::{eventually, frontend::Frontend, seen};

const AWAY: Duration = Duration::from_secs(60);
/// Workers have to register again meanwhile.
const AFTER: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts real Dynamo processes: tests/run --dynamo"]
async fn discovery_that_is_away_and_comes_back_empty_costs_no_request() {
    let (mut etcd, nats) = (Server::etcd(), Server::nats());
    let peers = Peers::new(Path::new(&venv()), Planes::etcd_and_nats(&etcd.url(), &nats.url()));
    let own = [worker(&peers).await, worker(&peers).await];
    // A fleet of theirs with the same discovery, in a namespace of its own.
    let namespace = [("DYN_NAMESPACE", "theirs")];
    let their_worker = peers.worker_with("w", &["--endpoint", "dyn://theirs.backend.generate"], &namespace);
    let real = peers.frontend_with("frontend", &["--router-mode", "kv", "--namespace", "theirs"], &namespace).await;
    warm(&real).await;
    let flags = [&peers.planes.flags()[..], &["--namespace", "dynamo"]].concat();
    let ours = Frontend::start(&flags);
    up(&ours, 2).await;

    etcd.kill();
    let killed = Instant::now();
    let (probes, theirs) = (Probes::start(ours.address), tokio::spawn(alive(real.address)));
    let mut worker_ended = None;
    while killed.elapsed() < AWAY {
        if worker_ended.is_none() && their_worker.has_ended() {
            worker_ended = Some(killed.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    let frontend_ended = if real.peer.has_ended() { Some(theirs.await.unwrap()) } else { None };
    etcd.wipe();
    etcd.restart();
    tokio::time::sleep(AFTER).await;
    // A frontend that starts now sees who has registered again.
    let late = Frontend::start(&flags);
    up(&late, 2).await;
    let answer = late.complete(&completion(&prompt(50), 4)).await;
    assert!(own.iter().any(|worker| worker.instance().unwrap().1.to_string() == answer.worker()));
    let probed = probes.end().await;
    let theirs = match (worker_ended, frontend_ended) {
        (None, None) => "worker and frontend live on".to_owned(),
        (worker, frontend) => format!("worker ended after {worker:?}, frontend answered last after {frontend:?}"),
    };
    row("etcd down 60 s, back empty", &theirs, &format!("{probed}; workers registered again"));
    assert!(probed.failed.is_empty() && probed.asked > 100, "{probed:?}");
    for one in &own {
        assert!(probed.by.contains(&one.instance().unwrap().1), "both serve");
    }
    eventually("discovery is no longer stale", async || {
        let health = ours.get("/health").await;
        seen(!health.text().contains("stale"), health.text())
    })
    .await;
}

async fn worker(peers: &Peers) -> Handle {
    let config = Config {
        model: "tiny".to_owned(),
        model_path: Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/tiny-llama")),
        dynamo: Some(DynamoConfig::new(peers.planes.of_worker())),
        ..Config::default()
    };
    mocker::serve(config).await.unwrap()
}

/// How long connections are taken.
async fn alive(address: SocketAddr) -> Duration {
    let began = Instant::now();
    while tokio::net::TcpStream::connect(address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    began.elapsed()
}
