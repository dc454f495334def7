//! Rows 39 to 50 of the README's table, and 6 and 9: one publisher after the other, two at once, and records that come and go.

use std::time::Duration;

use feed::{
    Demand, Heeds, Trust,
    plane::{PlaneConfig, Source},
};
use wire::{
    recovery::Listing,
    router::{KvData, RouterEvent},
};

use crate::support::{Bench, NEWER, PUBLISHER, config, event, numbered, stored, tail};

/// The names that the newer publisher has for the same blocks.
fn renamed(id: u64) -> RouterEvent {
    let mut event = numbered(id);
    if let KvData::Stored(stored) = &mut event.event.data {
        stored.parent_hash = stored.parent_hash.map(|hash| hash + 1000);
        stored.blocks.iter_mut().for_each(|block| block.block_hash += 1000);
    }
    event
}

fn dump(events: impl IntoIterator<Item = RouterEvent>) -> Vec<Result<RouterEvent, wire::router::RouterEventError>> {
    events.into_iter().map(Ok).collect()
}

#[test]
fn the_older_publisher_serves_until_the_newer_one_is_complete() {
    let mut bench = Bench::following(5);
    bench.add(NEWER, true);
    bench.is(Trust::Recovering, 5);
    let query = bench.connect(NEWER).unwrap();
    assert_eq!((query.publisher_id, query.start_event_id), (NEWER, None));
    bench.live(6);
    assert_eq!(bench.overlap(6), 6, "the older one goes on");
    bench.live_of(NEWER, renamed(4));
    let page = |page, last| wire::recovery::Tail { last, ..tail(Listing::TreeDump, 3, page) };
    bench.page(query.id, Listing::TreeDump, dump([renamed(1), renamed(2)]), page(0, false));
    assert_eq!(bench.overlap(6), 6, "and the answer is not complete");
    bench.page(query.id, Listing::TreeDump, dump([renamed(3)]), page(1, true));
    bench.work();
    bench.is(Trust::Exact, 4);
    assert_eq!((bench.overlap(6), bench.stream().restarts, bench.rank().emptied), (4, 1, 1));
    bench.live(7);
    assert_eq!((bench.stream().strangers, bench.rank().blocks), (1, 4), "the older one is not listened to any more");
    bench.live_of(NEWER, renamed(5));
    bench.is(Trust::Exact, 5);
    assert_eq!(bench.remove(PUBLISHER), None);
    bench.is(Trust::Exact, 5);
}

#[test]
fn what_both_hold_is_held_all_the_time() {
    let mut bench = Bench::following(5);
    bench.add(NEWER, true);
    let query = bench.connect(NEWER).unwrap();
    // The same engine behind a new publisher: the same names. Block 3 is gone, and 9 is new.
    let events = dump([event(0, stored(None, &[1, 2, 3, 4])), event(1, stored(Some(2), &[9])), event(2, KvData::Removed(vec![3]))]);
    assert_eq!(bench.page(query.id, Listing::TreeDump, events, tail(Listing::TreeDump, 7, 0)), None);
    assert_eq!((bench.rank().blocks, bench.overlap(5)), (3, 2), "of 1 to 5, 1, 2 and 4 are on the list");
    bench.work();
    bench.is(Trust::Exact, 4);
    assert_eq!(bench.overlap(5), 2);
    bench.live_of(NEWER, event(8, stored(Some(2), &[3])));
    assert_eq!(bench.overlap(5), 4, "block 4 is in reach again");
}

#[test]
fn a_newer_publisher_that_does_not_answer_leaves_the_older_one_serving() {
    let mut bench = Bench::following(3);
    bench.add(NEWER, true);
    let query = bench.connect(NEWER).unwrap();
    bench.live_of(NEWER, renamed(1));
    assert_eq!(bench.fail(query), None);
    // Its events are there from the first on.
    bench.is(Trust::Exact, 1);

    let mut bench = Bench::following(3);
    bench.add(NEWER, true);
    let query = bench.connect(NEWER).unwrap();
    bench.live_of(NEWER, renamed(2));
    assert_eq!(bench.fail(query), None);
    bench.is(Trust::Degraded, 3);
    assert!(bench.rank().reason.contains("newer publisher"), "{}", bench.rank().reason);
    bench.live(4);
    bench.is(Trust::Degraded, 4);
    let query = bench.wait().1.unwrap();
    assert_eq!(query.publisher_id, NEWER);
    bench.list(query, Listing::TreeDump, dump([renamed(1)]), 1);
    bench.is(Trust::Exact, 2);
}

