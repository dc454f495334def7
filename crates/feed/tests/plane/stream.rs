//! Rows 1 to 25 of the README's table (6 and 9 are in `publishers.rs`): events as they come, gaps and answers, one block per event.

use std::time::Duration;

use feed::{Trust, plane::PlaneLimits};
use wire::{
    recovery::{Answer, Listing},
    router::KvData,
};

use crate::support::{Bench, NEWER, PUBLISHER, config, event, from, numbered, stored, tail};

#[test]
fn a_publisher_is_asked_for_everything_once_its_events_come() {
    let mut bench = Bench::new(config());
    bench.is(Trust::Blind, 0);
    bench.add(PUBLISHER, true);
    bench.is(Trust::Blind, 0);
    assert_eq!(&*bench.rank().reason, "not connected");
    let query = bench.connect(PUBLISHER);
    assert_eq!(from(query), None);
    bench.is(Trust::Recovering, 0);
    assert_eq!(bench.live(4), None, "held");
    assert_eq!(bench.dump(query.unwrap(), 1..=3, 3), None);
    bench.is(Trust::Exact, 4);
    assert_eq!((bench.stream().last_seq, bench.stream().dumps, bench.gaps()), (Some(4), 1, (0, 0, 0, 0)));
}

#[test]
fn without_recovery_the_first_event_starts_it() {
    let mut bench = Bench::live_only(2);
    bench.is(Trust::Exact, 2);

    bench = Bench::new(config());
    bench.add(PUBLISHER, false);
    bench.connect(PUBLISHER);
    assert_eq!(bench.live_of(PUBLISHER, event(5, stored(None, &[1]))), None);
    bench.is(Trust::Degraded, 1);
    assert!(bench.rank().reason.contains("joined at event 5"), "{}", bench.rank().reason);
    bench.live_of(PUBLISHER, event(6, stored(Some(1), &[2])));
    bench.is(Trust::Degraded, 2);
    bench.live_of(PUBLISHER, event(7, KvData::Cleared));
    bench.is(Trust::Exact, 0);
}

#[test]
fn a_publisher_that_does_not_answer_is_followed_from_its_first_event() {
    let mut bench = Bench::new(config());
    bench.add(PUBLISHER, true);
    let query = bench.connect(PUBLISHER).unwrap();
    bench.live(1);
    assert_eq!(bench.fail(query), None);
    bench.is(Trust::Exact, 1);
    assert_eq!(bench.live(2), None);
    bench.is(Trust::Exact, 2);
}

#[test]
fn a_publisher_that_does_not_answer_is_degraded_until_it_does() {
    let mut bench = Bench::new(config());
    bench.add(PUBLISHER, true);
    let query = bench.connect(PUBLISHER).unwrap();
    assert_eq!(bench.fail(query), None);
    bench.is(Trust::Blind, 0);
    bench.live_of(PUBLISHER, event(5, stored(None, &[1])));
    bench.is(Trust::Degraded, 1);
    let (waited, query) = bench.wait();
    assert!((200..=250).contains(&waited.as_millis()), "{waited:?}");
    assert_eq!(from(query), None);
    bench.live_of(PUBLISHER, event(6, stored(Some(1), &[2])));
    bench.dump(query.unwrap(), [1], 5);
    bench.is(Trust::Exact, 2);
}

#[test]
fn a_clear_makes_whole_whatever_is_missing() {
    let mut bench = Bench::following(3);
    let query = bench.live(6).unwrap();
    assert_eq!(bench.live_of(PUBLISHER, event(9, KvData::Cleared)), None);
    bench.is(Trust::Exact, 0);
    assert_eq!(bench.gaps(), (1, 0, 1, 0));
    bench.ring(query, 4..=9, 9);
    bench.is(Trust::Exact, 0);
    bench.live_of(PUBLISHER, event(10, stored(None, &[1])));
    bench.is(Trust::Exact, 1);

    let mut bench = Bench::new(config());
    bench.add(PUBLISHER, true);
    bench.connect(PUBLISHER);
    bench.live_of(PUBLISHER, event(40, KvData::Cleared));
    bench.is(Trust::Exact, 0);
    assert_eq!(bench.feed.deadline(), Some(bench.now + Duration::from_secs(2)), "there is nothing to ask but whether more came");
}

#[test]
fn the_next_event_is_folded_in_and_a_lower_one_is_a_duplicate() {
    let mut bench = Bench::following(3);
    assert_eq!(bench.live(4), None);
    bench.is(Trust::Exact, 4);
    for id in [4, 1] {
        assert_eq!(bench.live(id), None);
    }
    bench.is(Trust::Exact, 4);
    assert_eq!(bench.stream().duplicates, 2);
    bench.live(6);
    bench.live(6);
    assert_eq!(bench.stream().duplicates, 3);
}

