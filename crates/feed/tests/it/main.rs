//! The feed from outside: messages in, trust and index out.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod check;
mod demands;
mod events;
mod leases;
mod lives;
mod simulation;
mod stream;
mod support;
