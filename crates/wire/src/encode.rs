//! The encodings of chosen engine generations, for the simulated engine and for tests.
//!
//! An [`Encoder`] writes what its generation can carry and leaves out the rest, as that release would: an old vLLM
//! has no salt in its events, and knows adapters by number only.

use bytes::Bytes;

use crate::{Event, Message};

/// An engine release whose events differ from its predecessors'.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Generation {
    /// vLLM 0.12: arrays; adapters by number.
    Vllm012,
    /// vLLM 0.16: and adapters by name.
    Vllm016,
    /// vLLM 0.23: and extra keys (salt, media) and groups.
    Vllm023,
    /// vLLM 0.24: maps.
    Vllm024,
    /// vLLM 0.26: and locality; replay replies carry the topic.
    Vllm026,
    /// vLLM 0.33, the newest looked at; for what an [`Event`] holds, as 0.26.
    Vllm033,
    /// SGLang 0.5.6: arrays; no medium, adapter or salt.
    Sglang056,
    /// SGLang 0.5.23: maps; replay replies carry the topic.
    Sglang0523,
}

/// How a generation's block hashes are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hashes {
    /// Integers: unsigned from vLLM, signed from SGLang.
    #[default]
    Integer,
    /// 32 bytes, as vLLM with `VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0`.
    Binary,
}

/// Writes batches as one generation does.
#[derive(Clone, Debug)]
pub struct Encoder {
    /// The release to be.
    pub generation: Generation,
    /// How block hashes are written.
    pub hashes: Hashes,
    /// Adapter names by load number, which counts from 1.
    pub adapters: Vec<String>,
}

impl Encoder {
    /// An encoder with integer hashes and no adapters loaded.
    pub fn new(generation: Generation) -> Self {
        Self {
            generation,
            hashes: Hashes::default(),
            adapters: Vec::new(),
        }
    }

    /// The payload of one batch. `timestamp` is in seconds since the epoch. An event of unknown type is left out.
    pub fn batch(&self, timestamp: f64, rank: u32, events: &[Event]) -> Bytes {
        let _ = (timestamp, rank, events);
        Bytes::new()
    }
}

/// The frames of a live message on a PUB socket: topic, sequence, payload.
pub fn live(topic: &Bytes, message: &Message) -> Vec<Bytes> {
    vec![
        topic.clone(),
        Bytes::copy_from_slice(&message.seq.to_be_bytes()),
        message.payload.clone(),
    ]
}

impl Generation {
    /// The frames of one replayed message, to be sent by a ROUTER after the identity.
    pub fn replayed(self, topic: &Bytes, message: &Message) -> Vec<Bytes> {
        let _ = topic;
        live(&Bytes::new(), message)
    }

    /// The frames that end a replay, to be sent by a ROUTER after the identity.
    pub fn replay_end(self) -> Vec<Bytes> {
        crate::frame::end_of_replay().to_vec()
    }
}
