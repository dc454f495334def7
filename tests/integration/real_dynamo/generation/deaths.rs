//! Workers that die or end in the middle of answers, and a frontend that does; four frontends, two of each kind, before the same
//! workers.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use testkit::servers::Server;

use super::{
    super::{
        GONE_WITHIN,
        peers::{BLOCK, Peer, Peers, Planes, RealFrontend},
        venv,
    },
    Probed, Probes, Seen, Streaming, Sum, completion, ends, prompt, row, start, under_way, up, warm,
};
use crate::support::{eventually, frontend::Frontend, seen};

/// Tokens of an answer, ten milliseconds each.
const LONG: usize = 300;
/// Streams of each frontend.
const STREAMS: usize = 6;
/// A client waits no longer.
const PATIENCE: Duration = Duration::from_secs(25);
/// How long new requests are watched after a death. The lease ends long after it.
const WATCHED: Duration = Duration::from_secs(8);
/// Between two looks for its end.
const PAUSE: Duration = Duration::from_millis(250);
/// Prompts that are asked before and after a restart.
const REPEATED: usize = 4;

/// One fleet and its frontends, theirs and ours, each with migration and without.
struct Fleet {
    peers: Peers,
    workers: BTreeMap<u64, Peer>,
    theirs: Vec<RealFrontend>,
    ours: Vec<Frontend>,
}

/// What became of each frontend's streams and of the requests meanwhile.
struct Fate {
    streams: Vec<Vec<Seen>>,
    probes: Vec<Probed>,
}

impl Fate {
    /// What is shown of a frontend.
    fn text(&self, of: usize) -> String {
        format!("{}; {}", Sum::of(&self.streams[of], LONG), self.probes[of])
    }
}

impl Fleet {
    async fn start(planes: Planes) -> Self {
        let peers = Peers::new(Path::new(&venv()), planes);
        let flags = peers.planes.flags();
        let ours = vec![Frontend::start(&flags), Frontend::start(&[&flags[..], &["--migration-limit", "0"]].concat())];
        let mut fleet = Self { peers, workers: BTreeMap::new(), theirs: Vec::new(), ours };
        for name in ["w1", "w2", "w3"] {
            fleet.more(name).await;
        }
        for limit in ["3", "0"] {
            let real =
                fleet.peers.frontend_with(&format!("limit-{limit}"), &["--router-mode", "kv", "--migration-limit", limit], &[]).await;
            warm(&real).await;
            fleet.theirs.push(real);
        }
        fleet
    }

    /// One more worker.
    async fn more(&mut self, name: &str) {
        let peer = self.peers.worker_with(name, &["--num-gpu-blocks-override", "4096"], &[]);
        let id = eventually("the new worker serves", async || {
            let workers = self.ours[0].get("/workers").await.json();
            let mut up = workers["workers"].as_array().unwrap().iter().filter(|worker| worker["state"] == "up");
            let new = up.find_map(|worker| worker["id"].as_str()?.parse().ok().filter(|id| !self.workers.contains_key(id)));
            new.ok_or_else(|| workers.to_string())
        })
        .await;
        self.workers.insert(id, peer);
        for ours in &self.ours {
            up(ours, self.workers.len()).await;
        }
    }

    /// Theirs and ours with migration, then without.
    fn addresses(&self) -> [SocketAddr; 4] {
        [self.theirs[0].address, self.ours[0].address, self.theirs[1].address, self.ours[1].address]
    }

