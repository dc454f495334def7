//! The effective configuration: what [`cli::Cli`] says, checked once, in types that cannot be wrong.
//!
//! Every refusal names the flag, the value and what is allowed; the process then exits with status 64.

pub(crate) mod cli;
mod folders;
pub(crate) mod planes;
pub(crate) mod worker_flag;

use std::{fmt, num::NonZeroU32, path::Path, time::Duration};

use cli::ServeArgs;
use engine::{Authorities, Client, Options};
use http::HeaderValue;
use planes::{Backend, PlaneOptions};
use sched::MAX_WEIGHT;
use worker_flag::WorkerSpec;

pub(crate) use folders::Folders;
use folders::Use;

/// How the router learns what each worker holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Knowledge {
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
pub(crate) struct Config {
    /// Host and port of the main listener.
    pub(crate) listen: (String, u16),
    /// Port of the admin listener on loopback; `None`: admin routes are on the main port.
    pub(crate) admin_port: Option<u16>,
    /// Largest request body in bytes.
    pub(crate) body_limit: usize,
    /// Largest answer that is made whole, in bytes.
    pub(crate) answer_limit: usize,
    /// The first workers; more come by the admin API.
    pub(crate) workers: Vec<WorkerSpec>,
    /// Discovery and the event plane.
    pub(crate) planes: PlaneOptions,
    /// Tell other frontends what is in flight, and book what they tell.
    pub(crate) replica_sync: bool,
    /// Tokenizers and chat templates.
    pub(crate) folders: Folders,
    /// Cost and mode of the scheduler.
    pub(crate) sched: sched::Config,
    /// Source of the prefix index.
    pub(crate) knowledge: Knowledge,
    /// Blocks that predictions may hold per worker rank.
    pub(crate) predicted_blocks: usize,
    /// Block size that the operator states for all workers.
    pub(crate) block_size: Option<NonZeroU32>,
    /// Options of the client of workers.
    pub(crate) engine: EngineOptions,
    /// How often a request to token-level workers may move once it has begun to answer; `None`: as their cards say.
    pub(crate) migration_limit: Option<u32>,
    /// How long running requests may finish after SIGTERM.
    pub(crate) drain: Duration,
    /// Threads that turn prompts into tokens.
    pub(crate) tokenizer_threads: usize,
    /// Threads that serve requests.
    pub(crate) http_threads: usize,
    /// Log lines as JSON.
    pub(crate) log_json: bool,
}

/// Time-outs and credentials of the client of workers.
#[derive(Clone, Debug)]
pub(crate) struct EngineOptions {
    /// To connect.
    pub(crate) connect: Duration,
    /// To the first byte of an answer.
    pub(crate) first_byte: Duration,
    /// Between two pieces of an answer.
    pub(crate) between_tokens: Duration,
    /// `Authorization` of probes and questions.
    pub(crate) authorization: Option<HeaderValue>,
    /// Who vouches for https workers.
    pub(crate) authorities: Authorities,
}

/// A configuration that cannot be used: flag, value, what is allowed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{flag}={value}: {allowed}")]
pub(crate) struct ConfigError {
    /// Flag as typed.
    pub(crate) flag: &'static str,
    /// Its value.
    pub(crate) value: String,
    /// What is allowed.
    pub(crate) allowed: String,
}

impl ConfigError {
    fn new(flag: &'static str, value: impl fmt::Display, allowed: impl Into<String>) -> Self {
        Self { flag, value: value.to_string(), allowed: allowed.into() }
    }
}

impl Config {
    /// Checks the arguments and makes the configuration of them.
    pub(crate) fn from_args(mut args: ServeArgs) -> Result<Self, ConfigError> {
        listed_by_environment(&mut args)?;
        unique_workers(&args.worker)?;
        let planes = PlaneOptions::of_args(&args)?;
        if args.router_replica_sync && planes.discovery == Backend::Mem {
            let allowed = "frontends find each other by discovery: give --discovery-backend file or etcd";
            return Err(ConfigError::new("--router-replica-sync", true, allowed));
        }
        let sched = scheduling(&args)?;
        let knowledge = knowledge(&args)?;
        let engine = engine_options(&args)?;
        let drain = seconds("--drain-timeout-secs", args.drain_timeout_secs)?;
        // Last, as it takes the longest.
        let is_used = args.router_mode == sched::Mode::Kv || planes.discovery != Backend::Mem;
        let folders = Folders::of_args(&args, if is_used { Use::Tokens } else { Use::Nothing })?;
        let mut workers = args.worker;
        let block_size = args.kv_cache_block_size.and_then(NonZeroU32::new);
        for worker in &mut workers {
            worker.block_size = worker.block_size.or(block_size);
        }
        Ok(Self {
            listen: (args.http_host, args.http_port),
            admin_port: args.admin_port,
            body_limit: (args.http_body_limit_mb as usize) << 20,
            answer_limit: (args.http_answer_limit_mb as usize) << 20,
            workers,
            planes,
            replica_sync: args.router_replica_sync,
            folders,
            sched,
            knowledge,
            predicted_blocks: args.router_predicted_blocks as usize,
            block_size,
            engine,
            migration_limit: args.migration_limit,
            drain,
            tokenizer_threads: threads(args.preprocess_workers),
            http_threads: threads(args.http_threads),
            log_json: args.log_format == "json",
        })
    }

    /// True where the router needs the tokens of a prompt.
    pub(crate) fn routes_by_prefix(&self) -> bool {
        self.sched.mode == sched::Mode::Kv
    }

