//! Everything a request can reach, made once at the start.

use std::{
    sync::Arc,
    time::{Instant, SystemTime},
};

use anyhow::Context;
use engine::{
    Client, Options,
    tokens::{TokenClient, TokenOptions},
};
use index::RecentPrompts;
use prompt::{Pool, PoolOptions, Report, remote};
use sched::Scheduler;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::{
    config::{Config, EngineOptions},
    fleet::{Fleet, Parts},
    fleet_metrics::FleetCollector,
    http::{Bodies, Dumps, Readiness},
    metrics::Metrics,
    planes::{PlaneCollector, Planes},
    prompt_metrics::PromptCollector,
    replicas::{ReplicaCollector, Replicas},
    walk::Asks,
};

/// Jobs that may wait for a tokenizer thread; beyond it requests are routed by load.
const TOKENIZER_QUEUE: usize = 1024;

/// Prompts and their hashes that are kept, in bytes, so that a conversation that comes back is hashed from where it left
/// off.
const RECENT_PROMPT_BYTES: usize = 16 << 20;

/// The frontend's parts.
pub(crate) struct App {
    pub(crate) config: Arc<Config>,
    pub(crate) planes: Arc<Planes>,
    pub(crate) fleet: Arc<Fleet>,
    /// What other frontends have in flight, and are told of.
    pub(crate) replicas: Option<Arc<Replicas>>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) remote: remote::Cache,
    pub(crate) asks: Asks,
    pub(crate) recent: Arc<RecentPrompts>,
    /// What request bodies may hold.
    pub(crate) bodies: Bodies,
    /// Dumps of the index that are under way.
    pub(crate) dumps: Dumps,
    pub(crate) readiness: Readiness,
    /// Cancelled when what still runs must end.
    pub(crate) cut: CancellationToken,
    /// Seconds since 1970.
    pub(crate) started_unix: u64,
}

impl App {
    /// Makes the parts. `events` runs the event streams.
    pub(crate) async fn start(config: Config, events: tokio::runtime::Handle) -> anyhow::Result<Arc<Self>> {
        let config = Arc::new(config);
        let size = PoolOptions { threads: config.tokenizer_threads, queue: TOKENIZER_QUEUE };
        let pool = Arc::new(Pool::new(size).context("cannot start the tokenizer threads")?);
        for (model, folder) in config.folders.loaded() {
            introduce(model, folder.report());
            pool.warm(folder).await;
        }
        let cut = CancellationToken::new();
        let client = Client::new(Options { stop: cut.clone(), ..options(&config.engine) })?;
        let scheduler = Scheduler::new(config.sched.clone())?;
        let planes = Planes::start(&config, events.clone()).await?;
        let tokens = planes.requests().map(|calls| TokenClient::new(calls.clone(), token_options(&config.engine, &cut)));
        let parts = Parts { client, tokens, scheduler, pool: pool.clone(), events, plane: planes.client().cloned() };
        let fleet = Fleet::start(config.clone(), parts)?;
        let replicas = Replicas::start(&fleet, &planes, fleet.follow(&planes));
        let started_unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let metrics = Metrics::new();
        metrics.collect_from(Box::new(FleetCollector(fleet.clone())));
        metrics.collect_from(Box::new(PlaneCollector(planes.clone())));
        if let Some(replicas) = &replicas {
            metrics.collect_from(Box::new(ReplicaCollector(replicas.clone())));
        }
        let recent = Arc::new(RecentPrompts::new(RECENT_PROMPT_BYTES));
        let (bodies, dumps) = (Bodies::new(config.body_limit), Dumps::new());
        let remote = remote::Cache::default();
        metrics.collect_from(Box::new(PromptCollector { pool: pool.clone(), remote: remote.counters().clone() }));
        Ok(Arc::new(Self {
            config,
            planes,
            fleet,
            replicas,
            metrics,
            pool,
            remote,
            asks: Asks::new(),
            recent,
            bodies,
            dumps,
            readiness: Readiness::new(Instant::now()),
            cut,
            started_unix,
        }))
    }
}

fn introduce(model: &str, report: &Report) {
    let template = match &report.chat_template {
        Ok(found) => found.clone(),
        Err(missing) => format!("none ({missing}): chats are routed by load"),
    };
    info!(model, tokenizer = ?report.tokenizer, reason = report.tokenizer_reason, chat_template = template, "model folder loaded");
}

fn token_options(engine: &EngineOptions, stop: &CancellationToken) -> TokenOptions {
    TokenOptions { first_token: engine.first_byte, between_tokens: engine.between_tokens, stop: stop.clone() }
}

fn options(engine: &EngineOptions) -> Options {
    Options {
        connect: engine.connect,
        first_byte: engine.first_byte,
        between_tokens: engine.between_tokens,
        authorities: engine.authorities.clone(),
        ..Options::default()
    }
}
