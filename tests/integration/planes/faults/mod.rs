//! Everything that can happen to planes and processes while events flow and requests run, with real servers and processes: after
//! each, both frontends know again exactly what the publishers hold, no request has failed, and the counters tell what happened.
//!
//! The short versions are part of the ordinary suite. The long ones need the release profile: `tests/run --faults`.

mod large;
mod load;
mod noise;
mod processes;
mod publisher;
mod stand;
mod strangers;
mod traffic;

use std::time::{Duration, Instant};

use stand::Stand;
use tokio::time::sleep;
use transport::plane::PlaneKind;

use crate::support::{eventually, frontend::Frontend, seen};

/// How much, and how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    /// Blocks of both publishers.
    blocks: usize,
    /// Of both publishers.
    events_per_second: usize,
    /// How long messages are lost and doubled.
    lossy: Duration,
    nats_away: Duration,
    etcd_away: Duration,
    /// A process, or both servers at once.
    frozen: Duration,
    both_away: Duration,
    /// How long records outlive a process that died; `None`: as in production.
    ttl: Option<Duration>,
    /// How long events flow on after a fault before both ends are compared. It is part of the time until they are equal.
    flows_on: Duration,
    /// From the end of a fault until they are.
    equal_within: Duration,
}

/// What is proven.
const FULL: Scale = Scale {
    blocks: 1_000_000,
    events_per_second: 50_000,
    lossy: Duration::from_secs(10),
    nats_away: Duration::from_secs(10),
    etcd_away: Duration::from_secs(60),
    frozen: Duration::from_secs(20),
    both_away: Duration::from_secs(120),
    ttl: None,
    flows_on: Duration::from_secs(1),
    equal_within: Duration::from_secs(5),
};

/// What every run of the suite has time for, without optimisation and beside other tests.
const SHORT: Scale = Scale {
    blocks: 8_000,
    events_per_second: 1_000,
    lossy: Duration::from_secs(3),
    nats_away: Duration::from_secs(2),
    etcd_away: Duration::from_secs(2),
    frozen: Duration::from_secs(4),
    both_away: Duration::from_secs(2),
    ttl: Some(super::TTL),
    flows_on: Duration::from_millis(300),
    equal_within: Duration::from_secs(15),
};

/// Of a hundred messages.
const LOST: u32 = 5;
/// Likewise.
const DOUBLED: u32 = 5;
/// Dumps that both frontends together take of one publisher whose past they cannot be told event by event: one each.
const ONE_EACH: u64 = 2;
/// Bytes a publisher keeps for one subscriber that reads nothing, by its own options.
const QUEUE_BYTES: u64 = 32 << 20;
/// What an allocator and the kernel's counting add.
const SLACK_BYTES: u64 = 24 << 20;

async fn everything_heals(plane: PlaneKind, scale: Scale) {
    let mut stand = Stand::start(plane, scale).await;
    messages_are_lost_and_doubled(&mut stand, scale).await;
    if plane == PlaneKind::Nats {
        nats_is_away(&mut stand, scale).await;
    }
    etcd_is_away(&mut stand, scale).await;
    a_publisher_is_killed(&mut stand).await;
    a_publisher_is_frozen(&mut stand, scale).await;
    a_frontend_is_restarted(&mut stand).await;
    a_frontend_reads_nothing(&mut stand, scale).await;
    servers_are_away_together(&mut stand, plane, scale).await;
    strangers::cost_nothing(&mut stand, plane).await;
    stand.print(plane);
}

async fn messages_are_lost_and_doubled(stand: &mut Stand, scale: Scale) {
    let before = stand.lost();
    stand.noise.set(LOST, DOUBLED);
    sleep(scale.lossy).await;
    stand.noise.set(0, 0);
    let lost = stand.lost() - before;
    let row = stand.row("5 % of messages lost, 5 % doubled", Instant::now()).await;
    assert!(lost > 0 && row.counted.gaps > 0 && row.counted.duplicates > 0, "{lost} lost: {row:?}");
    // The ring holds what was lost, and a stream that loses all the time is asked for once a second.
    assert!(row.counted.dumps == 0, "{row:?}");
    assert!(row.counted.queries <= 4 * (scale.lossy.as_secs() + 10), "{row:?}");
}

async fn nats_is_away(stand: &mut Stand, scale: Scale) {
    stand.place.nats_server().kill();
    let killed = Instant::now();
    stand.shown("nats", "stale").await;
    sleep(scale.nats_away.saturating_sub(killed.elapsed())).await;
    stand.place.nats_server().restart();
    let row = stand.row("NATS killed", Instant::now()).await;
    // More events than the ring holds may have been missed.
    assert!(row.counted.gaps > 0 && row.counted.dumps <= 2 * ONE_EACH, "{row:?}");
    stand.shown("nats", "ok").await;
}

