//! The feed of a rank on the event plane from outside: events and answers in, trust and index out.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod content;
mod publishers;
mod recovery;
mod simulation;
mod stream;
mod support;
