//! The task that keeps one worker: asks what it serves, opens its event streams, takes it apart when it is removed.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use engine::health::{Down, State};
use feed::{
    FeedConfig, Limits, RankRange, ReplayMode,
    plane::{PlaneConfig, PlaneLimits},
};
use index::{BlockSize, Target};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use transport::{
    follow::{self, FollowOptions, FollowSpec, Follower},
    stream::{self, EventSource, StreamOptions, StreamSpec},
};

use super::{
    Fleet,
    clip::clipped,
    introspect::{self, EventPlan, Identity, NoEngine, Silence, Socket, Wants},
    rank::Rank,
    reach::{OpenAi, Reach},
    source::Source,
    token_keeper,
    view::ASSUMED_BLOCK_SIZE,
    worker::{Serving, Worker},
};

/// How long one question may take.
const QUESTION_WITHIN: Duration = Duration::from_secs(5);
/// Tries after which a worker that nothing is known of yet serves without what it does not tell.
const PATIENT_TRIES: u32 = 3;
/// How often a worker that serves is asked again, for adapters that came or went.
const REFRESH_EVERY: Duration = Duration::from_secs(30);
/// First wait after a question without an answer; doubles.
const RETRY_FIRST: Duration = Duration::from_millis(250);
/// Longest such wait.
const RETRY_LONGEST: Duration = Duration::from_secs(10);
/// How often a removed worker is looked at until its last request is over.
const DRAIN_POLL: Duration = Duration::from_millis(50);

/// Keeps `worker` until `stop`, and then until its last request is over.
pub(super) async fn keep(fleet: &Arc<Fleet>, worker: &Arc<Worker>, stop: CancellationToken) {
    match &worker.reach {
        Reach::OpenAi(server) => serve(fleet, worker, server, &stop).await,
        Reach::Tokens(tokens) => token_keeper::keep(fleet, worker, tokens, &stop).await,
    }
    retire(fleet, worker).await;
}

/// Says each change of the worker's health once, with its reason.
pub(super) async fn watch_health(fleet: Arc<Fleet>, worker: Arc<Worker>, stop: CancellationToken) {
    let mut health = worker.pulse().watch();
    let mut said = health.borrow().state;
    let changes = async {
        while health.changed().await.is_ok() {
            let status = health.borrow_and_update().clone();
            if status.state == said {
                continue;
            }
            let dead = State::Down(Down::Dead);
            let concerns_others = (said == dead) != (status.state == dead) && worker.tokens().is_some() && fleet.is_disputed();
            said = status.state;
            let (id, state, reason) = (worker.id(), worker.reach.health(status.state), status.reason);
            if said.is_routable() || worker.is_draining() {
                info!(worker = id, state, reason, "worker health");
            } else {
                warn!(worker = id, state, reason, "worker health: it gets no requests");
            }
            if concerns_others {
                fleet.refresh().await;
            }
        }
    };
    stop.run_until_cancelled(changes).await;
}

/// Asks again and again. Only waits are cut off by `stop`: what was begun with ranks and streams is carried out, so that
/// nothing of them is left behind.
async fn serve(fleet: &Arc<Fleet>, worker: &Arc<Worker>, server: &OpenAi, stop: &CancellationToken) {
    let mut health = server.pulse().watch();
    let engine = fleet.engine(server, QUESTION_WITHIN);
    let mut wait = Duration::ZERO;
    let mut failures = 0;
    loop {
        let answer = async {
            // Both branches are cancel-safe: a timer, and a watch that keeps its state.
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                _ = health.wait_for(|status| !status.state.is_routable()) => {}
            }
            // The sender lives in the worker, so that waiting cannot fail while the worker is here.
            health.wait_for(|status| status.state.is_routable()).await.ok()?;
            Some(introspect::ask(&engine, &server.spec, wants(fleet, worker, failures)).await)
        };
        match stop.run_until_cancelled(answer).await.flatten() {
            None => return,
            Some(Ok(identity)) => {
                (failures, wait) = (0, REFRESH_EVERY);
                worker.set_unanswered(None, false);
                apply(fleet, worker, identity).await;
            }
            Some(Err(error)) => {
                worker.set_unanswered(Some(format!("{error:#}")), error.is::<NoEngine>());
                if failures == 0 {
                    warn!(
                        worker = worker.id(),
                        error = format!("{error:#}"),
                        "cannot tell what the worker serves; asking again until it answers"
                    );
                }
                failures += 1;
                wait = RETRY_LONGEST.min(RETRY_FIRST * 2u32.saturating_pow(failures));
            }
        }
    }
}

