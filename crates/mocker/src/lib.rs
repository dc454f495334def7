//! A simulated LLM engine server: OpenAI over HTTP in front of a block manager with prefix caching, raw KV events on
//! PUB, replay on ROUTER, as vLLM and SGLang do it.
//!
//! [`model`] is the engine in virtual time; [`serve`](serve()) runs it in real time behind sockets. It answers with
//! words that mean nothing, but counts, caches, evicts and announces as real engines were seen to do, so that a router
//! in front of it can be tried, tested and measured without a GPU. [`Faults`] make it misbehave.

mod adapters;
mod config;
mod events;
mod faults;
pub mod folder;
mod http;
pub mod model;
mod rank;
mod serve;
mod server;
mod text;

pub use self::config::{Config, EventsConfig, MAX_RANKS, ReplayConfig, ServeError, SocketKind};
pub use self::faults::{Faults, Freeze, StreamFault, StreamFaultKind};
pub use self::serve::{Counters, Handle, RankEndpoints, serve};
pub use self::text::FolderError;
pub use wire::encode::{Generation, Hashes};
