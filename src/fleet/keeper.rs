//! The task that keeps one worker: asks what it serves, opens its event streams, takes it apart when it is removed.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use feed::{FeedConfig, Limits, RankRange, ReplayMode};
use index::Target;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use transport::stream::{self, EventSource, Stream, StreamOptions, StreamSpec};

use super::{
    Fleet,
    introspect::{self, EventPlan, Identity, Socket},
    worker::{Rank, Serving, Worker},
};

/// How often a worker that serves is asked again, for adapters that came or went.
const REFRESH_EVERY: Duration = Duration::from_secs(30);
/// First wait after a question without an answer; doubles.
const RETRY_FIRST: Duration = Duration::from_millis(250);
/// Longest such wait.
const RETRY_LONGEST: Duration = Duration::from_secs(10);
/// How often a removed worker is looked at until its last request is over.
const DRAIN_POLL: Duration = Duration::from_millis(50);

/// Keeps `worker` until `stop`.
pub(super) async fn keep(fleet: Arc<Fleet>, worker: Arc<Worker>, stop: CancellationToken) {
    stop.run_until_cancelled(serve(&fleet, &worker)).await;
    retire(&fleet, &worker).await;
}

async fn serve(fleet: &Arc<Fleet>, worker: &Arc<Worker>) {
    let mut health = worker.pulse().watch();
    let mut retry = RETRY_FIRST;
    loop {
        // The sender lives in the worker, so that waiting cannot fail while the worker is here.
        if health.wait_for(|status| status.state.is_routable()).await.is_err() {
            return;
        }
        let wait = match introspect::ask(fleet, &worker.spec).await {
            Ok(identity) => {
                retry = RETRY_FIRST;
                apply(fleet, worker, identity).await;
                REFRESH_EVERY
            }
            Err(error) => {
                if retry == RETRY_FIRST {
                    warn!(
                        worker = worker.id(),
                        error = format!("{error:#}"),
                        "cannot tell what the worker serves; asking again until it answers"
                    );
                }
                retry = (retry * 2).min(RETRY_LONGEST);
                retry
            }
        };
        // Both branches are cancel-safe: a timer, and a watch that keeps its state.
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = health.wait_for(|status| !status.state.is_routable()) => {}
        }
    }
}

/// Takes over what the engine says. Ranks and streams stay where nothing about them changed.
async fn apply(fleet: &Arc<Fleet>, worker: &Arc<Worker>, identity: Identity) {
    let old = worker.serving();
    if old.as_ref().is_some_and(|old| old.identity == identity) {
        return;
    }
    if let Some(old) = old.as_ref().filter(|old| identity.restarted_since(&old.identity)) {
        // A new process has an empty cache. Its event stream finds out by itself; predictions do not.
        old.ranks.iter().for_each(|rank| rank.forget());
    }
    let same_ranks = old.as_ref().is_some_and(|old| old.identity.same_ranks(&identity));
    if !same_ranks {
        worker.set_serving(None);
        fleet.refresh();
        if let Some(old) = &old {
            close(fleet, &old.ranks).await;
        }
    }
    let ranks = match old.filter(|_| same_ranks) {
        Some(old) => old.ranks.clone(),
        None => match open(fleet, worker, &identity) {
            Some(ranks) => ranks,
            None => return warn!(worker = worker.id(), "no slot is free for the worker's ranks; it gets no requests"),
        },
    };
    info!(
        worker = worker.id(),
        url = %worker.spec.url,
        models = identity.models.iter().map(|card| card.name.as_str()).collect::<Vec<_>>().join(", "),
        ranks = ranks.len(),
        block_size = identity.block_size.map(|size| size.get()),
        events = %identity.events,
        "worker serves"
    );
    worker.set_serving(Some(Arc::new(Serving { identity, ranks })));
    fleet.refresh();
}

