//! Rows 26 to 38 of the README's table: holes and how they heal, losses, reconnects and polls, and what it all costs.

use std::time::Duration;

use feed::{Heeds, Trust};
use wire::{
    recovery::{Listing, Part},
    router::KvData,
};

use crate::support::{Bench, PUBLISHER, event, from, numbered, stored, unreadable};

/// Exact with events 1 to 3, then 4 and 5 are missing and the publisher falls silent, so 6 to 8 were folded in without them: it
/// lacks the removal of block 3, has one whose parent it knows, and lost that again.
fn with_a_hole() -> Bench {
    let mut bench = Bench::following(3);
    bench.live_of(PUBLISHER, event(6, stored(Some(2), &[10, 11]))).unwrap();
    assert_eq!(bench.wait().1, None);
    bench.live_of(PUBLISHER, event(7, KvData::Removed(vec![11])));
    bench.live_of(PUBLISHER, event(8, stored(Some(10), &[12])));
    bench.is(Trust::Degraded, 5);
    bench
}

fn missed() -> Vec<wire::router::RouterEvent> {
    vec![
        // Block 10 is stored again by an event that was folded in already.
        event(4, KvData::Removed(vec![3, 10])),
        event(5, stored(None, &[20])),
        event(6, stored(Some(2), &[10, 11])),
        event(7, KvData::Removed(vec![11])),
        event(8, stored(Some(10), &[12])),
    ]
}

#[test]
fn a_hole_heals_when_its_events_come_again() {
    let mut bench = with_a_hole();
    let (_, query) = bench.wait();
    assert_eq!(from(query), Some(4));
    assert_eq!(bench.live_of(PUBLISHER, event(9, stored(Some(12), &[13]))), None);
    bench.is(Trust::Degraded, 5);
    bench.list(query.unwrap(), Listing::Events, missed().into_iter().map(Ok).collect(), 8);
    bench.is(Trust::Exact, 6);
    assert_eq!((bench.gaps(), bench.stream().last_seq), ((1, 0, 0, 1), Some(9)));
}

#[test]
fn a_hole_that_is_older_than_the_ring_heals_by_a_dump() {
    let mut bench = with_a_hole();
    let query = bench.wait().1.unwrap();
    bench.list(query, Listing::TreeDump, vec![Ok(event(0, stored(None, &[1, 2, 10, 12])))], 8);
    bench.is(Trust::Exact, 4);
}

#[test]
fn a_hole_in_the_answer_or_behind_it_stays() {
    for (events, last) in [(&[0, 2, 3, 4][..], 8), (&[0, 1, 2, 3][..], 8)] {
        let mut bench = with_a_hole();
        let query = bench.wait().1.unwrap();
        let all = missed();
        bench.list(query, Listing::Events, events.iter().map(|at| Ok(all[*at].clone())).collect(), last);
        bench.is(Trust::Degraded, bench.rank().blocks);
        bench.pass(Duration::from_secs(60));
        assert_eq!(bench.work().map(|query| query.start_event_id), Some(Some(9)), "it is not asked for again");
    }
}

#[test]
fn what_else_is_missing_is_not_healed_with_a_hole() {
    let mut bench = with_a_hole();
    bench.feed.events(bench.now, PUBLISHER, vec![unreadable(Some(9))]);
    let query = bench.wait().1.unwrap();
    let nothing = event(9, KvData::Removed(Vec::new()));
    bench.list(query, Listing::Events, missed().into_iter().chain([nothing]).map(Ok).collect(), 9);
    bench.is(Trust::Degraded, 5);
    assert_eq!(bench.rank().orphans_parked, 0);
}

