//! The product as its users meet it: the `dynamo-frontend` process, real sockets, and engines that are either scripted
//! from recordings or simulated. What a part does by itself is tested in its crate.

#![expect(clippy::unwrap_used, reason = "what cannot be unwrapped here is a failed test")]

mod captures;
mod circles;
mod configuration;
mod examples;
mod failures;
mod fleet;
mod generate;
mod index_routes;
mod kv_mode;
mod modes;
mod openai;
mod planes;
mod prediction;
mod real_dynamo;
mod real_engine;
mod replays;
mod stream_faults;
mod support;
mod surface;
mod tokens;
mod truth;
mod untold;
