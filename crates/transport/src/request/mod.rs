//! The request plane over TCP or NATS, as Dynamo 1.6.1 speaks it. [`Client`] asks and [`Server`] answers; between them requests share
//! connections and each answer has one of its own, over TCP, opened by the worker to the asker's listener.
//!
//! Both listeners may be reached by anyone: whoever does not speak the protocol costs one bounded place for a bounded time.
//! The bytes are [`wire::request`]'s.

mod alarm;
mod client;
mod error;
mod frames;
mod net;
mod newcomers;
mod options;
mod outbox;
mod server;
mod typed;

pub use client::{Call, Client, ClientCounters, Piece, Responses};
pub use error::{CallError, Cause, Refusal};
pub use options::{ClientOptions, ServerOptions};
pub use server::{Answer, Handled, Handler, Items, PathTaken, Request, Server, ServerCounters, one};
