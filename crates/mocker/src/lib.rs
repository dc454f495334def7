//! A simulated LLM engine server: OpenAI over HTTP in front of a block manager with prefix caching, raw KV events on
//! PUB, replay on ROUTER, as vLLM and SGLang do it.
//!
//! [`model`] is the engine in virtual time; [`serve`](serve()) runs it in real time behind sockets. It answers with
//! words that mean nothing, but counts, caches, evicts and announces as real engines were seen to do, so that a router
//! in front of it can be tried, tested and measured without a GPU. [`Faults`] make it misbehave.
//!
//! With a [`DynamoConfig`] it is a worker on Dynamo's planes instead of a server of its own: token ids over the request plane, events
//! over the event plane, whole requests or the prefill or decode part of them. HTTP is then for faults and figures.

mod adapters;
mod config;
mod dynamo;
mod events;
mod faults;
pub mod folder;
mod http;
pub mod model;
mod outlet;
mod rank;
mod serve;
mod server;
mod text;

pub use self::config::{Config, EventsConfig, MAX_RANKS, ReplayConfig, ServeError, SocketKind};
pub use self::dynamo::{DynamoConfig, HandOver, Role};
pub use self::faults::{Faults, Freeze, StreamFault, StreamFaultKind};
pub use self::serve::{Counters, Handle, RankEndpoints, serve};
pub use self::text::FolderError;
pub use wire::encode::{Generation, Hashes};
