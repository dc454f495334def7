//! Odd events, and the forms no capture shows. Each batch is written as JSON and sent as MessagePack.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use proptest::{collection, prelude::*};
use serde_json::{Value, json};
use wire::{Adapter, Batch, BatchError, Carries, Event, EventError, Group, Kind, Locality, Medium, Naming, Removed, Stored, Tokens};

fn decode(json: &Value) -> Result<Batch, BatchError> {
    wire::batch(&rmp_serde::to_vec(json).unwrap())
}

fn events(json: &Value) -> Vec<Result<Event, EventError>> {
    decode(&json!([1.5, json, 0])).unwrap().events
}

fn event(json: &Value) -> Result<Event, EventError> {
    events(&json!([json])).remove(0)
}

fn stored(json: &Value) -> Stored {
    match event(json) {
        Ok(Event::Stored(stored)) => stored,
        other => panic!("{json}: {other:?}"),
    }
}

fn field(field: &'static str, found: &'static str) -> Result<Event, EventError> {
    Err(EventError::Field { field, found })
}

/// A plain store of one block, with other fields on top.
fn store_with(fields: &Value) -> Value {
    let mut event = json!({"type": "BlockStored", "block_hashes": [1], "parent_block_hash": null,
        "token_ids": [1, 2], "block_size": 2});
    event.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    event
}

fn plain() -> Stored {
    Stored { block_hashes: vec![1], tokens: Tokens::Plain(vec![1, 2]), block_size: 2, ..Stored::default() }
}

#[test]
fn one_odd_event_costs_only_itself() {
    let odd = [
        json!(null),
        json!(7),
        json!("BlockStored"),
        json!([]),
        json!([[1, [2]], 3]),
        json!({}),
        json!({"type": 3, "block_hashes": [1]}),
        json!({"block_hashes": [1]}),
        json!(["BlockStored"]),
        json!(["BlockStored", [1], null, [1, 2]]),
        json!(["BlockStored", [[1], {"a": [2]}], null, [1, 2], 2]),
        json!(["BlockStored", [1], null, [1, -2], 2]),
        json!(["BlockStored", [1], null, [1, 4_294_967_296_u64], 2]),
        json!(["BlockStored", [1], null, [[1, 2], [9, 3]], 2]),
        json!(["BlockStored", [1], null, [[1, 2], 3], 2]),
        json!(["BlockStored", [1], null, [[1, 2, 3]], 2]),
        json!(["BlockStored", [1], null, [1, 2], -2]),
        json!(["BlockStored", [1], null, [1, 2], 2, "one"]),
        json!(["BlockStored", [1], "parent", [1, 2], 2]),
        json!(["BlockRemoved", null]),
        json!(["BlockRemoved", [1], ["GPU"]]),
        store_with(&json!({"lora_name": 5})),
        store_with(&json!({"cache_salt": {"deep": [[[1]]]}})),
        store_with(&json!({"extra_keys": [["a"], 5]})),
        store_with(&json!({"group_idx": "zero"})),
    ];
    for odd in &odd {
        let events = events(&json!([["AllBlocksCleared"], odd, store_with(&json!({}))]));
        assert_eq!(events.len(), 3, "{odd}");
        assert_eq!(events[0], Ok(Event::Cleared), "{odd}");
        assert!(events[1].is_err(), "{odd}: {:?}", events[1]);
        assert_eq!(events[2], Ok(Event::Stored(plain())), "{odd}");
    }
}

