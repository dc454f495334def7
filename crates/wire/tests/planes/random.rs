//! Encoding, then decoding, gives the same again: for any content, in both encodings, in any pieces.

use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use wire::{
    envelope::Envelope,
    load::{self, ActiveLoad, ActiveSequenceEvent, AddRequest, PrefillHint, SequenceData},
    recovery::{Answer, DumpReader, Item, Part, Query},
    router::{
        Domain, KvCacheEvent, KvData, MediaInfo, MediaObject, RouterEvent, StoredBlock, StoredBlocks, Tier, decode_events, encode_events,
    },
};

fn number() -> impl Strategy<Value = u64> {
    // Every width MessagePack has.
    prop_oneof![0..200_u64, 200..70_000_u64, any::<u32>().prop_map(u64::from), any::<u64>()]
}

fn block() -> impl Strategy<Value = StoredBlock> {
    let object = (number(), prop::collection::vec((number(), number()), 0..3));
    let object = object.prop_map(|(hash, offsets)| MediaObject { hash, offsets });
    let media = prop::option::of(prop::collection::vec(object, 0..3).prop_map(|objects| MediaInfo { objects }));
    (number(), number(), media).prop_map(|(block_hash, tokens_hash, media)| StoredBlock { block_hash, tokens_hash, media })
}

fn data() -> impl Strategy<Value = KvData> {
    let stored = (prop::option::of(number()), prop::option::of(any::<u32>()), prop::collection::vec(block(), 0..20));
    let stored = stored.prop_map(|(parent_hash, start_position, blocks)| StoredBlocks { parent_hash, start_position, blocks });
    prop_oneof![stored.prop_map(KvData::Stored), prop::collection::vec(number(), 0..20).prop_map(KvData::Removed), Just(KvData::Cleared)]
}

fn event() -> impl Strategy<Value = RouterEvent> {
    let tier = prop_oneof![Just(Tier::Device), Just(Tier::HostPinned), Just(Tier::Disk), Just(Tier::External)];
    let domain = prop_oneof![Just(Domain::Legacy), Just(Domain::Worker), Just(Domain::CacheOwner), "[x-z]{0,5}".prop_map(Domain::Unknown)];
    let texts = (prop::option::of(".{0,40}"), prop::option::of(".{0,5}"));
    (number(), tier, domain, number(), data(), any::<u32>(), texts).prop_map(
        |(worker_id, storage_tier, domain, event_id, data, dp_rank, (state_source, session_id))| RouterEvent {
            worker_id,
            storage_tier,
            domain,
            event: KvCacheEvent { event_id, data, dp_rank },
            state_source,
            session_id,
        },
    )
}

fn sequence_event() -> impl Strategy<Value = ActiveSequenceEvent> {
    let duration = (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(secs, nanos)| Duration::new(secs, nanos));
    let hint = (number(), prop::option::of(duration)).prop_map(|(initial_effective_prefill_tokens, expected_prefill_duration)| {
        PrefillHint { initial_effective_prefill_tokens, expected_prefill_duration }
    });
    let hashes = prop::option::of(prop::collection::vec(number(), 0..9));
    let add = (hashes, any::<bool>(), prop::option::of(any::<u32>()), prop::option::of(hint)).prop_map(
        |(token_sequence, track_prefill_tokens, expected_output_tokens, prefill_load_hint)| AddRequest {
            token_sequence,
            track_prefill_tokens,
            expected_output_tokens,
            prefill_load_hint,
        },
    );
    let data = prop_oneof![add.prop_map(SequenceData::AddRequest), Just(SequenceData::MarkPrefillCompleted), Just(SequenceData::Free)];
    (".{0,9}", number(), any::<u32>(), data, number(), prop::option::of(".{0,9}")).prop_map(
        |(request_id, worker_id, dp_rank, data, router_id, lora_name)| ActiveSequenceEvent {
            request_id,
            worker_id,
            dp_rank,
            data,
            router_id,
            lora_name,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn router_events(events in prop::collection::vec(event(), 0..8)) {
        let payload = encode_events(&events);
        let decoded: Vec<RouterEvent> = decode_events(&payload).unwrap().into_iter().map(Result::unwrap).collect();
        prop_assert_eq!(&decoded, &events);
        // Another library reads the same out of the bytes as out of the JSON.
        let values: Vec<serde_json::Value> = rmp_serde::from_slice(&payload).unwrap();
        for (event, value) in events.iter().zip(values) {
            let text = event.to_json();
            prop_assert_eq!(crate::json(&text), value);
            prop_assert_eq!(&RouterEvent::from_json(&text).unwrap(), event);
        }
    }

    #[test]
    fn envelopes(ids in (number(), number(), number()), topic in "[a-z._/ é-]{0,20}", payload in any::<Vec<u8>>()) {
        let (publisher_id, sequence, published_at_ms) = ids;
        let envelope = Envelope { publisher_id, sequence, published_at_ms, topic, payload: payload.into() };
        prop_assert_eq!(&Envelope::decode(&envelope.encode()).unwrap(), &envelope);
        prop_assert_eq!(&Envelope::from_zmq(&envelope.zmq_frames()).unwrap(), &envelope);
    }

    #[test]
    fn loads(worker_id in number(), dp_rank in any::<u32>(), numbers in prop::array::uniform3(prop::option::of(number()))) {
        let [active_decode_blocks, active_prefill_tokens, kv_used_blocks] = numbers;
        let load = ActiveLoad { worker_id, dp_rank, active_decode_blocks, active_prefill_tokens, kv_used_blocks };
        prop_assert_eq!(ActiveLoad::decode(&load.encode()).unwrap(), load);
    }

    #[test]
    fn sequence_events(events in prop::collection::vec(sequence_event(), 0..5)) {
        prop_assert_eq!(&load::decode_sequences(&load::encode_sequences(&events)).unwrap(), &events);
        for event in events {
            prop_assert_eq!(load::decode_sequences(&event.encode()).unwrap(), [event]);
        }
    }

    #[test]
    fn queries(ids in (number(), any::<u32>()), range in (prop::option::of(number()), prop::option::of(number())), flags in any::<(bool, bool)>()) {
        let query = Query {
            worker_id: ids.0, dp_rank: ids.1, start_event_id: range.0, end_event_id: range.1,
            supports_tree_dump_failed: flags.0, pages: flags.1,
        };
        prop_assert_eq!(Query::decode(&query.encode()).unwrap(), query);
    }

    #[test]
    fn answers_in_any_pieces(events in prop::collection::vec(event(), 0..6), dump in any::<bool>(), page in 0..3_u32, last in any::<bool>(), cuts in prop::collection::vec(1..200_usize, 1..10)) {
        let answer = if dump {
            Answer::TreeDump { events: events.clone(), last_event_id: 5, reset_scope: "all".to_owned() }
        } else {
            Answer::Events { events: events.clone(), last_event_id: 5 }
        };
        let item = Item { answer, page, last, lacking: last };
        let data = item.encode();
        prop_assert_eq!(Item::decode(&data).unwrap(), (item, 0));
        let (mut reader, mut read, mut rest) = (DumpReader::new(), Vec::new(), data);
        for cut in cuts.iter().cycle() {
            let piece: Bytes = rest.split_to(rest.len().min(*cut));
            for part in reader.push(&piece) {
                if let Part::Event(event) = part.unwrap() {
                    read.push(event.unwrap());
                }
            }
            if rest.is_empty() { break; }
        }
        prop_assert!(reader.is_done());
        prop_assert_eq!(read, events);
    }
}