    /// Something befalls a worker that runs answers of all frontends, in their middle.
    async fn befallen(&mut self, what: impl FnOnce(&mut Self, u64)) -> (u64, Fate) {
        let streams: Vec<Vec<Streaming>> = self.addresses().map(|address| start(address, STREAMS, LONG, PATIENCE)).into();
        for streams in &streams {
            under_way(streams, 20).await;
        }
        let has = |streams: &Vec<Streaming>, id: u64| streams.iter().filter(|stream| stream.now().workers == [id]).count();
        let shared = |id: u64| streams.iter().map(|streams| has(streams, id)).min().unwrap();
        let victim = self.workers.keys().copied().max_by_key(|id| shared(*id)).unwrap();
        assert!(shared(victim) > 0, "no worker has streams of all frontends");
        what(self, victim);
        let probes = self.addresses().map(Probes::start);
        let mut fate = Fate { streams: Vec::new(), probes: Vec::new() };
        let watched = tokio::time::sleep(WATCHED);
        for streams in streams {
            fate.streams.push(ends(streams).await);
        }
        watched.await;
        for probes in probes {
            fate.probes.push(probes.end().await);
        }
        (victim, fate)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts real Dynamo processes: tests/run --dynamo"]
async fn a_worker_that_dies_or_ends_costs_nobody_an_answer() {
    let (etcd, mut nats) = (Server::etcd(), Server::nats());
    let mut fleet = Fleet::start(Planes::etcd_and_nats(&etcd.url(), &nats.url())).await;
    let victim = killed(&mut fleet, "").await;
    forgotten(&fleet, victim).await;
    fleet.more("w4").await;
    terminated(&mut fleet).await;
    without_nats(&fleet, &mut nats).await;
    restarted(&mut fleet).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts real Dynamo processes: tests/run --dynamo"]
async fn a_worker_that_dies_costs_nobody_an_answer_with_requests_over_nats() {
    let (etcd, nats) = (Server::etcd(), Server::nats());
    let mut fleet = Fleet::start(Planes::etcd_and_nats(&etcd.url(), &nats.url()).requests_over_nats()).await;
    let victim = killed(&mut fleet, "requests over NATS: ").await;
    // By this it is let go of a while after its record, as one whose port refuses is at once.
    let worker = fleet.ours[0].worker(&victim.to_string()).await;
    assert!(worker["reason"].as_str().unwrap().contains("nobody serves it on NATS"), "{worker}");
}

/// Returns who it was.
async fn killed(fleet: &mut Fleet, over: &str) -> u64 {
    let (victim, fate) = fleet.befallen(|fleet, victim| drop(fleet.workers.remove(&victim))).await;
    row(&format!("{over}worker SIGKILL in the middle of answers, migration 3 (ours: default)"), &fate.text(0), &fate.text(1));
    row("the same, migration 0", &fate.text(2), &fate.text(3));
    let (ours, staying) = (Sum::of(&fate.streams[1], LONG), Sum::of(&fate.streams[3], LONG));
    assert!(ours.is_clean() && ours.moved > 0, "{ours}");
    // Without migration: those that were there have one error each, and nobody else.
    let lost: Vec<&Seen> = fate.streams[3].iter().filter(|seen| seen.workers == [victim]).collect();
    assert_eq!((staying.complete, staying.errors, staying.moved), (STREAMS - lost.len(), lost.len(), 0), "{staying}");
    for seen in lost {
        assert!(seen.errors.len() == 1 && !seen.done && seen.errors[0].contains("worker_closed"), "{seen:?}");
    }
    for probed in [&fate.probes[1], &fate.probes[3]] {
        assert!(probed.failed.is_empty() && !probed.by.contains(&victim), "{probed:?}");
    }
    for ours in &fleet.ours {
        let worker = ours.worker(&victim.to_string()).await;
        // Its lease has not ended yet.
        assert!(worker["state"].is_string() && worker["state"] != "up", "{worker}");
    }
    victim
}

/// A dead worker is forgotten with its record.
async fn forgotten(fleet: &Fleet, victim: u64) {
    let gone = async {
        while !fleet.ours[0].worker(&victim.to_string()).await.is_null() {
            tokio::time::sleep(PAUSE).await;
        }
    };
    tokio::time::timeout(GONE_WITHIN, gone).await.expect("the dead worker's lease ends");
}

async fn terminated(fleet: &mut Fleet) {
    let (victim, fate) = fleet.befallen(|fleet, victim| fleet.workers[&victim].signal(Signal::TERM)).await;
    row("worker SIGTERM, migration 3 (ours: default)", &fate.text(0), &fate.text(1));
    row("the same, migration 0", &fate.text(2), &fate.text(3));
    for of in [1, 3] {
        let ours = Sum::of(&fate.streams[of], LONG);
        assert!(ours.is_clean() && fate.probes[of].failed.is_empty(), "{ours}, {:?}", fate.probes[of]);
    }
    eventually("the worker has ended", async || seen(fleet.workers[&victim].has_ended(), victim)).await;
    fleet.workers.remove(&victim);
}

/// Requests go on, and so does what is known of who holds what, once events come again.
async fn without_nats(fleet: &Fleet, nats: &mut Server) {
    nats.kill();
    let probes = fleet.addresses().map(Probes::start);
    tokio::time::sleep(Duration::from_secs(10)).await;
    // What is cached now nobody hears of.
    let unheard: Vec<Vec<u32>> = (0..REPEATED).map(|_| prompt(10 * BLOCK)).collect();
    for prompt in &unheard {
        fleet.ours[0].complete(&completion(prompt, 1)).await;
    }
    nats.restart();
    let back = Instant::now();
    eventually("what was missed is made up for", async || {
        for prompt in &unheard {
            let route = fleet.ours[0].route(&completion(prompt, 1)).await;
            let best = route["candidates"].as_array().unwrap().iter().filter_map(|one| one["overlap_blocks"].as_u64()).max();
            seen(best >= Some(9), &route)?;
        }
        Ok(())
    })
    .await;
    let back = back.elapsed();
    let mut probed = Vec::new();
    for probes in probes {
        probed.push(probes.end().await);
    }
    row("NATS (events) down 10 s", &probed[0].to_string(), &format!("{}; what was missed known {} ms after", probed[1], back.as_millis()));
    for of in [1, 3] {
        assert!(probed[of].failed.is_empty(), "{:?}", probed[of]);
    }
}

/// A frontend that dies knows everything again as soon as it says that it is ready.
async fn restarted(fleet: &mut Fleet) {
    let prompts: Vec<Vec<u32>> = (0..REPEATED).map(|_| prompt(10 * BLOCK)).collect();
    for prompt in &prompts {
        fleet.ours[0].complete(&completion(prompt, 1)).await;
    }
    fleet.ours.remove(0).kill();
    let began = Instant::now();
    let ours = Frontend::start(&fleet.peers.planes.flags());
    eventually("it is ready", async || {
        let ready = ours.get("/ready").await;
        seen(ready.status == 200 && ready.text().contains("\"tiny\""), ready.text())
    })
    .await;
    let ready = began.elapsed();
    let mut overlaps = Vec::new();
    for prompt in &prompts {
        let answer = ours.complete(&completion(prompt, 1)).await;
        overlaps.push(answer.header("x-dynamo-overlap-blocks").parse::<u64>().unwrap());
    }
    let ours_text = format!("ready after {} ms, blocks known of the first repeats (of 10): {overlaps:?}", ready.as_millis());
    row("frontend SIGKILL and restart", "1.7 s, hit rate 0.9 (measured before, not run here)", &ours_text);
    assert!(overlaps.iter().all(|overlap| *overlap >= 9), "{overlaps:?}");
    assert!(ready < Duration::from_secs(5), "{ready:?}");
    fleet.ours.insert(0, ours);
}