#[test]
fn a_newer_publisher_without_recovery_takes_over_with_its_first_event_or_a_clear() {
    let mut bench = Bench::following(3);
    bench.add(NEWER, false);
    bench.connect(NEWER);
    bench.is(Trust::Degraded, 3);
    bench.live_of(NEWER, renamed(1));
    bench.is(Trust::Exact, 1);

    let mut bench = Bench::following(3);
    bench.add(NEWER, false);
    bench.connect(NEWER);
    bench.live_of(NEWER, renamed(2));
    bench.is(Trust::Degraded, 3);
    bench.live_of(NEWER, event(5, KvData::Cleared));
    bench.is(Trust::Exact, 0);

    // Or when nobody else is left, with what it said since.
    let mut bench = Bench::following(3);
    bench.add(NEWER, false);
    bench.connect(NEWER);
    bench.live_of(NEWER, event(8, stored(None, &[50])));
    assert_eq!(bench.remove(PUBLISHER), None);
    bench.is(Trust::Degraded, 3);
    let (waited, _) = bench.wait();
    assert_eq!(waited, Duration::from_secs(30));
    bench.is(Trust::Degraded, 1);
}

#[test]
fn a_record_that_comes_back_costs_a_question_and_no_dump() {
    let mut bench = Bench::following(3);
    bench.disconnect(PUBLISHER);
    assert_eq!(bench.remove(PUBLISHER), None);
    bench.is(Trust::Degraded, 3);
    assert_eq!(bench.live(4), None);
    bench.pass(Duration::from_secs(29));
    bench.add(PUBLISHER, true);
    bench.is(Trust::Recovering, 3);
    let query = bench.connect(PUBLISHER).unwrap();
    assert_eq!(query.start_event_id, Some(4));
    bench.ring(query, [4], 4);
    bench.is(Trust::Exact, 4);
    assert_eq!((bench.stream().dumps, bench.stream().restarts), (1, 0));
}

#[test]
fn blocks_of_a_publisher_that_is_gone_are_kept_for_its_successor_and_not_for_ever() {
    let mut bench = Bench::following(3);
    bench.remove(PUBLISHER);
    bench.is(Trust::Degraded, 3);
    bench.add(NEWER, true);
    bench.is(Trust::Recovering, 3);
    let query = bench.connect(NEWER).unwrap();
    bench.list(query, Listing::TreeDump, dump([renamed(1), renamed(2)]), 2);
    bench.is(Trust::Exact, 2);
    assert_eq!(bench.stream().restarts, 1);

    bench.remove(NEWER);
    assert_eq!(bench.wait(), (Duration::from_secs(30), None));
    bench.is(Trust::Blind, 0);
    assert_eq!(bench.feed.deadline(), None);
}

#[test]
fn the_older_publisher_is_asked_again_when_the_newer_one_goes() {
    let mut bench = Bench::following(3);
    bench.add(NEWER, true);
    let query = bench.connect(NEWER).unwrap();
    bench.list(query, Listing::TreeDump, dump([renamed(1)]), 1);
    bench.pass(Duration::from_secs(2));
    let query = bench.remove(NEWER).unwrap();
    assert_eq!((query.publisher_id, query.start_event_id), (PUBLISHER, None));
    bench.is(Trust::Recovering, 1);
    bench.dump(query, 1..=4, 4);
    bench.is(Trust::Exact, 4);
}

#[test]
fn an_older_answer_does_not_replace_a_newer_publisher_that_is_back() {
    let mut bench = Bench::following(3);
    bench.add(NEWER, true);
    let query = bench.connect(NEWER).unwrap();
    bench.list(query, Listing::TreeDump, dump([renamed(1)]), 1);
    bench.pass(Duration::from_secs(2));
    let late = bench.remove(NEWER).unwrap();
    bench.add(NEWER, true);
    assert_eq!(bench.dump(late, 1..=4, 4), None);
    assert_eq!(bench.rank().blocks, 1);
    let query = bench.connect(NEWER).unwrap();
    bench.list(query, Listing::Events, Vec::new(), 1);
    bench.is(Trust::Exact, 1);
}

#[test]
fn a_takeover_that_is_interrupted_leaves_nothing() {
    let mut bench = Bench::following(3);
    bench.add(NEWER, true);
    let query = bench.connect(NEWER).unwrap();
    bench.page(query.id, Listing::TreeDump, dump([renamed(1)]), tail(Listing::TreeDump, 1, 0));
    bench.remove(NEWER);
    bench.remove(PUBLISHER);
    bench.is(Trust::Blind, 0);
}

