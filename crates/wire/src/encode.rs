//! The encodings of chosen engine generations, for the simulated engine and for tests.
//!
//! An [`Encoder`] writes what its generation can carry and leaves out the rest, as that release does: an old vLLM
//! has no salt in its events, and knows adapters by number only. Where an [`Event`] holds all that the release would
//! say, the bytes are the release's own.

mod generation;

use bytes::Bytes;

use crate::{Adapter, Event, Kind, Locality, Medium, Message, Removed, Stored, Tokens, frame, layout::Field, out::Out};

use generation::{Family, Form};
pub use generation::{Generation, UnknownGeneration};

/// How a vLLM writes block hashes. SGLang has integers only, and signed ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hashes {
    /// Unsigned integers, the default of vLLM.
    #[default]
    Integer,
    /// 32 bytes, as with `VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0`.
    Binary,
}

/// Writes batches as one generation does.
#[derive(Clone, Debug)]
pub struct Encoder {
    /// The release to be.
    pub generation: Generation,
    /// How block hashes are written.
    pub hashes: Hashes,
    /// Names of the loaded adapters by load number, which counts from 1. vLLM sends the number beside the name, and
    /// before 0.16 nothing else.
    pub adapters: Vec<String>,
}

/// How one type of event is written.
struct Class<'a> {
    tag: &'a str,
    form: Form,
    fields: &'static [Field],
}

/// The frames of a live message on a PUB socket: topic, sequence, payload.
pub fn live(topic: &Bytes, message: &Message) -> Vec<Bytes> {
    vec![topic.clone(), frame::sequence(message.seq), message.payload.clone()]
}

impl Encoder {
    /// An encoder with integer hashes and no adapters loaded.
    pub fn new(generation: Generation) -> Self {
        Self { generation, hashes: Hashes::default(), adapters: Vec::new() }
    }

    /// The payload of one batch. `timestamp` is in seconds since the epoch.
    pub fn batch(&self, timestamp: f64, rank: u32, events: &[Event]) -> Bytes {
        let generation = self.generation;
        let mut out = Out::default();
        out.array(3);
        out.float(timestamp);
        out.array(events.len());
        for event in events {
            match event {
                Event::Stored(stored) => {
                    let class = Class { tag: "BlockStored", form: generation.stored_form(), fields: generation.stored() };
                    self.event(&mut out, &class, |out, field| self.stored(out, stored, field));
                }
                Event::Removed(removed) => {
                    let class = Class { tag: "BlockRemoved", form: generation.form(), fields: generation.removed() };
                    self.event(&mut out, &class, |out, field| self.removed(out, removed, field));
                }
                Event::Cleared => {
                    let class = Class { tag: "AllBlocksCleared", form: generation.form(), fields: &[] };
                    self.event(&mut out, &class, |_, _| {});
                }
                Event::Unknown(tag) => {
                    let class = Class { tag, form: generation.form(), fields: &[] };
                    self.event(&mut out, &class, |_, _| {});
                }
            }
        }
        out.unsigned(rank.into());
        out.finish()
    }

    fn event(&self, out: &mut Out, class: &Class<'_>, mut value: impl FnMut(&mut Out, Field)) {
        if let Form::Array = class.form {
            out.array(1 + class.fields.len());
            out.text(class.tag);
            for field in class.fields {
                value(out, *field);
            }
            return;
        }
        let mut pairs = Out::default();
        pairs.text("type");
        pairs.text(class.tag);
        let mut count = 1;
        for field in class.fields {
            let omit_nil = self.omits_nil(*field);
            count += u16::from(pairs.pair(field.name(), omit_nil, |out| value(out, *field)));
        }
        match class.form {
            Form::Array | Form::Map => out.map(count),
            Form::WideMap => out.wide_map(count),
        }
        out.append(&pairs);
    }

    /// Whether the field has a default in the release's class, and so is left out of maps.
    fn omits_nil(&self, field: Field) -> bool {
        match field {
            Field::BlockHashes | Field::Parent | Field::TokenIds | Field::BlockSize | Field::LoraId | Field::Medium => false,
            Field::LoraName => self.generation.family() == Family::Sglang,
            Field::CacheSalt
            | Field::ExtraKeys
            | Field::MediaInfos
            | Field::GroupIdx
            | Field::Kind
            | Field::SlidingWindow
            | Field::Locality
            | Field::Ownership => true,
        }
    }

    fn stored(&self, out: &mut Out, stored: &Stored, field: Field) {
        match field {
            Field::BlockHashes => self.hashes(out, &stored.block_hashes),
            Field::Parent => out.optional(stored.parent, |out, parent| self.hash(out, parent)),
            Field::TokenIds => tokens(out, &stored.tokens),
            Field::BlockSize => out.unsigned(stored.block_size.into()),
            Field::LoraId => out.optional(self.load_number(&stored.adapter), Out::integer),
            Field::Medium => out.text(self.medium(&stored.medium)),
            Field::LoraName => out.optional(name(&stored.adapter), Out::text),
            Field::CacheSalt => out.optional(stored.salt.as_deref(), Out::text),
            Field::ExtraKeys => extra_keys(out, stored),
            Field::GroupIdx => out.optional(stored.group.idx, |out, idx| out.unsigned(idx.into())),
            Field::Kind => out.optional(stored.group.kind.as_ref(), |out, kind| out.text(kind_name(kind))),
            Field::Locality => locality(out, stored.locality),
            Field::MediaInfos | Field::SlidingWindow | Field::Ownership => out.nil(),
        }
    }