#[test]
fn errors_name_the_field_and_what_it_holds() {
    assert_eq!(event(&json!(["BlockStored", [1], null, "abc", 2])), field("token_ids", "a string"));
    assert_eq!(event(&json!(["BlockStored", [1], null, [1.5], 2])), field("token_ids", "a float"));
    assert_eq!(event(&json!(["BlockStored", [1], true, [1], 1])), field("parent_block_hash", "a boolean"));
    assert_eq!(event(&json!(["BlockStored", [1], null, [1]])), Err(EventError::Missing("block_size")));
    assert_eq!(event(&json!(["BlockRemoved"])), Err(EventError::Missing("block_hashes")));
    assert_eq!(event(&json!(["BlockStored", [1], null, [[1, 2], [3, 4]], 1])), Err(EventError::BrokenPairs));
    let error = event(&store_with(&json!({"lora_name": {"a": 1}}))).unwrap();
    assert_eq!(error, Event::Stored(plain()), "a map in the place of the name is SGLang's, known for its salt");
    assert_eq!(event(&store_with(&json!({"locality": 1}))).unwrap_err().to_string(), "the event's locality is or has an integer");
}

#[test]
fn an_unknown_type_is_no_error_whatever_its_fields_hold() {
    let unknown = |tag: &str| Ok(Event::Unknown(tag.to_owned()));
    assert_eq!(event(&json!(["BlockMoved", {"a": 1}, [2]])), unknown("BlockMoved"));
    assert_eq!(event(&json!({"block_hashes": {"a": 1}, "type": "BlockMoved"})), unknown("BlockMoved"));
    let long = "é".repeat(100);
    assert_eq!(event(&json!([long])), unknown(&"é".repeat(Event::UNKNOWN_BYTES / 2)));
}

#[test]
fn a_cleared_event_may_carry_anything() {
    assert_eq!(event(&json!(["AllBlocksCleared", "owner", [1]])), Ok(Event::Cleared));
    assert_eq!(event(&json!({"type": "AllBlocksCleared", "medium": 4})), Ok(Event::Cleared));
}

#[test]
fn trailing_elements_and_unknown_keys_are_skipped() {
    let array = json!(["BlockStored", [1], null, [1, 2], 2, null, "GPU", null, [null], 0, "full_attention", null, null,
        null, "later", {"x": [1, [2, {"y": []}]]}, 3]);
    let group = Group { idx: Some(0), kind: Some(Kind::FullAttention) };
    assert_eq!(stored(&array), Stored { group, ..plain() });
    assert_eq!(stored(&store_with(&json!({"new": {"x": [1, [2, {"y": []}]]}, "session_id": "s"}))), plain());
}

#[test]
fn a_batch_has_many_shapes() {
    let batch = |json: Value| decode(&json).unwrap();
    let cleared = || vec![Ok(Event::Cleared)];
    let expected = |timestamp, rank| Batch { timestamp, rank, events: cleared() };
    let events = json!([["AllBlocksCleared"]]);
    assert_eq!(batch(json!([2.5, events])), expected(Some(2.5), None));
    assert_eq!(batch(json!([2, events, null])), expected(Some(2.0), None));
    assert_eq!(batch(json!([null, events, 3, "more", [1, [2]]])), expected(None, Some(3)));
    assert_eq!(batch(json!([[1, [2]], events, 3])), expected(None, Some(3)));
    for rank in ["data_parallel_rank", "attn_dp_rank", "dp_rank"] {
        let json = json!({rank: 3, "new": {"x": [1]}, "events": events, "ts": -1});
        assert_eq!(batch(json), expected(Some(-1.0), Some(3)), "{rank}");
    }
    assert_eq!(batch(json!({"events": []})), Batch { timestamp: None, rank: None, events: vec![] });
}

#[test]
fn an_unreadable_batch_is_an_error() {
    assert_eq!(decode(&json!("events")), Err(BatchError::Shape("a string")));
    assert_eq!(decode(&json!([])), Err(BatchError::NoEvents));
    assert_eq!(decode(&json!([1.5])), Err(BatchError::NoEvents));
    assert_eq!(decode(&json!([1.5, null, 0])), Err(BatchError::NoEvents));
    assert_eq!(decode(&json!({"ts": 1.5})), Err(BatchError::NoEvents));
    assert_eq!(decode(&json!([1.5, [], -1])), Err(BatchError::Rank("a negative integer")));
    assert_eq!(decode(&json!([1.5, [], 4_294_967_296_u64])), Err(BatchError::Rank("out of range")));
    let mut payload = rmp_serde::to_vec(&json!([1.5, [["AllBlocksCleared"]], 0])).unwrap();
    payload.extend(b"behind");
    assert!(wire::batch(&payload).is_ok(), "bytes behind the batch are nobody's");
    payload.truncate(payload.len() - b"behind".len());
    for length in 0..payload.len() {
        assert_eq!(wire::batch(&payload[..length]), Err(BatchError::Broken), "cut at {length}");
    }
}

