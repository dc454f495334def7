//! The engine batches whose outcome in Dynamo 1.6.1 was recorded. Where that system takes a batch, we see the same
//! blocks; what it filters, we pass on as values that say why; where it loses a whole batch, we lose at most the odd
//! event (rule 8).

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use serde_json::Value;
use testkit::vectors;
use wire::{Adapter, Batch, BatchError, Carries, Event, EventError, Kind, Locality, Medium, Naming, Removed, Stored, Tokens};

fn cases() -> Vec<Value> {
    vectors::load("event")["engine_batches"].as_array().unwrap().clone()
}

fn payload(case: &Value) -> Vec<u8> {
    let hex = case["payload_hex"].as_str().unwrap();
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn decode(name: &str) -> Result<Batch, BatchError> {
    let case = cases().into_iter().find(|case| case["name"] == name).unwrap_or_else(|| panic!("no vector {name}"));
    wire::batch(&payload(&case))
}

fn events(name: &str) -> Vec<Result<Event, EventError>> {
    decode(name).unwrap().events
}

fn stored(name: &str) -> Stored {
    match events(name).remove(0) {
        Ok(Event::Stored(stored)) => stored,
        other => panic!("{name}: {other:?}"),
    }
}

/// Batches of which 1.6.1 makes something else than the sender's own list: it truncates or drops stores whose lengths
/// do not match or whose hashes repeat, which is for `feed` and `index` to judge here.
const JUDGED_LATER: &[&str] =
    &["map_stored_block_size_mismatch", "map_stored_tokens_short", "map_stored_dup_hash", "map_stored_self_parent"];

#[test]
fn what_1_6_1_takes_has_the_same_blocks_here() {
    let mut compared = 0;
    for case in cases().iter().filter(|case| case["decode_ok"] == true) {
        let name = case["name"].as_str().unwrap();
        let batch = wire::batch(&payload(case)).unwrap();
        assert_eq!(u64::from(batch.rank.unwrap_or(0)), case["dp_rank_used"].as_u64().unwrap(), "{name}");
        let outputs = case["outputs"].as_array().unwrap();
        assert_eq!(batch.events.len(), outputs.len(), "{name}");
        for (event, output) in batch.events.iter().zip(outputs) {
            let event = event.as_ref().unwrap_or_else(|error| panic!("{name}: {error}"));
            if let Some(reason) = output["filtered"].as_str() {
                assert!(says_why(event, reason), "{name}: {reason}: {event:?}");
            } else if !JUDGED_LATER.contains(&name) {
                let router: Value = serde_json::from_str(output["router_event_json"].as_str().unwrap()).unwrap();
                agrees(name, event, &router);
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 44);
}

/// Whether the event says what made 1.6.1 filter it.
fn says_why(event: &Event, reason: &str) -> bool {
    let (medium, group, locality) = match event {
        Event::Stored(Stored { medium, group, locality, .. }) | Event::Removed(Removed { medium, group, locality, .. }) => {
            (medium, group, locality)
        }
        Event::Unknown(tag) => return reason == "ignored_event" && tag == "Ignored",
        Event::Cleared => return false,
    };
    match reason {
        // Media are read without regard to case here, so `gpu` is known.
        "unknown_medium" => matches!(medium, Medium::Unknown(_)) || *medium == Medium::Device,
        "non_local_locality" | "unsupported_ownership" => *locality == Locality::Remote,
        "non_main_attention_kind" | "unknown_kind" => matches!(group.kind, Some(Kind::Other(_))),
        "non_main_attention_group" | "unlearned_group_idx" => group.idx.is_some_and(|idx| idx > 0) && group.kind.is_none(),
        other => panic!("{other}"),
    }
}

fn agrees(name: &str, event: &Event, router: &Value) {
    let data = &router["event"]["data"];
    let numbers = |json: &Value| json.as_array().unwrap().iter().map(|hash| hash.as_u64().unwrap()).collect::<Vec<_>>();
    let tier = |medium: &Medium| match medium {
        Medium::Device => "device",
        Medium::Host => "host_pinned",
        Medium::Disk => "disk",
        Medium::External => "external",
        Medium::Unknown(_) => "unknown",
    };
    match event {
        Event::Stored(stored) => {
            let blocks = data["stored"]["blocks"].as_array().unwrap();
            let hashes: Vec<u64> = blocks.iter().map(|block| block["block_hash"].as_u64().unwrap()).collect();
            assert_eq!(stored.block_hashes, hashes, "{name}");
            assert_eq!(stored.parent, data["stored"]["parent_hash"].as_u64(), "{name}");
            assert_eq!(tier(&stored.medium), router["storage_tier"], "{name}");
            let media = blocks.iter().position(|block| !block["mm_extra_info"].is_null());
            // A bare string in a sequence's first block is taken for a salt: never the base prompt either.
            let apart = |media| stored.salt.is_some() || stored.media_from.is_some_and(|from| from <= media);
            assert!(media.is_none_or(apart), "{name}");
        }
        Event::Removed(removed) => {
            assert_eq!(removed.block_hashes, numbers(&data["removed"]["block_hashes"]), "{name}");
            assert_eq!(tier(&removed.medium), router["storage_tier"], "{name}");
        }
        Event::Cleared => assert_eq!(data, "cleared", "{name}"),
        Event::Unknown(tag) => panic!("{name}: {tag}"),
    }
}

/// The 11 batches that 1.6.1 loses whole, and what is left of each here.
#[test]
fn what_1_6_1_loses_whole_is_kept_but_for_the_odd_event() {
    let lost: Vec<String> =
        cases().iter().filter(|case| case["decode_ok"] == false).map(|case| case["name"].as_str().unwrap().to_owned()).collect();
    let field = |field, found| vec![Err(EventError::Field { field, found })];
    let unknown = || Ok(Event::Unknown("BlockMoved".to_owned()));
    let digest = |byte, carries| {
        vec![Ok(Event::Stored(Stored {
            block_hashes: vec![u64::from_be_bytes([byte; 8])],
            tokens: Tokens::Plain(vec![1, 2, 3, 4]),
            block_size: 4,
            carries,
            ..Stored::default()
        }))]
    };
    let basic = events("map_stored_basic");
    let expected: [(&str, Vec<Result<Event, EventError>>); 11] = [
        ("batch_two_elements_missing_dp", basic.clone()),
        ("batch_four_elements", basic.clone()),
        ("batch_as_map", basic.clone()),
        ("map_stored_bytes_hashes", digest(0xab, Carries::default())),
        ("map_stored_bytes8_hashes", vec![Err(EventError::HashBytes(8))]),
        ("map_stored_string_hashes", field("block_hashes", "a string")),
        ("map_stored_missing_tokens", vec![Err(EventError::Missing("token_ids"))]),
        ("map_unknown_type", vec![unknown()]),
        ("mixed_good_and_unknown_type", vec![basic[0].clone(), unknown()]),
        ("array_stored_bytes_hash", digest(0x01, Carries { adapter: Naming::Nothing, salt: false })),
        ("array_empty", vec![Err(EventError::Untagged)]),
    ];
    assert_eq!(lost, expected.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    for (name, expected) in expected {
        assert_eq!(events(name), expected, "{name}");
    }
}

#[test]
fn adapter_salt_and_media_are_told_apart() {
    let named = Adapter::Named("a".to_owned());
    for (name, adapter, salt, media) in [
        ("map_stored_basic", Adapter::Base, None, false),
        // 1.6.1 counts a bare number as the base model; rule 13 does not.
        ("map_stored_lora_id_only", Adapter::Numbered(5), None, false),
        ("array_stored_lora_id", Adapter::Numbered(5), None, false),
        ("map_stored_lora_name", named.clone(), None, false),
        ("map_stored_lora_name_empty", Adapter::Base, None, false),
        ("array_stored_vllm_full", named, None, false),
        ("map_stored_cache_salt", Adapter::Base, Some("tenant-a"), false),
        ("map_stored_extra_keys_salt", Adapter::Base, Some("tenant-a"), false),
        ("array_stored_sglang_salt", Adapter::Base, Some("tenant-a"), false),
        // 1.6.1 knows a salt by its mark only, and takes this for the base prompt.
        ("map_stored_extra_keys_untagged", Adapter::Base, Some("tenant-a"), false),
        ("map_stored_extra_keys_bytes", Adapter::Base, None, true),
        ("map_stored_block_mm_infos", Adapter::Base, None, true),
    ] {
        let stored = stored(name);
        assert_eq!((stored.adapter, stored.salt.as_deref(), stored.media_from.is_some()), (adapter, salt, media), "{name}");
    }
    assert!(stored("map_stored_extra_keys_mm").media_from.is_some());
    assert!(stored("map_stored_extra_keys_native_mm_64hex").salt.is_some(), "never the base prompt");
}

#[test]
fn pairs_unroll_to_their_tokens() {
    assert_eq!(stored("map_stored_bigram_eagle").tokens, Tokens::Pairs(vec![1, 2, 3, 4, 5]));
}

#[test]
fn lower_case_media_are_known_and_unknown_ones_named() {
    assert_eq!(stored("map_stored_medium_lowercase_gpu").medium, Medium::Device);
    assert_eq!(stored("map_stored_medium_fs_unknown").medium, Medium::Unknown("FS".to_owned()));
}
