//! Recorded requests, over TCP and over NATS, and their acknowledgements.

use bytes::{Bytes, BytesMut};
use serde_json::{Map, Value};
use testkit::dynamo;
use wire::{
    discovery::EndpointId,
    recovery::Query,
    request::{Ack, Codec, ControlHeader, FrameError, MAX_ACK_BYTES, RequestFrame, StreamType, TwoPart},
};

use crate::{hex, json};

const MAX: usize = 1 << 20;

/// Reads one frame from bytes that come one by one.
fn one_by_one(bytes: &[u8]) -> RequestFrame {
    let mut buffer = BytesMut::new();
    for (at, byte) in bytes.iter().enumerate() {
        buffer.extend_from_slice(&[*byte]);
        match RequestFrame::take(&mut buffer, MAX).unwrap() {
            None => assert_eq!(buffer.len(), at + 1, "nothing is taken before the whole is there"),
            Some(frame) => {
                assert_eq!(at + 1, bytes.len());
                return frame;
            }
        }
    }
    panic!("no frame in {} bytes", bytes.len());
}

#[test]
fn every_request_of_a_real_frontend_is_read_as_noted_and_written_again_byte_for_byte() {
    let mut seen = 0;
    for name in dynamo::names(".json").iter().filter(|name| name.contains("_request_") && name.starts_with("zmq")) {
        for record in dynamo::records(name) {
            let bytes = hex(&record, "raw_hex");
            let frame = RequestFrame::take(&mut bytes[..].into(), MAX).unwrap().unwrap();
            assert_eq!(frame, one_by_one(&bytes), "{name}");
            assert_eq!(frame.path, record["endpoint"].as_str().unwrap());
            assert_eq!(frame.header("x-endpoint-path"), Some(&*frame.path));
            let headers: Map<String, Value> = frame.headers.iter().cloned().map(|(name, value)| (name, value.into())).collect();
            assert_eq!(Value::Object(headers), record["headers"]);
            let message = TwoPart::decode(&frame.payload).unwrap();
            assert_eq!(message.encode(), frame.payload);
            let control = ControlHeader::decode(&message.header).unwrap();
            assert_eq!(json(std::str::from_utf8(&message.header).unwrap()), record["control"]);
            assert_eq!((control.codec, control.connection.stream_type), (Codec::Msgpack, StreamType::Response));
            assert_eq!(control.id, control.connection.context);
            assert_eq!(control.encode(), message.header, "{name}");
            let body: Value = rmp_serde::from_slice(&message.body).unwrap();
            assert_eq!(body, record["body_decoded"]);
            if name.ends_with("kvquery") {
                assert_eq!(Query::decode(&message.body).unwrap().encode(), message.body);
            }
            assert_eq!(frame.encode().unwrap(), bytes, "{name}");
            let headers = frame.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            let before = RequestFrame::before_body(&frame.path, headers, &control, message.body.len()).unwrap();
            assert_eq!([before, message.body].concat(), bytes, "{name}");
            assert_eq!(Ack::take(&mut hex(&record, "ack_hex")[..].into()).unwrap(), Some(Ack::Accepted));
            seen += 1;
        }
    }
    assert_eq!(seen, 18);
}

#[test]
fn every_request_of_another_client_is_read_and_differs_only_by_the_spaces_of_its_json() {
    let mut seen = 0;
    for name in dynamo::names(".txt") {
        for (kind, bytes) in dynamo::exchange(&name) {
            match kind.as_str() {
                "request" => {
                    let frame = one_by_one(&bytes);
                    let message = TwoPart::decode(&frame.payload).unwrap();
                    let control = ControlHeader::decode(&message.header).unwrap();
                    assert_eq!(control.codec == Codec::Json, name == "reqplane_json_codec");
                    let again = TwoPart { header: control.encode(), body: message.body }.encode();
                    let again = RequestFrame { payload: again, ..frame.clone() };
                    let without = |bytes: &[u8]| bytes.iter().copied().filter(|byte| *byte != b' ').count();
                    // The two lengths say how many spaces there were, and may have bytes that look like one.
                    let body = TwoPart::decode(&frame.payload).unwrap().body;
                    assert_eq!(TwoPart::decode(&again.payload).unwrap().body, body, "{name}");
                    assert!(without(&again.encode().unwrap()).abs_diff(without(&bytes)) <= 4, "{name}");
                    seen += 1;
                }
                "ack" => {
                    let ack = Ack::take(&mut bytes[..].into()).unwrap().unwrap();
                    match &ack {
                        Ack::Accepted => assert_ne!(name, "reqplane_unknown_endpoint"),
                        Ack::Refused(text) => assert!(text.starts_with("Server unavailable: unknown endpoint"), "{name}"),
                    }
                    assert_eq!(ack.encode(), bytes);
                    let short = &bytes[..bytes.len() - 1];
                    assert_eq!(Ack::take(&mut short.into()).unwrap(), None);
                }
                _ => {}
            }
        }
    }
    assert_eq!(seen, 20);
}

