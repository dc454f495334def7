//! What a simulated engine server is made of, with defaults, and why one could not be started.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use wire::encode::{Generation, Hashes};

use crate::dynamo::DynamoConfig;
use crate::model::{ConfigError, EngineConfig, Style};
use crate::text::{FolderError, Text};

/// Data-parallel ranks at most.
pub const MAX_RANKS: u32 = 64;

/// A simulated engine server. The default is one rank of a new vLLM on free loopback ports, with events.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to serve HTTP; port 0 takes a free one.
    pub http: SocketAddr,
    /// Name of the base model.
    pub model: String,
    /// Names of the LoRA adapters loaded at start; each is a model of its own name.
    pub adapters: Vec<String>,
    /// Folder with `tokenizer.json`; the embedded one ([`crate::folder`]) if not given.
    pub model_path: Option<PathBuf>,
    /// The engine release whose events are written, and with it the family (vLLM or SGLang) that is imitated.
    pub generation: Generation,
    /// How block hashes are written.
    pub hashes: Hashes,
    /// KV events; `None` publishes none.
    pub events: Option<EventsConfig>,
    /// A worker on Dynamo's planes; `events` then publishes nothing. `None`: a server of its own.
    pub dynamo: Option<DynamoConfig>,
    /// Data-parallel ranks, each with its own cache and its own sockets; at most [`MAX_RANKS`].
    pub ranks: u32,
    /// Tokens per block.
    pub block_size: NonZeroU32,
    /// Blocks of each rank's cache.
    pub blocks: u32,
    /// Longest sequence, in tokens.
    pub max_model_len: u32,
    /// Tokens computed in one step at most.
    pub max_batched_tokens: u32,
    /// Sequences in one step at most.
    pub max_sequences: u32,
    /// Prefill speed of each rank, in tokens per second.
    pub prefill_tokens_per_s: f64,
    /// Decode speed of each sequence, in tokens per second.
    pub decode_tokens_per_s: f64,
    /// Time runs this many times faster; 0 does not wait at all.
    pub speedup: f64,
    /// Mean length of an answer that ends by itself, in tokens.
    pub mean_output_tokens: u32,
    /// Seed of the block hashes; drawn at each start if not given.
    pub hash_seed: Option<u64>,
}

/// Where KV events are published.
#[derive(Clone, Debug)]
pub struct EventsConfig {
    /// Interface of the sockets.
    pub host: IpAddr,
    /// Port of rank 0's PUB socket; rank `r` has port + `r`. 0 takes free ones.
    pub port: u16,
    /// Replay; `None` offers none.
    pub replay: Option<ReplayConfig>,
    /// Topic of every message.
    pub topic: String,
    /// Which implementation publishes.
    pub sockets: SocketKind,
}

/// Where past batches can be asked for.
#[derive(Clone, Copy, Debug)]
pub struct ReplayConfig {
    /// Port of rank 0's ROUTER socket; rank `r` has port + `r`. 0 takes free ones.
    pub port: u16,
    /// Batches kept for replay.
    pub buffer_steps: usize,
}

/// An implementation of the event sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SocketKind {
    /// `transport::zmtp`: fit for processes that strangers can reach.
    #[default]
    Own,
    /// The `zeromq` crate: another implementation, for tests between the two. A hostile peer can abort a process that
    /// binds it, so it belongs on loopback.
    Zeromq,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            http: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0),
            model: "mock-model".to_owned(),
            adapters: Vec::new(),
            model_path: None,
            generation: Generation::Vllm033,
            hashes: Hashes::Integer,
            events: Some(EventsConfig::default()),
            dynamo: None,
            ranks: 1,
            block_size: const { NonZeroU32::new(16).expect("16 is not zero") },
            blocks: 2_048,
            max_model_len: 8_192,
            max_batched_tokens: 8_192,
            max_sequences: 256,
            prefill_tokens_per_s: 10_000.0,
            decode_tokens_per_s: 50.0,
            speedup: 1.0,
            mean_output_tokens: 64,
            hash_seed: None,
        }
    }
}

impl Default for EventsConfig {
    fn default() -> Self {
        Self {
            host: Ipv4Addr::LOCALHOST.into(),
            port: 0,
            replay: Some(ReplayConfig::default()),
            topic: String::new(),
            sockets: SocketKind::default(),
        }
    }
}

impl Default for ReplayConfig {
    fn default() -> Self {
        Self { port: 0, buffer_steps: 10_000 }
    }
}

impl Config {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.ranks == 0 || self.ranks > MAX_RANKS {
            return Err(ConfigError(format!("{} ranks: allowed are 1 to {MAX_RANKS}", self.ranks)));
        }
        if !self.speedup.is_finite() || self.speedup < 0.0 {
            return Err(ConfigError(format!("speed-up ratio {} must be 0 or a positive number", self.speedup)));
        }
        if let Some(name) = self.adapters.iter().find(|&name| *name == self.model || name.is_empty()) {
            return Err(ConfigError(format!("adapter name {name:?} is empty or the base model's")));
        }
        Ok(())
    }

    pub(crate) fn style(&self) -> Style {
        match self.generation {
            Generation::Sglang056 | Generation::Sglang0523 => Style::Sglang,
            Generation::Vllm012
            | Generation::Vllm016
            | Generation::Vllm023
            | Generation::Vllm024
            | Generation::Vllm026
            | Generation::Vllm033 => Style::Vllm,
        }
    }

    /// The engine of each rank. Ranks of one start share a hash seed, as real ones do.
    pub(crate) fn engine(&self, text: &Text, hash_seed: u64) -> EngineConfig {
        EngineConfig {
            style: self.style(),
            block_size: self.block_size,
            blocks: self.blocks,
            max_model_len: self.max_model_len,
            max_batched_tokens: self.max_batched_tokens,
            max_sequences: self.max_sequences,
            prefill_tokens_per_s: self.prefill_tokens_per_s,
            decode_tokens_per_s: self.decode_tokens_per_s,
            hash_seed,
            vocabulary: text.vocabulary(self.mean_output_tokens),
        }
    }

    /// How long a step of the simulated hardware lasts here.
    pub(crate) fn paced(&self, step: Duration) -> Duration {
        if self.speedup == 0.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(step.as_secs_f64() / self.speedup).unwrap_or(Duration::MAX)
    }
}

/// Why a simulated engine server could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// No engine can run so.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The planes cannot be taken part in.
    #[error("{0}")]
    Planes(String),
    /// A socket could not be bound.
    #[error("cannot bind {what} {endpoint}: {reason}")]
    Bind {
        /// Which socket.
        what: &'static str,
        /// Where.
        endpoint: String,
        /// What the system said.
        reason: String,
    },
}
