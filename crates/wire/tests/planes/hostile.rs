//! Bytes of any kind: no panic, no hang, memory in proportion to the bytes given; each event alone.

use bytes::{Bytes, BytesMut};
use testkit::dynamo;
use wire::{
    BatchError,
    discovery::{Key, Record},
    envelope::{Envelope, EnvelopeError},
    generate::{ALLOCATION_FACTOR, Annotated, GenerateRequest, MAX_DEPTH},
    load::{self, ActiveLoad},
    recovery::{DumpReader, Query},
    request::{Ack, Codec, Control, ControlHeader, Limits, RequestFrame, ResponseDecoder, TwoPart, TypedError},
    router::{RouterEvent, RouterFault, decode_events},
};

use crate::{
    counting::allocated,
    generate::{full_output, full_request},
    hex,
};

/// The most a decoder may allocate in all for so many bytes: a short event takes some 200 bytes of memory for 32 on the wire, a list that
/// grows is copied, and some odd events are counted one by one.
fn bound(bytes: usize) -> usize {
    256 * 1024 + 32 * bytes
}

/// Runs every decoder over the bytes, and holds each to the bound.
fn decode_all(bytes: &Bytes) {
    let within = |name: &str, work: &dyn Fn()| {
        let ((), allocated) = allocated(work);
        assert!(allocated <= bound(bytes.len()), "{name} allocated {allocated} bytes for {}", bytes.len());
    };
    within("events", &|| drop(decode_events(bytes)));
    within("envelope", &|| drop(Envelope::decode(bytes)));
    within("frames", &|| drop(Envelope::from_zmq(&bytes.chunks(8).map(|chunk| bytes.slice_ref(chunk)).collect::<Vec<_>>())));
    within("load", &|| drop(ActiveLoad::decode(bytes)));
    within("sequences", &|| drop(load::decode_sequences(bytes)));
    within("query", &|| drop(Query::decode(bytes)));
    within("answer", &|| DumpReader::new().push(bytes).for_each(drop));
    within("error", &|| drop(TypedError::of_item(bytes)));
    within("record", &|| drop(Record::from_json(bytes)));
    within("control", &|| drop(ControlHeader::decode(bytes)));
    within("acknowledgement", &|| drop(Ack::take(&mut bytes[..].into())));
    within("cancel", &|| drop(Control::take(&mut bytes[..].into())));
    within("message", &|| drop(TwoPart::take(&mut bytes[..].into(), 1 << 20)));
    within("payload", &|| drop(TwoPart::decode(bytes)));
    within("request", &|| drop(RequestFrame::take(&mut bytes[..].into(), 1 << 20)));
    if let Ok(text) = std::str::from_utf8(bytes) {
        within("key", &|| drop(Key::parse(text)));
        within("JSON event", &|| drop(RouterEvent::from_json(text)));
    }
    for codec in [Codec::Msgpack, Codec::Json] {
        within("stream", &|| drop(stream(bytes, codec, bytes.len().max(1))));
        for (name, work) in [
            ("generate request", &(|| drop(GenerateRequest::decode(bytes, codec))) as &dyn Fn()),
            ("item", &|| drop(Annotated::decode(bytes, codec))),
        ] {
            let ((), allocated) = allocated(work);
            let bound = (64 << 10) + ALLOCATION_FACTOR * bytes.len();
            assert!(allocated <= bound, "{name} allocated {allocated} bytes for {}", bytes.len());
        }
    }
}

/// What a stream behind its prologue gives, in pieces; data in one.
fn stream(bytes: &[u8], codec: Codec, piece: usize) -> Vec<Vec<u8>> {
    let mut decoder = ResponseDecoder::after_handshake(codec, Limits { item_bytes: 1 << 20 });
    let (mut buffer, mut said, mut data) =
        (BytesMut::from(&b"\0\0\0\0\0\0\0\x0e\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0{\"error\":null}"[..]), Vec::new(), Vec::new());
    for piece in bytes.chunks(piece) {
        buffer.extend_from_slice(piece);
        loop {
            match decoder.next(&mut buffer) {
                Ok(None) => break,
                Ok(Some(wire::request::Reply::Data { bytes, end })) => {
                    data.extend_from_slice(&bytes);
                    if end {
                        said.push(std::mem::take(&mut data));
                    }
                }
                Ok(Some(reply)) => said.push(format!("{reply:?}").into()),
                Err(_) => {
                    said.push(b"error".to_vec());
                    return said;
                }
            }
        }
    }
    said
}

