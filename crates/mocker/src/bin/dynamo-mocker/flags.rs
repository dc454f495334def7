//! The command line.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use mocker::{Config, DynamoConfig, EventsConfig, Generation, HandOver, Hashes, ReplayConfig, Role, SocketKind};
use worker::{FlagError, PlaneFlags};

/// A simulated LLM engine server: OpenAI over HTTP, a block manager with prefix caching, and
/// raw KV events over ZeroMQ as vLLM or SGLang publish them. Its answers mean nothing; how it
/// counts, caches, evicts and announces follows real engines.
///
/// Try it:
///   dynamo-mocker --http-port 8101
///   curl localhost:8101/v1/completions -d '{"prompt": "once upon a time", "max_tokens": 8}'
///   curl localhost:8101/kv_event_sources
///
/// As a worker of a Dynamo fleet, with token ids over the request plane and events over the event plane:
///   dynamo-mocker --dynamo --discovery-backend file --model-path DIR
///
/// Make it fail (switches left out are off; GET shows them):
///   curl -X PUT localhost:8101/mocker/faults -d '{"freeze": "engine"}'
///     freeze               "none", "engine" (no token, no event), "process" (no answer at all)
///     status               400 to 599: what generation requests are answered with
///     stream               {"after_events": N, "kind": K}, K one of "die_mid_line", "close",
///                          "error_event", "stall"
///     latency_ms           delay of generation requests, in milliseconds
///     health_latency_ms    delay of /health, in milliseconds
///     drop_batches         so many event batches are not sent, but can be replayed
///     lose_batches         so many event batches are neither sent nor kept
#[derive(Debug, Parser)]
#[command(name = "dynamo-mocker", version, verbatim_doc_comment)]
pub(crate) struct Flags {
    /// Interface that HTTP and events listen on. The zeromq sockets can be aborted by hostile bytes: keep them on loopback.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port of HTTP; 0 takes a free one, which is the default with --dynamo.
    #[arg(long, default_value_t = 8000, default_value_if("dynamo", "true", "0"))]
    http_port: u16,
    /// Name of the model.
    #[arg(long, default_value = "mock-model")]
    model_name: String,
    /// Folder with tokenizer.json; a small embedded one if not given. Chats are always rendered as in the
    /// chat_template.jinja that --write-model writes.
    #[arg(long, value_name = "DIR")]
    model_path: Option<PathBuf>,
    /// Write the embedded model folder to DIR, for a frontend's --model-path, and exit.
    #[arg(long, value_name = "DIR")]
    pub(crate) write_model: Option<PathBuf>,
    /// LoRA adapter to load, repeatable; each is a model of its own name.
    #[arg(long = "adapter", value_name = "NAME")]
    adapters: Vec<String>,
    /// Engine release to resemble: its events, and the endpoints of its family.
    #[arg(long, default_value_t = Generation::Vllm033, value_parser = generation, long_help = generations())]
    generation: Generation,
    /// Write block hashes as 32 bytes instead of integers (vLLM only).
    #[arg(long)]
    binary_hashes: bool,
    /// Port of the PUB socket, rank r has port + r; 0 takes free ones.
    #[arg(long, default_value_t = 5557)]
    events_port: u16,
    /// Port of the ROUTER socket that replays, rank r has port + r; 0 takes free ones.
    #[arg(long, default_value_t = 5657)]
    replay_port: u16,
    /// Publish no KV events.
    #[arg(long)]
    no_events: bool,
    /// Offer no replay.
    #[arg(long)]
    no_replay: bool,
    /// Batches kept for replay.
    #[arg(long, default_value_t = 10_000)]
    buffer_steps: usize,
    /// Topic of the events.
    #[arg(long, default_value = "")]
    topic: String,
    /// Implementation of the event sockets.
    #[arg(long, value_enum, default_value_t = Sockets::Zeromq)]
    sockets: Sockets,
    /// Data-parallel ranks, each with its own cache and sockets (1 to 64).
    #[arg(long, default_value_t = 1)]
    ranks: u32,
    /// Tokens per block.
    #[arg(long, default_value = "16")]
    block_size: NonZeroU32,
    /// Blocks of each rank's cache.
    #[arg(long, default_value_t = 2_048)]
    blocks: u32,
    /// Longest sequence, prompt and output, in tokens.
    #[arg(long, default_value_t = 8_192)]
    max_model_len: u32,
    /// Tokens computed in one step at most.
    #[arg(long, default_value_t = 8_192)]
    max_batched_tokens: u32,
    /// Sequences computed in one step at most.
    #[arg(long, default_value_t = 256)]
    max_sequences: u32,
    /// Prefill speed of each rank, in tokens per second.
    #[arg(long, default_value_t = 10_000.0)]
    prefill_rate: f64,
    /// Decode speed of each sequence, in tokens per second.
    #[arg(long, default_value_t = 50.0)]
    decode_rate: f64,
    /// Time runs this many times faster; 0 does not wait at all.
    #[arg(long, default_value_t = 1.0)]
    speedup_ratio: f64,
    /// Mean length of an answer that ends by itself, in tokens.
    #[arg(long, default_value_t = 64)]
    mean_output_tokens: u32,
    /// Seed of the block hashes; drawn at each start if not given, so that no two processes name a block alike.
    #[arg(long)]
    hash_seed: Option<u64>,
    /// Be a worker of a Dynamo fleet instead of a server of its own. HTTP is then for /mocker/faults and /metrics.
    #[arg(long)]
    dynamo: bool,
    #[command(flatten)]
    planes: PlaneFlags,
    /// Component to register as; backend, or prefill for a prefill worker, if not given.
    #[arg(long, env = "DYN_COMPONENT", value_name = "NAME")]
    component: Option<String>,
    /// Endpoint to register as.
    #[arg(long, env = "DYN_ENDPOINT", value_name = "NAME", default_value = "generate")]
    endpoint: String,
    /// What part of a request it does. A decode worker refuses a request for which no prefill worker handed over.
    #[arg(long, value_enum, default_value_t = Mode::Agg)]
    disaggregation_mode: Mode,
    /// Port where a prefill worker waits for decode workers, told on its card; 0 takes a free one. Without it, its answer tells where.
    #[arg(long, value_name = "PORT")]
    bootstrap_port: Option<u16>,
    /// A decode worker does all of a request that comes without anything handed over.
    #[arg(long)]
    decode_alone: bool,
    /// How often a request may move to another worker once it has begun to answer, by this worker's card.
    #[arg(long, default_value_t = 0)]
    migration_limit: u32,
    /// Parser of tool calls, on the card.
    #[arg(long, visible_alias = "dyn-tool-call-parser", value_name = "NAME")]
    tool_call_parser: Option<String>,
    /// Parser of reasoning, on the card.
    #[arg(long, visible_alias = "dyn-reasoning-parser", value_name = "NAME")]
    reasoning_parser: Option<String>,
    /// Seconds that requests which run may take to end at a shutdown.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    drain_secs: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mode {
    /// All of it.
    Agg,
    /// The prompt.
    Prefill,
    /// The answer.
    Decode,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Sockets {
    /// The zeromq crate.
    Zeromq,
    /// The frontend's own implementation.
    Own,
}

fn generation(name: &str) -> Result<Generation, String> {
    name.parse().map_err(|error: wire::encode::UnknownGeneration| error.to_string())
}

fn generations() -> String {
    let names: Vec<String> = Generation::ALL.iter().map(Generation::to_string).collect();
    format!("Engine release to resemble: its events, and the endpoints of its family [possible values: {}]", names.join(", "))
}

impl Flags {
    /// What to be. `variable` looks up the environment, for the planes.
    pub(crate) fn config(self, variable: impl Fn(&str) -> Option<String>) -> Result<Config, FlagError> {
        let dynamo = if self.dynamo { Some(self.worker(variable)?) } else { None };
        let events = (!self.no_events).then(|| EventsConfig {
            host: self.host,
            port: self.events_port,
            replay: (!self.no_replay).then_some(ReplayConfig { port: self.replay_port, buffer_steps: self.buffer_steps }),
            topic: self.topic,
            sockets: match self.sockets {
                Sockets::Zeromq => SocketKind::Zeromq,
                Sockets::Own => SocketKind::Own,
            },
        });
        Ok(Config {
            http: SocketAddr::new(self.host, self.http_port),
            model: self.model_name,
            adapters: self.adapters,
            model_path: self.model_path,
            generation: self.generation,
            hashes: if self.binary_hashes { Hashes::Binary } else { Hashes::Integer },
            events,
            dynamo,
            ranks: self.ranks,
            block_size: self.block_size,
            blocks: self.blocks,
            max_model_len: self.max_model_len,
            max_batched_tokens: self.max_batched_tokens,
            max_sequences: self.max_sequences,
            prefill_tokens_per_s: self.prefill_rate,
            decode_tokens_per_s: self.decode_rate,
            speedup: self.speedup_ratio,
            mean_output_tokens: self.mean_output_tokens,
            hash_seed: self.hash_seed,
        })
    }