async fn etcd_is_away(stand: &mut Stand, scale: Scale) {
    for (fault, away, wipe) in [("etcd killed", scale.etcd_away, false), ("etcd killed, its data wiped", scale.etcd_away / 4, true)] {
        stand.place.etcd_server().kill();
        let killed = Instant::now();
        stand.shown("discovery", "stale").await;
        sleep(away.saturating_sub(killed.elapsed())).await;
        if wipe {
            stand.place.etcd_server().wipe();
        }
        stand.place.etcd_server().restart();
        // What is not there any more matters only once those who look believe it.
        let row = stand.row(fault, Instant::now()).await;
        assert!(row.counted.dumps == 0, "{row:?}");
        stand.shown("discovery", "ok").await;
    }
}

async fn a_publisher_is_killed(stand: &mut Stand) {
    stand.publishers[0].kill_and_restart();
    stand.publishers[0].flow();
    let row = stand.row("a publisher SIGKILLed and restarted, empty", Instant::now()).await;
    assert!(row.counted.dumps <= ONE_EACH && row.counted.restarts == 2, "{row:?}");
}

async fn a_publisher_is_frozen(stand: &mut Stand, scale: Scale) {
    stand.publishers[1].freeze();
    sleep(scale.frozen).await;
    stand.publishers[1].thaw();
    let row = stand.row("the other publisher frozen", Instant::now()).await;
    assert!(row.counted.dumps <= ONE_EACH, "{row:?}");
}

/// After the records of the publisher that was killed are gone: until then who comes cannot know which of two is the newer.
async fn a_frontend_is_restarted(stand: &mut Stand) {
    stand.one_publisher_each().await;
    let mut address = stand.traffic[0].hold().await;
    drop(stand.frontends.remove(0));
    let frontend = stand::frontend(&stand.place);
    *address = frontend.address;
    stand.frontends.insert(0, frontend);
    stand.counts_anew(0);
    let started = Instant::now();
    // Requests need a worker that is found, not its events.
    eventually("it serves", async || seen(stand.frontends[0].get("/ready").await.status == 200, ())).await;
    drop(address);
    let row = stand.row("a frontend restarted", started).await;
    assert!(row.counted.dumps <= 2, "{row:?}");
}

/// Longer than rings last: it must take dumps, and costs publishers no more than they grant a subscriber.
async fn a_frontend_reads_nothing(stand: &mut Stand, scale: Scale) {
    let (held, direct) = (stand.traffic[1].hold().await, stand.direct().await);
    let before: Vec<u64> = stand.publishers.iter().map(|publisher| publisher.resident_bytes()).collect();
    let stalled = || direct.iter().chain([&stand.frontends[1]]);
    stalled().for_each(Frontend::freeze);
    sleep(scale.frozen).await;
    let grown: Vec<u64> =
        stand.publishers.iter().zip(before).map(|(publisher, before)| publisher.resident_bytes().saturating_sub(before)).collect();
    stalled().for_each(Frontend::thaw);
    let thawed = Instant::now();
    drop(held);
    let row = stand.row("a frontend that reads nothing", thawed).await;
    println!("publishers grew by {} and {} KiB beside a frontend that reads nothing", grown[0] >> 10, grown[1] >> 10);
    assert!(row.counted.dumps <= 2, "{row:?}");
    assert!(grown.iter().all(|grown| *grown <= QUEUE_BYTES + SLACK_BYTES), "{grown:?}");
}

/// Neither is a lifeline, and an operator sees which plane is stale, in `/health` and in the log.
async fn servers_are_away_together(stand: &mut Stand, plane: PlaneKind, scale: Scale) {
    stand.place.etcd_server().kill();
    if plane == PlaneKind::Nats {
        stand.place.nats_server().kill();
    }
    let planes: &[&str] = if plane == PlaneKind::Nats { &["discovery", "nats"] } else { &["discovery"] };
    let until = Instant::now() + scale.both_away;
    while Instant::now() < until {
        for plane in planes {
            stand.shown(plane, "stale").await;
        }
        for frontend in &stand.frontends {
            assert_eq!(frontend.get("/ready").await.status, 200);
            let log = frontend.log();
            let told = |name: &str| log.lines().any(|line| line.contains("\"WARN\"") && line.contains(name));
            assert!(told("etcd") && (plane == PlaneKind::Zmq || told("nats")), "{log}");
        }
        sleep(Duration::from_millis(500)).await;
    }
    stand.place.etcd_server().restart();
    if plane == PlaneKind::Nats {
        stand.place.nats_server().restart();
    }
    let row = stand.row("all servers away together", Instant::now()).await;
    assert!(row.counted.dumps <= 2 * ONE_EACH, "{row:?}");
    for plane in planes {
        stand.shown(plane, "ok").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_heals_over_zmq() {
    everything_heals(PlaneKind::Zmq, SHORT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_heals_over_nats() {
    everything_heals(PlaneKind::Nats, SHORT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: tests/run --faults"]
async fn a_million_blocks_heal_over_zmq() {
    everything_heals(PlaneKind::Zmq, FULL).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: tests/run --faults"]
async fn a_million_blocks_heal_over_nats() {
    everything_heals(PlaneKind::Nats, FULL).await;
}
