//! Recorded streams that called home.

use bytes::{Bytes, BytesMut};
use serde_json::Value;
use testkit::dynamo;
use wire::request::{
    Codec, Control, FrameError, Handshake, Limits, Prologue, Reply, Response, ResponseDecoder, StreamType, TwoPart, TypedError,
};

use crate::hex;

const LIMITS: Limits = Limits { item_bytes: 1 << 20 };

/// What a stream came to.
#[derive(Debug, PartialEq)]
pub(crate) enum Whole {
    /// The data of each item, and the stream ended as it should.
    Items(Vec<Bytes>),
    /// It was cut behind so many items.
    Cut(Vec<Bytes>),
}

/// Reads a stream given in pieces of so many bytes; each item's data in one.
fn replies(stream: &[u8], codec: Codec, piece: usize) -> Result<Vec<Reply>, FrameError> {
    let mut decoder = ResponseDecoder::new(codec, LIMITS);
    let (mut buffer, mut replies) = (BytesMut::new(), Vec::new());
    let mut data = BytesMut::new();
    for piece in stream.chunks(piece) {
        buffer.extend_from_slice(piece);
        while let Some(reply) = decoder.next(&mut buffer)? {
            match reply {
                Reply::Data { bytes, end } => {
                    data.extend_from_slice(&bytes);
                    if end {
                        replies.push(Reply::Data { bytes: data.split().freeze(), end });
                    }
                }
                other => replies.push(other),
            }
        }
    }
    assert!(data.is_empty() || codec == Codec::Msgpack);
    Ok(replies)
}

/// The data of each item of a stream with a good prologue.
pub(crate) fn data_of(stream: &[u8], codec: Codec) -> Whole {
    let replies = replies(stream, codec, stream.len()).unwrap();
    assert!(matches!(&replies[0], Reply::Handshake(Handshake { stream_type: StreamType::Response, .. })));
    assert_eq!(replies[1], Reply::Prologue(Prologue::default()));
    let items = replies.iter().filter_map(|reply| if let Reply::Data { bytes, .. } = reply { Some(bytes.clone()) } else { None });
    let items = items.collect();
    match &replies[replies.len() - 2..] {
        [Reply::Final, Reply::Sentinel] => Whole::Items(items),
        _ => Whole::Cut(items),
    }
}

/// The bytes an answerer writes for the same content.
fn written(replies: &[Reply], codec: Codec) -> Vec<u8> {
    let write = |reply: &Reply| match reply {
        Reply::Handshake(handshake) => handshake.encode().encode(),
        Reply::Prologue(prologue) => prologue.encode().encode(),
        Reply::Data { bytes, .. } => Response::item(codec, bytes),
        Reply::Final => Response::finale(codec),
        Reply::Sentinel => Response::sentinel(),
    };
    replies.iter().flat_map(write).collect()
}

/// Every recorded stream, with its name.
fn streams() -> Vec<(String, Vec<u8>, Codec)> {
    let mut streams = Vec::new();
    for name in dynamo::names(".json").iter().filter(|name| name.contains("_response_")) {
        for record in dynamo::records(name) {
            let frames = record["frames"].as_array().unwrap();
            let stream: Vec<u8> = frames.iter().flat_map(|frame| hex(frame, "raw_hex")).collect();
            streams.push((name.clone(), stream, Codec::Msgpack));
        }
    }
    for name in dynamo::names(".txt") {
        let lines = dynamo::exchange(&name);
        let stream: Vec<u8> = lines.iter().filter(|(kind, _)| kind == "hs" || kind == "f").flat_map(|line| line.1.clone()).collect();
        let codec = if name == "reqplane_json_codec" { Codec::Json } else { Codec::Msgpack };
        if !stream.is_empty() {
            streams.push((name, stream, codec));
        }
    }
    streams
}

#[test]
fn every_stream_is_read_in_any_pieces_and_written_again_byte_for_byte() {
    let mut seen = 0;
    for (name, stream, codec) in streams() {
        let whole = replies(&stream, codec, stream.len()).unwrap();
        for piece in [1, 2, 5, 23, 100] {
            assert_eq!(replies(&stream, codec, piece).unwrap(), whole, "{name} in pieces of {piece}");
        }
        assert_eq!(written(&whole, codec), stream, "{name}");
        seen += 1;
    }
    assert_eq!(seen, 27, "all the recordings were read");
}

#[test]
fn every_frame_is_what_its_record_says() {
    let mut items = 0;
    for name in dynamo::names(".json").iter().filter(|name| name.contains("_response_")) {
        for record in dynamo::records(name) {
            for frame in record["frames"].as_array().unwrap() {
                let message = TwoPart::decode(&hex(frame, "raw_hex")).unwrap();
                assert_eq!(message.header, frame["header"].as_str().unwrap(), "{name}");
                let noted = &frame["data_decoded"];
                assert_eq!(noted.is_null(), message.body.is_empty(), "{name}");
                if !noted.is_null() {
                    let value: Value = rmp_serde::from_slice(&message.body).unwrap();
                    assert_eq!(value, noted[1], "{name}");
                    items += 1;
                }
            }
        }
    }
    assert!(items > 30, "{items}");
}