    fn worker(&self, variable: impl Fn(&str) -> Option<String>) -> Result<DynamoConfig, FlagError> {
        let role = match self.disaggregation_mode {
            Mode::Agg => Role::Aggregated,
            Mode::Prefill => Role::Prefill,
            Mode::Decode => Role::Decode,
        };
        if let (Some(port), Role::Aggregated | Role::Decode) = (self.bootstrap_port, role) {
            let allowed = "is for a prefill worker: --disaggregation-mode prefill".to_owned();
            return Err(FlagError { name: "--bootstrap-port".to_owned(), value: port.to_string(), allowed });
        }
        Ok(DynamoConfig {
            component: self.component.clone(),
            endpoint: self.endpoint.clone(),
            role,
            hand_over: self.bootstrap_port.map_or(HandOver::Answer, |port| HandOver::Bootstrap { port }),
            decodes_alone: self.decode_alone,
            migration_limit: self.migration_limit,
            tool_call_parser: self.tool_call_parser.clone(),
            reasoning_parser: self.reasoning_parser.clone(),
            drain: Duration::from_secs(self.drain_secs),
            ..DynamoConfig::new(self.planes.config(variable)?)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;

    fn config(line: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
        let words = ["dynamo-mocker"].into_iter().chain(line.split_whitespace());
        let flags = Flags::try_parse_from(words).map_err(|error| error.to_string())?;
        let lookup = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        flags.config(lookup).map_err(|error| error.to_string())
    }

    #[test]
    fn without_a_fleet_it_is_a_server_of_its_own() {
        let server = config("", &[("DYN_DISCOVERY_BACKEND", "zookeeper")]).unwrap();
        assert!(server.dynamo.is_none() && server.http.port() == 8000);
    }

    #[test]
    fn in_a_fleet_it_has_a_role_and_planes() {
        let worker =
            config("--dynamo --file-kv /x --migration-limit 3 --tool-call-parser hermes", &[("DYN_REQUEST_PLANE", "nats")]).unwrap();
        assert_eq!(worker.http.port(), 0, "several of them on one host");
        let dynamo = worker.dynamo.unwrap();
        assert_eq!((dynamo.role, dynamo.migration_limit, dynamo.tool_call_parser.as_deref()), (Role::Aggregated, 3, Some("hermes")));
        assert_eq!(dynamo.runtime.request_plane, worker::RequestPlane::Nats);
        let prefill = config("--dynamo --disaggregation-mode prefill --bootstrap-port 7788", &[]).unwrap().dynamo.unwrap();
        assert_eq!((prefill.role, prefill.hand_over), (Role::Prefill, HandOver::Bootstrap { port: 7788 }));
        let decode = config("--dynamo --disaggregation-mode decode --http-port 9", &[]).unwrap();
        assert_eq!((decode.http.port(), decode.dynamo.unwrap().role), (9, Role::Decode));
    }

    #[test]
    fn what_is_wrong_is_named_as_it_was_given() {
        let refused = |line: &str, variables: &[(&str, &str)]| config(&format!("--dynamo {line}"), variables).unwrap_err();
        assert_eq!(refused("", &[("DYN_REQUEST_PLANE", "http")]), "DYN_REQUEST_PLANE=http: allowed are tcp and nats");
        assert_eq!(refused("--request-plane http", &[]), "--request-plane=http: allowed are tcp and nats");
        assert!(refused("--discovery-backend mem", &[]).starts_with("--discovery-backend=mem: is within one process"));
        assert!(refused("--bootstrap-port 5", &[]).starts_with("--bootstrap-port=5: is for a prefill worker"));
    }
}