#[test]
fn a_gap_is_asked_for_from_the_event_after_the_last() {
    let mut bench = Bench::following(3);
    let query = bench.live(6);
    assert_eq!(from(query), Some(4));
    bench.is(Trust::Recovering, 3);
    bench.ring(query.unwrap(), 4..=6, 6);
    bench.is(Trust::Exact, 6);
    assert_eq!(bench.gaps(), (1, 1, 0, 0));
}

#[test]
fn without_recovery_a_gap_is_degraded_and_blocks_stay() {
    let mut bench = Bench::live_only(3);
    assert_eq!(bench.live_of(PUBLISHER, event(6, stored(None, &[9]))), None);
    bench.is(Trust::Degraded, 4);
    assert_eq!((bench.gaps(), bench.feed.deadline()), ((1, 0, 0, 1), None));
    assert_eq!(bench.overlap(3), 3);
    bench.live_of(PUBLISHER, event(7, KvData::Cleared));
    bench.is(Trust::Exact, 0);
}

#[test]
fn the_event_that_was_missing_needs_no_answer_when_it_comes_late() {
    let mut bench = Bench::following(3);
    let query = bench.live(5);
    assert_eq!(from(query), Some(4));
    bench.live(4);
    assert_eq!((bench.rank().blocks, bench.gaps()), (5, (1, 1, 0, 0)));
    bench.live(6);
    assert_eq!(bench.rank().blocks, 6, "nothing waits that need not");
    bench.ring(query.unwrap(), 4..=5, 5);
    bench.is(Trust::Exact, 6);
    assert_eq!(bench.gaps(), (1, 1, 0, 0));
}

#[test]
fn several_gaps_during_one_query_cost_one_query() {
    let mut bench = Bench::following(3);
    let query = bench.live(6);
    for id in [8, 11, 15] {
        assert_eq!(bench.live(id), None);
    }
    bench.ring(query.unwrap(), 4..=15, 15);
    bench.is(Trust::Exact, 15);
    assert_eq!((bench.stream().replay_requests, bench.gaps()), (2, (1, 1, 0, 0)));
}

#[test]
fn gaps_behind_the_answer_are_asked_for_after_it() {
    let mut bench = Bench::following(3);
    let query = bench.live(6).unwrap();
    bench.live(9);
    assert_eq!(bench.ring(query, 4..=7, 7), None, "a moment later");
    bench.is(Trust::Recovering, 7);
    let (waited, query) = bench.wait();
    assert_eq!((waited, from(query)), (Duration::from_millis(400), Some(8)), "the first one was for everything");
    bench.ring(query.unwrap(), 8..=9, 9);
    bench.is(Trust::Exact, 9);
    assert_eq!(bench.gaps(), (1, 1, 0, 0), "it ends when nothing is missing any more");
}

#[test]
fn events_without_room_are_a_gap_after_the_answer() {
    let limits = PlaneLimits { held_bytes: 700, ..PlaneLimits::default() };
    let mut bench = Bench::following_within(feed::plane::PlaneConfig { limits, ..config() }, 3);
    let query = bench.live(6).unwrap();
    for id in 7..=12 {
        bench.live(id);
    }
    let stream = bench.stream();
    assert!(stream.held_overflow > 3 && stream.held_bytes <= 700, "{stream:?}");
    bench.ring(query, 4..=6, 6);
    bench.is(Trust::Recovering, 6 + 7 - 1 - stream.held_overflow as usize);
    let query = bench.wait().1;
    bench.ring(query.unwrap(), 7..=12, 12);
    bench.is(Trust::Exact, 12);
    assert_eq!(bench.stream().held_bytes, 0);
}

#[test]
fn what_the_publisher_does_not_have_is_missing_for_good() {
    let mut bench = Bench::following(3);
    let query = bench.live_of(PUBLISHER, event(6, stored(None, &[9]))).unwrap();
    bench.list(query, Listing::Events, vec![Ok(numbered(4)), Ok(event(6, stored(None, &[9])))], 6);
    bench.is(Trust::Degraded, 5);
    assert!(bench.rank().reason.contains("events 5 to 5 are missing"), "{}", bench.rank().reason);
    assert_eq!(bench.gaps(), (1, 0, 0, 1));
    bench.live_of(PUBLISHER, event(7, stored(Some(9), &[10])));
    bench.is(Trust::Degraded, 6);
    bench.pass(Duration::from_secs(3));
    let query = bench.work().unwrap();
    assert_eq!(query.start_event_id, Some(8), "and is not asked for again");
}