/// Payloads, answers, frames and documents as they are.
fn recorded() -> Vec<Bytes> {
    let mut recorded = Vec::new();
    for name in dynamo::names(".json").iter().filter(|name| name.contains("_event_zmq_")) {
        for record in dynamo::records(name) {
            recorded.push(hex(&record, "payload_hex"));
            recorded.push(dynamo::bytes(record["frames_hex"][3].as_str().unwrap())[5..].to_vec().into());
        }
    }
    for name in dynamo::names(".txt") {
        recorded.extend(dynamo::exchange(&name).into_iter().map(|(_, bytes)| bytes.into()));
        let stream = dynamo::exchange(&name).into_iter().filter(|(kind, _)| kind == "f").skip(1);
        recorded.extend(stream.clone().map(|(_, bytes)| Bytes::from(bytes).slice(24..)));
        recorded.push(stream.flat_map(|(_, bytes)| bytes).collect());
    }
    recorded.extend(dynamo::records("documents").iter().map(|record| record["document"].as_str().unwrap().to_owned().into()));
    for codec in [Codec::Msgpack, Codec::Json] {
        recorded.push(full_request().encode(codec));
        recorded.push(full_output().encode_item(codec));
    }
    recorded.retain(|bytes| !bytes.is_empty());
    recorded
}

#[test]
fn random_bytes() {
    bolero::check!().with_iterations(3_000).with_type::<Vec<u8>>().for_each(|bytes| {
        decode_all(&bytes.clone().into());
        // The same where they are read as events, as an item, and as an answer.
        decode_all(&[&[0x94], &bytes[..]].concat().into());
        decode_all(&[&b"\x81\xa4data\x84\xa9token_ids"[..], bytes].concat().into());
        decode_all(&[&b"\x82\xa9token_ids\x90\xaaextra_args"[..], bytes].concat().into());
        decode_all(&[b"\x81\xa8TreeDump\x83\xa6events\x94", &bytes[..]].concat().into());
        decode_all(
            &[b"\x91\x82\xa9worker_id\x01\xa5event\x82\xa8event_id\x01\xa4data\x81\xa6stored\x81\xa6blocks\x92", &bytes[..]]
                .concat()
                .into(),
        );
    });
}

#[test]
fn mutated_recordings() {
    let recorded = recorded();
    type Mutation = (u16, Vec<(u16, u8)>, Option<u16>);
    bolero::check!().with_iterations(6_000).with_type::<Mutation>().for_each(|(which, changes, cut)| {
        let mut bytes = recorded[usize::from(*which) % recorded.len()].to_vec();
        for (at, byte) in changes {
            let at = usize::from(*at) % bytes.len();
            bytes[at] = *byte;
        }
        bytes.truncate(cut.map_or(bytes.len(), usize::from));
        decode_all(&bytes.clone().into());
        let whole = stream(&bytes, Codec::Msgpack, bytes.len().max(1));
        assert_eq!(stream(&bytes, Codec::Msgpack, 3), whole, "the cut into pieces changes nothing");
    });
}

#[test]
fn lengths_that_are_not_there_cost_nothing() {
    let event = |data: &[u8]| [&b"\x91\x82\xa9worker_id\x01\xa5event\x82\xa8event_id\x01\xa4data"[..], data].concat();
    let claims = [
        ("events", vec![0xdd, 0xff, 0xff, 0xff, 0xff]),
        ("pairs", vec![0x91, 0xdf, 0xff, 0xff, 0xff, 0xff]),
        ("blocks", event(b"\x81\xa6stored\x81\xa6blocks\xdd\xff\xff\xff\xff\x01")),
        ("hashes", event(b"\x81\xa7removed\x81\xacblock_hashes\xdd\xff\xff\xff\xff\x01")),
        ("a string", vec![0x91, 0xdb, 0xff, 0xff, 0xff, 0xff]),
    ];
    for (claim, payload) in claims {
        let (decoded, allocated) = allocated(|| decode_events(&payload));
        assert_eq!(decoded, Err(BatchError::Broken), "{claim}");
        assert!(allocated < 4096, "{claim}: {allocated}");
    }
    // A list of blocks that could be there by its count, and are none: a byte each, of which 26 are needed.
    let many = event(&[&b"\x81\xa6stored\x81\xa6blocks\xdd\x00\x10\x00\x00"[..], &vec![1; 0x10_0000]].concat());
    let (decoded, allocated) = allocated(|| decode_events(&many));
    assert_eq!(decoded.unwrap()[0].as_ref().unwrap_err().fault, RouterFault::Field { field: "blocks", found: "an integer" });
    assert!(allocated < 2 * many.len(), "{allocated}");
    let tiny = [&b"\xdd\x00\x10\x00\x00"[..], &vec![1; 0x10_0000]].concat();
    assert_eq!(decode_events(&tiny), Err(BatchError::TooManyEvents(0x10_0000)));
}