#[test]
fn hashes_of_every_width_and_sign() {
    let removed = json!(["BlockRemoved", [0, 127, -1, -128, i64::MIN, i64::MAX, u64::MAX]]);
    let block_hashes = vec![0, 127, u64::MAX, u64::MAX - 127, 1 << 63, u64::MAX >> 1, u64::MAX];
    assert_eq!(event(&removed), Ok(Event::Removed(Removed { block_hashes, ..Removed::default() })));

    let digest = |length: u8| {
        let mut payload = vec![0x92, 0xc0, 0x91, 0x92, 0xac];
        payload.extend(b"BlockRemoved");
        payload.extend([0x91, 0xc4, length]);
        payload.extend(1..=length);
        wire::batch(&payload).unwrap().events.remove(0)
    };
    for (length, hash) in [(16, 0x090a_0b0c_0d0e_0f10), (32, 0x191a_1b1c_1d1e_1f20)] {
        assert_eq!(digest(length), Ok(Event::Removed(Removed { block_hashes: vec![hash], ..Removed::default() })));
    }
    for length in [0, 7, 8, 15, 17, 20, 31, 33, 64] {
        assert_eq!(digest(length), Err(EventError::HashBytes(length.into())));
    }
}

#[test]
fn media_localities_and_kinds() {
    for (name, medium) in [
        (json!(null), Medium::Device),
        (json!(""), Medium::Device),
        (json!("gpu"), Medium::Device),
        (json!("Cpu"), Medium::Host),
        (json!("CPU_PINNED"), Medium::Host),
        (json!("CPU_TIER2"), Medium::Disk),
        (json!("STORAGE"), Medium::Disk),
        (json!("external"), Medium::External),
        (json!("OBJ"), Medium::Unknown("OBJ".to_owned())),
    ] {
        assert_eq!(stored(&store_with(&json!({"medium": name}))), Stored { medium, ..plain() }, "{name}");
    }
    for (fields, locality) in [
        (json!({"locality": null}), Locality::Local),
        (json!({"locality": "local"}), Locality::Local),
        (json!({"locality": "REMOTE"}), Locality::Remote),
        (json!({"locality": "ELSEWHERE"}), Locality::Remote),
        (json!({"locality": "LOCAL", "ownership": "kvcr"}), Locality::Remote),
        (json!({"ownership": null}), Locality::Local),
    ] {
        assert_eq!(stored(&store_with(&fields)), Stored { locality, ..plain() }, "{fields}");
    }
    for (name, kind) in [
        ("full_attention", Kind::FullAttention),
        ("mla_attention", Kind::FullAttention),
        ("sink_full_attention", Kind::FullAttention),
        ("sliding_window", Kind::Other("sliding_window".to_owned())),
        ("new_attention", Kind::Other("new_attention".to_owned())),
    ] {
        let group = Group { idx: None, kind: Some(kind) };
        assert_eq!(stored(&store_with(&json!({"kv_cache_spec_kind": name}))), Stored { group, ..plain() }, "{name}");
    }
}

#[test]
fn offload_placeholders_are_stores_without_tokens() {
    let placeholder = json!({"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": null,
        "token_ids": [], "block_size": 0, "lora_id": null, "medium": "cpu", "lora_name": null});
    let expected = Stored { block_hashes: vec![1, 2], medium: Medium::Host, ..Stored::default() };
    assert_eq!(stored(&placeholder), expected);
}

