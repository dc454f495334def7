//! Answers to those who missed events: decisions, dumps, pages, shared snapshots.

use feed::publisher::{Call, PAGE_BLOCKS, PublisherConfig, PublisherState, Reply, StoredCall};
use index::BlockSize;
use wire::{
    recovery::{Answer, Query},
    router::{KvData, RouterEvent, Tier},
};

use crate::model::{Consumer, call, state};

pub(crate) fn query(start_event_id: Option<u64>, end_event_id: Option<u64>) -> Query {
    Query { worker_id: 7, dp_rank: 1, start_event_id, end_event_id, supports_tree_dump_failed: true, pages: false }
}

/// Everything the state holds, as it dumps it.
pub(crate) fn dump(state: &mut PublisherState) -> Vec<RouterEvent> {
    let last = state.last_event_id();
    match state.answer(&query(None, None)) {
        Answer::TreeDump { events, last_event_id, .. } => {
            assert_eq!(last_event_id, last);
            events
        }
        other => panic!("{other:?} is no dump"),
    }
}

fn ids(answer: Answer) -> (Vec<u64>, u64) {
    match answer {
        Answer::Events { events, last_event_id } => (events.iter().map(|event| event.event.event_id).collect(), last_event_id),
        other => panic!("{other:?} are no events"),
    }
}

#[test]
fn a_strange_asker_is_told_why() {
    let mut state = state();
    let says = |state: &mut PublisherState, query: Query| match state.answer(&query) {
        Answer::Error(reason) => reason,
        other => panic!("{other:?} is no error"),
    };
    let worker = says(&mut state, Query { worker_id: 8, ..query(None, None) });
    assert_eq!(worker, "worker_id mismatch: asked for 8, this is 7");
    assert_eq!(says(&mut state, Query { dp_rank: 0, ..query(None, None) }), "dp_rank mismatch: asked for 0, this is 1");
    let config = PublisherConfig { local_indexer: false, ..state.config().clone() };
    assert!(says(&mut PublisherState::new(config), query(None, None)).contains("live only"));
}

#[test]
fn the_ring_is_bounded_in_bytes_too() {
    let config = PublisherConfig { ring_bytes: 64 << 10, ..state().config().clone() };
    let mut state = PublisherState::new(config);
    for name in 0..2000 {
        state.stored(&call(None, &[(name, name as u32)])).unwrap();
    }
    let (events, bytes) = state.ring_size();
    assert!((100..500).contains(&events) && bytes <= 64 << 10, "{events} events, {bytes} bytes");
    let oldest = 2000 - events as u64 + 1;
    assert_eq!(ids(state.answer(&query(Some(oldest), None))).0.len(), events);
    assert!(matches!(state.answer(&query(Some(oldest - 1), None)), Answer::TreeDump { last_event_id: 2000, .. }));
}

fn long(names: std::ops::Range<u64>, from: Option<u64>) -> StoredCall {
    StoredCall { parent_hash: from, ..call(None, &names.map(|name| (name, name as u32)).collect::<Vec<_>>()) }
}

#[test]
fn a_dump_comes_in_pages_and_the_last_one_is_marked() {
    let mut state = state();
    for at in 0..40_u64 {
        state.stored(&long(at * 1000..(at + 1) * 1000, None)).unwrap();
    }
    let items: Vec<_> = state.reply(&query(None, None)).into_items().collect();
    assert_eq!(items.iter().map(|item| item.page).collect::<Vec<_>>(), (0..items.len() as u32).collect::<Vec<_>>());
    assert_eq!(items.iter().filter(|item| item.last).count(), 1);
    assert!(items.last().unwrap().last && items.len() >= 40_000 / PAGE_BLOCKS);
    let mut consumer = Consumer::new();
    for item in items {
        let Answer::TreeDump { events, last_event_id, .. } = item.answer else { panic!("no dump") };
        assert_eq!(last_event_id, 40);
        events.iter().for_each(|event| consumer.fold(event));
    }
    assert_eq!(Some(consumer.digest()), state.digest());
    // Even of nothing there is a page.
    state.cleared();
    let items: Vec<_> = state.reply(&query(None, None)).into_items().collect();
    assert!(
        matches!(&items[..], [item] if item.last && matches!(&item.answer, Answer::TreeDump { events, last_event_id: 41, .. } if events.is_empty()))
    );
}

#[test]
fn many_events_come_in_pages_too() {
    let mut state = state();
    for name in 0..10_000 {
        state.stored(&call(None, &[(name, name as u32)])).unwrap();
    }
    let items: Vec<_> = state.reply(&query(Some(1), None)).into_items().collect();
    assert!(items.len() > 1);
    let told: Vec<_> = items.into_iter().flat_map(|item| ids(item.answer).0).collect();
    assert_eq!(told, (1..=10_000).collect::<Vec<_>>());
}

