//! Recorded messages of the event plane, over ZMQ and NATS.

use bytes::Bytes;
use serde_json::{Value, json};
use testkit::dynamo;
use wire::{
    discovery::{EndpointId, topic},
    envelope::{self, Envelope},
    load::{self, ActiveLoad, ActiveSequenceEvent, SequenceData},
    router,
};

use crate::{hex, json as parse};

/// Every recorded message: the body of its envelope, and its record. ZMQ messages are taken out of their frames on the way.
fn messages() -> Vec<(Envelope, Bytes, Value)> {
    let mut messages = Vec::new();
    for name in dynamo::names(".json").iter().filter(|name| name.contains("_event_zmq_")) {
        for record in dynamo::records(name) {
            let hexes = record["frames_hex"].as_array().unwrap();
            let frames: Vec<Bytes> = hexes.iter().map(|hex| dynamo::bytes(hex.as_str().unwrap()).into()).collect();
            let envelope = Envelope::from_zmq(&frames).unwrap();
            assert_eq!(envelope.zmq_frames(), frames, "{name}");
            messages.push((envelope, frames[3].slice(5..), record));
        }
    }
    for record in dynamo::records("nats_events") {
        let body = hex(&record, "raw_hex");
        let envelope = Envelope::decode(&body).unwrap();
        let prefix = EndpointId::new("dynamo", "backend", "generate").subject_prefix();
        let subject = record["protocol_line"].as_str().unwrap().split(' ').nth(1).unwrap();
        assert_eq!(envelope::subject(&prefix, &envelope.topic), subject);
        messages.push((envelope, body, record));
    }
    messages
}

#[test]
fn every_envelope_is_what_its_record_says_and_encodes_back_to_its_bytes() {
    let mut seen = 0;
    for (envelope, body, record) in messages() {
        let noted = &record["envelope"];
        assert_eq!(envelope.publisher_id, noted["publisher_id"].as_u64().unwrap());
        assert_eq!(envelope.sequence, noted["sequence"].as_u64().unwrap());
        assert_eq!(envelope.published_at_ms, noted["published_at"].as_u64().unwrap());
        assert_eq!(envelope.topic, noted["topic"].as_str().unwrap());
        if record.get("payload_hex").is_some() {
            assert_eq!(envelope.payload, hex(&record, "payload_hex"));
        }
        assert_eq!(envelope.encode(), body);
        seen += 1;
    }
    assert_eq!(seen, 52, "all the recordings were read");
}

#[test]
fn every_kv_event_is_what_its_record_says_and_encodes_back_to_its_bytes() {
    let mut seen = 0;
    for (envelope, _, record) in messages().iter().filter(|(envelope, ..)| envelope.topic == topic::KV_EVENTS) {
        let events: Vec<_> = router::decode_events(&envelope.payload).unwrap().into_iter().map(Result::unwrap).collect();
        let noted = record["payload_decoded"].as_array().unwrap();
        assert_eq!(events.len(), noted.len());
        for (event, noted) in events.iter().zip(noted) {
            assert_eq!(parse(&event.to_json()), *noted);
            assert_eq!(router::RouterEvent::from_json(&noted.to_string()).unwrap(), *event);
        }
        assert_eq!(router::encode_events(&events), envelope.payload);
        seen += events.len();
    }
    assert_eq!(seen, 17);
}

#[test]
fn every_load_is_what_its_record_says_and_encodes_back_to_its_bytes() {
    let mut seen = 0;
    for (envelope, _, record) in messages().iter().filter(|(envelope, ..)| envelope.topic == topic::KV_METRICS) {
        let load = ActiveLoad::decode(&envelope.payload).unwrap();
        let noted = json!({
            "worker_id": load.worker_id, "dp_rank": load.dp_rank, "active_decode_blocks": load.active_decode_blocks,
            "active_prefill_tokens": load.active_prefill_tokens, "kv_used_blocks": load.kv_used_blocks,
        });
        assert_eq!(noted, record["payload_decoded"]);
        assert_eq!(load.encode(), envelope.payload);
        seen += 1;
    }
    assert_eq!(seen, 12);
}

/// An event as its record would have it.
pub(crate) fn noted(event: &ActiveSequenceEvent) -> Value {
    let data = match &event.data {
        SequenceData::Free => json!("Free"),
        SequenceData::MarkPrefillCompleted => json!("MarkPrefillCompleted"),
        SequenceData::AddRequest(add) => {
            let hint = add.prefill_load_hint.map(|hint| {
                let duration = hint.expected_prefill_duration;
                let duration = duration.map(|duration| json!({"secs": duration.as_secs(), "nanos": duration.subsec_nanos()}));
                json!({
                    "initial_effective_prefill_tokens": hint.initial_effective_prefill_tokens,
                    "expected_prefill_duration": duration,
                })
            });
            json!({"AddRequest": {
                "token_sequence": add.token_sequence, "track_prefill_tokens": add.track_prefill_tokens,
                "expected_output_tokens": add.expected_output_tokens, "prefill_load_hint": hint,
            }})
        }
    };
    json!({
        "request_id": event.request_id, "worker": {"worker_id": event.worker_id, "dp_rank": event.dp_rank}, "data": data,
        "router_id": event.router_id, "lora_name": event.lora_name,
    })
}

#[test]
fn every_sequence_event_is_what_its_record_says_in_lists_and_alone() {
    let (mut listed, mut alone) = (0, 0);
    for (envelope, _, record) in messages().iter().filter(|(envelope, ..)| envelope.topic == topic::ACTIVE_SEQUENCES) {
        let events = load::decode_sequences(&envelope.payload).unwrap();
        let values: Vec<Value> = events.iter().map(noted).collect();
        if record.get("protocol_line").is_some() {
            assert_eq!(values, [record["payload_decoded"].clone()]);
            assert_eq!(events[0].encode(), envelope.payload);
            alone += 1;
        } else {
            assert_eq!(json!({ "events": values }), record["payload_decoded"]);
            assert_eq!(load::encode_sequences(&events), envelope.payload);
            listed += 1;
        }
    }
    assert_eq!((listed, alone), (16, 4));
}