/// Allocates the ranks' targets and opens their streams.
fn open(fleet: &Fleet, worker: &Worker, identity: &Identity) -> Option<Vec<Arc<Rank>>> {
    let mut targets = Vec::new();
    for _ in 0..identity.dp_size {
        let Some(target) = fleet.targets.allocate() else {
            for target in targets {
                fleet.targets.release(target);
            }
            return None;
        };
        targets.push(target);
    }
    let streams = streams(fleet, worker, identity, &targets);
    let rank = |(at, target): (usize, &Target)| {
        let dp_rank = identity.dp_start + at as u32;
        let header = identity.has_ranks().then_some(dp_rank);
        let stream = streams.get(at).or(streams.first()).cloned();
        Arc::new(Rank::new(dp_rank, header, *target).with(identity.block_size, stream))
    };
    Some(targets.iter().enumerate().map(rank).collect())
}

/// One stream per socket: each of one rank, or one of all ranks.
fn streams(fleet: &Fleet, worker: &Worker, identity: &Identity, targets: &[Target]) -> Vec<Arc<Stream>> {
    let EventPlan::Listen(sockets) = &identity.events else { return Vec::new() };
    let Some(base) = identity.models.iter().find(|card| card.adapter.is_none()) else { return Vec::new() };
    let adapters: BTreeMap<i64, String> = worker.spec.lora.iter().cloned().collect();
    let open = |(at, socket): (usize, &Socket)| {
        let one_each = sockets.len() > 1;
        let start = identity.dp_start + if one_each { at as u32 } else { 0 };
        let feed = FeedConfig {
            label: format!("{} {}", worker.id(), address(&socket.source)),
            model: base.name.clone(),
            block_size: identity.block_size,
            ranks: RankRange { start, size: if one_each { 1 } else { targets.len() as u32 } },
            socket_rank: start,
            targets: if one_each { vec![targets[at]] } else { targets.to_vec() },
            adapters: adapters.clone(),
            // `stream::spawn` sets it by the replay socket.
            replay: ReplayMode::Unavailable,
            limits: Limits::default(),
        };
        let spec = StreamSpec {
            events: socket.source.clone(),
            replay: socket.replay.clone(),
            topic: socket.topic.clone(),
            feed,
            options: StreamOptions::default(),
        };
        Arc::new(stream::spawn(&fleet.events, spec, fleet.catalog.clone()))
    };
    // `ask` makes as many sockets as ranks, or one.
    sockets.iter().enumerate().take(targets.len()).map(open).collect()
}

/// Ends the streams, forgets the leases, gives the slots back: in this order, so that no slot is reused while a lookup
/// can still see its blocks.
async fn close(fleet: &Fleet, ranks: &[Arc<Rank>]) {
    for rank in ranks {
        if let Some(stream) = &rank.stream {
            stream.stop().await;
        }
        rank.forget();
        fleet.scheduler.remove_target(Instant::now(), rank.target);
        fleet.targets.release(rank.target);
    }
}

/// Waits for the worker's last request, unless the whole fleet stops, then takes it apart.
async fn retire(fleet: &Fleet, worker: &Worker) {
    let Some(serving) = worker.serving() else { return };
    let busy = || serving.ranks.iter().any(|rank| fleet.scheduler.load(Instant::now(), rank.target).active_requests > 0);
    while busy() && !fleet.stop.is_cancelled() {
        tokio::time::sleep(DRAIN_POLL).await;
    }
    worker.set_serving(None);
    close(fleet, &serving.ranks).await;
    info!(worker = worker.id(), "worker removed");
}

fn address(source: &EventSource) -> String {
    match source {
        EventSource::Connect(endpoint) => endpoint.to_string(),
        EventSource::Bind(endpoint) => format!("bind:{endpoint}"),
    }
}

impl std::fmt::Display for EventPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::None(reason) => write!(f, "none: {reason}"),
            Self::Listen(sockets) => {
                for (at, socket) in sockets.iter().enumerate() {
                    let separator = if at == 0 { "" } else { ", " };
                    let replay = if socket.replay.is_some() { "with" } else { "without" };
                    write!(f, "{separator}{} {replay} replay", address(&socket.source))?;
                }
                Ok(())
            }
        }
    }
}