#[test]
fn a_hole_is_asked_for_less_and_less_often_and_on_a_quiet_stream_for_ever() {
    let mut bench = with_a_hole();
    let mut waits = Vec::new();
    for _ in 0..40 {
        let (waited, query) = bench.wait();
        waits.push(waited);
        assert_eq!(from(query), Some(4));
        bench.fail(query.unwrap());
    }
    assert!(waits[..8].is_sorted() && waits[..2].iter().all(|wait| *wait < Duration::from_secs(1)), "{waits:?}");
    assert!(waits[8..].iter().all(|wait| (30..38).contains(&wait.as_secs())), "{waits:?}");
    let (_, query) = bench.wait();
    assert_eq!(from(query), Some(4));
    assert_eq!(bench.live_of(PUBLISHER, event(9, stored(Some(12), &[13]))), None);
    bench.list(query.unwrap(), Listing::Events, missed().into_iter().chain([event(9, stored(Some(12), &[13]))]).map(Ok).collect(), 9);
    bench.is(Trust::Exact, 6);
}

#[test]
fn a_clear_ends_a_hole() {
    let mut bench = with_a_hole();
    bench.live_of(PUBLISHER, event(9, KvData::Cleared));
    bench.is(Trust::Exact, 0);
    assert_eq!(bench.wait(), (Duration::from_secs(2), bench_poll(&bench, 10)));
}

fn bench_poll(bench: &Bench, start: u64) -> Option<feed::plane::PlaneQuery> {
    let id = feed::plane::QueryId(bench.stream().replay_requests - 1);
    Some(feed::plane::PlaneQuery { id, publisher_id: PUBLISHER, start_event_id: Some(start) })
}

#[test]
fn blocks_that_an_answer_took_back_come_back_with_a_dump_only() {
    let mut bench = with_a_hole();
    bench.pass(Duration::from_millis(10));
    let observation = feed::Observation {
        rank: crate::support::RANK,
        chain: [1, 2, 3].map(crate::support::local).to_vec(),
        seed: index::Seed::BASE,
        dispatched: bench.now,
        predicted_blocks: 3,
        reported_blocks: 1,
    };
    bench.feed.observed(bench.now, &observation);
    assert_eq!(bench.rank().accuracy.retracted_blocks, 4, "blocks 2 and 3, and what follows them");
    let query = bench.wait().1;
    assert_eq!(from(query), None);
    bench.list(query.unwrap(), Listing::TreeDump, vec![Ok(event(0, stored(None, &[1, 2])))], 8);
    bench.is(Trust::Exact, 2);
}

#[test]
fn the_next_event_after_a_reconnect_tells_that_nothing_was_missed() {
    let mut bench = Bench::following(3);
    bench.disconnect(PUBLISHER);
    bench.is(Trust::Recovering, 3);
    let query = bench.connect(PUBLISHER);
    assert_eq!(from(query), Some(4));
    bench.live(4);
    assert_eq!(bench.rank().blocks, 4, "it does not wait for the answer");
    bench.too_new(query.unwrap(), 3);
    bench.is(Trust::Exact, 4);
}

#[test]
fn without_recovery_only_the_next_event_tells_what_a_reconnect_missed() {
    for (next, trust) in [(4, Trust::Exact), (5, Trust::Degraded)] {
        let mut bench = Bench::live_only(3);
        bench.disconnect(PUBLISHER);
        bench.is(Trust::Recovering, 3);
        assert_eq!(bench.connect(PUBLISHER), None);
        bench.is(Trust::Degraded, 3);
        bench.live_of(PUBLISHER, event(next, stored(None, &[9])));
        bench.is(trust, 4);
    }
}

#[test]
fn what_was_dropped_on_our_side_is_asked_for_at_once() {
    let mut bench = Bench::following(3);
    let query = bench.feed.dropped(bench.now, PUBLISHER, 2);
    assert_eq!(from(query), Some(4));
    bench.is(Trust::Recovering, 3);
    bench.ring(query.unwrap(), 4..=5, 5);
    bench.is(Trust::Exact, 5);
    assert_eq!((bench.gaps(), bench.stream().dropped), ((1, 1, 0, 0), 2));

    let mut bench = Bench::live_only(3);
    assert_eq!(bench.feed.dropped(bench.now, PUBLISHER, 1), None);
    bench.is(Trust::Degraded, 3);
    bench.live(4);
    bench.is(Trust::Exact, 4);
}