#[test]
fn those_who_ask_at_once_share_a_snapshot_and_get_what_came_since() {
    let mut state = state();
    state.stored(&long(0..100, None)).unwrap();
    let Reply::Dump { snapshot, tail, .. } = state.reply(&query(None, None)) else { panic!("no dump") };
    assert!(tail.is_empty());
    state.removed(&[50], Tier::Device);
    state.stored(&call(Some(10), &[(900, 3)])).unwrap();
    let Reply::Dump { snapshot: shared, tail, last_event_id } = state.reply(&query(None, None)) else { panic!("no dump") };
    assert!(std::sync::Arc::ptr_eq(&snapshot, &shared));
    assert_eq!((tail.len(), last_event_id), (2, 3));
    let mut consumer = Consumer::new();
    Reply::Dump { snapshot: shared, tail, last_event_id }.into_items().for_each(|item| {
        let Answer::TreeDump { events, .. } = item.answer else { panic!("no dump") };
        events.iter().for_each(|event| consumer.fold(event));
    });
    assert_eq!(Some(consumer.digest()), state.digest());
    // A clear makes a new one necessary, and nothing is kept for nobody.
    state.cleared();
    let Reply::Dump { snapshot: fresh, .. } = state.reply(&query(None, None)) else { panic!("no dump") };
    assert!(!std::sync::Arc::ptr_eq(&snapshot, &fresh));
    assert_eq!(std::sync::Arc::strong_count(&snapshot), 1);
}

#[test]
fn a_snapshot_is_of_one_instant_whatever_happens_while_it_is_told() {
    let mut state = state();
    for at in 0..40_u64 {
        state.stored(&long(at * 1000..(at + 1) * 1000, None)).unwrap();
    }
    let digest = state.digest();
    let items = state.reply(&query(None, None)).into_items();
    let mut consumer = Consumer::new();
    let mut at = 0;
    for item in items {
        let Answer::TreeDump { events, last_event_id: 40, .. } = item.answer else { panic!("no dump") };
        events.iter().for_each(|event| consumer.fold(event));
        state.removed(&(at..at + 7000).collect::<Vec<_>>(), Tier::Device);
        state.apply(&Call::Stored(long(100_000 + at..100_100 + at, None).checked(BlockSize::new(2).unwrap()).unwrap())).unwrap();
        at += 7000;
    }
    assert_eq!(Some(consumer.digest()), digest);
    assert_ne!(state.digest(), digest);
}

#[test]
fn every_name_of_a_block_is_dumped_and_a_hole_has_none() {
    let mut state = state();
    state.stored(&call(None, &[(1, 10), (2, 20), (3, 30)])).unwrap();
    state.stored(&call(Some(2), &[(33, 30)])).unwrap();
    state.removed(&[1], Tier::Device);
    let mut consumer = Consumer::new();
    dump(&mut state).iter().for_each(|event| consumer.fold(event));
    assert_eq!(consumer.names.iter().copied().collect::<Vec<_>>(), [2, 3, 33]);
    for event in [state.removed(&[3], Tier::Device), state.stored(&call(None, &[(1, 10)])).unwrap()].concat() {
        consumer.fold(&event);
    }
    assert_eq!(Some(consumer.digest()), state.digest());
    assert_eq!(state.blocks(), Some(3), "the third block has a name left");
}

#[test]
fn a_range_over_a_skipped_id_begins_with_the_next_one() {
    let mut state = state();
    state.stored(&call(None, &[(1, 10)])).unwrap();
    state.missed();
    state.missed();
    state.stored(&call(None, &[(2, 20)])).unwrap();
    assert_eq!(ids(state.answer(&query(Some(2), None))), (vec![4], 4));
    assert!(matches!(state.answer(&query(Some(5), None)), Answer::TooNew { requested_start: 5, requested_end: 4, newest_available: 4 }));
    assert!(matches!(&dump(&mut state)[..], [RouterEvent { event, .. }, ..] if matches!(event.data, KvData::Stored(_))));
}

#[test]
fn who_asks_for_everything_is_told_that_something_was_missed_until_the_next_clear() {
    let mut state = state();
    let lacks = |state: &mut PublisherState| {
        let items: Vec<_> = state.reply(&query(None, None)).into_items().collect();
        assert!(items.iter().all(|item| item.lacking == items[0].lacking));
        items[0].lacking
    };
    state.stored(&call(None, &[(1, 10)])).unwrap();
    assert!(!lacks(&mut state));
    state.missed();
    assert!(lacks(&mut state));
    state.cleared();
    assert!(!lacks(&mut state));
}

#[test]
fn a_hole_is_dumped_under_no_name_that_means_something_else() {
    let mut state = state();
    let told = state.stored(&call(None, &[(1, 10), (2, 20)])).unwrap();
    let KvData::Stored(stored) = &told[0].event.data else { panic!("no store") };
    // The first block's identity, and by chance the engine's name of another.
    let identity = stored.blocks[0].tokens_hash;
    state.removed(&[1], Tier::Device);
    state.stored(&call(None, &[(identity, 70)])).unwrap();
    let mut consumer = Consumer::new();
    dump(&mut state).iter().for_each(|event| consumer.fold(event));
    assert_eq!(consumer.names.iter().copied().collect::<Vec<_>>(), [2, identity]);
    assert_eq!(Some(consumer.digest()), state.digest());
}
