//! The frontend behind `dynamo-frontend`: an OpenAI-style HTTP server that sends each request to the worker that already
//! holds its prefix in KV cache. ARCHITECTURE.md at the root of the repository is the map.

#![forbid(unsafe_code)]

mod app;
mod config;
mod demo;
mod fleet;
mod fleet_metrics;
mod http;
mod metrics;
mod planes;
mod prompt_metrics;
mod replicas;
pub mod run;
mod server;
mod walk;