#[test]
fn what_is_missing_behind_an_answer_is_missing_for_good_as_well() {
    let mut bench = Bench::following(3);
    let query = bench.live_of(PUBLISHER, event(6, stored(None, &[9]))).unwrap();
    bench.ring(query, [4], 6);
    bench.is(Trust::Degraded, 5);
    assert_eq!((bench.stream().last_seq, bench.gaps()), (Some(6), (1, 0, 0, 1)));

    // What came live is not lost with what the answer does not have.
    let mut bench = Bench::following(3);
    let alone = |id| event(id, stored(None, &[100 + id]));
    let query = bench.live_of(PUBLISHER, alone(6)).unwrap();
    bench.live_of(PUBLISHER, alone(8));
    bench.list(query, Listing::Events, vec![Ok(numbered(4)), Ok(alone(9))], 9);
    bench.is(Trust::Degraded, 3 + 4);

    let mut bench = Bench::following(3);
    let query = bench.feed.dropped(bench.now, PUBLISHER, 1).unwrap();
    bench.ring(query, [4], 6);
    bench.is(Trust::Degraded, 4);
    assert_eq!(bench.stream().last_seq, Some(6));
}

#[test]
fn a_gap_older_than_the_ring_is_rebuilt_from_a_dump() {
    let mut bench = Bench::following(3);
    let query = bench.live(60).unwrap();
    let blocks = vec![Ok(event(0, stored(None, &[1, 2]))), Ok(event(1, stored(Some(2), &[70, 71])))];
    bench.list(query, Listing::TreeDump, blocks, 60);
    bench.is(Trust::Exact, 4);
    assert_eq!((bench.gaps(), bench.stream().dumps, bench.stream().last_seq), ((1, 0, 1, 0), 2, Some(60)));
    assert_eq!(bench.overlap(3), 2);
}

#[test]
fn too_new_means_that_nothing_is_missing() {
    let mut bench = Bench::following(3);
    bench.disconnect(PUBLISHER);
    bench.is(Trust::Recovering, 3);
    let query = bench.connect(PUBLISHER);
    assert_eq!(from(query), Some(4));
    bench.is(Trust::Recovering, 3);
    assert_eq!(bench.too_new(query.unwrap(), 3), None);
    bench.is(Trust::Exact, 3);
    assert_eq!(bench.gaps(), (0, 0, 0, 0));
}

#[test]
fn a_publisher_that_forgot_what_it_published_is_asked_for_everything() {
    let mut bench = Bench::following(9);
    bench.disconnect(PUBLISHER);
    let query = bench.connect(PUBLISHER).unwrap();
    assert_eq!(bench.too_new(query, 2), None);
    bench.is(Trust::Recovering, 9);
    let query = bench.wait().1;
    assert_eq!(from(query), None);
    bench.dump(query.unwrap(), 1..=2, 2);
    bench.is(Trust::Exact, 2);
    assert_eq!((bench.stream().restarts, bench.stream().last_seq), (1, Some(2)));
    bench.live(3);
    bench.is(Trust::Exact, 3);

    // The same shows in an answer from the ring that ends before what was heard.
    let mut bench = Bench::following(9);
    let query = bench.live(12).unwrap();
    bench.ring(query, 10..=11, 11);
    bench.is(Trust::Recovering, 11);
    let query = bench.wait().1;
    assert_eq!(from(query), None);
}

/// Row 12a.
#[test]
fn live_events_far_below_what_the_publisher_told_of_deny_it() {
    let mut bench = Bench::new(config());
    bench.add(PUBLISHER, true);
    let query = bench.connect(PUBLISHER).unwrap();
    bench.dump(query, 1..=3, u64::MAX);
    bench.is(Trust::Exact, 3);
    bench.live(4);
    bench.is(Trust::Degraded, 4);
    for id in 5..9 {
        // It insists, and is asked again, less and less often; its events count meanwhile.
        let (waited, query) = bench.wait();
        assert!(waited >= Duration::from_millis(100), "{waited:?}");
        assert_eq!(from(query), None);
        bench.dump(query.unwrap(), 1..=3, u64::MAX);
        bench.is(Trust::Degraded, id as usize - 1);
        bench.live(id);
        bench.is(Trust::Degraded, id as usize);
    }
    let query = bench.wait().1;
    bench.dump(query.unwrap(), 1..=8, 8);
    bench.is(Trust::Exact, 8);
    bench.live(9);
    bench.is(Trust::Exact, 9);
}

/// Row 12 and 12a: a late copy is as far behind as queues are long.
#[test]
fn a_late_copy_is_no_denial() {
    let (mut bench, last) = (Bench::new(config()), 10_000_000);
    bench.add(PUBLISHER, true);
    let query = bench.connect(PUBLISHER).unwrap();
    bench.dump(query, 1..=3, last);
    let before = bench.stream().duplicates;
    bench.live(last - (1 << 21));
    bench.is(Trust::Exact, 3);
    assert_eq!((bench.stream().duplicates, bench.stream().last_seq), (before + 1, Some(last)));
    bench.live(last - (1 << 21) - 1);
    bench.is(Trust::Degraded, 3);
}