#[test]
fn a_request_over_nats_is_the_payload_behind_its_headers() {
    let mut seen = 0;
    for record in dynamo::records("nats_request_plane") {
        let line: Vec<&str> = record["line"].as_str().unwrap().split(' ').collect();
        let bytes = hex(&record, "raw_hex");
        if !line[0].starts_with('H') {
            assert!(bytes.is_empty(), "an acknowledgement is an empty message");
            continue;
        }
        let headers: usize = line[line.len() - 2].parse().unwrap();
        let message = TwoPart::decode(&bytes.slice(headers..)).unwrap();
        let control = ControlHeader::decode(&message.header).unwrap();
        assert_eq!(control.encode(), message.header);
        if line[1].contains("worker_kv_query_source") {
            let query = Query::decode(&message.body).unwrap();
            let id = line[1].rsplit('-').next().unwrap();
            assert_eq!(format!("{:x}", query.worker_id), id);
            assert_eq!(query.encode(), message.body);
        }
        seen += 1;
    }
    assert_eq!(seen, 4);
}

#[test]
fn frames_follow_each_other_and_lengths_are_held_to_their_bounds() {
    let id = EndpointId::new("dynamo", "backend", "generate");
    let frame = |payload: &'static [u8]| RequestFrame {
        path: id.request_path(0xabc),
        headers: vec![("request-id".to_owned(), "r".to_owned()), ("ü".to_owned(), "\"".to_owned())],
        payload: Bytes::from_static(payload),
    };
    let (first, second) = (frame(b"one"), frame(b""));
    let mut buffer = BytesMut::from(&[first.encode().unwrap(), second.encode().unwrap(), Bytes::from_static(b"\0")].concat()[..]);
    assert_eq!(RequestFrame::take(&mut buffer, 3).unwrap(), Some(first.clone()));
    assert_eq!(RequestFrame::take(&mut buffer, 3).unwrap(), Some(second));
    assert_eq!(RequestFrame::take(&mut buffer, 3).unwrap(), None);
    let long = RequestFrame::take(&mut first.encode().unwrap()[..].into(), 2);
    assert!(matches!(long, Err(FrameError::TooLong { part: "payload", bytes: 3, bound: 2 })));
    let path = RequestFrame { path: "x".repeat(70_000), ..first };
    assert_eq!(path.encode(), None, "a path longer than its length field can say");

    let refused = Ack::Refused("x".repeat(MAX_ACK_BYTES + 9));
    let Some(Ack::Refused(text)) = Ack::take(&mut refused.encode()[..].into()).unwrap() else { panic!() };
    assert_eq!(text.len(), MAX_ACK_BYTES);
    assert!(Ack::take(&mut b"\x00\x01\x00\x01"[..].into()).is_err());
    assert_ne!(Ack::Refused(String::new()).encode(), Ack::Accepted.encode());

    let header = [&70_000_u64.to_be_bytes()[..], &[0; 16]].concat();
    assert!(matches!(TwoPart::take(&mut header[..].into(), MAX), Err(FrameError::TooLong { part: "header", .. })));
    let overflow = [0xff; 24];
    assert!(TwoPart::take(&mut overflow[..].into(), MAX).is_err());
    assert!(TwoPart::decode(&Bytes::from_static(&[0; 25])).is_err(), "a payload is exactly one message");
}

#[test]
fn a_request_that_cannot_be_answered_is_refused() {
    let control = |text: &str| ControlHeader::decode(text.as_bytes());
    let info = r#""connection_info":{"transport":"tcp_server","info":"{\"address\":\"h:1\",\"subject\":\"s\",\"context\":\"c\",\"stream_type\":\"response\"}"}"#;
    assert_eq!(control(&format!(r#"{{"id":"i",{info}}}"#)).unwrap().codec, Codec::Json, "where none is named");
    assert!(control(&format!(r#"{{"id":"i","request_type":"many_in",{info}}}"#)).is_err());
    assert!(control(&format!(r#"{{"id":"i",{}}}"#, info.replace("tcp_server", "velo"))).is_err());
    assert!(control(r#"{"id":"i"}"#).is_err());
}