fn wants(fleet: &Fleet, worker: &Worker, failures: u32) -> Wants {
    let nothing_known = worker.serving().is_none();
    let silence = if nothing_known && failures >= PATIENT_TRIES { Silence::Nothing } else { Silence::Unknown };
    Wants { events: fleet.config.listens_to_events(), blocks: fleet.config.routes_by_prefix(), silence }
}

/// Takes over what the engine says. Ranks and streams stay where nothing about them changed, and so does what runs on a
/// rank that is still there.
pub(super) async fn apply(fleet: &Arc<Fleet>, worker: &Arc<Worker>, identity: Identity) {
    let old = worker.serving();
    if old.as_ref().is_some_and(|old| old.identity == identity) {
        return;
    }
    if let Some(old) = old.as_ref().filter(|old| identity.restarted_since(&old.identity)) {
        // A new process has an empty cache. Its event stream finds out by itself; predictions do not.
        old.ranks.iter().for_each(|rank| rank.forget());
    }
    let ranks = match old.filter(|old| old.identity.same_ranks(&identity)) {
        Some(old) => old.ranks.clone(),
        None => match replace(fleet, worker, &identity).await {
            Some(ranks) => ranks,
            None => return warn!(worker = worker.id(), "no slot is free for the worker's ranks; what it says is not taken over"),
        },
    };
    ranks.iter().for_each(|rank| rank.tell(identity.block_size));
    info!(
        worker = worker.id(),
        url = worker.server().map(|server| server.spec.url.to_string()),
        models = &*clipped(&identity.models.iter().map(|card| card.name.as_str()).collect::<Vec<_>>().join(", ")),
        ranks = ranks.len(),
        block_size = identity.block_size.map(|size| size.get()),
        events = %identity.events,
        "worker serves"
    );
    if let EventPlan::None(reason) = &identity.events {
        warn!(worker = worker.id(), reason, "the worker has no KV events: what it holds is only predicted for a moment");
    }
    if identity.block_size.is_none()
        && !matches!(identity.events, EventPlan::Listen(_) | EventPlan::Plane(Some(_)))
        && fleet.config.routes_by_prefix()
    {
        warn!(
            worker = worker.id(),
            assumed = ASSUMED_BLOCK_SIZE,
            "nothing tells the tokens in a KV block of the worker; set block-size= or --kv-cache-block-size"
        );
    }
    worker.set_serving(Some(Arc::new(Serving { identity, ranks })));
    fleet.refresh().await;
}

/// The ranks of `identity` in place of those of now. A rank that was there before keeps its target, and with it the load
/// of what runs on it; the others' targets are given back. `None`: there are not enough slots, and nothing has changed.
async fn replace(fleet: &Fleet, worker: &Worker, identity: &Identity) -> Option<Vec<Arc<Rank>>> {
    let old = worker.serving();
    let old = old.as_ref().map_or(&[][..], |old| &old.ranks);
    let kept = |dp_rank| old.iter().find(|rank| rank.dp_rank == dp_rank).map(|rank| rank.target);
    let mut targets = BTreeMap::new();
    let mut fresh = Vec::new();
    for dp_rank in identity.dp_ranks() {
        let target = kept(dp_rank).or_else(|| fleet.targets.allocate().inspect(|target| fresh.push(*target)));
        let Some(target) = target else {
            for target in fresh {
                fleet.targets.release(target);
            }
            return None;
        };
        targets.insert(dp_rank, target);
    }
    // Requests go on meanwhile: to the same worker, by load.
    for rank in old {
        rank.close().await;
        if targets.get(&rank.dp_rank) != Some(&rank.target) {
            give_back(fleet, rank);
        }
    }
    let sources = sources(fleet, worker, identity, &targets);
    let rank = |(&dp_rank, &target): (&u32, &Target)| {
        let header = identity.has_ranks().then_some(dp_rank);
        let source = sources.get(&Some(dp_rank)).or(sources.get(&None)).cloned();
        Arc::new(Rank::new(dp_rank, header, target, source))
    };
    Some(targets.iter().map(rank).collect())
}

