//! The command line: flags and environment variables as text, one line of help each.
//!
//! Names and defaults are Dynamo 1.6.1's wherever the meaning is the same. Parsing here yields text and numbers;
//! [`super::Config`] turns them into values that cannot be wrong. A flag wins over its environment variable.

use std::path::PathBuf;

use clap::{
    ArgAction, Args, Parser, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use sched::Mode;

use super::worker_flag::WorkerSpec;

/// OpenAI-style HTTP frontend that sends each request to the worker that already holds its prefix in KV cache.
#[derive(Debug, Parser)]
#[command(name = "dynamo-frontend", version, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start simulated engines with real KV events and this frontend in one process; no GPU, no configuration.
    Demo(DemoArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Simulated engines.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) workers: u16,
    /// Address the frontend listens on.
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) http_host: String,
    /// Port the frontend listens on; 0 takes a free one.
    #[arg(long, default_value_t = 8000)]
    pub(crate) http_port: u16,
    /// How a worker is chosen.
    #[arg(long, value_name = "MODE", default_value = "kv", value_parser = mode_parser())]
    pub(crate) router_mode: Mode,
    /// Route by what was dispatched before instead of by KV events.
    #[arg(long)]
    pub(crate) no_router_kv_events: bool,
}

fn mode_parser() -> impl TypedValueParser<Value = Mode> {
    PossibleValuesParser::new(Mode::ALL.map(Mode::as_str)).try_map(|text| text.parse::<Mode>())
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Address to listen on.
    #[arg(long, env = "DYN_HTTP_HOST", default_value = "0.0.0.0", value_name = "HOST")]
    pub(crate) http_host: String,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, env = "DYN_HTTP_PORT", default_value_t = 8000, value_name = "PORT")]
    pub(crate) http_port: u16,
    /// Port for the admin routes (/workers, /route), on loopback; 0 takes a free one. Default: on the main port.
    #[arg(long, env = "DYN_ADMIN_PORT", value_name = "PORT")]
    pub(crate) admin_port: Option<u16>,
    /// Largest request body, in MB of 1024 x 1024 bytes; larger ones get 413.
    #[arg(long, env = "DYN_HTTP_BODY_LIMIT_MB", default_value_t = 192, value_name = "MB", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) http_body_limit_mb: u32,
    /// Largest answer of workers that take token ids where the client wants it whole, in MB; one that grows beyond it gets 400, and
    /// its workers stop.
    #[arg(long, env = "DYN_HTTP_ANSWER_LIMIT_MB", default_value_t = 64, value_name = "MB", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) http_answer_limit_mb: u32,

    /// A worker, repeatable: URL[,key=value...]. Keys: id, events (auto, none, an endpoint, several separated by +,
    /// bind:ENDPOINT), replay, topic, model, block-size, dp-size, dp-start, role, lora=ID:NAME. [env: DYN_WORKERS, several
    /// separated by spaces]
    #[arg(long, value_name = "URL[,KEY=VALUE...]", action = ArgAction::Append)]
    pub(crate) worker: Vec<WorkerSpec>,
    /// Folder with tokenizer.json and chat template of a model, repeatable: [NAME=]DIR. Without a name it serves --model-name,
    /// or every model that has no folder of its own. [env: DYN_MODEL_PATH, several separated by spaces]
    #[arg(long, value_name = "[NAME=]DIR", action = ArgAction::Append)]
    pub(crate) model_path: Vec<String>,
    /// Model whose folder a --model-path without a name is.
    #[arg(long, env = "DYN_MODEL_NAME", value_name = "NAME")]
    pub(crate) model_name: Option<String>,
    /// Where workers are found, beside --worker and POST /workers: mem (nowhere else), file, etcd. Default: mem when a worker is
    /// listed, else etcd when its endpoints are given, else file.
    #[arg(long, env = "DYN_DISCOVERY_BACKEND", value_name = "BACKEND")]
    pub(crate) discovery_backend: Option<String>,
    /// Folder of file discovery, shared by all processes of the fleet. Default: dynamo_store_kv in the temporary folder.
    #[arg(long, env = "DYN_FILE_KV", value_name = "DIR")]
    pub(crate) file_kv: Option<PathBuf>,
    /// Members of etcd, separated by commas. Default: http://localhost:2379. User and password: ETCD_AUTH_USERNAME,
    /// ETCD_AUTH_PASSWORD.
    #[arg(long, env = "ETCD_ENDPOINTS", value_name = "URLS", hide_env_values = true)]
    pub(crate) etcd_endpoints: Option<String>,
    /// Take only workers of this namespace. Default: of all.
    #[arg(long, env = "DYN_NAMESPACE", value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// What carries the events this process publishes: nats or zmq. Default: nats with etcd, else zmq. Others' events are
    /// followed as their records say.
    #[arg(long, env = "DYN_EVENT_PLANE", value_name = "PLANE")]
    pub(crate) event_plane: Option<String>,
    /// NATS server, dialled only where something needs it. Default: nats://localhost:4222. User and password: NATS_AUTH_USERNAME,
    /// NATS_AUTH_PASSWORD.
    #[arg(long, env = "NATS_SERVER", value_name = "URL", hide_env_values = true)]
    pub(crate) nats_server: Option<String>,
    /// Address that subscribers of what this process publishes over ZMQ connect to. Default: 127.0.0.1, for this host alone.
    #[arg(long, env = "DYN_EVENT_PLANE_HOST", value_name = "HOST")]
    pub(crate) event_plane_host: Option<String>,
    /// Address to which workers call back with what was missed of their events. Default: 127.0.0.1, for workers of this host;
    /// with workers elsewhere, an address of this host that they can reach.
    #[arg(long, env = "DYN_TCP_RESPONSE_STREAM_HOST", value_name = "HOST")]
    pub(crate) tcp_response_stream_host: Option<String>,

    /// How a worker is chosen.
    #[arg(long, env = "DYN_ROUTER_MODE", default_value = "round-robin", value_name = "MODE", value_parser = mode_parser())]
    pub(crate) router_mode: Mode,
    /// Tokens in a KV block. Default: what the events of each engine say; before the first, what the engine says.
    #[arg(long, env = "DYN_KV_CACHE_BLOCK_SIZE", value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) kv_cache_block_size: Option<u32>,
    /// Listen to the engines' KV events (kv mode). The default.
    #[arg(long, overrides_with = "no_router_kv_events")]
    pub(crate) router_kv_events: bool,
    /// Open no event socket: predict what each worker holds from what was sent to it.
    #[arg(long, overrides_with = "router_kv_events")]
    pub(crate) no_router_kv_events: bool,
    /// Same choice by environment: false means --no-router-kv-events.
    #[arg(long = "router-use-kv-events", env = "DYN_ROUTER_USE_KV_EVENTS", hide = true, value_name = "BOOL", action = ArgAction::Set)]
    pub(crate) use_kv_events: Option<bool>,
    /// Seconds a prediction lives with --no-router-kv-events.
    #[arg(long, allow_negative_numbers = true, env = "DYN_ROUTER_TTL_SECS", default_value_t = 120.0, value_name = "SECONDS")]
    pub(crate) router_ttl_secs: f64,
    /// Seconds a dispatched prompt is taken as held while its events are on their way; 0 turns it off.
    #[arg(long, allow_negative_numbers = true, env = "DYN_ROUTER_PREDICTED_TTL_SECS", default_value_t = 2.0, value_name = "SECONDS")]
    pub(crate) router_predicted_ttl_secs: f64,
    /// Blocks that predictions may hold per worker rank; the least recently used leave first.
    #[arg(long, env = "DYN_ROUTER_PREDICTED_BLOCKS", default_value_t = 1_000_000, value_name = "BLOCKS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) router_predicted_blocks: u32,
    /// 0 takes the cheapest worker; more spreads by softmax over normalised cost.
    #[arg(long, allow_negative_numbers = true, env = "DYN_ROUTER_TEMPERATURE", default_value_t = 0.0, value_name = "T")]
    pub(crate) router_temperature: f64,
    /// Credit for a block held on the device, in blocks of prefill.
    #[arg(long, allow_negative_numbers = true, env = "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT", default_value_t = 1.0, value_name = "X")]
    pub(crate) router_kv_overlap_score_credit: f64,
    /// How fast that credit decays as a worker's prefill queue grows; 0: not.
    #[arg(long, allow_negative_numbers = true, env = "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY", default_value_t = 0.0, value_name = "X")]
    pub(crate) router_kv_overlap_score_credit_decay: f64,
    /// Weight of prefill against decode in the cost.
    #[arg(long, allow_negative_numbers = true, env = "DYN_ROUTER_PREFILL_LOAD_SCALE", default_value_t = 1.0, value_name = "X")]
    pub(crate) router_prefill_load_scale: f64,
    /// Blocks that one running request weighs in the cost.
    #[arg(
        long,
        allow_negative_numbers = true,
        env = "DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT",
        default_value_t = 0.0,
        value_name = "BLOCKS"
    )]
    pub(crate) router_decode_active_request_weight: f64,
    /// Credit for a block in host memory.
    #[arg(long, allow_negative_numbers = true, env = "DYN_ROUTER_HOST_CACHE_HIT_WEIGHT", default_value_t = 0.75, value_name = "X")]
    pub(crate) router_host_cache_hit_weight: f64,
    /// Credit for a block on disk.
    #[arg(long, allow_negative_numbers = true, env = "DYN_ROUTER_DISK_CACHE_HIT_WEIGHT", default_value_t = 0.25, value_name = "X")]
    pub(crate) router_disk_cache_hit_weight: f64,
    /// Count prefill tokens in progress in the cost.
    #[arg(long, env = "DYN_ROUTER_TRACK_PREFILL_TOKENS", default_value_t = true, value_name = "BOOL", action = ArgAction::Set)]
    pub(crate) router_track_prefill_tokens: bool,

    /// Tell other frontends of the same discovery what is in flight, and book what they tell.
    #[arg(long, env = "DYN_ROUTER_REPLICA_SYNC", default_value_t = false, value_name = "BOOL", num_args = 0..=1,
        require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub(crate) router_replica_sync: bool,

    /// Seconds to connect to a worker.
    #[arg(long, allow_negative_numbers = true, env = "DYN_ENGINE_CONNECT_TIMEOUT_SECS", default_value_t = 2.0, value_name = "SECONDS")]
    pub(crate) engine_connect_timeout_secs: f64,
    /// Seconds until the first byte of an answer.
    #[arg(
        long,
        allow_negative_numbers = true,
        env = "DYN_ENGINE_FIRST_BYTE_TIMEOUT_SECS",
        default_value_t = 600.0,
        value_name = "SECONDS"
    )]
    pub(crate) engine_first_byte_timeout_secs: f64,
    /// Seconds between two pieces of a running answer.
    #[arg(
        long,
        allow_negative_numbers = true,
        env = "DYN_ENGINE_BETWEEN_TOKENS_TIMEOUT_SECS",
        default_value_t = 60.0,
        value_name = "SECONDS"
    )]
    pub(crate) engine_between_tokens_timeout_secs: f64,
    /// How often a request that has begun to answer may move to another token-level worker; 0: never. Before its first token it
    /// moves in any case. Default: 3, or more where the model's card says so.
    #[arg(long, env = "DYN_MIGRATION_LIMIT", value_name = "TIMES", value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub(crate) migration_limit: Option<u32>,
    /// Seconds that running requests get to finish after SIGTERM.
    #[arg(long, allow_negative_numbers = true, env = "DYN_DRAIN_TIMEOUT_SECS", default_value_t = 30.0, value_name = "SECONDS")]
    pub(crate) drain_timeout_secs: f64,
    /// Authorization header that health probes and questions to engines carry.
    #[arg(long, env = "DYN_ENGINE_AUTHORIZATION", value_name = "VALUE", hide_env_values = true)]
    pub(crate) engine_authorization: Option<String>,
    /// PEM file with certificate authorities to trust for https workers, beside the system's.
    #[arg(long, env = "DYN_ENGINE_CA_FILE", value_name = "FILE")]
    pub(crate) engine_ca_file: Option<PathBuf>,

    /// Threads that turn prompts into tokens; 0: half the cores, at least one.
    #[arg(long, env = "DYN_PREPROCESS_WORKERS", default_value_t = 0, value_name = "THREADS", value_parser = clap::value_parser!(u16).range(0..=256))]
    pub(crate) preprocess_workers: u16,
    /// Threads that serve requests; 0: half the cores, at least one.
    #[arg(long, env = "DYN_RUNTIME_NUM_WORKER_THREADS", default_value_t = 0, value_name = "THREADS", value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub(crate) http_threads: u16,
    /// Log lines as text or as JSON; what is logged follows RUST_LOG (default info).
    #[arg(long, env = "DYN_LOG_FORMAT", default_value = "text", value_parser = ["text", "json"], value_name = "FORMAT")]
    pub(crate) log_format: String,
    /// Print the effective configuration and exit.
    #[arg(long)]
    pub(crate) check: bool,
}