#[test]
fn useless_answers_are_failures() {
    let failed = Answer::TreeDumpFailed { last_event_id: 5, message: "no room".to_owned() };
    let answers = [
        Answer::InvalidRange { start_id: 4, end_id: 1 },
        Answer::Error("mismatch".to_owned()),
        failed,
        Answer::Unknown("Status".to_owned()),
        Answer::Events { events: Vec::new(), last_event_id: 4 },
    ];
    for answer in answers {
        let mut bench = Bench::following(3);
        let query = bench.live(6).unwrap();
        assert_eq!(bench.answer(query, answer.clone()), None, "{answer:?}");
        assert_eq!(bench.stream().replay_failures, 1, "{answer:?}");
        bench.is(Trust::Degraded, 3);
        let query = bench.wait().1;
        assert_eq!(from(query), Some(4), "{answer:?}");
        bench.ring(query.unwrap(), 4..=6, 6);
        bench.is(Trust::Exact, 6);
        assert_eq!(bench.gaps(), (1, 1, 0, 0), "it was quick, so the gap waited for the second answer");
    }
}

#[test]
fn answers_out_of_order_are_failures() {
    // A page is missing.
    let mut bench = Bench::following(3);
    let query = bench.live(6).unwrap();
    bench.page(query.id, Listing::Events, vec![Ok(numbered(4))], tail(Listing::Events, 6, 1));
    assert_eq!(bench.stream().replay_failures, 1);
    // Another kind than the page before.
    let mut bench = Bench::following(3);
    let query = bench.live(6).unwrap();
    let first = wire::recovery::Tail { last: false, ..tail(Listing::Events, 6, 0) };
    bench.page(query.id, Listing::Events, vec![Ok(numbered(4))], first);
    bench.page(query.id, Listing::TreeDump, vec![Ok(numbered(5))], tail(Listing::TreeDump, 6, 1));
    assert_eq!((bench.stream().replay_failures, bench.rank().blocks), (1, 4));
    // Events where a dump was asked for, and a dump of a part.
    for (listing, scope) in [(Listing::Events, "all"), (Listing::TreeDump, "worker")] {
        let mut bench = Bench::new(config());
        bench.add(PUBLISHER, true);
        let query = bench.connect(PUBLISHER).unwrap();
        let end = wire::recovery::Tail { reset_scope: scope.to_owned(), ..tail(listing, 1, 0) };
        bench.page(query.id, listing, vec![Ok(numbered(1))], end);
        assert_eq!(bench.stream().replay_failures, 1, "{listing:?}");
        bench.is(Trust::Blind, 0);
    }
}

#[test]
fn silence_is_a_failure_and_the_stream_goes_on_without_what_is_missing() {
    let mut bench = Bench::following(3);
    bench.live_of(PUBLISHER, event(6, stored(None, &[9]))).unwrap();
    let (waited, query) = bench.wait();
    assert_eq!((waited, query), (Duration::from_secs(30), None));
    bench.is(Trust::Degraded, 4);
    assert_eq!((bench.gaps(), bench.stream().last_seq), ((1, 0, 0, 1), Some(6)));
    bench.live_of(PUBLISHER, event(7, stored(Some(9), &[10])));
    bench.is(Trust::Degraded, 5);
}

#[test]
fn an_answer_that_drips_is_not_silent_and_ends_all_the_same() {
    let limits = PlaneLimits { query_total: Duration::from_secs(70), ..PlaneLimits::default() };
    let mut bench = Bench::following_within(feed::plane::PlaneConfig { limits, ..config() }, 3);
    let query = bench.live(100).unwrap();
    for page in 0..4 {
        let more = wire::recovery::Tail { last: false, ..tail(Listing::Events, 100, page) };
        bench.page(query.id, Listing::Events, vec![Ok(numbered(4 + u64::from(page)))], more);
        assert_eq!(bench.stream().replay_failures, 0);
        bench.pass(Duration::from_secs(20));
        bench.feed.tick(bench.now);
    }
    assert_eq!((bench.stream().replay_failures, bench.stream().last_seq), (1, Some(100)));
    bench.is(Trust::Degraded, 7);
}

#[test]
fn what_comes_of_an_abandoned_query_is_ignored() {
    let mut bench = Bench::following(3);
    let query = bench.live(6).unwrap();
    bench.fail(query);
    assert_eq!(bench.ring(query, 4..=6, 6).or(bench.fail(query)), None);
    bench.is(Trust::Degraded, 3);
    assert_eq!(bench.stream().replay_failures, 1);
    assert_eq!(bench.live_of(NEWER, numbered(4)), None);
    assert_eq!(bench.stream().strangers, 1);
}
