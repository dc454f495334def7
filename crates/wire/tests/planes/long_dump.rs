//! A dump far longer than what may be held, from the socket's bytes to single events.

use bytes::{Bytes, BytesMut};
use wire::{
    recovery::{AnswerError, DumpReader, Listing, MAX_VALUE_BYTES, Part},
    request::{Codec, Limits, Reply, Response, ResponseDecoder},
    router::{Domain, KvCacheEvent, KvData, RouterEvent, StoredBlock, StoredBlocks, Tier, encode_events},
};

use crate::counting::most_held;

fn stored(first: u64, blocks: u64) -> RouterEvent {
    let block = |hash: u64| StoredBlock { block_hash: u64::MAX - hash, tokens_hash: hash << 20, media: None };
    let blocks = (first..first + blocks).map(block).collect();
    RouterEvent {
        worker_id: 1,
        storage_tier: Tier::Device,
        domain: Domain::Worker,
        event: KvCacheEvent {
            event_id: first,
            data: KvData::Stored(StoredBlocks { parent_hash: None, start_position: None, blocks }),
            dp_rank: 0,
        },
        state_source: None,
        session_id: None,
    }
}

/// What a socket brings of one item: a dump of so many blocks in runs of 64, made as it is read.
fn dump(blocks: u64) -> impl Iterator<Item = Bytes> {
    const RUN: u64 = 64;
    let event = |first| encode_events(&[stored(first, RUN)]).slice(1..);
    let begin = [&b"\x81\xa8TreeDump\x83\xa6events\xdd"[..], &u32::try_from(blocks / RUN).unwrap().to_be_bytes()].concat();
    let end = b"\xadlast_event_id\x07\xabreset_scope\xa3all";
    // Every run is written alike: hashes above 2^32 take 9 bytes, small ones less.
    let lengths: usize = (0..blocks / RUN).map(|run| event(run * RUN).len()).sum();
    let mut before = BytesMut::new();
    Response::put_before(Codec::Msgpack, begin.len() + lengths + end.len(), &mut before);
    let behind = Bytes::from_static(Response::behind(Codec::Msgpack));
    let events = (0..blocks / RUN).map(move |run| event(run * RUN));
    [before.freeze(), begin.into()].into_iter().chain(events).chain([Bytes::from_static(end), behind])
}

#[test]
fn a_dump_of_a_million_blocks_is_read_in_less_than_a_mebibyte() {
    const BLOCKS: u64 = 1 << 20;
    let mut stream = dump(BLOCKS).peekable();
    let ((blocks, bytes), held) = most_held(|| {
        let mut decoder = ResponseDecoder::new(Codec::Msgpack, Limits { item_bytes: 1 << 30 });
        let mut buffer = BytesMut::from(&preamble()[..]);
        let (mut reader, mut blocks, mut bytes, mut ended) = (DumpReader::new(), 0, 0, false);
        while let Some(piece) = stream.next() {
            bytes += piece.len();
            buffer.extend_from_slice(&piece);
            // A socket brings what it likes, not what the writer wrote.
            if buffer.len() < 64 << 10 && stream.peek().is_some() {
                continue;
            }
            while let Some(reply) = decoder.next(&mut buffer).unwrap() {
                let Reply::Data { bytes, .. } = reply else { continue };
                for part in reader.push(&bytes) {
                    match part.unwrap() {
                        Part::Event(event) => blocks += stored_in(&event.unwrap()),
                        Part::End(tail) => ended = tail.last_event_id == 7,
                        Part::Begin(listing) => assert_eq!(listing, Listing::TreeDump),
                        Part::Other(answer) => panic!("{answer:?}"),
                    }
                }
            }
        }
        assert!(ended);
        (blocks, bytes)
    });
    assert_eq!(blocks, BLOCKS);
    assert!(bytes > 50 << 20, "{bytes} bytes");
    assert!(held < 1 << 20, "{held} bytes held for a dump of {bytes}");
}

fn stored_in(event: &RouterEvent) -> u64 {
    match &event.event.data {
        KvData::Stored(stored) => stored.blocks.len() as u64,
        KvData::Removed(_) | KvData::Cleared => 0,
    }
}

fn preamble() -> Vec<u8> {
    use wire::request::{Handshake, Prologue, StreamType};
    let handshake = Handshake { subject: "s".to_owned(), stream_type: StreamType::Response };
    [handshake.encode().encode(), Prologue::default().encode().encode()].concat()
}

#[test]
fn one_value_without_end_is_given_up() {
    let mut reader = DumpReader::new();
    let piece = vec![0; 1 << 20];
    assert!(reader.push(b"\x81\xa6Events\x82\xa6events\x91\xc6\xff\xff\xff\xff").all(|part| part.is_ok()));
    let mut pushed = 0;
    let error = loop {
        match reader.push(&piece).next() {
            None => pushed += piece.len(),
            Some(part) => break part,
        }
        assert!(pushed <= MAX_VALUE_BYTES + piece.len());
    };
    assert_eq!(error, Err(AnswerError::ValueTooLong));
    assert_eq!(reader.buffered_bytes(), 0, "and its bytes with it");
    assert_eq!(reader.push(&piece).next(), None);
}
