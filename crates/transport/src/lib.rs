//! The sockets that carry KV events: [`zmtp`] speaks ZeroMQ's wire protocol, [`stream`] keeps one publisher's
//! numbered stream flowing into its `feed`.
//!
//! Everything a peer can send is judged here before it costs memory; what the events mean is decided in `feed`.
//! Nothing in this crate knows HTTP, metrics or configuration text.

#![forbid(unsafe_code)]

pub mod discovery;
pub mod health;
pub mod nats;
pub mod plane;
pub mod request;
pub mod stream;
pub mod zmtp;