#[test]
fn of_two_publishers_that_were_there_before_us_none_is_believed() {
    let mut bench = Bench::new(config());
    for publisher_id in [PUBLISHER, NEWER] {
        bench.feed.source_added(bench.now, Source { publisher_id, recoverable: true });
    }
    let first = bench.connect(PUBLISHER).unwrap();
    let second = bench.connect(NEWER).unwrap();
    bench.dump(first, 1..=2, 2);
    bench.is(Trust::Recovering, 2);
    bench.list(second, Listing::TreeDump, dump([renamed(1)]), 1);
    bench.is(Trust::Degraded, 1);
    assert!(bench.rank().reason.contains("two publishers"), "{}", bench.rank().reason);
    bench.remove(PUBLISHER);
    bench.is(Trust::Exact, 1);
}

#[test]
fn of_many_publishers_the_oldest_are_left_out() {
    let mut bench = Bench::following(3);
    for id in 100..120 {
        bench.add(id, false);
    }
    for id in 100..120 {
        bench.live_of(id, renamed(2));
    }
    assert_eq!(bench.stream().strangers, 13, "seven newer ones beside the one that serves");
    bench.live(4);
    assert_eq!(bench.rank().blocks, 4);
}

#[test]
fn a_reset_clears_at_once_and_is_exact_again_with_the_engines_event() {
    let mut bench = Bench::following(3);
    bench.feed.reset(bench.now);
    bench.is(Trust::Recovering, 0);
    bench.live_of(PUBLISHER, event(4, stored(None, &[9])));
    bench.is(Trust::Recovering, 1);
    bench.live_of(PUBLISHER, event(5, KvData::Cleared));
    bench.is(Trust::Exact, 0);
    // A dump may have the clear in it. What comes long after shows that none is to come.
    bench.feed.reset(bench.now);
    let query = bench.live(9).unwrap();
    bench.list(query, Listing::TreeDump, dump([numbered(1)]), 9);
    bench.is(Trust::Recovering, 1);
    bench.pass(Duration::from_secs(11));
    bench.live_of(PUBLISHER, event(10, stored(Some(1), &[2])));
    bench.is(Trust::Exact, 2);
}

#[test]
fn full_reports_are_degraded_until_a_clear() {
    let mut bench = Bench::following(3);
    for demand in [Demand::Salt, Demand::Adapter, Demand::NumberedAdapter] {
        bench.feed.demanded(bench.now, crate::support::RANK, demand);
        bench.is(Trust::Exact, 3);
        assert!(!bench.rank().hides(demand));
    }
    bench.feed.demanded(bench.now, crate::support::RANK, Demand::FullReports);
    bench.is(Trust::Degraded, 3);
    bench.pass(Duration::from_secs(11));
    bench.live_of(PUBLISHER, event(4, KvData::Cleared));
    bench.is(Trust::Exact, 0);
}

#[test]
fn a_query_that_waits_for_its_turn_has_no_deadline() {
    let mut bench = Bench::following(3);
    let query = bench.live(5).unwrap();
    bench.feed.query_waits(bench.now, query.id);
    assert_eq!(bench.feed.deadline(), None);
    bench.is(Trust::Recovering, 3);
    bench.pass(Duration::from_secs(3600));
    assert_eq!(bench.feed.tick(bench.now), None);
    bench.feed.query_begins(bench.now, query.id);
    assert_eq!(bench.feed.deadline(), Some(bench.now + Duration::from_secs(30)));
    bench.ring(query, 4..=5, 5);
    bench.is(Trust::Exact, 5);
    assert_eq!(bench.stream().replay_waits, 1);
}

#[test]
fn without_a_block_size_nothing_is_asked_or_believed() {
    let mut bench = Bench::new(PlaneConfig { block_size: None, ..config() });
    bench.add(PUBLISHER, true);
    assert_eq!(bench.connect(PUBLISHER), None);
    bench.live(1);
    bench.is(Trust::Blind, 0);
    assert!(bench.rank().reason.contains("block size"), "{}", bench.rank().reason);
    assert_eq!((bench.feed.deadline(), bench.stream().held_bytes), (None, 0));
}

#[test]
fn dropping_the_feed_retracts_its_blocks() {
    let Bench { feed, catalog, .. } = Bench::following(3);
    let indexer = catalog.of_model("model").remove(0);
    assert_eq!(indexer.distinct_blocks(), 3);
    drop(feed);
    assert_eq!(indexer.distinct_blocks(), 0);
}
