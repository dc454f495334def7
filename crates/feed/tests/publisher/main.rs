//! The publishing side from outside: an engine's calls in, events and answers out.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod answers;
mod calls;
mod model;
mod sets;
mod vectors;
