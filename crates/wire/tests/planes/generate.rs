//! Recorded bodies and items of `generate` endpoints.

use bytes::Bytes;
use serde_json::{Value, json};
use testkit::dynamo;
use wire::{
    generate::{
        Annotated, BootstrapInfo, EngineOutput, EngineUsage, FinishReason, GenerateError, GenerateRequest, PrefillResult, RoutingHints,
        SamplingOptions, StopReason, TopLogprob,
    },
    request::{Codec, RequestFrame, TwoPart, TypedError},
};

use crate::{
    hex,
    responses::{Whole, data_of},
};

/// Every recorded request with its codec: a real frontend's over TCP and over NATS, and another client's.
fn bodies() -> Vec<(String, Bytes, Codec, Option<Value>)> {
    let mut bodies = Vec::new();
    let body = |payload: &Bytes| TwoPart::decode(payload).unwrap().body;
    for name in ["zmq1_request_generate", "zmq2_request_generate"] {
        for record in dynamo::records(name) {
            let frame = RequestFrame::take(&mut hex(&record, "raw_hex")[..].into(), 1 << 20).unwrap().unwrap();
            bodies.push((name.to_owned(), body(&frame.payload), Codec::Msgpack, Some(record["body_decoded"].clone())));
        }
    }
    for record in dynamo::records("nats_request_plane") {
        let line: Vec<&str> = record["line"].as_str().unwrap().split(' ').collect();
        if line[0].starts_with('H') && line[1].contains(".generate-") {
            let headers: usize = line[line.len() - 2].parse().unwrap();
            bodies.push((line[0].to_owned(), body(&hex(&record, "raw_hex").slice(headers..)), Codec::Msgpack, None));
        }
    }
    for name in ["reqplane_full_body", "reqplane_no_max_tokens", "reqplane_dp_rank_bad", "reqplane_json_codec"] {
        let codec = if name == "reqplane_json_codec" { Codec::Json } else { Codec::Msgpack };
        let (_, frame) = dynamo::exchange(name).into_iter().find(|(kind, _)| kind == "request").unwrap();
        let frame = RequestFrame::take(&mut frame[..].into(), 1 << 20).unwrap().unwrap();
        bodies.push((name.to_owned(), body(&frame.payload), codec, None));
    }
    bodies
}

#[test]
fn every_request_is_read_as_noted_and_written_again_byte_for_byte() {
    let mut seen = 0;
    for (name, body, codec, noted) in bodies() {
        let request = GenerateRequest::decode(&body, codec).unwrap();
        assert_eq!(request.model, "tiny");
        let again = request.encode(codec);
        match codec {
            Codec::Msgpack => assert_eq!(again, body, "{name}"),
            // The other client spaces its JSON.
            Codec::Json => {
                assert_eq!(serde_json::from_slice::<Value>(&again).unwrap(), serde_json::from_slice::<Value>(&body).unwrap());
            }
        }
        let other = if codec == Codec::Json { Codec::Msgpack } else { Codec::Json };
        let spelt = request.encode(other);
        assert_eq!(GenerateRequest::decode(&spelt, other).unwrap(), request, "{name} in the other codec");
        if let Some(noted) = noted {
            assert_eq!(serde_json::from_slice::<Value>(&spelt).unwrap(), noted, "{name}");
        }
        seen += 1;
    }
    assert_eq!(seen, 16);
}

#[test]
fn every_item_is_read_and_written_again_byte_for_byte() {
    let (mut outputs, mut last) = (0, Vec::new());
    for name in ["zmq1_response_plain", "zmq2_response_plain", "zmq1_response_cancelled", "zmq2_response_cancelled"] {
        for record in dynamo::records(name) {
            let frames = record["frames"].as_array().unwrap();
            let stream: Vec<u8> = frames.iter().flat_map(|frame| hex(frame, "raw_hex")).collect();
            outputs += items(name, &stream, Codec::Msgpack, &mut last);
        }
    }
    for name in dynamo::names(".txt").iter().filter(|name| name.starts_with("reqplane_")) {
        let lines = dynamo::exchange(name);
        let stream: Vec<u8> = lines.iter().filter(|(kind, _)| kind == "hs" || kind == "f").flat_map(|line| line.1.clone()).collect();
        if !stream.is_empty() {
            let codec = if name == "reqplane_json_codec" { Codec::Json } else { Codec::Msgpack };
            outputs += items(name, &stream, codec, &mut last);
        }
    }
    assert!(outputs > 30, "{outputs}");
    assert!(last.iter().all(|output| output.finish_reason == Some(FinishReason::Length) && output.token_ids.is_empty()));
    assert!(last.iter().any(|output| output.completion_usage.is_some_and(|usage| usage.cached_tokens == Some(48))));
}

