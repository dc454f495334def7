//! The feed from outside: messages in, trust and index out.

mod check;
mod events;
mod leases;
mod simulation;
mod stream;
mod support;
