//! Bytes to events and back: what LLM engines publish about their KV cache.
//!
//! [`message`] takes the ZMQ frames of one message apart, [`batch`] reads its MessagePack payload in any form an
//! engine generation is known to send, and [`encode`] writes those forms for the simulated engine.
//!
//! This crate owns no state, opens no socket and reads no clock. It does not judge what events mean: sequence gaps,
//! unknown parents, mismatched lengths and other groups are values here and decisions in `feed`.

#![forbid(unsafe_code)]

mod batch;
mod cursor;
pub mod encode;
mod event;
mod extra_keys;
mod fields;
mod frame;
mod layout;
mod media;
mod values;

pub use batch::{Batch, BatchError, EventError, batch};
pub use event::{Adapter, Carries, Event, Group, Kind, Locality, Medium, Naming, Removed, Stored, Tokens};
pub use frame::{FrameError, Framed, Message, message, replay_request, replay_start};
