//! Everything a request can reach, made once at the start.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::SystemTime};

use anyhow::Context;
use engine::{Authorities, Client, Options};
use prompt::{Folder, LoadOptions, Pool, PoolOptions, remote};
use sched::Scheduler;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::{
    config::{Config, EngineOptions},
    fleet::Fleet,
    fleet_metrics::FleetCollector,
    metrics::Metrics,
    walk::Asks,
};

/// Jobs that may wait for a tokenizer thread; beyond it requests are routed by load.
const TOKENIZER_QUEUE: usize = 1024;

/// The frontend's parts.
pub(crate) struct App {
    pub(crate) config: Arc<Config>,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) pool: Pool,
    pub(crate) folders: Folders,
    pub(crate) remote: remote::Cache,
    pub(crate) asks: Asks,
    /// Cancelled when what still runs must end.
    pub(crate) cut: CancellationToken,
    /// Seconds since 1970.
    pub(crate) started_unix: u64,
}

/// The model folders.
#[derive(Default)]
pub(crate) struct Folders {
    named: BTreeMap<String, Arc<Folder>>,
    default: Option<Arc<Folder>>,
}

impl Folders {
    /// The folder of a base model.
    pub(crate) fn of(&self, model: &str) -> Option<Arc<Folder>> {
        self.named.get(model).or(self.default.as_ref()).cloned()
    }

    fn load(config: &Config) -> anyhow::Result<Self> {
        let mut folders = Self::default();
        for (name, dir) in &config.folders {
            folders.named.insert(name.clone(), load(name, dir)?);
        }
        if let Some(dir) = &config.default_folder {
            folders.default = Some(load("every other model", dir)?);
        }
        Ok(folders)
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Folder>> {
        self.named.values().chain(&self.default)
    }
}

fn load(name: &str, dir: &Path) -> anyhow::Result<Arc<Folder>> {
    let folder = Folder::load(dir, &LoadOptions::default()).with_context(|| format!("--model-path {}", dir.display()))?;
    let report = folder.report();
    let template = match &report.chat_template {
        Ok(found) => found.clone(),
        Err(missing) => format!("none ({missing}): chats are routed by load"),
    };
    info!(model = name, tokenizer = ?report.tokenizer, reason = report.tokenizer_reason, chat_template = template, "model folder loaded");
    Ok(Arc::new(folder))
}

impl App {
    /// Makes the parts. `events` runs the event streams.
    pub(crate) async fn start(config: Config, events: tokio::runtime::Handle) -> anyhow::Result<Arc<Self>> {
        let config = Arc::new(config);
        let folders = if config.routes_by_prefix() {
            let config = config.clone();
            tokio::task::spawn_blocking(move || Folders::load(&config)).await??
        } else {
            Folders::default()
        };
        let pool = Pool::new(PoolOptions { threads: config.tokenizer_threads, queue: TOKENIZER_QUEUE })
            .context("cannot start the tokenizer threads")?;
        for folder in folders.all() {
            pool.warm(folder).await;
        }
        let cut = CancellationToken::new();
        let client = Client::new(Options { stop: cut.clone(), ..options(&config.engine)? })?;
        let scheduler = Scheduler::new(config.sched.clone())?;
        let fleet = Fleet::start(config.clone(), client, scheduler, events)?;
        let started_unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let metrics = Metrics::new();
        metrics.collect_from(Box::new(FleetCollector(fleet.clone())));
        Ok(Arc::new(Self { config, fleet, metrics, pool, folders, remote: remote::Cache::default(), asks: Asks::new(), cut, started_unix }))
    }
}

fn options(engine: &EngineOptions) -> anyhow::Result<Options> {
    let authorities = match &engine.ca_file {
        Some(file) => Authorities::SystemAnd(std::fs::read(file).with_context(|| format!("--engine-ca-file {}", file.display()))?),
        None => Authorities::System,
    };
    Ok(Options {
        connect: engine.connect,
        first_byte: engine.first_byte,
        between_tokens: engine.between_tokens,
        authorities,
        ..Options::default()
    })
}
