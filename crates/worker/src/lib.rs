//! The publishing side of the planes: what an engine's process does so that routers know what its cache holds.
//!
//! - [`Runtime`] is a process on the planes: discovery, event plane, request plane. [`Component`] and [`Endpoint`] name its parts.
//! - [`KvEventPublisher`] takes an engine's calls from any thread, never blocks it, and publishes them as numbered events of a
//!   set; with a local indexer it also answers those who missed some ([`feed::publisher`] decides what they get).
//! - [`Relay`] does the same for an engine that publishes raw events: it follows the engine's socket and tells publishers.
//! - [`LoadPublisher`] tells how loaded the engine is.
//! - [`Endpoint::serve_generate`] answers requests for tokens with a [`GenerateHandler`]; [`ModelSpec`] is the model card by which routers
//!   find it and prepare requests.
//! - [`KvFollower`] and [`KvSubscriber`] are the other end, for whoever routes by what publishers say.
//!
//! No plane is a lifeline (rule 14): everything here is made, and publishes, without discovery or NATS, and catches up.

#![forbid(unsafe_code)]

mod card;
mod config;
mod consume;
mod failure;
mod flags;
mod generate;
mod intake;
mod load;
mod names;
mod options;
mod publisher;
mod recovery;
mod relay;
mod runtime;
mod work;

pub use card::{FilesError, ModelFiles, ModelInput, ModelSpec};
pub use config::{ConfigError, RequestPlane, RuntimeConfig};
pub use consume::{Followed, Holder, KvFollower, KvNotice, KvSubscriber, RecoverError, Recovered};
pub use failure::Failure;
pub use feed::publisher::{Call, CallError, StoredCall};
pub use flags::{FlagError, PlaneFlags};
pub use generate::{Chunks, Context, GenerateHandler, Outputs, TextHandler};
pub use intake::Taken;
pub use load::{Load, LoadPublisher};
pub use names::{Component, Endpoint, Namespace, ServeError, Served};
pub use options::{BlockName, KvPublisherOptions, PublishError, PublisherError};
pub use publisher::{KvEventPublisher, Standing};
pub use relay::{Relay, RelayCounters, RelaySource};
pub use runtime::{Runtime, RuntimeError};
pub use work::KvPublisherCounters;
