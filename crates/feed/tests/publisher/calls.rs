//! Calls that are refused, and what each says; copies, orphans, tiers, seeds; how events are cut into messages.

use feed::publisher::{CallError, MESSAGE_BLOCKS, MESSAGE_EVENTS, PublisherConfig, PublisherState, StoredCall, partition};
use index::{BlockSize, LocalHash, Seed, Window, local_hashes};
use wire::router::{KvData, MediaInfo, MediaObject, RouterEvent, Tier};

use crate::model::{block_size, call, state};

fn stored(event: &RouterEvent) -> (Option<u64>, Vec<u64>) {
    match &event.event.data {
        KvData::Stored(stored) => (stored.parent_hash, stored.blocks.iter().map(|block| block.block_hash).collect()),
        KvData::Removed(_) | KvData::Cleared => panic!("{event:?} is no store"),
    }
}

fn locals(event: &RouterEvent) -> Vec<u64> {
    match &event.event.data {
        KvData::Stored(stored) => stored.blocks.iter().map(|block| block.tokens_hash).collect(),
        KvData::Removed(_) | KvData::Cleared => panic!("{event:?} is no store"),
    }
}

#[test]
fn a_refused_call_changes_nothing_and_names_the_argument() {
    let mut state = state();
    state.stored(&call(None, &[(1, 10)])).unwrap();
    let before = (state.last_event_id(), state.digest(), state.names(), state.counters());
    let good = call(Some(1), &[(2, 20), (3, 30)]);
    let odd = [
        (StoredCall { num_block_tokens: vec![2], ..good.clone() }, "num_block_tokens has 1 entries where block_hashes has 2"),
        (StoredCall { num_block_tokens: vec![2, 3], ..good.clone() }, "num_block_tokens[1] is 3, and kv_block_size is 2"),
        (StoredCall { token_ids: vec![1; 5], ..good.clone() }, "token_ids has 5 entries where the blocks take 4"),
        (StoredCall { window: Window::Eagle, ..good.clone() }, "token_ids has 4 entries where the blocks take 5"),
        (StoredCall { block_mm_infos: vec![None], ..good.clone() }, "block_mm_infos has 1 entries where block_hashes has 2"),
        (StoredCall { block_hashes: vec![2, 2], ..good.clone() }, "block_hashes[0] and block_hashes[1] are both 2"),
        (StoredCall { parent_hash: Some(3), ..good.clone() }, "parent_hash 3 is also block_hashes[1]"),
    ];
    for (call, says) in odd {
        assert_eq!(state.stored(&call).unwrap_err().to_string(), says);
        assert_eq!(before, (state.last_event_id(), state.digest(), state.names(), state.counters()));
    }
    assert_eq!(stored(&state.stored(&good).unwrap()[0]), (Some(1), vec![2, 3]));
}

#[test]
fn a_store_that_finds_no_room_changes_nothing() {
    let limit = index::Limits::default().chain_blocks;
    let (mut state, blocks) = (state(), (0..=limit as u64).map(|name| (name, 1)).collect::<Vec<_>>());
    let refused = state.stored(&call(None, &blocks)).unwrap_err();
    assert_eq!(refused, CallError::Full(index::Refusal::ChainTooLong { limit }));
    assert_eq!((state.names(), state.last_event_id(), state.digest()), (0, 0, Some(0)));
}

#[test]
fn copies_are_counted_and_only_the_first_and_the_last_are_told() {
    let mut state = state();
    let tell = |state: &mut PublisherState| state.stored(&call(None, &[(1, 10), (2, 20)])).unwrap().len();
    assert_eq!((tell(&mut state), tell(&mut state)), (1, 0));
    let longer = state.stored(&call(None, &[(1, 10), (2, 20), (3, 30)])).unwrap();
    assert_eq!(stored(&longer[0]), (Some(2), vec![3]), "what is held is not told again");
    assert!(state.removed(&[1, 2], Tier::Device).is_empty());
    let gone = state.removed(&[1, 2, 3, 9], Tier::Device);
    assert_eq!(gone[0].event.data, KvData::Removed(vec![3]), "one copy of 1 and 2 is left, 9 was never held");
    assert_eq!(state.removed(&[2, 1], Tier::Device)[0].event.data, KvData::Removed(vec![2, 1]));
    assert_eq!((state.digest(), state.counters().unknown_removals), (Some(0), 1));
}

