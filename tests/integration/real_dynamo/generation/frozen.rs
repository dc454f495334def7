//! Workers that stand still: their connections are open, and nothing comes.

use std::{
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use testkit::servers::Server;

use super::{
    super::{
        peers::{Peer, Peers, Planes},
        venv,
    },
    Probed, Probes, Sum, ends, probe, row, start, under_way, up, warm,
};
use crate::support::{eventually, frontend::Frontend, seen};

/// Tokens of an answer, ten milliseconds each.
const LONG: usize = 300;
const STREAMS: usize = 4;
/// A client waits no longer. File discovery drops a silent worker after ten seconds.
const PATIENCE: Duration = Duration::from_secs(25);
/// Before a worker is out of discovery, it goes on.
const SHORT: Duration = Duration::from_secs(5);
/// A thawed worker is looked for so long.
const BACK_WITHIN: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts real Dynamo processes: tests/run --dynamo"]
async fn a_frozen_worker_holds_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let peers = Peers::new(Path::new(&venv()), Planes::file_and_zmq(folder.path()));
    let flags = peers.planes.flags();
    let quick = Frontend::start(&[&flags[..], &["--engine-between-tokens-timeout-secs", "3"]].concat());
    let plain = Frontend::start(&flags);
    let workers = three_workers(&peers, &quick).await;
    for ours in [&quick, &plain] {
        up(ours, 3).await;
    }
    let arguments = ["--router-mode", "kv", "--migration-limit", "3"];
    let theirs_quick = peers.frontend_with("quick", &arguments, &[("DYN_HTTP_BACKEND_STREAM_TIMEOUT_SECS", "3")]).await;
    let theirs_plain = peers.frontend_with("plain", &arguments, &[]).await;
    for real in [&theirs_quick, &theirs_plain] {
        warm(real).await;
    }

    // Frozen with nothing to do, and back before discovery has dropped it.
    let (idle, peer) = &workers[0];
    peer.signal(Signal::STOP);
    let frozen = Instant::now();
    let probes = [theirs_plain.address, plain.address].map(Probes::start);
    tokio::time::sleep(SHORT.saturating_sub(frozen.elapsed())).await;
    peer.signal(Signal::CONT);
    let thawed = Instant::now();
    eventually("the thawed worker gets requests", async || {
        let by = probe(plain.address).await.map_err(|failure| format!("{failure}: {:?}", plain.log()))?;
        seen(by == Some(*idle), by)
    })
    .await;
    let back = thawed.elapsed();
    let [theirs, ours] = probes;
    let (theirs, ours) = (theirs.end().await, ours.end().await);
    row("worker frozen 5 s while idle: new requests", &theirs.to_string(), &ours.to_string());
    row("thawed before discovery dropped it: back in service", "not looked at", &format!("after {} ms", back.as_millis()));
    assert!(ours.failed.len() <= 1, "more than one request hung: {ours:?}");

    // Frozen in the middle of answers, for good.
    let addresses = [theirs_quick.address, quick.address, theirs_plain.address, plain.address];
    let (victim, peer, fates) = freeze_in_the_middle(&workers, &addresses).await;
    row("worker frozen in the middle of answers, 3 s between tokens", &fates[0].to_string(), &fates[1].to_string());
    row("the same with default options, file discovery", &fates[2].to_string(), &fates[3].to_string());
    for of in [1, 3] {
        fates[of].is_borne();
    }
    let gap = fates[1].sum.longest_gap_ms;
    assert!((2500..6000).contains(&gap), "left after {gap} ms");
    peer.signal(Signal::CONT);
    let back = tokio::join!(back_at(theirs_plain.address, victim), back_at(plain.address, victim));
    row("thawed after its files expired", back.0, back.1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts real Dynamo processes: tests/run --dynamo"]
async fn a_frozen_worker_holds_nobody_up_with_requests_over_nats() {
    let (etcd, nats) = (Server::etcd(), Server::nats());
    let peers = Peers::new(Path::new(&venv()), Planes::etcd_and_nats(&etcd.url(), &nats.url()).requests_over_nats());
    let ours = Frontend::start(&peers.planes.flags());
    let workers = three_workers(&peers, &ours).await;
    up(&ours, 3).await;
    let real = peers.frontend_with("plain", &["--router-mode", "kv", "--migration-limit", "3"], &[]).await;
    warm(&real).await;
    let (victim, peer, fates) = freeze_in_the_middle(&workers, &[real.address, ours.address]).await;
    row("requests over NATS: worker frozen in the middle of answers, default options", &fates[0].to_string(), &fates[1].to_string());
    fates[1].is_borne();
    peer.signal(Signal::CONT);
    let back = tokio::join!(back_at(real.address, victim), back_at(ours.address, victim));
    row("requests over NATS: thawed", back.0, back.1);
}

/// Workers, each with what requests call it.
async fn three_workers(peers: &Peers, ours: &Frontend) -> Vec<(u64, Peer)> {
    let mut workers: Vec<(u64, Peer)> = Vec::new();
    for name in ["w1", "w2", "w3"] {
        let peer = peers.worker_with(name, &["--num-gpu-blocks-override", "4096"], &[]);
        let id = eventually("the new worker serves", async || {
            let answer = ours.get("/workers").await.json();
            let mut up = answer["workers"].as_array().unwrap().iter().filter(|worker| worker["state"] == "up");
            let new = up.find_map(|worker| worker["id"].as_str()?.parse().ok().filter(|id| workers.iter().all(|(known, _)| known != id)));
            new.ok_or_else(|| answer.to_string())
        })
        .await;
        workers.push((id, peer));
    }
    workers
}

/// What became of one frontend's streams, and of the requests meanwhile.
struct Fate {
    sum: Sum,
    probed: Probed,
}

impl Fate {
    /// Nobody saw more of it than a pause, and one request may have waited in vain.
    fn is_borne(&self) {
        assert!(self.sum.is_clean() && self.sum.moved > 0, "{self}");
        assert!(self.probed.failed.len() <= 1, "{:?}", self.probed);
    }
}

impl std::fmt::Display for Fate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; {}", self.sum, self.probed)
    }
}

