//! Recorded expectations: range queries of the 1.6.1 worker-side index, and hashes of blocks with media.

use feed::publisher::{PublisherConfig, PublisherState, StoredCall};
use index::{BlockSize, Window};
use serde_json::Value;
use wire::{
    recovery::Answer,
    router::{KvData, MediaInfo, MediaObject, RouterEvent},
};

use crate::{
    answers::query,
    model::{call, state},
};

/// Ids 1 to `last`, each a block more of one prompt, with a ring of four.
fn ring_of_four(last: u64) -> PublisherState {
    let mut state = PublisherState::new(PublisherConfig { ring_events: 4, ..state().config().clone() });
    (1..=last).for_each(|id| grow(&mut state, id));
    state
}

fn grow(state: &mut PublisherState, name: u64) {
    let parent = (name > 1 && state.names() > 0).then_some(name - 1);
    assert_eq!(state.stored(&call(parent, &[(name, name as u32)])).unwrap().len(), 1);
}

/// An answer as the vectors print it.
fn printed(answer: Answer) -> Value {
    let ids = |events: &[RouterEvent]| events.iter().map(|event| event.event.event_id).collect::<Vec<_>>();
    let blocks = |event: &RouterEvent| match &event.event.data {
        KvData::Stored(stored) => stored.blocks.len(),
        KvData::Removed(_) | KvData::Cleared => 0,
    };
    match answer {
        Answer::Events { events, last_event_id } => serde_json::json!({"Events": {"ids": ids(&events), "last_event_id": last_event_id}}),
        Answer::TreeDump { events, last_event_id, reset_scope } => {
            assert_eq!(reset_scope, "all");
            let blocks: usize = events.iter().map(blocks).sum();
            let dump = serde_json::json!({"blocks": blocks, "events": events.len(), "ids": ids(&events), "last_event_id": last_event_id});
            serde_json::json!({"TreeDump": dump})
        }
        Answer::TooNew { requested_start, requested_end, newest_available } => {
            serde_json::json!({"TooNew": [requested_start, requested_end, newest_available]})
        }
        Answer::InvalidRange { start_id, end_id } => serde_json::json!({"InvalidRange": [start_id, end_id]}),
        other @ (Answer::TreeDumpFailed { .. } | Answer::Error(_) | Answer::Unknown(_)) => panic!("{other:?}"),
    }
}

#[test]
fn range_queries_are_answered_as_1_6_1_answers_them() {
    let vectors = testkit::vectors::load("indexer");
    let mut held = 0;
    for case in vectors["local_indexer_buffer_cap_4"].as_array().unwrap() {
        let mut state = match case["state"].as_str().unwrap() {
            "empty" => ring_of_four(0),
            "buffer cap 4, applied ids 1..6 (buffer holds 3..6)" => ring_of_four(6),
            "+ Worker-domain Cleared id7" => {
                let mut state = ring_of_four(6);
                state.cleared();
                state
            }
            // The one difference: a clear without a domain hides what was before it. None of ours is without one, so the
            // whole range is told, and the next id that exists begins it.
            "+ domainless Cleared id8 + store id9" => {
                let mut state = ring_of_four(6);
                state.cleared();
                state.cleared();
                grow(&mut state, 9);
                let answer = printed(state.answer(&query(Some(6), None)));
                assert_eq!(answer, serde_json::json!({"Events": {"ids": [6, 7, 8, 9], "last_event_id": 9}}));
                continue;
            }
            "+ non-consecutive id12 (gap 10,11)" => {
                let mut state = ring_of_four(9);
                state.missed();
                state.missed();
                grow(&mut state, 10);
                state
            }
            other => panic!("a state this test does not know: {other}"),
        };
        let answer = state.answer(&query(case["start"].as_u64(), case["end"].as_u64()));
        assert_eq!(printed(answer), case["response"], "{case}");
        held += 1;
    }
    assert_eq!(held, 15);
}

#[test]
fn blocks_with_media_hash_as_1_6_1_hashes_them() {
    let vectors = testkit::vectors::load("hash");
    let cases = vectors["router_mm"].as_array().unwrap();
    for case in cases {
        let size = case["block_size"].as_u64().unwrap() as u32;
        let locals: Vec<u64> = case["local"].as_array().unwrap().iter().map(|local| local.as_str().unwrap().parse().unwrap()).collect();
        let window = if case["is_eagle"].as_bool() == Some(true) { Window::Eagle } else { Window::Plain };
        let tokens = locals.len() * size as usize + usize::from(window == Window::Eagle && !locals.is_empty());
        let mut block_mm_infos: Vec<_> = case["block_mm_hashes"].as_array().unwrap().iter().map(media_of).collect();
        block_mm_infos.resize(locals.len(), None);
        let call = StoredCall {
            token_ids: case["tokens"].as_array().unwrap().iter().take(tokens).map(|token| token.as_u64().unwrap() as u32).collect(),
            num_block_tokens: vec![size; locals.len()],
            block_hashes: (0..locals.len() as u64).collect(),
            lora_name: case["lora_name"].as_str().map(str::to_owned),
            block_mm_infos,
            window,
            ..StoredCall::default()
        };
        let mut state = PublisherState::new(PublisherConfig::new(7, 1, BlockSize::new(size).unwrap()));
        let told: Vec<_> = state.stored(&call).unwrap().iter().flat_map(tokens_hashes).collect();
        assert_eq!(told, locals, "{case}");
    }
    assert_eq!(cases.len(), 112);
}

fn media_of(hashes: &Value) -> Option<MediaInfo> {
    let object = |hash: &Value| MediaObject {
        hash: hash.as_str().map_or_else(|| hash.as_u64().unwrap(), |hash| hash.parse().unwrap()),
        offsets: vec![],
    };
    Some(MediaInfo { objects: hashes.as_array()?.iter().map(object).collect() })
}

fn tokens_hashes(event: &RouterEvent) -> Vec<u64> {
    match &event.event.data {
        KvData::Stored(stored) => stored.blocks.iter().map(|block| block.tokens_hash).collect(),
        KvData::Removed(_) | KvData::Cleared => vec![],
    }
}