#[test]
fn slot_seven_is_a_name_or_a_map_with_the_salt() {
    let slot = |value: Value| stored(&json!(["BlockStored", [1], null, [1, 2], 2, null, "GPU", value]));
    assert_eq!(slot(json!("sql")).adapter, Adapter::Named("sql".to_owned()));
    assert_eq!(slot(json!({"x": [1], "cache_salt": "s"})), Stored { salt: Some("s".to_owned()), ..plain() });
    assert_eq!(slot(json!(null)), Stored { carries: Carries { adapter: Naming::Names, salt: false }, ..plain() });
}

#[test]
fn an_array_shows_by_its_length_what_it_can_say_and_otherwise_by_saying_it() {
    let whole = json!(["BlockStored", [1], null, [1, 2], 2, null, "GPU", null, [null], 0, "full_attention", null, null, null, null]);
    let whole = whole.as_array().unwrap();
    let carries = |array: &[Value]| stored(&Value::from(array.to_vec())).carries;
    for length in 5..=whole.len() {
        let adapter = match length {
            ..=6 => Naming::Nothing,
            7 => Naming::Numbers,
            8.. => Naming::Names,
        };
        assert_eq!(carries(&whole[..length]), Carries { adapter, salt: length >= 9 }, "{length}");
    }
    let numbered = json!(["BlockStored", [1], null, [1, 2], 2, 3]);
    assert_eq!(stored(&numbered).carries, Carries { adapter: Naming::Numbers, salt: false });
    assert_eq!(stored(&store_with(&json!({}))).carries, Carries { adapter: Naming::Names, salt: true }, "a map");
}

#[test]
fn adapters_by_number_are_never_the_base_model() {
    let adapter = |fields: Value| stored(&store_with(&fields)).adapter;
    assert_eq!(adapter(json!({"lora_id": 3})), Adapter::Numbered(3));
    assert_eq!(adapter(json!({"lora_id": 3, "lora_name": ""})), Adapter::Numbered(3));
    assert_eq!(adapter(json!({"lora_id": 3, "lora_name": "sql"})), Adapter::Named("sql".to_owned()));
    assert_eq!(adapter(json!({"lora_id": 0})), Adapter::Base);
    assert_eq!(adapter(json!({"lora_id": null})), Adapter::Base);
}

#[test]
fn what_extra_keys_say() {
    let sql = json!("sql");
    let image = json!(["d2f0", 3]);
    for (parent, name, keys, salt, media_from) in [
        (json!(null), json!(null), json!([null, null]), None, None),
        (json!(null), json!(null), json!([["s"], null]), Some("s"), None),
        (json!(null), sql.clone(), json!([["sql"], ["sql"]]), None, None),
        (json!(null), sql.clone(), json!([["sql", "s"], ["sql"]]), Some("s"), None),
        // A salt that is spelled like the adapter: only the first is the name.
        (json!(null), sql.clone(), json!([["sql", "sql"], ["sql"]]), Some("sql"), None),
        (json!(null), sql.clone(), json!([["sql", image, "s"], ["sql", image]]), Some("s"), Some(0)),
        (json!(null), json!(null), json!([null, [image]]), None, Some(1)),
        // Not the start of a sequence: no salt is sent there, so a foreign string is something else.
        (json!(9), json!(null), json!([["s"], null]), None, Some(0)),
        (json!(9), sql, json!([["sql"], ["sql"]]), None, None),
        (json!(null), json!(null), json!([["s"], ["t"]]), Some("s"), Some(1)),
        // Several foreign strings: the salt is the last, and what came before is not understood.
        (json!(null), json!(null), json!([["d2f0", "s"], null]), Some("s"), Some(0)),
        (json!(null), json!(null), json!([[7], null]), None, Some(0)),
        // With its mark a salt is known wherever it is.
        (json!(null), json!(null), json!([["dynamo-cache-salt:s"], null]), Some("s"), None),
        (json!(9), json!(null), json!([["dynamo-cache-salt:s"], ["dynamo-cache-salt:s"]]), Some("s"), None),
        (json!(null), json!(null), json!([["d2f0", "dynamo-cache-salt:s"], null]), Some("s"), Some(0)),
        (json!(null), json!(null), json!([["dynamo-cache-salt:s", "d2f0"], null]), Some("s"), Some(0)),
        (json!(null), json!(null), json!([["dynamo-cache-salt:"], null]), None, None),
    ] {
        // Extra keys first: what they mean depends on fields that follow.
        let event = json!({"type": "BlockStored", "extra_keys": keys, "lora_name": name, "block_hashes": [1, 2],
            "parent_block_hash": parent, "token_ids": [1, 2, 3, 4], "block_size": 2});
        let stored = stored(&event);
        assert_eq!((stored.salt.as_deref(), stored.media_from), (salt, media_from), "{event}");
    }
    let both = store_with(&json!({"cache_salt": "field", "extra_keys": [["key"]]}));
    assert_eq!(stored(&both).salt.as_deref(), Some("field"));
}