/// Where events come from, by the rank they are of; `None`: of all ranks.
fn sources(fleet: &Fleet, worker: &Worker, identity: &Identity, targets: &BTreeMap<u32, Target>) -> BTreeMap<Option<u32>, Source> {
    let Some(base) = identity.models.iter().find(|card| card.adapter.is_none()) else { return BTreeMap::new() };
    match (&identity.events, &worker.reach, worker.origin.discovered()) {
        (EventPlan::Listen(sockets), Reach::OpenAi(server), _) => streams(fleet, server, identity, (sockets, &base.name, targets)),
        (EventPlan::Plane(block_size), _, Some(discovered)) => {
            let follower = |(&dp_rank, &target): (&u32, &Target)| {
                let follower = follower(fleet, (discovered.worker_id, dp_rank, target), &base.name, *block_size)?;
                Some((Some(dp_rank), Source::Plane(Arc::new(follower))))
            };
            targets.iter().filter_map(follower).collect()
        }
        _ => BTreeMap::new(),
    }
}

/// Follows whoever publishes for one rank on the event plane.
fn follower(
    fleet: &Fleet,
    (worker_id, dp_rank, target): (u64, u32, Target),
    model: &str,
    block_size: Option<BlockSize>,
) -> Option<Follower> {
    let plane = fleet.plane.clone()?;
    let feed = PlaneConfig {
        label: format!("{worker_id} rank {dp_rank}"),
        model: model.to_owned(),
        block_size,
        worker_id,
        dp_rank,
        target,
        limits: PlaneLimits::default(),
    };
    let spec = FollowSpec { feed, options: FollowOptions::default() };
    Some(follow::spawn(&fleet.events, spec, plane, fleet.catalog.clone()))
}

/// One stream per socket.
fn streams(
    fleet: &Fleet,
    server: &OpenAi,
    identity: &Identity,
    (sockets, model, targets): (&[Socket], &str, &BTreeMap<u32, Target>),
) -> BTreeMap<Option<u32>, Source> {
    let adapters: BTreeMap<i64, String> = server.spec.lora.iter().cloned().collect();
    let open = |socket: &Socket| {
        let (start, size) = socket.rank.map_or((identity.dp_start, identity.dp_size), |rank| (rank, 1));
        let ranks = RankRange { start, size };
        let feed = FeedConfig {
            label: format!("{} {}", server.spec.id, address(&socket.source)),
            model: model.to_owned(),
            // The operator's word alone: what the engine says elsewhere is no reason to disbelieve its events.
            block_size: server.spec.block_size.and_then(|size| BlockSize::new(size.get())),
            ranks,
            socket_rank: start,
            targets: targets.iter().filter(|(rank, _)| ranks.position(**rank).is_some()).map(|(_, target)| *target).collect(),
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
        (socket.rank, Source::Stream(Arc::new(stream::spawn(&fleet.events, spec, fleet.catalog.clone()))))
    };
    sockets.iter().map(open).collect()
}

/// The rank is gone. It was closed before, so that no slot is reused while a lookup can still see its blocks.
fn give_back(fleet: &Fleet, rank: &Rank) {
    fleet.scheduler.remove_target(Instant::now(), rank.target);
    fleet.targets.release(rank.target);
}

/// Waits for the worker's last request, unless the whole fleet stops, then takes it apart.
async fn retire(fleet: &Fleet, worker: &Worker) {
    let Some(serving) = worker.serving() else { return };
    let busy = || serving.ranks.iter().any(|rank| fleet.scheduler.load(Instant::now(), rank.target).active_requests > 0);
    while busy() && !fleet.stop.is_cancelled() {
        tokio::time::sleep(DRAIN_POLL).await;
    }
    worker.set_serving(None);
    for rank in &serving.ranks {
        rank.close().await;
        give_back(fleet, rank);
    }
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
            Self::Plane(_) => f.write_str("event plane"),
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
