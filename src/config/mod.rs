//! The effective configuration: what [`cli::Cli`] says, checked once, in types that cannot be wrong.
//!
//! Every refusal names the flag, the value and what is allowed; the process then exits with status 64.

pub mod cli;
pub mod worker_flag;

use std::{collections::BTreeMap, fmt, num::NonZeroU32, path::PathBuf, time::Duration};

use cli::ServeArgs;
use worker_flag::WorkerSpec;

/// How the router learns what each worker holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Knowledge {
    /// KV events, with dispatched prompts predicted for a moment (`predicted`, zero: not at all).
    Events {
        /// How long a dispatched prompt counts as held.
        predicted: Duration,
    },
    /// No event socket: dispatched prompts are predicted for `ttl`.
    Predicted {
        /// How long a prediction lives.
        ttl: Duration,
    },
}

/// The effective configuration of a frontend.
#[derive(Clone, Debug)]
pub struct Config {
    /// Host and port of the main listener.
    pub listen: (String, u16),
    /// Port of the admin listener on loopback; `None`: admin routes are on the main port.
    pub admin_port: Option<u16>,
    /// Largest request body in bytes.
    pub body_limit: usize,
    /// The first workers; more come by the admin API.
    pub workers: Vec<WorkerSpec>,
    /// Folder per model name.
    pub folders: BTreeMap<String, PathBuf>,
    /// Folder of every model that has none of its own.
    pub default_folder: Option<PathBuf>,
    /// Cost and mode of the scheduler.
    pub sched: sched::Config,
    /// Source of the prefix index.
    pub knowledge: Knowledge,
    /// Blocks that predictions may hold per worker rank.
    pub predicted_blocks: usize,
    /// Block size that the operator states for all workers.
    pub block_size: Option<NonZeroU32>,
    /// Options of the client of workers.
    pub engine: EngineOptions,
    /// How long running requests may finish after SIGTERM.
    pub drain: Duration,
    /// Threads that turn prompts into tokens.
    pub tokenizer_threads: usize,
    /// Log lines as JSON.
    pub log_json: bool,
}

/// Time-outs and credentials of the client of workers.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// To connect.
    pub connect: Duration,
    /// To the first byte of an answer.
    pub first_byte: Duration,
    /// Between two pieces of an answer.
    pub between_tokens: Duration,
    /// `Authorization` of probes and questions.
    pub authorization: Option<String>,
    /// More certificate authorities.
    pub ca_file: Option<PathBuf>,
}

/// A configuration that cannot be used: flag, value, what is allowed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{flag}={value}: {allowed}")]
pub struct ConfigError {
    /// Flag as typed.
    pub flag: &'static str,
    /// Its value.
    pub value: String,
    /// What is allowed.
    pub allowed: String,
}

impl ConfigError {
    fn new(flag: &'static str, value: impl fmt::Display, allowed: impl Into<String>) -> Self {
        Self { flag, value: value.to_string(), allowed: allowed.into() }
    }
}

impl Config {
    /// Checks the arguments and makes the configuration of them.
    pub(crate) fn from_args(args: ServeArgs) -> Result<Self, ConfigError> {
        let (folders, default_folder) = folders(&args)?;
        unique_workers(&args.worker)?;
        let sched = scheduling(&args)?;
        let knowledge = knowledge(&args)?;
        let mut workers = args.worker;
        let block_size = args.kv_cache_block_size.and_then(NonZeroU32::new);
        for worker in &mut workers {
            worker.block_size = worker.block_size.or(block_size);
        }
        Ok(Self {
            listen: (args.http_host, args.http_port),
            admin_port: args.admin_port,
            body_limit: (args.http_body_limit_mb as usize) << 20,
            workers,
            folders,
            default_folder,
            sched,
            knowledge,
            predicted_blocks: args.router_predicted_blocks as usize,
            block_size,
            engine: EngineOptions {
                connect: seconds("--engine-connect-timeout-secs", args.engine_connect_timeout_secs)?,
                first_byte: seconds("--engine-first-byte-timeout-secs", args.engine_first_byte_timeout_secs)?,
                between_tokens: seconds("--engine-between-tokens-timeout-secs", args.engine_between_tokens_timeout_secs)?,
                authorization: args.engine_authorization,
                ca_file: args.engine_ca_file,
            },
            drain: seconds("--drain-timeout-secs", args.drain_timeout_secs)?,
            tokenizer_threads: match usize::from(args.preprocess_workers) {
                0 => (std::thread::available_parallelism().map_or(1, usize::from) / 2).max(1),
                threads => threads,
            },
            log_json: args.log_format == "json",
        })
    }

    /// True where the router needs the tokens of a prompt.
    pub fn routes_by_prefix(&self) -> bool {
        self.sched.mode == sched::Mode::Kv
    }

    /// True where event sockets are opened.
    pub fn listens_to_events(&self) -> bool {
        self.routes_by_prefix() && matches!(self.knowledge, Knowledge::Events { .. })
    }
}