#[test]
fn one_odd_event_costs_only_itself() {
    let good = b"\x82\xa9worker_id\x01\xa5event\x83\xa8event_id\x05\xa4data\xa7cleared\xa7dp_rank\x02";
    let inner = |data: &[u8]| [&b"\x82\xa9worker_id\x01\xa5event\x82\xa8event_id\x06\xa4data"[..], data].concat();
    let odd: Vec<(Vec<u8>, Option<u64>, &str)> = vec![
        (vec![7], None, "it is or has an integer"),
        (b"\x81\xa9worker_id\x01".to_vec(), None, "it has no event"),
        (b"\x81\xa5event\x82\xa8event_id\x06\xa4data\xa7cleared".to_vec(), Some(6), "it has no worker_id"),
        (
            b"\x83\xacstorage_tier\xa3gpu\xa9worker_id\x01\xa5event\x82\xa8event_id\x06\xa4data\xa7cleared".to_vec(),
            Some(6),
            "storage tier is unknown: gpu",
        ),
        (inner(b"\xa8exploded"), Some(6), "unknown kind: exploded"),
        (inner(b"\x81\xa7shifted\x80"), Some(6), "unknown kind: shifted"),
        (inner(b"\x81\xa7removed\x81\xacblock_hashes\x91\xff"), Some(6), "a negative integer"),
        (inner(b"\x81\xa7removed\x81\xacblock_hashes\x91\xcb\x00\x00\x00\x00\x00\x00\x00\x00"), Some(6), "a float"),
        (inner(b"\x81\xa6stored\x81\xa6blocks\x91\x81\xaablock_hash\x01"), Some(6), "no tokens_hash"),
        (inner(b"\x81\xa6stored\x80"), Some(6), "no blocks"),
        (b"\x82\xa9worker_id\x01\xa5event\x83\xa8event_id\x06\xa4data\xa7cleared\xa7dp_rank\xce\xff\xff\xff\xff".to_vec(), None, ""),
        (
            b"\x82\xa9worker_id\x01\xa5event\x83\xa8event_id\x06\xa4data\xa7cleared\xa7dp_rank\xcf\0\0\0\x01\0\0\0\0".to_vec(),
            Some(6),
            "out of range",
        ),
        (b"\x83\xaasession_id\xa1\xff\xa9worker_id\x01\xa5event\x82\xa8event_id\x06\xa4data\xa7cleared".to_vec(), Some(6), "not UTF-8"),
    ];
    for (event, id, said) in odd {
        let payload = [b"\x93", &good[..], &event, good].concat();
        let events = decode_events(&payload).unwrap();
        assert_eq!(events.len(), 3);
        for at in [0, 2] {
            let event = events[at].as_ref().unwrap();
            assert_eq!((event.event.event_id, event.event.dp_rank), (5, 2));
        }
        // The largest rank there is, is one.
        if said.is_empty() {
            assert_eq!(events[1].as_ref().unwrap().event.dp_rank, u32::MAX);
            continue;
        }
        let error = events[1].as_ref().unwrap_err();
        assert_eq!(error.event_id, id, "{error}");
        assert!(error.to_string().contains(said.trim_start_matches("it is")), "{error} / {said}");
    }
}

#[test]
fn a_bare_event_is_a_list_of_one() {
    let bare = b"\x82\xa9worker_id\x01\xa5event\x82\xa8event_id\x05\xa4data\xa7cleared";
    assert_eq!(decode_events(bare).unwrap(), decode_events(&[&b"\x91"[..], bare].concat()).unwrap());
    assert_eq!(decode_events(b"\x07"), Err(BatchError::Shape("an integer")));
    assert_eq!(decode_events(b""), Err(BatchError::Broken));
}