    fn removed(&self, out: &mut Out, removed: &Removed, field: Field) {
        match field {
            Field::BlockHashes => self.hashes(out, &removed.block_hashes),
            Field::Medium => out.text(self.medium(&removed.medium)),
            Field::GroupIdx => out.optional(removed.group.idx, |out, idx| out.unsigned(idx.into())),
            Field::Locality => locality(out, removed.locality),
            Field::Parent
            | Field::TokenIds
            | Field::BlockSize
            | Field::LoraId
            | Field::LoraName
            | Field::CacheSalt
            | Field::ExtraKeys
            | Field::MediaInfos
            | Field::Kind
            | Field::SlidingWindow
            | Field::Ownership => out.nil(),
        }
    }

    fn hashes(&self, out: &mut Out, hashes: &[u64]) {
        out.array(hashes.len());
        for hash in hashes {
            self.hash(out, *hash);
        }
    }

    fn hash(&self, out: &mut Out, hash: u64) {
        match (self.generation.family(), self.hashes) {
            (Family::Sglang, Hashes::Integer | Hashes::Binary) => out.integer(hash.cast_signed()),
            (Family::Vllm, Hashes::Integer) => out.unsigned(hash),
            // A digest of which only the end counts; the integer form is its last 8 bytes.
            (Family::Vllm, Hashes::Binary) => out.binary(&hash.to_be_bytes().repeat(4)),
        }
    }

    /// The number beside or instead of an adapter's name. A name that is not loaded gets the next one: without any
    /// number the blocks would look like the base model's.
    fn load_number(&self, adapter: &Adapter) -> Option<i64> {
        match (adapter, self.generation.family()) {
            (Adapter::Base, _) | (Adapter::Named(_) | Adapter::Numbered(_), Family::Sglang) => None,
            (Adapter::Numbered(number), Family::Vllm) => Some(*number),
            (Adapter::Named(name), Family::Vllm) => {
                let loaded = self.adapters.iter().position(|loaded| loaded == name);
                i64::try_from(loaded.unwrap_or(self.adapters.len()) + 1).ok()
            }
        }
    }

    fn medium<'a>(&self, medium: &'a Medium) -> &'a str {
        match (medium, self.generation.family()) {
            (Medium::Device, _) => "GPU",
            (Medium::Host, Family::Vllm) => "CPU",
            (Medium::Host, Family::Sglang) => "CPU_PINNED",
            (Medium::Disk, Family::Vllm) => "STORAGE",
            (Medium::Disk, Family::Sglang) => "DISK",
            (Medium::External, _) => "EXTERNAL",
            (Medium::Unknown(name), _) => name,
        }
    }
}

fn name(adapter: &Adapter) -> Option<&str> {
    match adapter {
        Adapter::Base | Adapter::Numbered(_) => None,
        Adapter::Named(name) => Some(name),
    }
}

fn kind_name(kind: &Kind) -> &str {
    match kind {
        Kind::FullAttention => "full_attention",
        Kind::Other(name) => name,
    }
}

fn locality(out: &mut Out, locality: Locality) {
    match locality {
        Locality::Local => out.nil(),
        Locality::Remote => out.text("REMOTE"),
    }
}

fn tokens(out: &mut Out, tokens: &Tokens) {
    match tokens {
        Tokens::Plain(tokens) => {
            out.array(tokens.len());
            for token in tokens {
                out.unsigned((*token).into());
            }
        }
        Tokens::Pairs(unrolled) => {
            out.array(unrolled.len().saturating_sub(1));
            for pair in unrolled.windows(2) {
                out.array(2);
                for token in pair {
                    out.unsigned((*token).into());
                }
            }
        }
    }
}

/// One entry per block: the adapter's name, an image from where there is one, and in a sequence's first block the salt.
fn extra_keys(out: &mut Out, stored: &Stored) {
    out.array(stored.block_hashes.len());
    let name = name(&stored.adapter);
    for block in 0..stored.block_hashes.len() {
        let salt = stored.salt.as_deref().filter(|_| block == 0 && stored.parent.is_none());
        let media = stored.media_from.is_some_and(|from| block >= from);
        let keys = usize::from(name.is_some()) + usize::from(media) + usize::from(salt.is_some());
        if keys == 0 {
            out.nil();
            continue;
        }
        out.array(keys);
        if let Some(name) = name {
            out.text(name);
        }
        if media {
            // Only that there is an image is known here, not which one nor where.
            out.array(2);
            out.text("image");
            out.unsigned(0);
        }
        if let Some(salt) = salt {
            out.text(salt);
        }
    }
}