#[test]
fn a_cancelled_stream_is_cut_and_what_cancelled_it_is_read() {
    for name in ["zmq1_response_cancelled", "zmq2_response_cancelled"] {
        for record in dynamo::records(name) {
            let mut reverse = BytesMut::from(&hex(&record, "reverse_hex")[..]);
            let frame = reverse.clone();
            assert_eq!(Control::take(&mut reverse).unwrap(), Some(Control::Kill), "{name}");
            assert!(reverse.is_empty());
            assert_eq!(Control::Kill.encode().encode(), frame);
        }
    }
    for (name, control) in [("reqplane_control_kill", Control::Kill), ("reqplane_control_stop", Control::Stop)] {
        let lines = dynamo::exchange(name);
        let sent = &lines.iter().find(|(kind, _)| kind == "frontend_control").unwrap().1;
        assert_eq!(Control::take(&mut sent[..].into()).unwrap(), Some(control));
        assert_eq!(control.encode().encode(), sent[..]);
        assert_eq!(lines.last().unwrap().0, "eof");
        let stream: Vec<u8> = lines.iter().filter(|(kind, _)| kind == "hs" || kind == "f").flat_map(|line| line.1.clone()).collect();
        assert!(matches!(data_of(&stream, Codec::Msgpack), Whole::Cut(items) if items.len() == 4), "{name}");
    }
}

#[test]
fn a_typed_error_is_read_and_written_again() {
    let mut errors = Vec::new();
    for (name, stream, codec) in streams() {
        if !["zmq1_response_stream_error", "reqplane_no_max_tokens", "reqplane_dp_rank_bad"].contains(&name.as_str()) {
            continue;
        }
        let Whole::Items(items) = data_of(&stream, codec) else { panic!("{name}") };
        let error = TypedError::of_item(&items[0]).unwrap();
        assert_eq!(error.encode_item(), items[0], "{name}");
        errors.push(error);
    }
    assert_eq!(errors.len(), 3);
    for error in &errors {
        assert_eq!((error.class.as_str(), error.reason.as_str()), ("InvalidRequest", "request.invalid_argument"));
    }
    assert!(errors.iter().any(|error| error.public.as_deref().is_some_and(|text| text.contains("is required"))), "{errors:?}");
    let prologue = Prologue { error: Some("no".to_owned()), typed: Some(errors[0].clone()) };
    assert_eq!(Prologue::decode(&prologue.encode().header).unwrap(), prologue);
    let older = Prologue { error: Some("no".to_owned()), typed: None };
    assert_eq!(Prologue::decode(br#"{"error":"no","typed_error":7}"#).unwrap(), older);
    assert_eq!(TypedError::of_item(b"\x81\xa4data\xc0"), None);
}

#[test]
fn what_is_out_of_place_ends_a_stream() {
    let handshake = Handshake { subject: "s".to_owned(), stream_type: StreamType::Response }.encode().encode();
    let prologue = Prologue::default().encode().encode();
    let item = |body: &[u8]| TwoPart { header: Bytes::new(), body: Bytes::copy_from_slice(body) }.encode();
    let after = |parts: &[Bytes]| {
        let stream = [&[handshake.clone(), prologue.clone()], parts].concat().concat();
        let whole = replies(&stream, Codec::Msgpack, stream.len());
        assert_eq!(whole.is_err(), replies(&stream, Codec::Msgpack, 1).is_err());
        whole
    };
    assert!(after(&[Response::finale(Codec::Msgpack), Response::sentinel()]).is_ok());
    assert!(after(&[Response::finale(Codec::Msgpack), Response::item(Codec::Msgpack, b"\x01")]).is_err(), "an item behind the last");
    assert!(after(&[Response::sentinel(), Bytes::from_static(b"x")]).is_err(), "bytes behind the sentinel");
    assert!(after(&[TwoPart::of_header("\"other\"").encode()]).is_err(), "a header that is not the sentinel");
    assert!(after(&[item(b"\x93\x01\x02\x03")]).is_err(), "an item that is no map");
    assert!(after(&[item(b"\x80")]).is_err(), "an item of nothing");
    assert!(after(&[item(b"\x81\xa4data")]).is_err(), "an item without its data");
    assert!(after(&[item(b"\x81\xa4data\x01\x01")]).is_err(), "bytes behind an item");
    assert!(after(&[item(b"\x82\xaecomplete_final\xc2\xa4data\x92\x01\x02")]).is_ok(), "in the other order");
    assert!(after(&[item(&[&b"\x82\xa1x\xda\xff\xff"[..], &[b' '; 0xffff], &b"\xa4data\x01"[..]].concat())]).is_err(), "a long stranger");
    let long = [&[0; 8][..], &(LIMITS.item_bytes as u64 + 1).to_be_bytes(), &[0; 8]].concat();
    assert!(matches!(after(&[long.into()]), Err(FrameError::TooLong { part: "item", .. })));
}