#[test]
fn frames_that_do_not_fit_their_envelope_are_refused() {
    let envelope =
        Envelope { publisher_id: 1, sequence: 2, published_at_ms: 3, topic: "kv-events".to_owned(), payload: Bytes::from_static(b"\x90") };
    let frames = envelope.zmq_frames();
    let with = |at: usize, bytes: &'static [u8]| {
        let mut frames = frames.clone();
        frames[at] = Bytes::from_static(bytes);
        Envelope::from_zmq(&frames).unwrap_err()
    };
    assert_eq!(Envelope::from_zmq(&frames[1..]), Err(EnvelopeError::Frames(3)));
    assert_eq!(with(0, b"kv_metrics"), EnvelopeError::Mismatch("topic"));
    assert_eq!(with(0, b"xkv-events"), EnvelopeError::Mismatch("topic"));
    assert_eq!(with(1, b"\0\0\0\0\0\0\0\x02"), EnvelopeError::Mismatch("publisher"));
    assert_eq!(with(1, b"\x01"), EnvelopeError::Mismatch("publisher"));
    assert_eq!(with(2, b"\0\0\0\0\0\0\0\x01"), EnvelopeError::Mismatch("sequence"));
    assert_eq!(with(3, b"\x02\0\0\0\0"), EnvelopeError::Version(2));
    assert_eq!(with(3, b"\x01\0\0\0\x09\x80"), EnvelopeError::Length { said: 9, has: 1 });
    assert_eq!(with(3, b"\x01\0\0\0\x01\x80"), EnvelopeError::Field("publisher_id"));
    assert_eq!(with(3, b"\x01\0\0"), EnvelopeError::Broken);
}

#[test]
fn a_request_or_an_item_that_claims_more_than_there_is_costs_nothing() {
    let claims: [(&str, &[u8]); 7] = [
        ("ids", b"\x81\xa9token_ids\xdd\xff\xff\xff\xff\x01"),
        ("keys", b"\xdf\xff\xff\xff\xff\xa9token_ids\x90"),
        ("packed ids", b"\x81\xa9token_ids\xc6\xff\xff\xff\xff\x01\x02\x03\x04"),
        ("a value", b"\x82\xa9token_ids\x90\xaaextra_args\xdd\xff\xff\xff\xff\x01"),
        ("texts", b"\x82\xa9token_ids\x90\xabannotations\xdd\xff\xff\xff\xff\xa0"),
        ("output", b"\x81\xa4data\x81\xa9token_ids\xdd\xff\xff\xff\xff\x01"),
        ("alternatives", b"\x81\xa4data\x81\xactop_logprobs\xdd\xff\xff\xff\xff\x90"),
    ];
    for (claim, bytes) in claims {
        let (refused, cost) =
            allocated(|| GenerateRequest::decode(bytes, Codec::Msgpack).is_err() && Annotated::decode(bytes, Codec::Msgpack).is_err());
        assert!(refused && cost < 4096, "{claim}: {cost}");
    }
    // Many levels, each of which claims all that is left.
    let level = b"\xdd\x00\x00\x40\x00";
    let levels = [&b"\x82\xa9token_ids\x90\xaaextra_args"[..], &level.repeat(90), &vec![1; 0x8000]].concat();
    let (refused, cost) = allocated(|| GenerateRequest::decode(&levels, Codec::Msgpack).is_err());
    assert!(refused && cost < 4096, "{cost}");
    // Alternatives that could be there by their count, and are none.
    let lists = [&b"\x81\xa4data\x81\xactop_logprobs\x91\xdd\x00\x10\x00\x00"[..], &vec![1; 0x10_0000]].concat();
    let (refused, cost) = allocated(|| Annotated::decode(&lists, Codec::Msgpack).is_err());
    assert!(refused && cost < 4 * lists.len(), "{cost}");
}

#[test]
fn a_value_nested_too_deeply_is_refused() {
    let request = |open: &[u8], close: &[u8], depth: usize, codec| {
        let (before, behind) = match codec {
            Codec::Msgpack => (&b"\x82\xa9token_ids\x90\xaaextra_args"[..], &b""[..]),
            Codec::Json => (&b"{\"token_ids\":[],\"extra_args\":"[..], &b"}"[..]),
        };
        let bytes =
            [before, &open.repeat(depth), &if codec == Codec::Json { b"1".to_vec() } else { vec![1] }, &close.repeat(depth), behind];
        GenerateRequest::decode(&bytes.concat(), codec)
    };
    for (open, close, codec) in [(&b"\x91"[..], &b""[..], Codec::Msgpack), (b"\x81\xa1k", b"", Codec::Msgpack), (b"[", b"]", Codec::Json)] {
        let deep = request(open, close, MAX_DEPTH, codec).unwrap();
        assert_eq!(GenerateRequest::decode(&deep.encode(Codec::Json), Codec::Json).unwrap(), deep);
        assert!(request(open, close, MAX_DEPTH + 1, codec).is_err());
        assert!(request(open, close, 1_000_000, codec).is_err());
    }
}
