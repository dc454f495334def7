//! The events of an engine's stream, in one form whatever generation wrote them.
//!
//! These are plain values without serde: the wire's many spellings end in the decoder. A string that came from the
//! wire is kept only where someone reads it (a name, a salt, an unknown medium for a counter's label).

/// One event of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Blocks were written to a cache.
    Stored(Stored),
    /// Blocks left a cache.
    Removed(Removed),
    /// The stream's whole cache was emptied (rule 5: one target, never more).
    Cleared,
    /// A well-formed event of a type this version does not know, with the first [`Event::UNKNOWN_BYTES`] bytes of
    /// its tag. To be counted, not applied.
    Unknown(String),
}

impl Event {
    /// Bytes of an unknown event's tag that are kept for logs and counters.
    pub const UNKNOWN_BYTES: usize = 64;
}

/// A run of blocks that follow each other in one sequence.
///
/// The lengths are as sent: `tokens` may be shorter or longer than `block_hashes.len() * block_size`, and
/// placeholders with `block_size` 0 and no tokens are common with offloading connectors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// The engine's own names for the blocks, opaque. `i64` and `u64` of the same bits are equal; of a binary hash
    /// the last 8 bytes count, big-endian, which is the integer vLLM sends for the same digest.
    pub block_hashes: Vec<u64>,
    /// The block before the first one; `None` at the start of a sequence.
    pub parent: Option<u64>,
    /// Token ids of all blocks, concatenated.
    pub tokens: Tokens,
    /// Tokens per block.
    pub block_size: u32,
    /// The LoRA adapter the blocks were computed with.
    pub adapter: Adapter,
    /// Cache salt of the sequence. vLLM names it only in the event that holds the sequence's first block: a child's
    /// salt is its parent's.
    pub salt: Option<String>,
    /// The first block whose key names something besides text (an image, prompt embeddings): from it on the blocks never
    /// match a text prompt, and those before it do.
    pub media_from: Option<usize>,
    /// Where the blocks are.
    pub medium: Medium,
    /// KV-cache group of the blocks, in engines with several.
    pub group: Group,
    /// Whose memory the blocks are in.
    pub locality: Locality,
    /// What the event's form can say of the blocks' key. For the decoder to tell: an encoder's form is its generation's.
    pub carries: Carries,
}

/// What the form of a store has room for, whether or not there was anything to say (rule 13). An array shows it by its
/// length. A map leaves out what it has no value for, so it is taken to carry everything, and that is the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carries {
    /// How an adapter would be named.
    pub adapter: Naming,
    /// Whether a cache salt would be named.
    pub salt: bool,
}

/// How the form of a store names adapters, from least to most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Naming {
    /// Not at all: blocks of every adapter look like the base model's.
    Nothing,
    /// By the engine's load number.
    Numbers,
    /// By name.
    Names,
}

impl Default for Carries {
    fn default() -> Self {
        Self { adapter: Naming::Names, salt: true }
    }
}

/// Blocks that left one medium of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// As in [`Stored::block_hashes`].
    pub block_hashes: Vec<u64>,
    /// Where the blocks were.
    pub medium: Medium,
    /// KV-cache group of the blocks; engines name only its index here.
    pub group: Group,
    /// Whose memory the blocks were in.
    pub locality: Locality,
}

/// Token ids of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tokens {
    /// One id per position.
    Plain(Vec<u32>),
    /// The engine keys positions by pairs of neighbours (EAGLE). Unrolled: the first of each pair, then the second
    /// of the last one, so `n` positions are `n + 1` ids.
    Pairs(Vec<u32>),
}

impl Default for Tokens {
    fn default() -> Self {
        Self::Plain(Vec::new())
    }
}

/// A LoRA adapter as far as an event names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Adapter {
    /// No adapter.
    #[default]
    Base,
    /// By name.
    Named(String),
    /// Only by the engine's load number (rule 13: never the base model).
    Numbered(i64),
}

/// Where blocks are kept. Names are read without regard to case; none at all means device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Medium {
    /// `GPU`, `DEVICE`.
    #[default]
    Device,
    /// `CPU`, `CPU_PINNED`, `CPU_TIER1`.
    Host,
    /// `DISK`, `NVME`, `STORAGE`, `CPU_TIER2`.
    Disk,
    /// `EXTERNAL`, `NETWORK`, `REMOTE`, `SHARED`.
    External,
    /// Any other name, cut at [`Event::UNKNOWN_BYTES`] bytes.
    Unknown(String),
}

/// A KV-cache group: a hybrid model keeps several, each with its own blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The engine's index of the group; `None` where the engine has one group or does not say.
    pub idx: Option<u32>,
    /// How the group attends; sent with stores only, so a removal's kind is what a store of its index said.
    pub kind: Option<Kind>,
}

/// How a KV-cache group attends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Every earlier token: `full_attention`, `mla_attention`, `sink_full_attention`. A prefix hit needs these.
    FullAttention,
    /// Anything else, known (`sliding_window`, `mamba`) or not, cut at [`Event::UNKNOWN_BYTES`] bytes.
    Other(String),
}

/// Whose memory a block is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Locality {
    /// The publisher's own: not said, or `LOCAL`.
    #[default]
    Local,
    /// Someone else's: any other locality, or an `ownership` that names a secondary cache.
    Remote,
}
