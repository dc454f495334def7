//! The simulated engine as a worker of a Dynamo fleet: asked over the request plane, described by its records, alone and in two parts.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod answers;
mod support;
mod two_parts;