#[test]
fn ids_count_from_1_and_a_missed_call_leaves_a_hole() {
    let mut state = state();
    let ids = |events: Vec<RouterEvent>| events.into_iter().map(|event| event.event.event_id).collect::<Vec<_>>();
    assert_eq!(state.last_event_id(), 0);
    assert_eq!(ids(state.stored(&call(None, &[(1, 10)])).unwrap()), [1]);
    state.missed();
    assert_eq!(state.last_event_id(), 1, "nothing new can be asked for yet");
    assert_eq!((ids(state.removed(&[1], Tier::Device)), ids(vec![state.cleared()])), (vec![3], vec![4]));
    assert_eq!((state.last_event_id(), state.counters().missed), (4, 1));
}

#[test]
fn a_child_waits_for_its_parent_and_comes_out_behind_it() {
    let mut state = state();
    assert!(state.stored(&call(Some(1), &[(2, 20), (3, 30)])).unwrap().is_empty());
    assert!(state.stored(&call(Some(3), &[(4, 40)])).unwrap().is_empty());
    assert!(state.removed(&[2], Tier::Device).is_empty());
    assert_eq!(state.counters().orphans, 2);
    let events = state.stored(&call(None, &[(1, 10)])).unwrap();
    let data: Vec<_> = events.iter().map(|event| &event.event.data).collect();
    assert_eq!((stored(&events[0]), stored(&events[1])), ((None, vec![1]), (Some(1), vec![2, 3])));
    assert!(data.contains(&&KvData::Removed(vec![2])), "what was removed meanwhile: {data:?}");
    assert!(events.iter().any(|event| matches!(&event.event.data, KvData::Stored(stored) if stored.parent_hash == Some(3))));
    assert_eq!((state.counters().orphans, state.names()), (0, 3));
}

#[test]
fn children_that_wait_are_bounded_and_the_oldest_goes_first() {
    let mut state = state();
    for name in 0..5000 {
        state.stored(&call(Some(1 << 40), &[(name, 10)])).unwrap();
    }
    let counters = state.counters();
    assert_eq!((counters.orphans, counters.orphans_dropped), (4096, 904));
    let events = state.stored(&call(None, &[(1 << 40, 1)])).unwrap();
    assert_eq!((events.len(), state.names()), (4097, 4097));
    assert_eq!(stored(&events[1]), (Some(1 << 40), vec![904]));
}

#[test]
fn children_have_the_adapter_and_salt_of_their_parent() {
    let hashed = |tokens: &[u32], seed| {
        let mut locals = Vec::new();
        local_hashes(tokens, block_size(), seed, Window::Plain, &mut locals);
        locals.into_iter().map(|local| local.0).collect::<Vec<_>>()
    };
    let mut state = state();
    let salted = Seed::new(Some("sql"), Some("tenant"));
    let root = StoredCall { lora_name: Some("sql".into()), cache_salt: Some("tenant".into()), ..call(None, &[(1, 10)]) };
    assert_eq!(locals(&state.stored(&root).unwrap()[0]), hashed(&[10, 11], salted));
    let child = StoredCall { lora_name: Some("sql".into()), ..call(Some(1), &[(2, 20)]) };
    assert_eq!(locals(&state.stored(&child).unwrap()[0]), hashed(&[20, 21], salted));
    // The same where the child came first.
    state.cleared();
    state.stored(&child).unwrap();
    assert_eq!(locals(&state.stored(&root).unwrap()[1]), hashed(&[20, 21], salted));
    let chain: Vec<_> = hashed(&[10, 11, 20, 21], salted).into_iter().map(LocalHash).collect();
    assert_eq!(state.find_matches(&chain), Some(2));
}

