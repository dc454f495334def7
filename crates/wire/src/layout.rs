//! The fields of events: their names in maps and their places in arrays, for reading and writing.
//!
//! From the msgspec classes of vLLM 0.12 to 0.33 and SGLang 0.5.6 to 0.5.23. vLLM has only ever added fields at the
//! end, so the newest order reads every older array.

/// A field some event has use for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    BlockHashes,
    Parent,
    TokenIds,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    CacheSalt,
    ExtraKeys,
    MediaInfos,
    GroupIdx,
    Kind,
    SlidingWindow,
    Locality,
    Ownership,
}

/// The fields behind the tag of a store, in an array's order.
pub(crate) const STORED: &[Field] = &[
    Field::BlockHashes,
    Field::Parent,
    Field::TokenIds,
    Field::BlockSize,
    Field::LoraId,
    Field::Medium,
    Field::LoraName,
    Field::ExtraKeys,
    Field::GroupIdx,
    Field::Kind,
    Field::SlidingWindow,
    Field::Locality,
    Field::Ownership,
];

/// The fields behind the tag of a removal, in an array's order.
pub(crate) const REMOVED: &[Field] = &[Field::BlockHashes, Field::Medium, Field::GroupIdx, Field::Locality, Field::Ownership];

impl Field {
    /// The field's key in a map, and its name in errors.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::BlockHashes => "block_hashes",
            Self::Parent => "parent_block_hash",
            Self::TokenIds => "token_ids",
            Self::BlockSize => "block_size",
            Self::LoraId => "lora_id",
            Self::Medium => "medium",
            Self::LoraName => "lora_name",
            Self::CacheSalt => "cache_salt",
            Self::ExtraKeys => "extra_keys",
            Self::MediaInfos => "block_mm_infos",
            Self::GroupIdx => "group_idx",
            Self::Kind => "kv_cache_spec_kind",
            Self::SlidingWindow => "kv_cache_spec_sliding_window",
            Self::Locality => "locality",
            Self::Ownership => "ownership",
        }
    }

    /// The field of a map's key.
    pub(crate) fn of_key(key: &[u8]) -> Option<Self> {
        Some(match key {
            b"block_hashes" => Self::BlockHashes,
            b"parent_block_hash" => Self::Parent,
            b"token_ids" => Self::TokenIds,
            b"block_size" => Self::BlockSize,
            b"lora_id" => Self::LoraId,
            b"medium" => Self::Medium,
            b"lora_name" => Self::LoraName,
            b"cache_salt" => Self::CacheSalt,
            b"extra_keys" => Self::ExtraKeys,
            b"block_mm_infos" => Self::MediaInfos,
            b"group_idx" => Self::GroupIdx,
            b"kv_cache_spec_kind" => Self::Kind,
            b"kv_cache_spec_sliding_window" => Self::SlidingWindow,
            b"locality" => Self::Locality,
            b"ownership" => Self::Ownership,
            _ => return None,
        })
    }
}
