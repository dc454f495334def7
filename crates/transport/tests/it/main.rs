//! The sockets over real TCP and Unix sockets: among themselves, against hostile peers, against the `zeromq` crate and
//! against libzmq.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod hostile;
mod libzmq;
mod sockets;
mod stream;
mod support;
mod zeromq_crate;