#[test]
fn what_was_dropped_during_a_query_is_asked_for_after_it() {
    let mut bench = Bench::following(3);
    let query = bench.live(5).unwrap();
    assert_eq!(bench.feed.dropped(bench.now, PUBLISHER, 1), None);
    bench.ring(query, 4..=5, 5);
    bench.is(Trust::Recovering, 5);
    let query = bench.wait().1;
    assert_eq!(from(query), Some(6));
    bench.ring(query.unwrap(), [6], 6);
    bench.is(Trust::Exact, 6);
}

#[test]
fn what_was_dropped_is_asked_for_until_it_is_answered() {
    let mut bench = Bench::following(3);
    let query = bench.feed.dropped(bench.now, PUBLISHER, 1).unwrap();
    bench.fail(query);
    bench.is(Trust::Degraded, 3);
    let query = bench.wait().1;
    assert_eq!(from(query), Some(4));
    bench.too_new(query.unwrap(), 3);
    bench.is(Trust::Exact, 3);
    assert_eq!(bench.gaps(), (1, 1, 0, 0));
}

#[test]
fn an_envelope_or_an_event_that_cannot_be_numbered_is_asked_for() {
    let mut bench = Bench::following(3);
    let query = bench.feed.undecodable(bench.now, PUBLISHER, &wire::BatchError::Shape("nil"));
    assert_eq!((from(query), bench.stream().undecodable), (Some(4), 1));
    bench.ring(query.unwrap(), [4], 4);
    bench.is(Trust::Exact, 4);

    bench.pass(Duration::from_secs(1));
    let query = bench.feed.events(bench.now, PUBLISHER, vec![Ok(numbered(5)), unreadable(None), Ok(numbered(7))]);
    assert_eq!((from(query), bench.rank().event_errors), (Some(6), 1));
    bench.ring(query.unwrap(), [6, 7], 7);
    bench.is(Trust::Exact, 7);
}

#[test]
fn a_stream_that_stands_still_is_asked_for_more() {
    let mut bench = Bench::following(3);
    bench.pass(Duration::from_secs(1));
    let query = bench.work();
    assert_eq!(from(query), Some(4));
    bench.is(Trust::Exact, 3);
    bench.too_new(query.unwrap(), 3);
    bench.is(Trust::Exact, 3);
    let (waited, query) = bench.wait();
    assert_eq!((waited, from(query)), (Duration::from_secs(10), Some(4)));
    let query = query.unwrap();
    bench.feed.answered(bench.now, query.id, Part::Begin(Listing::Events));
    bench.is(Trust::Exact, 3);
    bench.feed.answered(bench.now, query.id, Part::Event(Ok(numbered(4))));
    bench.is(Trust::Recovering, 4);
    bench.feed.answered(bench.now, query.id, Part::End(crate::support::tail(Listing::Events, 4, 0)));
    bench.is(Trust::Exact, 4);
    assert_eq!((bench.gaps(), bench.rank().trust_changes), ((1, 1, 0, 0), 4));
}

#[test]
fn a_poll_that_is_answered_with_what_is_known_shows_nothing_and_puts_no_gap_off() {
    // A publisher whose ring is empty answers every question with all it holds.
    for last in [0, 3] {
        let mut bench = Bench::following(last);
        let before = bench.rank().trust_changes;
        for _ in 0..20 {
            let query = bench.wait().1.unwrap();
            assert_eq!(from(Some(query)), Some(last + 1));
            bench.feed.answered(bench.now, query.id, Part::Begin(Listing::TreeDump));
            for id in 1..=last {
                bench.feed.answered(bench.now, query.id, Part::Event(Ok(numbered(id))));
            }
            bench.feed.answered(bench.now, query.id, Part::End(crate::support::tail(Listing::TreeDump, last, 0)));
            bench.is(Trust::Exact, last as usize);
            assert_eq!(bench.work(), None);
        }
        assert_eq!(bench.rank().trust_changes, before);
        assert_eq!(from(bench.live(last + 2)), Some(last + 1), "asked for at once");
    }
}