/// How many outputs were in a stream. The last of a whole one is added to `last`.
fn items(name: &str, stream: &[u8], codec: Codec, last: &mut Vec<EngineOutput>) -> usize {
    let whole = data_of(stream, codec);
    let (Whole::Items(items) | Whole::Cut(items)) = &whole;
    let mut outputs = Vec::new();
    for item in items {
        if TypedError::of_item(item).is_some() || matches!(Annotated::decode(item, codec), Err(GenerateError::Missing("data"))) {
            // An error, or the answer of a recovery endpoint.
            continue;
        }
        let Annotated::Output(output) = Annotated::decode(item, codec).unwrap() else { panic!("{name}") };
        assert_eq!(output.encode_item(codec), item, "{name}");
        let other = if codec == Codec::Json { Codec::Msgpack } else { Codec::Json };
        assert_eq!(Annotated::decode(&output.encode_item(other), other).unwrap(), Annotated::Output(output.clone()), "{name}");
        outputs.push(*output);
    }
    if let (Whole::Items(_), Some(output)) = (&whole, outputs.last()) {
        last.push(output.clone());
    }
    outputs.len()
}

/// A request with every field set.
pub(crate) fn full_request() -> GenerateRequest {
    GenerateRequest {
        model: "m".to_owned(),
        token_ids: vec![0, 127, 128, 255, 256, 65_535, 65_536, u32::MAX],
        sampling_options: SamplingOptions {
            temperature: Some(0.7),
            top_k: Some(-1),
            seed: Some(i64::MIN),
            guided_decoding: Some(json!({"json": {"type": "object"}, "regex": null})),
            ..SamplingOptions::default()
        },
        routing: Some(RoutingHints {
            backend_instance_id: Some(u64::MAX),
            prefill_worker_id: Some(1),
            decode_worker_id: Some(2),
            dp_rank: Some(3),
            prefill_dp_rank: Some(4),
            expected_output_tokens: Some(5),
            lora_name: Some("sql".to_owned()),
            cache_salt: Some("s".to_owned()),
            priority_jump: Some(0.5),
            strict_priority: Some(6),
            priority: Some(-7),
            allowed_worker_ids: Some(vec![8, 9]),
            routing_constraints: Some(json!({"required_taints": ["a"]})),
        }),
        prefill_result: Some(PrefillResult { disaggregated_params: json!({"room": u64::MAX, "a": [1.5, -2]}), cached_tokens: Some(5) }),
        bootstrap_info: Some(BootstrapInfo { host: "::1".to_owned(), port: 9, room: u64::MAX >> 1, handoff_id: Some([0xa5; 16]) }),
        extra_args: Some(json!({"nvext": {"ü": ["\u{1}\""]}})),
        require_reasoning: true,
        request_timestamp_ms: Some(1.25),
        is_probe: true,
        ..GenerateRequest::default()
    }
}

/// An output with every field set.
pub(crate) fn full_output() -> EngineOutput {
    let entry = |bytes| TopLogprob { rank: 1, token_id: 7, token: Some("ü".to_owned()), logprob: -0.25, bytes };
    EngineOutput {
        token_ids: vec![7, 300_000],
        tokens: Some(vec![Some("ü".to_owned()), None]),
        text: Some("ü".to_owned()),
        cum_log_probs: Some(-1.5),
        log_probs: Some(vec![-0.25, -1.25]),
        top_logprobs: Some(vec![vec![entry(None), entry(Some(vec![0xc3, 0xbc]))], Vec::new()]),
        finish_reason: Some(FinishReason::Error("why".to_owned())),
        stop_reason: Some(StopReason::Token(-1)),
        index: Some(1),
        disaggregated_params: Some(json!({"room": 5})),
        extra_args: Some(json!([])),
        completion_usage: Some(EngineUsage { prompt_tokens: 1, completion_tokens: 2, total_tokens: 3, cached_tokens: None }),
        engine_data: Some(json!({"prompt_logprobs": [null, {"5": {"logprob": -1.0}}]})),
    }
}

#[test]
fn every_field_survives_in_both_codecs() {
    let (request, output) = (full_request(), full_output());
    for codec in [Codec::Msgpack, Codec::Json] {
        assert_eq!(GenerateRequest::decode(&request.encode(codec), codec).unwrap(), request);
        assert_eq!(Annotated::decode(&output.encode_item(codec), codec).unwrap(), Annotated::Output(Box::new(output.clone())));
        for comment in [None, Some(vec!["x".to_owned()])] {
            let event = Annotated::Event { name: "token_ids".to_owned(), comment };
            assert_eq!(Annotated::decode(&event.encode(codec), codec).unwrap(), event);
        }
    }
    let json: Value = serde_json::from_slice(&request.encode(Codec::Json)).unwrap();
    assert_eq!(json["sampling_options"]["temperature"].to_string(), "0.7", "as in single precision");
    assert_eq!(json["bootstrap_info"]["handoff_id"], "a5a5a5a5-a5a5-a5a5-a5a5-a5a5a5a5a5a5");
    assert_eq!(json["sampling_options"]["guided_decoding"]["regex"], Value::Null);
}

