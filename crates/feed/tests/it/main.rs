//! The feed from outside: messages in, trust and index out.

mod simulation;
mod stream;
mod support;