#[test]
fn a_poll_that_is_answered_with_more_than_is_known_is_taken_over_and_shown() {
    let mut bench = Bench::following(3);
    let query = bench.wait().1.unwrap();
    bench.feed.answered(bench.now, query.id, Part::Begin(Listing::TreeDump));
    bench.feed.answered(bench.now, query.id, Part::Event(Ok(event(0, stored(None, &[1, 2])))));
    bench.feed.answered(bench.now, query.id, Part::End(crate::support::tail(Listing::TreeDump, 5, 0)));
    assert_eq!(bench.rank().trust, Trust::Recovering);
    assert_eq!(bench.work(), None);
    bench.is(Trust::Exact, 2);
}

#[test]
fn polls_without_an_answer_are_degraded_after_the_third() {
    let mut bench = Bench::following(3);
    for trust in [Trust::Exact, Trust::Exact, Trust::Degraded] {
        let query = bench.wait().1.unwrap();
        bench.fail(query);
        bench.is(trust, 3);
    }
    let query = bench.wait().1.unwrap();
    bench.too_new(query, 3);
    bench.is(Trust::Exact, 3);
}

#[test]
fn events_between_polls_put_them_off() {
    let mut bench = Bench::following(3);
    for id in 4..40 {
        bench.pass(Duration::from_millis(1900));
        assert_eq!(bench.live(id), None);
        assert_eq!(bench.work(), None);
    }
}

#[test]
fn a_lossy_minute_costs_a_query_a_second_and_no_dump() {
    let mut bench = Bench::following(3);
    let before = bench.stream();
    let (mut id, mut pending) = (3, None);
    for tick in 0..6_000 {
        bench.pass(Duration::from_millis(10));
        id += 1;
        // Every twentieth is lost. An answer takes 30 ms.
        let asked = if id % 20 == 0 { bench.work() } else { bench.live(id).or_else(|| bench.work()) };
        if let Some(query) = asked {
            assert_eq!(pending, None);
            pending = Some((tick + 3, query));
        }
        if let Some((_, query)) = pending.take_if(|(due, _)| *due == tick) {
            assert_eq!(bench.ring(query, query.start_event_id.unwrap()..=id, id), None);
        }
    }
    while bench.rank().trust != Trust::Exact {
        let query = pending.take().map(|(_, query)| query).or_else(|| bench.wait().1);
        query.map(|query| bench.ring(query, query.start_event_id.unwrap()..=id, id));
    }
    bench.is(Trust::Exact, id as usize);
    let after = bench.stream();
    let queries = after.replay_requests - before.replay_requests;
    assert!((40..=64).contains(&queries), "{queries} queries");
    assert_eq!((after.dumps - before.dumps, after.degraded_gaps), (0, 0));
}

#[test]
fn a_lossy_minute_with_a_ring_that_is_always_too_short_costs_a_few_dumps() {
    let mut bench = Bench::following(3);
    let before = bench.stream();
    let mut id = 3;
    for _ in 0..6_000 {
        bench.pass(Duration::from_millis(10));
        id += 1;
        let asked =
            if id % 20 == 0 { bench.work() } else { bench.live_of(PUBLISHER, event(id, stored(None, &[id]))).or_else(|| bench.work()) };
        if let Some(query) = asked {
            bench.list(query, Listing::TreeDump, vec![Ok(event(0, stored(None, &[id])))], id);
        }
    }
    let after = bench.stream();
    let dumps = after.dumps - before.dumps;
    assert!((4..=8).contains(&dumps), "{dumps} dumps");
    assert!(after.held_bytes < 100_000, "it goes on meanwhile: {after:?}");
}