fn scheduling(args: &ServeArgs) -> Result<sched::Config, ConfigError> {
    Ok(sched::Config {
        mode: args.router_mode,
        temperature: amount("--router-temperature", args.router_temperature)?,
        overlap_credit: amount("--router-kv-overlap-score-credit", args.router_kv_overlap_score_credit)?,
        overlap_credit_decay: amount("--router-kv-overlap-score-credit-decay", args.router_kv_overlap_score_credit_decay)?,
        prefill_scale: amount("--router-prefill-load-scale", args.router_prefill_load_scale)?,
        active_request_weight: amount("--router-decode-active-request-weight", args.router_decode_active_request_weight)?,
        host_weight: amount("--router-host-cache-hit-weight", args.router_host_cache_hit_weight)?,
        disk_weight: amount("--router-disk-cache-hit-weight", args.router_disk_cache_hit_weight)?,
        track_prefill: args.router_track_prefill_tokens,
        ..sched::Config::default()
    })
}

fn knowledge(args: &ServeArgs) -> Result<Knowledge, ConfigError> {
    let by_env = !args.router_kv_events && args.use_kv_events == Some(false);
    if args.no_router_kv_events || by_env {
        Ok(Knowledge::Predicted { ttl: seconds("--router-ttl-secs", args.router_ttl_secs)? })
    } else {
        let predicted = args.router_predicted_ttl_secs;
        let predicted = Duration::try_from_secs_f64(predicted).ok().filter(|ttl| *ttl <= MAX_WAIT);
        predicted
            .map(|predicted| Knowledge::Events { predicted })
            .ok_or_else(|| ConfigError::new("--router-predicted-ttl-secs", args.router_predicted_ttl_secs, "seconds from 0 to 1000000"))
    }
}

fn folders(args: &ServeArgs) -> Result<(BTreeMap<String, PathBuf>, Option<PathBuf>), ConfigError> {
    let mut named = BTreeMap::new();
    let mut default = None;
    for text in &args.model_path {
        let (name, dir) = match text.split_once('=') {
            Some((name, dir)) => (Some(name.to_owned()), PathBuf::from(dir)),
            None => (args.model_name.clone(), PathBuf::from(text)),
        };
        if !dir.is_dir() {
            return Err(ConfigError::new("--model-path", text, "an existing folder with a tokenizer.json, as [NAME=]DIR"));
        }
        let again = match name {
            Some(name) => named.insert(name, dir).is_some(),
            None => default.replace(dir).is_some(),
        };
        if again {
            return Err(ConfigError::new("--model-path", text, "one folder per model name"));
        }
    }
    Ok((named, default))
}

fn unique_workers(workers: &[WorkerSpec]) -> Result<(), ConfigError> {
    for (at, worker) in workers.iter().enumerate() {
        for earlier in &workers[..at] {
            if earlier.url == worker.url {
                return Err(ConfigError::new("--worker", &worker.url, "each URL once"));
            }
            if earlier.id == worker.id {
                return Err(ConfigError::new("--worker", &worker.id, "each id once"));
            }
        }
    }
    Ok(())
}

/// Longest wait that may be configured: about eleven days, so that no deadline overflows.
const MAX_WAIT: Duration = Duration::from_secs(1_000_000);

fn seconds(flag: &'static str, value: f64) -> Result<Duration, ConfigError> {
    Duration::try_from_secs_f64(value)
        .ok()
        .filter(|wait| !wait.is_zero() && *wait <= MAX_WAIT)
        .ok_or_else(|| ConfigError::new(flag, value, "seconds above 0, at most 1000000"))
}

fn amount(flag: &'static str, value: f64) -> Result<f64, ConfigError> {
    if value.is_finite() && value >= 0.0 { Ok(value) } else { Err(ConfigError::new(flag, value, "a finite number from 0 up")) }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "listen            {}:{}", self.listen.0, self.listen.1)?;
        match self.admin_port {
            Some(port) => writeln!(f, "admin             127.0.0.1:{port}")?,
            None => writeln!(f, "admin             on the main port")?,
        }
        writeln!(f, "body limit        {} bytes", self.body_limit)?;
        writeln!(f, "router mode       {}", self.sched.mode)?;
        match self.knowledge {
            _ if !self.routes_by_prefix() => writeln!(f, "prefix knowledge  none (only kv mode uses it)")?,
            Knowledge::Events { predicted } => writeln!(f, "prefix knowledge  KV events, predicted for {predicted:?} after dispatch")?,
            Knowledge::Predicted { ttl } => writeln!(f, "prefix knowledge  predicted for {ttl:?}, no events")?,
        }
        writeln!(f, "scheduling        {:?}", self.sched)?;
        match self.block_size {
            Some(size) => writeln!(f, "block size        {size} tokens")?,
            None => writeln!(f, "block size        as each engine says")?,
        }
        let waits = &self.engine;
        writeln!(
            f,
            "time-outs         connect {:?}, first byte {:?}, between tokens {:?}, drain {:?}",
            waits.connect, waits.first_byte, waits.between_tokens, self.drain
        )?;
        for (name, dir) in &self.folders {
            writeln!(f, "model folder      {name} = {}", dir.display())?;
        }
        if let Some(dir) = &self.default_folder {
            writeln!(f, "model folder      every other model = {}", dir.display())?;
        }
        for worker in &self.workers {
            writeln!(f, "worker            {} at {}, events {:?}", worker.id, worker.url, worker.events)?;
        }
        if self.workers.is_empty() {
            writeln!(f, "workers           none yet: add one with --worker URL or POST /workers")?;
        }
        Ok(())
    }
}