#[test]
fn media_are_part_of_a_block_and_travel_with_it() {
    let object = |hash| MediaObject { hash, offsets: vec![(0, 1)] };
    let info = MediaInfo { objects: vec![object(9), object(4)] };
    let mut state = state();
    let with = StoredCall { block_mm_infos: vec![Some(info.clone()), None], ..call(None, &[(1, 10), (2, 20)]) };
    let event = state.stored(&with).unwrap().remove(0);
    let text = state.stored(&call(None, &[(3, 10), (4, 20)])).unwrap().remove(0);
    assert_ne!(locals(&event)[0], locals(&text)[0]);
    assert_eq!(locals(&event)[1], locals(&text)[1]);
    let KvData::Stored(stored) = event.event.data else { panic!("no store") };
    assert_eq!((&stored.blocks[0].media, &stored.blocks[1].media), (&Some(info), &None));
}

#[test]
fn each_tier_is_a_set_of_its_own_and_a_clear_empties_all() {
    let mut state = state();
    let host = StoredCall { tier: Tier::HostPinned, ..call(None, &[(1, 10), (2, 20)]) };
    state.stored(&call(None, &[(1, 10), (2, 20)])).unwrap();
    let told = state.stored(&host).unwrap();
    assert_eq!((told[0].storage_tier, stored(&told[0])), (Tier::HostPinned, (None, vec![1, 2])));
    assert!(state.stored(&host).unwrap().is_empty());
    let beyond = StoredCall { tier: Tier::Disk, ..call(Some(2), &[(3, 30)]) };
    assert_eq!(stored(&state.stored(&beyond).unwrap()[0]), (Some(2), vec![3]), "a tier goes on where another ends");
    assert_eq!(state.removed(&[1], Tier::Device).len(), 1);
    assert!(state.removed(&[1, 2], Tier::HostPinned).is_empty(), "a copy is left");
    let dumped = crate::answers::dump(&mut state);
    let mut tiers: Vec<_> = dumped.iter().map(|event| event.storage_tier.name()).collect();
    tiers.dedup();
    assert_eq!(tiers, ["device", "host_pinned", "disk"]);
    assert_eq!(state.cleared().event.data, KvData::Cleared);
    assert!(crate::answers::dump(&mut state).is_empty());
    assert!(state.removed(&[2], Tier::HostPinned).is_empty());
}

#[test]
fn a_publisher_that_is_live_only_counts_the_same() {
    let config = PublisherConfig { local_indexer: false, ..PublisherConfig::new(7, 1, block_size()) };
    let mut live = PublisherState::new(config);
    assert_eq!(live.stored(&call(None, &[(1, 10), (2, 20)])).unwrap().len(), 1);
    assert!(live.stored(&call(None, &[(1, 10), (2, 20)])).unwrap().is_empty());
    assert_eq!(live.removed(&[1], Tier::Device).len(), 0);
    assert_eq!(live.removed(&[1], Tier::Device).len(), 1);
    assert_eq!((live.digest(), live.find_matches(&[]), live.ring_size()), (None, None, (0, 0)));
}

#[test]
fn messages_are_bounded_in_events_and_blocks() {
    let size = BlockSize::new(1).unwrap();
    let mut state = PublisherState::new(PublisherConfig::new(7, 1, size));
    let run = |from: u64, blocks: usize| StoredCall {
        token_ids: vec![from as u32; blocks],
        num_block_tokens: vec![1; blocks],
        block_hashes: (from..from + blocks as u64).collect(),
        ..StoredCall::default()
    };
    let mut events = state.stored(&run(1 << 32, 2 * MESSAGE_BLOCKS + 5)).unwrap();
    assert_eq!(events.iter().map(|event| stored(event).1.len()).collect::<Vec<_>>(), [MESSAGE_BLOCKS, MESSAGE_BLOCKS, 5]);
    assert_eq!(stored(&events[1]).0, stored(&events[0]).1.last().copied(), "one event goes on where the other ends");
    for at in 0..300 {
        events.extend(state.stored(&run(at * 100, 70)).unwrap());
    }
    let messages: Vec<_> = partition(&events).collect();
    assert_eq!(messages.concat(), events);
    for message in &messages {
        let blocks: usize = message.iter().map(|event| stored(event).1.len()).sum();
        assert!(message.len() <= MESSAGE_EVENTS && blocks <= MESSAGE_BLOCKS);
    }
    assert_eq!(messages.len(), 2 + 3);
}
