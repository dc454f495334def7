//! The publishing side of the planes: what an engine's process does so that routers know what its cache holds.
//!
//! - [`Runtime`] is a process on the planes: discovery, event plane, request plane. [`Component`] and [`Endpoint`] name its parts.
//! - [`KvEventPublisher`] takes an engine's calls from any thread, never blocks it, and publishes them as numbered events of a
//!   set; with a local indexer it also answers those who missed some ([`feed::publisher`] decides what they get).
//! - [`Relay`] does the same for an engine that publishes raw events: it follows the engine's socket and tells publishers.
//! - [`LoadPublisher`] tells how loaded the engine is.
//! - [`ModelSpec`] is the least a model card must say.
//!
//! No plane is a lifeline (rule 14): everything here is made, and publishes, without discovery or NATS, and catches up.

#![forbid(unsafe_code)]

mod card;
mod config;
mod intake;
mod load;
mod names;
mod options;
mod publisher;
mod recovery;
mod relay;
mod runtime;
mod work;

pub use card::ModelSpec;
pub use config::{ConfigError, RuntimeConfig};
pub use feed::publisher::{Call, CallError, StoredCall};
pub use intake::Taken;
pub use load::{Load, LoadPublisher};
pub use names::{Component, Endpoint, Namespace, ServeError, Served};
pub use options::{BlockName, KvPublisherOptions, PublishError, PublisherError, block_names};
pub use publisher::{KvEventPublisher, Standing};
pub use relay::{Relay, RelayCounters, RelaySource};
pub use runtime::{Runtime, RuntimeError};
pub use work::KvPublisherCounters;
