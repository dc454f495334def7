//! `dynamo-worker` as a process beside simulated engines, watched as a frontend would: through discovery, its events and its recovery.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod beside;
mod life;
mod planes;
mod relay;
mod world;