/// A worker that runs answers of all frontends stands still in their middle.
async fn freeze_in_the_middle<'a>(workers: &'a [(u64, Peer)], addresses: &[SocketAddr]) -> (u64, &'a Peer, Vec<Fate>) {
    let all: Vec<_> = addresses.iter().map(|address| start(*address, STREAMS, LONG, PATIENCE)).collect();
    for streams in &all {
        under_way(streams, 20).await;
    }
    let most = |id: u64| all.iter().map(|streams| streams.iter().filter(|stream| stream.now().workers == [id]).count()).min();
    let (victim, peer) = workers.iter().max_by_key(|(id, _)| most(*id)).unwrap();
    assert!(most(*victim) > Some(0), "no worker has streams of all frontends");
    peer.signal(Signal::STOP);
    let probes: Vec<_> = addresses.iter().map(|address| Probes::start(*address)).collect();
    let mut sums = Vec::new();
    for streams in all {
        sums.push(Sum::of(&ends(streams).await, LONG));
    }
    let mut fates = Vec::new();
    for (sum, probes) in sums.into_iter().zip(probes) {
        fates.push(Fate { sum, probed: probes.end().await });
    }
    (*victim, peer, fates)
}

/// Whether requests reach a worker again.
async fn back_at(address: SocketAddr, worker: u64) -> &'static str {
    let reached = async {
        while probe(address).await != Ok(Some(worker)) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    // 1.6.1's worker may not register again, which no frontend can mend.
    if tokio::time::timeout(BACK_WITHIN, reached).await.is_ok() { "back in service" } else { "not back in 5 s" }
}
