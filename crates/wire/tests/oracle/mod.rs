//! A second reading of an event, from its JSON: plain where the decoder is careful, for recorded events only.

use serde_json::{Map, Value};
use wire::{Adapter, Carries, Event, Group, Kind, Locality, Medium, Naming, Removed, Stored, Tokens};

const STORED: [&str; 11] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
];
const REMOVED: [&str; 3] = ["block_hashes", "medium", "group_idx"];

pub(crate) fn event(json: &Value) -> Event {
    let (tag, fields) = match json {
        Value::Array(slots) => {
            let tag = slots[0].as_str().unwrap();
            let names = if tag == "BlockStored" { &STORED[..] } else { &REMOVED[..] };
            let pairs = names.iter().zip(&slots[1..]);
            (tag, pairs.map(|(name, value)| ((*name).to_owned(), value.clone())).collect())
        }
        Value::Object(fields) => (fields["type"].as_str().unwrap(), fields.clone()),
        other => panic!("{other}"),
    };
    match tag {
        "BlockStored" => Event::Stored(Stored { carries: carries(json), ..stored(&fields) }),
        "BlockRemoved" => Event::Removed(Removed {
            block_hashes: hashes(&fields["block_hashes"]),
            medium: medium(fields.get("medium")),
            group: group(&fields),
            locality: Locality::Local,
        }),
        "AllBlocksCleared" => Event::Cleared,
        other => panic!("{other}"),
    }
}

fn stored(fields: &Map<String, Value>) -> Stored {
    let name = fields.get("lora_name").and_then(Value::as_str);
    let number = fields.get("lora_id").and_then(Value::as_i64);
    let keys = fields.get("extra_keys").and_then(|keys| keys[0].as_array()).map(Vec::as_slice).unwrap_or_default();
    let salt = keys.iter().filter_map(Value::as_str).find(|key| Some(*key) != name).map(str::to_owned);
    let tokens = fields["token_ids"].as_array().unwrap();
    Stored {
        block_hashes: hashes(&fields["block_hashes"]),
        parent: Some(&fields["parent_block_hash"]).filter(|parent| !parent.is_null()).map(hash),
        tokens: Tokens::Plain(tokens.iter().map(|token| token.as_u64().unwrap().try_into().unwrap()).collect()),
        block_size: fields["block_size"].as_u64().unwrap().try_into().unwrap(),
        adapter: match (name, number) {
            (Some(name), _) => Adapter::Named(name.to_owned()),
            (None, Some(number)) => Adapter::Numbered(number),
            (None, None) => Adapter::Base,
        },
        salt,
        media_from: None,
        medium: medium(fields.get("medium")),
        group: group(fields),
        locality: Locality::Local,
        carries: Carries::default(),
    }
}

/// By the lengths that releases are known for.
fn carries(json: &Value) -> Carries {
    let carries = |adapter, salt| Carries { adapter, salt };
    match json.as_array().map(Vec::len) {
        Some(6) => carries(Naming::Nothing, false),
        Some(7) => carries(Naming::Numbers, false),
        Some(8) => carries(Naming::Names, false),
        None | Some(12) => carries(Naming::Names, true),
        Some(other) => panic!("{other} elements"),
    }
}

fn hashes(json: &Value) -> Vec<u64> {
    json.as_array().unwrap().iter().map(hash).collect()
}

/// Of a digest in base64, the last 12 digits before the padding hold the last 8 bytes and one more.
fn hash(json: &Value) -> u64 {
    if let Some(text) = json["b64"].as_str() {
        const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let digits = text.trim_end_matches('=');
        assert_eq!((text.len(), digits.len()), (44, 43), "32 bytes");
        let bits = digits.chars().fold(0_u128, |bits, digit| bits << 6 | u128::try_from(DIGITS.find(digit).unwrap()).unwrap());
        return u64::try_from((bits >> 2) & u128::from(u64::MAX)).unwrap();
    }
    json.as_u64().unwrap_or_else(|| json.as_i64().unwrap().cast_unsigned())
}

fn medium(json: Option<&Value>) -> Medium {
    match json.and_then(Value::as_str) {
        None | Some("GPU") => Medium::Device,
        Some(other) => panic!("{other}"),
    }
}

fn group(fields: &Map<String, Value>) -> Group {
    let kind = fields.get("kv_cache_spec_kind").and_then(Value::as_str);
    Group {
        idx: fields.get("group_idx").and_then(Value::as_u64).map(|idx| idx.try_into().unwrap()),
        kind: kind.map(|kind| match kind {
            "full_attention" => Kind::FullAttention,
            other => Kind::Other(other.to_owned()),
        }),
    }
}
