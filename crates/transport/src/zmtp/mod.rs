//! ZMTP 3.0 and 3.1 with the NULL mechanism on tokio, over TCP and Unix sockets: [`Sub`] and [`Dealer`] to consume,
//! [`Pub`] and [`Router`] to publish.
//!
//! The protocol itself is a state machine without I/O (`greeting`, `command`, `frame`, `session`): bytes and times
//! go in, events and bytes come out. `connection` moves the bytes; the sockets own the tasks, queues and retries.
//!
//! Left out on purpose: ZMTP 1 and 2, CURVE and PLAIN, and every other socket kind. What a peer may make us hold is
//! bounded by [`Limits`] and [`Options`]; a size is judged when its header arrives, before anything is allocated for it.

mod backoff;
mod command;
mod connection;
mod dealer;
mod endpoint;
mod error;
mod frame;
mod greeting;
mod inbox;
mod listen;
mod net;
mod options;
mod publisher;
mod queue;
mod router;
mod server;
mod session;
mod sub;
mod topics;

pub use dealer::Dealer;
pub use endpoint::{Endpoint, EndpointError};
pub use error::Error;
pub use options::{Limits, Options};
pub use publisher::Pub;
pub use router::{Identity, Router};
pub use sub::{Sub, SubEvent};
