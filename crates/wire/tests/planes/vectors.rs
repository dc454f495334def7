//! The encodings made by running 1.6.1's own crates, and its tolerance.

use serde_json::Value;
use testkit::vectors;
use wire::{
    envelope::{self, Envelope},
    load::{self, ActiveLoad},
    recovery::{Item, Query},
    router::{self, Domain, RouterEvent, decode_events, encode_events},
};

use crate::{events::noted, hex, json};

fn section(name: &str) -> Value {
    vectors::load("event")[name].clone()
}

/// What 1.6.1 has between other parts of its own, and no part of ours reads or writes.
const NOT_OURS: &[&str] = &[
    "WorkerWithDpRank",
    "PlacementEvent.local_gpu",
    "IndexerQueryRequest",
    "IndexerQueryResponse.TieredScores",
    "IndexerRecordRoutingDecisionRequest",
    "IndexerRecordRoutingDecisionResponse.Recorded",
    "RouterRequest.default_new",
    "RouterRequest.potential_loads",
    "RouterRequest.mark_prefill",
    "RouterRequest.mark_free",
    "RouterResponse.new",
    "RouterResponse.potential_loads",
];

#[test]
fn every_encoding_is_read_as_its_json_and_written_again() {
    let mut ours = 0;
    for case in section("wire").as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let (text, bytes) = (case["json_text"].as_str().unwrap(), hex(case, "msgpack_named_hex"));
        match name.split('.').next().unwrap() {
            _ if NOT_OURS.contains(&name) => continue,
            // The inner half of a router event: tested with the outer half around it.
            "KvCacheEvent" => {
                let payload = [b"\x91\x82\xa9worker_id\x03\xa5event", &bytes[..]].concat();
                let event = decode_events(&payload).unwrap().remove(0).unwrap();
                assert_eq!(event.to_json(), format!(r#"{{"worker_id":3,"storage_tier":"device","event":{text}}}"#), "{name}");
                let written = encode_events(std::slice::from_ref(&event));
                assert!(written.ends_with(&bytes), "{name}");
            }
            "RouterEvent" => {
                let event = decode_events(&bytes).unwrap().remove(0).unwrap();
                assert_eq!(event.to_json(), text, "{name}");
                assert_eq!(encode_events(&[event])[1..], bytes[..], "{name}: behind the head of the list");
            }
            "Vec<RouterEvent>" => {
                let events: Vec<RouterEvent> = decode_events(&bytes).unwrap().into_iter().map(Result::unwrap).collect();
                let texts: Vec<String> = events.iter().map(RouterEvent::to_json).collect();
                assert_eq!(format!("[{}]", texts.join(",")), text, "{name}");
                assert_eq!(encode_events(&events), bytes, "{name}");
            }
            "ActiveSequenceEvent" | "ActiveSequenceEventBatch" => {
                let events = load::decode_sequences(&bytes).unwrap();
                let (whole, written) = match json(text).get("events") {
                    Some(list) => (list.as_array().unwrap().clone(), load::encode_sequences(&events)),
                    None => (vec![json(text)], events[0].encode()),
                };
                assert_eq!(events.iter().map(noted).collect::<Vec<_>>(), whole, "{name}");
                assert_eq!(written, bytes, "{name}");
            }
            "ActiveLoad" => {
                let load = ActiveLoad::decode(&bytes).unwrap();
                assert_eq!((load.worker_id, load.dp_rank, load.kv_used_blocks), (9, 1, Some(12)));
                assert_eq!((load.active_decode_blocks, load.active_prefill_tokens), (Some(10), None));
                assert_eq!(load.encode(), bytes, "{name}");
            }
            "WorkerKvQueryRequest" => {
                let query = Query::decode(&bytes).unwrap();
                assert_eq!(rmp_serde::from_slice::<Value>(&bytes).unwrap(), json(text), "{name}");
                assert_eq!(query.encode(), bytes, "{name}");
            }
            "WorkerKvQueryResponse" => {
                let (item, odd) = Item::decode(&bytes).unwrap();
                assert_eq!(crate::recovery::noted(&item.answer), json(text), "{name}");
                assert_eq!((item.page, item.last, odd), (0, true, 0), "{name}");
                assert_eq!(item.encode(), bytes, "{name}");
            }
            other => panic!("a vector of an unknown type: {other}"),
        }
        ours += 1;
    }
    assert_eq!(ours, 25);
}

/// The same value in MessagePack, by another library.
fn packed(value: &Value) -> Vec<u8> {
    rmp_serde::to_vec_named(value).unwrap()
}

#[test]
fn the_tolerance_of_1_6_1_is_ours_in_both_encodings() {
    let mut cases = 0;
    for case in section("router_event_decode").as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let text = case["input_json"].as_str().unwrap();
        let read = RouterEvent::from_json(text);
        let unpacked = decode_events(&packed(&json(text))).unwrap().remove(0);
        assert_eq!(read.is_ok(), case["ok"], "{name}");
        assert_eq!(unpacked.is_ok(), case["ok"], "{name}");
        if let (Ok(read), Ok(unpacked)) = (read, unpacked) {
            assert_eq!(read, unpacked, "{name}");
            assert_eq!(read.to_json(), case["reencoded"].as_str().unwrap(), "{name}");
            let supported = !matches!(read.domain, Domain::Unknown(_)) && name != "cache_owner_device_store";
            assert_eq!(supported, case["resolved_domain"].get("Ok").is_some(), "{name}");
        }
        cases += 1;
    }
    assert_eq!(cases, 12);
}

#[test]
fn the_event_plane_frames_a_payload_as_constructed() {
    let plane = section("event_plane");
    let payload = hex(&plane, "payload_hex");
    let envelope = Envelope::decode(&hex(&plane, "envelope_msgpack_hex")).unwrap();
    assert_eq!(envelope.payload, payload);
    assert_eq!(envelope.encode(), hex(&plane["nats"], "body_hex"));
    let frames: Vec<_> = plane["zmq_frames_hex"].as_array().unwrap().iter().map(|frame| frame.as_str().unwrap()).collect();
    let frames: Vec<bytes::Bytes> = frames.into_iter().map(|frame| testkit::dynamo::bytes(frame).into()).collect();
    assert_eq!(envelope.zmq_frames(), frames);
    assert_eq!(Envelope::from_zmq(&frames).unwrap(), envelope);
    let subject = plane["nats"]["subject"].as_str().unwrap();
    assert_eq!(envelope::subject("namespace.dynamo.component.backend.endpoint.generate", &envelope.topic), subject);
    let mut brokered = frames.clone();
    brokered[0] = subject.to_owned().into();
    assert_eq!(Envelope::from_zmq(&brokered).unwrap(), envelope, "a broker's topic frame is the full subject");
    let events: Vec<_> = decode_events(&payload).unwrap().into_iter().map(Result::unwrap).collect();
    assert_eq!(router::encode_events(&events), payload);
}
