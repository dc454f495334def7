//! Router events as JSON, one object each: what `GET /dump` lists, and what files of events hold.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::{Domain, KvCacheEvent, KvData, MediaInfo, MediaObject, RouterEvent, StoredBlock, StoredBlocks, Tier};

/// A text that is no router event.
#[derive(Debug, thiserror::Error)]
#[error("no router event: {0}")]
pub struct JsonError(#[from] serde_json::Error);

impl RouterEvent {
    /// One line of compact JSON with 1.6.1's names, in its order.
    pub fn to_json(&self) -> String {
        // Every key is a string, which is the only reason to fail.
        serde_json::to_string(&EventJson::from(self)).expect("a router event is JSON")
    }

    /// Reads an event. Unknown keys are ignored; numbers are read as 64-bit integers, never through doubles.
    pub fn from_json(text: &str) -> Result<Self, JsonError> {
        let json: EventJson = serde_json::from_str(text)?;
        Ok(json.into())
    }
}

#[derive(Serialize, Deserialize)]
struct EventJson {
    worker_id: u64,
    #[serde(default)]
    storage_tier: TierJson,
    /// Outer `None`: the key is not there.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    residency_domain: Option<Value>,
    event: CacheEventJson,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state_source: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session_id: Option<String>,
}

/// Tells a null from a missing key.
fn present<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(value).map(Some)
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TierJson {
    #[default]
    Device,
    HostPinned,
    Disk,
    External,
}

#[derive(Serialize, Deserialize)]
struct CacheEventJson {
    event_id: u64,
    data: DataJson,
    #[serde(default)]
    dp_rank: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DataJson {
    Stored {
        #[serde(default)]
        parent_hash: Option<u64>,
        #[serde(default)]
        start_position: Option<u32>,
        blocks: Vec<BlockJson>,
    },
    Removed {
        block_hashes: Vec<u64>,
    },
    Cleared,
}

#[derive(Serialize, Deserialize)]
struct BlockJson {
    block_hash: u64,
    tokens_hash: u64,
    #[serde(default)]
    mm_extra_info: Option<MediaJson>,
}

#[derive(Serialize, Deserialize)]
struct MediaJson {
    mm_objects: Vec<ObjectJson>,
}

#[derive(Serialize, Deserialize)]
struct ObjectJson {
    mm_hash: u64,
    offsets: Vec<(u64, u64)>,
}

impl From<&RouterEvent> for EventJson {
    fn from(event: &RouterEvent) -> Self {
        Self {
            worker_id: event.worker_id,
            storage_tier: match event.storage_tier {
                Tier::Device => TierJson::Device,
                Tier::HostPinned => TierJson::HostPinned,
                Tier::Disk => TierJson::Disk,
                Tier::External => TierJson::External,
            },
            residency_domain: match &event.domain {
                Domain::Legacy => None,
                Domain::Worker => Some("worker".into()),
                Domain::CacheOwner => Some("cache_owner".into()),
                Domain::Unknown(name) if name.is_empty() => Some(Value::Null),
                Domain::Unknown(name) => Some(name.as_str().into()),
            },
            event: CacheEventJson { event_id: event.event.event_id, data: DataJson::from(&event.event.data), dp_rank: event.event.dp_rank },
            state_source: event.state_source.clone(),
            session_id: event.session_id.clone(),
        }
    }
}

impl From<&KvData> for DataJson {
    fn from(data: &KvData) -> Self {
        match data {
            KvData::Stored(stored) => Self::Stored {
                parent_hash: stored.parent_hash,
                start_position: stored.start_position,
                blocks: stored.blocks.iter().map(BlockJson::from).collect(),
            },
            KvData::Removed(hashes) => Self::Removed { block_hashes: hashes.clone() },
            KvData::Cleared => Self::Cleared,
        }
    }
}

impl From<&StoredBlock> for BlockJson {
    fn from(block: &StoredBlock) -> Self {
        let object = |object: &MediaObject| ObjectJson { mm_hash: object.hash, offsets: object.offsets.clone() };
        let media = |media: &MediaInfo| MediaJson { mm_objects: media.objects.iter().map(object).collect() };
        Self { block_hash: block.block_hash, tokens_hash: block.tokens_hash, mm_extra_info: block.media.as_ref().map(media) }
    }
}

impl From<EventJson> for RouterEvent {
    fn from(json: EventJson) -> Self {
        Self {
            worker_id: json.worker_id,
            storage_tier: match json.storage_tier {
                TierJson::Device => Tier::Device,
                TierJson::HostPinned => Tier::HostPinned,
                TierJson::Disk => Tier::Disk,
                TierJson::External => Tier::External,
            },
            domain: match json.residency_domain {
                None => Domain::Legacy,
                Some(Value::String(name)) if name == "worker" => Domain::Worker,
                Some(Value::String(name)) if name == "cache_owner" => Domain::CacheOwner,
                Some(Value::String(name)) => Domain::Unknown(name),
                Some(_) => Domain::Unknown(String::new()),
            },
            event: KvCacheEvent { event_id: json.event.event_id, data: json.event.data.into(), dp_rank: json.event.dp_rank },
            state_source: json.state_source,
            session_id: json.session_id,
        }
    }
}

impl From<DataJson> for KvData {
    fn from(data: DataJson) -> Self {
        match data {
            DataJson::Stored { parent_hash, start_position, blocks } => {
                let blocks = blocks.into_iter().map(StoredBlock::from).collect();
                Self::Stored(StoredBlocks { parent_hash, start_position, blocks })
            }
            DataJson::Removed { block_hashes } => Self::Removed(block_hashes),
            DataJson::Cleared => Self::Cleared,
        }
    }
}

impl From<BlockJson> for StoredBlock {
    fn from(block: BlockJson) -> Self {
        let object = |object: ObjectJson| MediaObject { hash: object.mm_hash, offsets: object.offsets };
        let media = |media: MediaJson| MediaInfo { objects: media.mm_objects.into_iter().map(object).collect() };
        Self { block_hash: block.block_hash, tokens_hash: block.tokens_hash, media: block.mm_extra_info.map(media) }
    }
}
