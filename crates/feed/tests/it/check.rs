//! Rule 11: what answers say heals a target that lacks events, and nothing else.

use std::{num::NonZeroUsize, time::Duration};

use feed::{Heeds, Leases, Observation, Trust};
use index::{Lane, Lanes, Seed};
use wire::Event;

use crate::support::{Bench, chain, remove, store, tokens};

/// Degraded, holding blocks 1, 2, 3 of one chain and 8 of another since before.
fn degraded() -> Bench {
    let mut bench = Bench::without_replay();
    bench.live_events(5, &[store(&[1, 2, 3], None, &tokens(&[1, 2, 3])), store(&[8], None, &tokens(&[8]))]);
    bench.is(Trust::Degraded, 4);
    bench.pass(Duration::from_secs(1));
    bench
}

fn observation(bench: &Bench, blocks: &[u32], predicted: u32, reported: u32) -> Observation {
    Observation {
        rank: 0,
        chain: chain(blocks, Seed::BASE),
        seed: Seed::BASE,
        dispatched: bench.now,
        predicted_blocks: predicted,
        reported_blocks: reported,
    }
}

fn device(bench: &Bench, blocks: &[u32]) -> u32 {
    bench.overlap(&chain(blocks, Seed::BASE), Lanes::DEVICE)
}

#[test]
fn a_degraded_target_that_reports_less_loses_what_lies_beyond() {
    let mut bench = degraded();
    let seen = observation(&bench, &[1, 2, 3], 3, 1);
    bench.feed.observed(bench.now, &seen);
    assert_eq!((device(&bench, &[1, 2, 3]), device(&bench, &[8])), (1, 1));
    let accuracy = bench.rank().accuracy;
    assert_eq!((accuracy.observations, accuracy.over, accuracy.retracted_blocks), (1, 1, 2));
}

#[test]
fn what_the_engine_stored_for_the_request_itself_stays() {
    let mut bench = degraded();
    let seen = observation(&bench, &[1, 2, 3], 3, 1);
    bench.pass(Duration::from_millis(20));
    // It computes blocks 2 and 3 anew, and another request's block meanwhile; its answer comes after.
    bench.live_events(6, &[store(&[2, 3], Some(1), &tokens(&[2, 3])), store(&[9], Some(8), &tokens(&[9]))]);
    bench.pass(Duration::from_millis(20));
    bench.feed.observed(bench.now, &seen);
    assert_eq!((device(&bench, &[1, 2, 3]), device(&bench, &[8, 9])), (3, 2));
    // Only the copies believed in before are gone: one removal each is enough.
    bench.live_events(7, &[remove(&[3]), remove(&[9])]);
    assert_eq!((device(&bench, &[1, 2, 3]), device(&bench, &[8, 9])), (2, 1));
}

#[test]
fn what_was_evicted_again_is_not_brought_back() {
    let mut bench = degraded();
    let seen = observation(&bench, &[1, 2, 3], 3, 0);
    bench.pass(Duration::from_millis(20));
    bench.live_events(6, &[store(&[1, 2, 3], None, &tokens(&[1, 2, 3]))]);
    bench.live_events(7, &[remove(&[3])]);
    bench.feed.observed(bench.now, &seen);
    assert!(device(&bench, &[1, 2, 3]) <= 3);
    // What came since is not all remembered, so nothing is judged by this answer.
    assert_eq!(bench.rank().accuracy.retracted_blocks, 0);
}

#[test]
fn an_exact_target_is_never_retracted() {
    let mut bench = Bench::following(3);
    let seen = observation(&bench, &[0, 1, 2, 3], 4, 0);
    bench.feed.observed(bench.now, &seen);
    bench.is(Trust::Exact, 4);
    assert_eq!((bench.rank().accuracy.over, bench.rank().accuracy.retracted_blocks), (1, 0));
}

#[test]
fn a_doubted_target_is_retracted_too_and_a_clear_ends_it() {
    let mut bench = Bench::without_replay();
    bench.live_events(0, &[store(&[1, 2], None, &tokens(&[1, 2]))]);
    bench.disconnect();
    bench.connect();
    bench.is(Trust::Degraded, 2);
    bench.pass(Duration::from_secs(1));
    let seen = observation(&bench, &[1, 2], 2, 1);
    bench.feed.observed(bench.now, &seen);
    bench.is(Trust::Degraded, 1);
    bench.live_events(1, &[Event::Cleared, store(&[1, 2], None, &tokens(&[1, 2]))]);
    bench.feed.observed(bench.now, &seen);
    bench.is(Trust::Exact, 2);
}

#[test]
fn an_engine_that_reports_more_brings_back_stores_that_wait() {
    let mut bench = Bench::without_replay();
    bench.live_events(5, &[store(&[3], Some(2), &tokens(&[3]))]);
    assert_eq!(bench.rank().orphans_parked, 1);
    let whole = chain(&[1, 2, 3], Seed::BASE);
    let ttl = Duration::from_secs(120);
    let mut confirmed = Leases::new(&bench.indexer(), bench.targets[0], Lane::Confirmed, ttl, NonZeroUsize::new(100).unwrap());
    confirmed.hold(bench.now, &whole[..2]);
    let seen = observation(&bench, &[1, 2, 3], 0, 2);
    bench.feed.observed(bench.now, &seen);
    let rank = bench.rank();
    assert_eq!((rank.orphans_parked, rank.accuracy.under, rank.accuracy.adopted_blocks), (0, 1, 1));
    assert_eq!(bench.overlap(&whole, Lanes::DEVICE | Lanes::CONFIRMED), 3);
    assert_eq!(bench.overlap(&whole, Lanes::DEVICE), 0, "what no event announced is no device block");
}

#[test]
fn only_a_lasting_mismatch_is_named_and_an_equal_answer_ends_it() {
    let mut bench = Bench::following(3);
    let over = observation(&bench, &[0, 1, 2, 3], 3, 0);
    for _ in 0..15 {
        bench.feed.observed(bench.now, &over);
    }
    assert_eq!(&*bench.rank().reason, "");
    bench.feed.observed(bench.now, &over);
    bench.is(Trust::Exact, 4);
    assert!(bench.rank().reason.contains("fewer"));
    let equal = observation(&bench, &[0, 1, 2, 3], 3, 3);
    bench.feed.observed(bench.now, &equal);
    assert_eq!(&*bench.rank().reason, "");
    let accuracy = bench.rank().accuracy;
    assert_eq!((accuracy.observations, accuracy.equal, accuracy.over), (17, 1, 16));
}

#[test]
fn what_contradicted_a_cache_that_is_gone_is_not_held_against_the_next() {
    let mut bench = degraded();
    let under = observation(&bench, &[4, 5], 0, 2);
    for _ in 0..16 {
        bench.feed.observed(bench.now, &under);
    }
    bench.live_events(6, &[Event::Cleared]);
    bench.is(Trust::Exact, 0);
    assert_eq!(&*bench.rank().reason, "");
}

#[test]
fn an_answer_of_a_rank_we_do_not_have_is_nothing() {
    let mut bench = Bench::following(1);
    let seen = Observation { rank: 9, ..observation(&bench, &[0, 1], 2, 0) };
    bench.feed.observed(bench.now, &seen);
    assert_eq!(bench.rank().accuracy.observations, 0);
}
