//! The engine releases that can be written, and what tells their bytes apart.

use std::{fmt, str::FromStr};

use bytes::Bytes;

use crate::{
    Message, frame,
    layout::{self, Field},
};

/// An engine release whose events differ from its predecessors'. Parsed and displayed by names like `vllm-0.12`.
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
    /// vLLM 0.33: for what an event here holds as 0.26, but for the header of a store's map.
    Vllm033,
    /// SGLang 0.5.6: arrays; no medium, adapter or salt.
    Sglang056,
    /// SGLang 0.5.23: maps; replay replies carry the topic.
    Sglang0523,
}

/// A name that is no [`Generation`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown engine generation {0:?}, expected one of {names}", names = Generation::ALL.map(Generation::name).join(", "))]
pub struct UnknownGeneration(String);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    Vllm,
    Sglang,
}

#[derive(Clone, Copy)]
pub(super) enum Form {
    /// The tag, then every field, nil where there is nothing to say.
    Array,
    /// `type`, then the fields by name; optional ones are left out.
    Map,
    /// A map with a 16-bit count however few pairs are sent: msgspec reserves room for all fields of a class, and
    /// with its type this one has more than 15.
    WideMap,
}

/// SGLang's own order, which is seen in maps only.
const SGLANG_0523: &[Field] = &[
    Field::BlockHashes,
    Field::Parent,
    Field::TokenIds,
    Field::BlockSize,
    Field::LoraId,
    Field::Medium,
    Field::CacheSalt,
    Field::LoraName,
];

impl Generation {
    /// Every generation, oldest first within its family.
    pub const ALL: [Self; 8] =
        [Self::Vllm012, Self::Vllm016, Self::Vllm023, Self::Vllm024, Self::Vllm026, Self::Vllm033, Self::Sglang056, Self::Sglang0523];

    /// The name it is parsed from.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm012 => "vllm-0.12",
            Self::Vllm016 => "vllm-0.16",
            Self::Vllm023 => "vllm-0.23",
            Self::Vllm024 => "vllm-0.24",
            Self::Vllm026 => "vllm-0.26",
            Self::Vllm033 => "vllm-0.33",
            Self::Sglang056 => "sglang-0.5.6",
            Self::Sglang0523 => "sglang-0.5.23",
        }
    }

    /// The frames of one replayed message, to be sent by a ROUTER after the identity.
    pub fn replayed(self, topic: &Bytes, message: &Message) -> Vec<Bytes> {
        self.reply(topic.clone(), [frame::sequence(message.seq), message.payload.clone()])
    }

    /// The frames that end a replay, to be sent by a ROUTER after the identity.
    pub fn replay_end(self) -> Vec<Bytes> {
        self.reply(Bytes::new(), [frame::sequence(frame::END_OF_REPLAY), Bytes::new()])
    }

    fn reply(self, topic: Bytes, [sequence, payload]: [Bytes; 2]) -> Vec<Bytes> {
        let delimiter = Bytes::new();
        match self {
            Self::Vllm012 | Self::Vllm016 | Self::Vllm023 | Self::Vllm024 | Self::Sglang056 => {
                vec![delimiter, sequence, payload]
            }
            Self::Vllm026 | Self::Vllm033 | Self::Sglang0523 => vec![delimiter, topic, sequence, payload],
        }
    }

    pub(super) fn family(self) -> Family {
        match self {
            Self::Vllm012 | Self::Vllm016 | Self::Vllm023 | Self::Vllm024 | Self::Vllm026 | Self::Vllm033 => Family::Vllm,
            Self::Sglang056 | Self::Sglang0523 => Family::Sglang,
        }
    }

    pub(super) fn stored_form(self) -> Form {
        match self {
            Self::Vllm012 | Self::Vllm016 | Self::Vllm023 | Self::Sglang056 => Form::Array,
            Self::Vllm024 | Self::Vllm026 | Self::Sglang0523 => Form::Map,
            Self::Vllm033 => Form::WideMap,
        }
    }

    /// The form of every event but a store.
    pub(super) fn form(self) -> Form {
        match self.stored_form() {
            Form::Array => Form::Array,
            Form::Map | Form::WideMap => Form::Map,
        }
    }

    pub(super) fn stored(self) -> &'static [Field] {
        match self {
            Self::Vllm012 => through(layout::STORED, Field::Medium),
            Self::Vllm016 => through(layout::STORED, Field::LoraName),
            Self::Vllm023 | Self::Vllm024 => through(layout::STORED, Field::SlidingWindow),
            Self::Vllm026 | Self::Vllm033 => through(layout::STORED, Field::Locality),
            Self::Sglang056 => through(layout::STORED, Field::LoraId),
            Self::Sglang0523 => SGLANG_0523,
        }
    }

    pub(super) fn removed(self) -> &'static [Field] {
        match self {
            Self::Vllm012 | Self::Vllm016 | Self::Sglang0523 => through(layout::REMOVED, Field::Medium),
            Self::Vllm023 | Self::Vllm024 => through(layout::REMOVED, Field::GroupIdx),
            Self::Vllm026 | Self::Vllm033 => through(layout::REMOVED, Field::Locality),
            Self::Sglang056 => through(layout::REMOVED, Field::BlockHashes),
        }
    }
}

/// `fields` up to `last` and with it.
fn through(fields: &'static [Field], last: Field) -> &'static [Field] {
    let end = fields.iter().position(|field| *field == last).map_or(fields.len(), |position| position + 1);
    &fields[..end]
}

impl fmt::Display for Generation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Generation {
    type Err = UnknownGeneration;

    fn from_str(name: &str) -> Result<Self, UnknownGeneration> {
        let found = Self::ALL.into_iter().find(|generation| generation.name() == name);
        found.ok_or_else(|| UnknownGeneration(name.to_owned()))
    }
}
