//! The event plane over real sockets: byte for byte as Dynamo 1.6.1 speaks, against a real nats-server, and against peers that
//! stall, flood, or talk nonsense.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod captured;
mod nats;
mod peers;
mod support;
mod zmq;