    /// True where event sockets are opened.
    pub(crate) fn listens_to_events(&self) -> bool {
        self.routes_by_prefix() && matches!(self.knowledge, Knowledge::Events { .. })
    }
}

/// As many as asked for, or for half the cores.
pub(crate) fn threads(asked: u16) -> usize {
    match usize::from(asked) {
        0 => (std::thread::available_parallelism().map_or(1, usize::from) / 2).max(1),
        threads => threads,
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

fn engine_options(args: &ServeArgs) -> Result<EngineOptions, ConfigError> {
    let authorization = args.engine_authorization.as_deref().filter(|value| !value.is_empty()).map(authorization).transpose()?;
    let authorities = args.engine_ca_file.as_deref().map(authorities).transpose()?;
    Ok(EngineOptions {
        connect: seconds("--engine-connect-timeout-secs", args.engine_connect_timeout_secs)?,
        first_byte: seconds("--engine-first-byte-timeout-secs", args.engine_first_byte_timeout_secs)?,
        between_tokens: seconds("--engine-between-tokens-timeout-secs", args.engine_between_tokens_timeout_secs)?,
        authorization,
        authorities: authorities.unwrap_or(Authorities::System),
    })
}

fn authorization(text: &str) -> Result<HeaderValue, ConfigError> {
    let mut value = text.parse::<HeaderValue>().map_err(|_| {
        ConfigError::new("--engine-authorization", "(not shown)", "the value of a header, one line without control characters")
    })?;
    value.set_sensitive(true);
    Ok(value)
}

fn authorities(file: &Path) -> Result<Authorities, ConfigError> {
    let refused =
        |why: String| ConfigError::new("--engine-ca-file", file.display(), format!("{why}; allowed is a PEM file with certificates"));
    let pem = std::fs::read(file).map_err(|error| refused(error.to_string()))?;
    let authorities = Authorities::SystemAnd(pem);
    // Whether they can be used is seen by using them.
    Client::new(Options { authorities: authorities.clone(), ..Options::default() }).map_err(|error| refused(error.to_string()))?;
    Ok(authorities)
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

/// `DYN_WORKERS` and `DYN_MODEL_PATH`: lists separated by white space, where no flag is given.
fn listed_by_environment(args: &mut ServeArgs) -> Result<(), ConfigError> {
    let list = |name| match std::env::var(name) {
        Err(std::env::VarError::NotUnicode(_)) => Err(ConfigError::new(name, "...", "is not UTF-8")),
        text => Ok(text.unwrap_or_default()),
    };
    if args.worker.is_empty() {
        for text in list("DYN_WORKERS")?.split_whitespace() {
            args.worker.push(text.parse().map_err(|error: String| ConfigError::new("DYN_WORKERS", text, error))?);
        }
    }
    if args.model_path.is_empty() {
        args.model_path = list("DYN_MODEL_PATH")?.split_whitespace().map(str::to_owned).collect();
    }
    Ok(())
}

fn unique_workers(workers: &[WorkerSpec]) -> Result<(), ConfigError> {
    for (at, worker) in workers.iter().enumerate() {
        for earlier in &workers[..at] {
            if earlier.url == worker.url {
                return Err(ConfigError::new("--worker", &worker.url, "is given twice; each URL once"));
            }
            if earlier.id == worker.id {
                return Err(ConfigError::new("--worker", &worker.id, "is given twice; each id once"));
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
    let allowed = || format!("a finite number from 0 up to {MAX_WEIGHT}");
    if (0.0..=MAX_WEIGHT).contains(&value) { Ok(value) } else { Err(ConfigError::new(flag, value, allowed())) }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "listen            {}:{}", self.listen.0, self.listen.1)?;
        match self.admin_port {
            Some(port) => writeln!(f, "admin             127.0.0.1:{port}")?,
            None => writeln!(f, "admin             on the main port")?,
        }
        writeln!(f, "body limit        {} bytes", self.body_limit)?;
        writeln!(f, "answer limit      {} bytes", self.answer_limit)?;
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
        match self.migration_limit {
            Some(0) => writeln!(f, "migration         off")?,
            Some(limit) => {
                writeln!(f, "migration         a request that has begun to answer moves to another token-level worker up to {limit} times")?
            }
            None => writeln!(
                f,
                "migration         a request that has begun to answer moves to another token-level worker up to 3 times, or as often as the model's card says"
            )?,
        }
        let authorization = if waits.authorization.is_some() { "set (not shown)" } else { "none" };
        let authorities = match &waits.authorities {
            Authorities::System => "the system's",
            Authorities::SystemAnd(_) => "the system's and --engine-ca-file's",
        };
        writeln!(f, "engine access     authorization of probes {authorization}, certificate authorities {authorities}")?;
        writeln!(f, "threads           {} for requests, {} for tokenizers", self.http_threads, self.tokenizer_threads)?;
        writeln!(f, "predicted blocks  {} per rank at most", self.predicted_blocks)?;
        writeln!(f, "log               {}", if self.log_json { "json" } else { "text" })?;
        write!(f, "{}", self.planes)?;
        writeln!(f, "replica sync      {}", if self.replica_sync { "on" } else { "off" })?;
        write!(f, "{}", self.folders)?;
        for worker in &self.workers {
            writeln!(f, "worker            {} at {}, events {:?}", worker.id, worker.url, worker.events)?;
        }
        if self.workers.is_empty() {
            writeln!(f, "workers           none listed")?;
        }
        Ok(())
    }
}
