//! `dynamo-mocker`: one simulated engine server as a process of its own.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use mocker::{Config, EventsConfig, Generation, Handle, Hashes, ReplayConfig, SocketKind};
use tokio::signal::unix::{SignalKind, signal};

/// Exit status for flags that cannot be, as `EX_USAGE` of sysexits.h.
const EX_USAGE: u8 = 64;

/// A simulated LLM engine server: OpenAI over HTTP, a block manager with prefix caching, and
/// raw KV events over ZeroMQ as vLLM or SGLang publish them. Its answers mean nothing; how it
/// counts, caches, evicts and announces follows real engines.
///
/// Try it:
///   dynamo-mocker --http-port 8101
///   curl localhost:8101/v1/completions -d '{"prompt": "once upon a time", "max_tokens": 8}'
///   curl localhost:8101/kv_event_sources
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
struct Flags {
    /// Interface that HTTP and events listen on. The zeromq sockets can be aborted by hostile bytes: keep them on loopback.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port of HTTP; 0 takes a free one.
    #[arg(long, default_value_t = 8000)]
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
    write_model: Option<PathBuf>,
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
    fn config(self) -> Config {
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
        Config {
            http: SocketAddr::new(self.host, self.http_port),
            model: self.model_name,
            adapters: self.adapters,
            model_path: self.model_path,
            generation: self.generation,
            hashes: if self.binary_hashes { Hashes::Binary } else { Hashes::Integer },
            events,
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
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let flags = match Flags::try_parse() {
        Ok(flags) => flags,
        Err(error) => {
            // Nothing can be done if the terminal is gone.
            let _ = error.print();
            return if error.use_stderr() { EX_USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).init();
    match run(flags).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("dynamo-mocker: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(flags: Flags) -> anyhow::Result<ExitCode> {
    if let Some(dir) = &flags.write_model {
        mocker::folder::write(dir).map_err(|error| anyhow::anyhow!("cannot write {}: {error}", dir.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let handle = match mocker::serve(flags.config()).await {
        Ok(handle) => handle,
        Err(error @ mocker::ServeError::Config(_)) => {
            eprintln!("dynamo-mocker: {error}");
            return Ok(EX_USAGE.into());
        }
        Err(error) => return Err(error.into()),
    };
    // Before anyone learns that this process is ready, and may ask it to end.
    let mut terminate = signal(SignalKind::terminate())?;
    announce(&handle);
    tokio::select! {
        _ = terminate.recv() => {}
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    handle.shutdown().await;
    Ok(ExitCode::SUCCESS)
}

/// One line for HTTP and one for each rank's sockets; ports that were 0 can be read here.
fn announce(handle: &Handle) {
    let mut lines = format!("http {}\n", handle.url());
    for (rank, endpoints) in handle.events().iter().enumerate() {
        let replay = endpoints.replay.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string);
        lines.push_str(&format!("rank {rank} events {} replay {replay}\n", endpoints.events));
    }
    // A closed standard output is no reason to stop serving.
    let _ = std::io::stdout().lock().write_all(lines.as_bytes());
}
