//! Bytes to events and back: what LLM engines publish about their KV cache, and what Dynamo's planes carry.
//!
//! Engines: [`message`] takes the ZMQ frames of one message apart, [`batch`] reads its MessagePack payload in any form an
//! engine generation is known to send, and [`encode`] writes those forms for the simulated engine.
//!
//! Planes, as Dynamo 1.6.1 speaks: [`router`] events in an [`envelope`] and what else travels there ([`load`]), [`recovery`] of what
//! was missed, the bytes of the [`request`] plane it is asked for on, what workers are asked to [`generate`] there, and the documents of
//! [`discovery`].
//!
//! This crate owns no state, opens no socket and reads no clock. It does not judge what events mean: sequence gaps,
//! unknown parents, mismatched lengths and other groups are values here and decisions in `feed`.

#![forbid(unsafe_code)]

mod batch;
mod cursor;
pub mod discovery;
pub mod encode;
pub mod envelope;
mod event;
mod extra_keys;
mod fields;
mod frame;
pub mod generate;
mod layout;
pub mod load;
mod media;
mod out;
pub mod recovery;
pub mod request;
pub mod router;
mod scan;
mod values;

pub use batch::{Batch, BatchError, EventError, batch};
pub use event::{Adapter, Carries, Event, Group, Kind, Locality, Medium, Naming, Removed, Stored, Tokens};
pub use frame::{FrameError, Framed, Message, message, replay_request, replay_start};

/// The text, cut at so many bytes.
fn clip(text: &str, bytes: usize) -> String {
    text[..text.floor_char_boundary(bytes)].to_owned()
}

/// The same of what may not be UTF-8.
fn clip_bytes(text: &[u8], bytes: usize) -> String {
    clip(&String::from_utf8_lossy(&text[..text.len().min(bytes)]), bytes)
}
