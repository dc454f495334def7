//! The sockets that carry KV events. An engine's own: [`zmtp`] speaks ZeroMQ's wire protocol, [`stream`] keeps one publisher's
//! numbered stream flowing into its `feed`. Dynamo's: [`plane`] publishes and subscribes over ZMQ and [`nats`], [`discovery`] says who
//! is there, [`request`] asks and answers, and [`follow`] keeps one rank flowing into its feed with all of them. Both are held by their [`reins`].
//!
//! Everything a peer can send is judged here before it costs memory; what the events mean is decided in `feed`.
//! Nothing in this crate knows HTTP, metrics or configuration text.

#![forbid(unsafe_code)]

pub mod discovery;
pub mod follow;
pub mod health;
pub mod hosts;
pub mod nats;
pub mod plane;
pub mod reins;
pub mod request;
pub mod stream;
mod tcp;
pub mod zmtp;
