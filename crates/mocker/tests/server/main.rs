//! The simulated engine server as its users meet it: over HTTP, over event sockets, as a process.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod binary;
mod events;
mod faults;
mod http;
mod support;