#[test]
fn media_begin_at_the_first_block_that_names_any() {
    let event = |field: &str, entries: Value| {
        let three = [1, 2, 3];
        json!({"type": "BlockStored", field: entries, "block_hashes": three, "token_ids": three, "block_size": 1})
    };
    let image = json!(["d2f0", 3]);
    let objects = json!({"mm_objects": [{"mm_hash": 7}]});
    for (field, entries, media_from) in [
        ("extra_keys", json!([null, [image], null]), Some(1)),
        ("extra_keys", json!([null, null, [image]]), Some(2)),
        ("extra_keys", json!([[image], null, [image]]), Some(0)),
        // Not one entry per block: which blocks are meant is not known.
        ("extra_keys", json!([null, [image]]), Some(0)),
        ("extra_keys", json!([null, null, null, [image]]), Some(0)),
        ("block_mm_infos", json!([null, objects, null]), Some(1)),
        ("block_mm_infos", json!([null, {"mm_objects": []}, null]), None),
        ("block_mm_infos", json!([null, null, null, objects]), Some(0)),
    ] {
        let event = event(field, entries);
        assert_eq!(stored(&event).media_from, media_from, "{event}");
    }
    let mut both = event("extra_keys", json!([null, null, [image]]));
    both["block_mm_infos"] = json!([null, objects, null]);
    assert_eq!(stored(&both).media_from, Some(1));
}

/// Any MessagePack value that JSON can say.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec!["BlockStored", "BlockRemoved", "type", "block_hashes", "GPU", ""]).prop_map(Value::from),
        ".{0,40}".prop_map(Value::from),
    ];
    let key = prop_oneof![
        prop::sample::select(vec!["type", "block_hashes", "token_ids", "block_size", "extra_keys", "lora_name"]).prop_map(str::to_owned),
        ".{0,8}",
    ];
    leaf.prop_recursive(6, 120, 20, move |inner| {
        prop_oneof![
            collection::vec(inner.clone(), 0..20).prop_map(Value::from),
            collection::vec((key.clone(), inner), 0..20).prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_value_among_events_leaves_its_neighbours_alone(value in any_value(), before in 0_usize..3, after in 0_usize..3) {
        let neighbour = store_with(&json!({}));
        let mut list = vec![neighbour.clone(); before];
        list.push(value);
        list.extend(vec![neighbour; after]);
        let mut decoded = events(&Value::from(list));
        drop(decoded.remove(before));
        prop_assert_eq!(decoded, vec![Ok(Event::Stored(plain())); before + after]);
    }

    #[test]
    fn any_value_in_a_field_costs_at_most_its_event(value in any_value(), slot in 1_usize..18) {
        let mut array = json!(["BlockStored", [1], null, [1, 2], 2, null, "GPU", null, [null], 0, "full_attention", null,
            null, null, null, null, null, null]);
        array[slot] = value;
        let decoded = events(&json!([array, ["AllBlocksCleared"]]));
        prop_assert_eq!(decoded.len(), 2);
        prop_assert_eq!(&decoded[1], &Ok(Event::Cleared));
        if let Ok(event) = &decoded[0] {
            prop_assert!(matches!(event, Event::Stored(_)));
        }
    }
}
