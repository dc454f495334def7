//! Discovery in etcd, through the JSON gateway that every etcd has on its client port (`/v3/...`).
//!
//! Not through gRPC: that client's build needs `protoc`, and a machine that builds this program has Rust and nothing else. What is
//! used of etcd is small (range, txn, leases, one watch per prefix), and nothing here is on a request's path.
//!
//! Each call has a time-out, and a failed one moves on to the next address.

use std::time::Duration;

use rand::Rng;

mod api;
mod client;
mod config;
mod error;
mod follow;
mod keep;
mod lines;

pub(super) use client::Client;
pub use config::EtcdConfig;
pub(super) use follow::follow;
pub(super) use keep::Keeper;

/// The longest pause between two tries of what etcd refuses.
const REFUSED_LONGEST: Duration = Duration::from_secs(30);

/// Between two tries while etcd is away: random, so that a fleet does not come back in step. After each of several refusals in a
/// row, such as those of a wrong password, twice as long, 30 s at most.
pub(super) fn backoff(refusals: u32) -> Duration {
    let away = Duration::from_millis(rand::rng().random_range(300..=1000));
    away.saturating_mul(1 << refusals.min(16)).min(REFUSED_LONGEST)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
