//! The request plane over real sockets: byte for byte as Dynamo 1.6.1 speaks, under load, and against peers that lie, stall
//! or leave.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod answers;
mod calls;
mod captured;
mod endings;
mod hostile_callers;
mod pings;
mod strangers;
mod support;