#[test]
fn what_an_engine_writes_otherwise_is_understood() {
    let output = |json: Value| {
        let data = json!({ "data": json, "comment": null, "id": null });
        match Annotated::decode(data.to_string().as_bytes(), Codec::Json) {
            Ok(Annotated::Output(output)) => Ok(*output),
            other => Err(format!("{other:?}")),
        }
    };
    let reason = |json: Value| output(json!({"finish_reason": json})).unwrap().finish_reason.unwrap();
    assert_eq!(reason(json!("eos")), FinishReason::Eos);
    assert_eq!(reason(json!("abort")), FinishReason::Cancelled);
    assert_eq!(reason(json!("content_filter")), FinishReason::ContentFilter);
    assert_eq!(reason(json!("error")), FinishReason::Error(String::new()));
    assert_eq!(reason(json!("error: no room")), FinishReason::Error("no room".to_owned()));
    assert_eq!(reason(json!({"error": "no room"})), FinishReason::Error("no room".to_owned()));
    assert!(output(json!({"finish_reason": "perhaps"})).unwrap_err().contains("perhaps"));
    assert_eq!(output(json!({"stop_reason": "</s>"})).unwrap().stop_reason, Some(StopReason::Text("</s>".to_owned())));
    assert!(output(json!({"finish_reason": {"sorry": "x"}})).is_err());
    // Python's workers leave out what they do not set.
    let sparse = output(json!({"token_ids": [5], "index": 0, "unknown": {"a": [1]}})).unwrap();
    assert_eq!(sparse, EngineOutput { token_ids: vec![5], index: Some(0), ..EngineOutput::default() });
    let usage = output(json!({"completion_usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": null}})).unwrap();
    assert_eq!(usage.completion_usage.unwrap(), EngineUsage { prompt_tokens: 9, completion_tokens: 2, ..EngineUsage::default() });
    // Ids packed into words, as 1.6.1 writes them on demand.
    let packed = b"\x81\xa9token_ids\xc4\x08\x01\0\0\0\xff\xff\0\0";
    assert_eq!(GenerateRequest::decode(packed, Codec::Msgpack).unwrap().token_ids, [1, 65_535]);
    // What is on a trial run, as 1.6.1's own health checks send.
    let probe = GenerateRequest::decode(br#"{"token_ids":[1],"_HEALTH_CHECK":true,"model":null}"#, Codec::Json).unwrap();
    assert!(probe.is_probe && probe.model.is_empty());
}

#[test]
fn an_error_names_the_field() {
    let refused = |json: Value| GenerateRequest::decode(json.to_string().as_bytes(), Codec::Json).unwrap_err().to_string();
    assert_eq!(refused(json!({"model": "m"})), "token_ids is missing");
    assert_eq!(refused(json!({"token_ids": "text"})), "token_ids is a string");
    assert_eq!(refused(json!({"token_ids": [1, -1]})), "token_ids is a negative integer");
    assert_eq!(refused(json!({"token_ids": [1, 4_294_967_296_u64]})), "token_ids is an integer out of range");
    assert_eq!(refused(json!({"token_ids": [], "stop_conditions": {"max_tokens": 1.5}})), "stop_conditions.max_tokens is a float");
    assert_eq!(refused(json!({"token_ids": [], "sampling_options": []})), "sampling_options is an array");
    assert_eq!(refused(json!({"token_ids": [], "routing": {"dp_rank": true}})), "routing.dp_rank is a boolean");
    let bootstrap = json!({"bootstrap_host": "h", "bootstrap_port": 70_000, "bootstrap_room": 1});
    assert_eq!(refused(json!({"token_ids": [], "bootstrap_info": bootstrap})), "bootstrap_info.bootstrap_port is an integer out of range");
    assert_eq!(refused(json!({"token_ids": [], "bootstrap_info": {"bootstrap_port": 7}})), "bootstrap_info.bootstrap_host is missing");
    assert_eq!(refused(json!([])), "the request is an array");
    for id in ["5", "+5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5", "gg"] {
        let bootstrap = json!({"bootstrap_host": "h", "bootstrap_port": 7, "bootstrap_room": 1, "handoff_id": id});
        assert_eq!(refused(json!({"token_ids": [], "bootstrap_info": bootstrap})), "bootstrap_info.handoff_id is no UUID");
    }
    assert!(GenerateRequest::decode(b"{\"token_ids\":[]} x", Codec::Json).is_err(), "bytes behind it");
    assert!(GenerateRequest::decode(b"\x81\xa9token_ids\x90\x01", Codec::Msgpack).is_err(), "bytes behind it");
    assert!(matches!(Annotated::decode(b"\x81\xa4data\xc0", Codec::Msgpack), Err(GenerateError::Missing("data"))));
}
