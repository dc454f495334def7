//! What token-level engines say, as OpenAI answers.
//!
//! No clock, no thread, no socket: the caller pushes what engines send and gets the bytes for the client.

mod delta;
pub mod reasoning;
pub mod tools;

pub use delta::Delta;
