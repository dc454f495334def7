//! The index from outside: bit-exact hashes, and answers equal to plain sets.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

mod copies;
mod exact;
mod fuzz;
mod long;
mod model;
mod orphans;
mod race;
mod takeover;
mod vectors;
mod wide;
mod world;
