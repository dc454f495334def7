//! Bytes of any kind: no panic, no hang, and memory in proportion to the bytes given.

// Counting what is allocated needs an allocator, which is unsafe by nature; it only counts and passes on.
#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use bytes::Bytes;
use testkit::captures;

struct Counting;

thread_local! {
    static ALLOCATED_BYTES: Cell<usize> = const { Cell::new(0) };
}

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED_BYTES.set(ALLOCATED_BYTES.get() + layout.size());
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Decodes, and holds the decoder to its bound on everything it ever allocated for it: 8 bytes of hash per byte, and
/// 256 bytes per event, of which there is one per 16 bytes and 1024 more.
fn decode(payload: &[u8]) -> Result<wire::Batch, wire::BatchError> {
    let before = ALLOCATED_BYTES.get();
    let batch = wire::batch(payload);
    let allocated = ALLOCATED_BYTES.get() - before;
    let bound = 256 * 1024 + 24 * payload.len();
    assert!(allocated <= bound, "{allocated} bytes allocated for a payload of {}", payload.len());
    batch
}

#[test]
fn lengths_that_are_not_there_cost_nothing() {
    let head = |bytes: &[u8]| [&[0x93, 0xc0][..], bytes].concat();
    let event = |bytes: &[u8]| head(&[&[0x91, 0x96, 0xab][..], b"BlockStored", bytes].concat());
    let claims: [(&str, Vec<u8>); 10] = [
        ("slots of a batch", vec![0xdd, 0xff, 0xff, 0xff, 0xff]),
        ("pairs of a batch", vec![0xdf, 0xff, 0xff, 0xff, 0xff]),
        ("events", head(&[0xdd, 0xff, 0xff, 0xff, 0xff])),
        ("slots of an event", head(&[0x91, 0xdd, 0xff, 0xff, 0xff, 0xff])),
        ("pairs of an event", head(&[0x91, 0xdf, 0xff, 0xff, 0xff, 0xff])),
        ("bytes of a tag", head(&[0x91, 0x91, 0xdb, 0xff, 0xff, 0xff, 0xff])),
        ("hashes", event(&[0xdd, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4, 5])),
        ("bytes of a hash", event(&[0x91, 0xc6, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4, 5])),
        ("tokens", event(&[0x91, 1, 0xc0, 0xdd, 0xff, 0xff, 0xff, 0xff, 1, 2, 3])),
        ("bytes of an extension", event(&[0xc9, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4, 5])),
    ];
    for (claim, payload) in claims {
        let before = ALLOCATED_BYTES.get();
        assert_eq!(wire::batch(&payload), Err(wire::BatchError::Broken), "{claim}");
        assert!(ALLOCATED_BYTES.get() - before < 4096, "{claim}");
    }
}

#[test]
fn a_list_of_tiny_events_is_bounded() {
    let list = |count: u16| {
        let mut payload = vec![0x92, 0xc0, 0xdc];
        payload.extend(count.to_be_bytes());
        payload.extend(std::iter::repeat_n(0x90, count.into()));
        payload
    };
    assert_eq!(decode(&list(1000)).unwrap().events.len(), 1000);
    assert_eq!(decode(&list(60_000)), Err(wire::BatchError::TooManyEvents(60_000)));
}

#[test]
fn the_largest_events_stay_within_the_bound() {
    let mut payload = vec![0x92, 0xc0, 0x91, 0x92, 0xac];
    payload.extend(b"BlockRemoved");
    payload.extend([0xdd, 0, 0x10, 0, 0]);
    payload.extend(vec![1; 0x10_0000]);
    match &decode(&payload).unwrap().events[0] {
        Ok(wire::Event::Removed(removed)) => assert_eq!(removed.block_hashes.len(), 0x10_0000),
        other => panic!("{other:?}"),
    }
}

#[test]
fn nesting_is_no_recursion() {
    let deep = |opening: &[u8], depth: usize| {
        let mut payload = vec![0x92, 0xc0, 0x92];
        payload.extend(opening.repeat(depth));
        payload.push(0xc0);
        payload.extend([0x91, 0xb0]);
        payload.extend(b"AllBlocksCleared");
        payload
    };
    for opening in [&[0x91][..], &[0x81, 0xc0], &[0x81, 0xa4, b't', b'y', b'p', b'e']] {
        let batch = decode(&deep(opening, 1_000_000)).unwrap();
        assert!(batch.events[0].is_err());
        assert_eq!(batch.events[1], Ok(wire::Event::Cleared));
    }
}

#[test]
fn random_bytes_as_payload_and_as_frames() {
    bolero::check!().with_iterations(20_000).with_type::<Vec<u8>>().for_each(|payload| {
        drop(decode(payload));
        // The same bytes where they are read as events: behind a header that lets them in.
        drop(decode(&[&[0x93, 0xc0, 0x94][..], payload].concat()));
        drop(decode(&[&[0x93, 0xc0, 0x91, 0x9d, 0xab][..], b"BlockStored", payload].concat()));
        let frames: Vec<Bytes> = payload.chunks(8).map(Bytes::copy_from_slice).collect();
        drop(wire::message(&frames));
        let _ = wire::replay_start(&frames);
    });
}

#[test]
fn mutated_captures() {
    let mut payloads: Vec<Bytes> = Vec::new();
    for capture in captures::all("legacy") {
        payloads.extend(capture.live().step_by(7).map(|live| live.frames[2].clone()));
    }
    payloads.extend(captures::load("vllm/06-lora").live().map(|live| live.frames[2].clone()));
    type Mutation = (u16, Vec<(u16, u8)>, Option<u16>);
    bolero::check!().with_iterations(20_000).with_type::<Mutation>().for_each(|(which, changes, cut)| {
        let mut payload = payloads[usize::from(*which) % payloads.len()].to_vec();
        for (at, byte) in changes {
            let at = usize::from(*at) % payload.len();
            payload[at] = *byte;
        }
        payload.truncate(cut.map_or(payload.len(), usize::from));
        drop(decode(&payload));
    });
}
