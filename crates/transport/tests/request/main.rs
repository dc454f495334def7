//! The request plane over real sockets: byte for byte as Dynamo 1.6.1 speaks, under load, and against peers that lie, stall
//! or leave.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod answers;
mod calls;
mod captured;
mod deaths;
mod endings;
mod hostile_callers;
mod nats;
mod pings;
mod raw_nats;
mod real_dynamo;
mod strangers;
mod support;
