//! Workers that stand still: their connections are open, and nothing comes.

use std::{
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use super::{
    super::{
        peers::{Peer, Peers, Planes},
        venv,
    },
    Probes, Seen, Sum, ends, probe, row, start, under_way, up, warm,
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
    let mut workers: Vec<(u64, Peer)> = Vec::new();
    for name in ["w1", "w2", "w3"] {
        let peer = peers.worker_with(name, &["--num-gpu-blocks-override", "4096"], &[]);
        let id = eventually("the new worker serves", async || {
            let answer = quick.get("/workers").await.json();
            let mut up = answer["workers"].as_array().unwrap().iter().filter(|worker| worker["state"] == "up");
            let new = up.find_map(|worker| worker["id"].as_str()?.parse().ok().filter(|id| workers.iter().all(|(known, _)| known != id)));
            new.ok_or_else(|| answer.to_string())
        })
        .await;
        workers.push((id, peer));
    }
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
    let streams: Vec<_> = addresses.map(|address| start(address, STREAMS, LONG, PATIENCE)).into();
    for streams in &streams {
        under_way(streams, 20).await;
    }
    let most = |id: u64| streams.iter().map(|streams| streams.iter().filter(|stream| stream.now().workers == [id]).count()).min();
    let (victim, peer) = workers.iter().max_by_key(|(id, _)| most(*id)).unwrap();
    assert!(most(*victim) > Some(0), "no worker has streams of all frontends");
    peer.signal(Signal::STOP);
    let probes = addresses.map(Probes::start);
    let mut seen_streams: Vec<Vec<Seen>> = Vec::new();
    for streams in streams {
        seen_streams.push(ends(streams).await);
    }
    let mut probed = Vec::new();
    for probes in probes {
        probed.push(probes.end().await);
    }
    let text = |of: usize| format!("{}; {}", Sum::of(&seen_streams[of], LONG), probed[of]);
    row("worker frozen in the middle of answers, 3 s between tokens", &text(0), &text(1));
    row("the same with default options, file discovery", &text(2), &text(3));
    for of in [1, 3] {
        let sum = Sum::of(&seen_streams[of], LONG);
        assert!(sum.is_clean() && sum.moved > 0, "{sum}");
        assert!(probed[of].failed.len() <= 1, "{:?}", probed[of]);
    }
    let gap = Sum::of(&seen_streams[1], LONG).longest_gap_ms;
    assert!((2500..6000).contains(&gap), "left after {gap} ms");
    peer.signal(Signal::CONT);
    let back = tokio::join!(back_at(theirs_plain.address, *victim), back_at(plain.address, *victim));
    row("thawed after its files expired", back.0, back.1);
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
