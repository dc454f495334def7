//! Discovery as its users see it: several participants on one store, and everything that can happen to the store.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod etcd;
mod file;
mod model;
mod owner;
mod support;
mod tls;
