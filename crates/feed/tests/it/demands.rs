//! Rules 4 and 13: what requests ask for that events cannot tell, and when that is over.

use std::time::Duration;

use feed::{Demand, FeedConfig, Heeds, Observation, RankRange, ReplayMode, Trust};
use index::{Lanes, Seed, Targets};
use wire::{
    Event, Medium, Message, Stored,
    encode::{Encoder, Generation},
};

use crate::support::{Bench, asked, chain, config, message, other, remove, removed_from, store, stored, tokens};

/// A demand this old came of a cache that was emptied since.
const OLD: Duration = Duration::from_secs(10);

fn demand(bench: &mut Bench, demand: Demand) {
    bench.feed.demanded(bench.now, 0, demand);
}

/// A block of its own, stored after nothing.
fn one(hash: u64) -> Event {
    store(&[hash], None, &tokens(&[hash as u32]))
}

fn written_by(generation: Generation, seq: u64, events: &[Event]) -> Message {
    Message { seq, payload: Encoder::new(generation).batch(1000.0 + seq as f64, 0, events) }
}

#[test]
fn full_reports_make_a_set_of_what_is_held_and_of_what_comes() {
    let mut bench = Bench::joined();
    let host = |hash| Event::Stored(Stored { medium: Medium::Host, ..stored(&[hash], None, &tokens(&[1])) });
    bench.live_events(0, &[one(1), one(1), one(2), host(9), host(9)]);
    bench.is(Trust::Exact, 2);
    demand(&mut bench, Demand::FullReports);
    bench.is(Trust::Degraded, 2);
    assert!(bench.rank().reason.contains("full reports"), "{}", bench.rank().reason);
    // A hit of block 2 is reported as a store, and so is one of a block in a lane that has none yet.
    let disk = || Event::Stored(Stored { medium: Medium::Disk, ..stored(&[7], None, &tokens(&[1])) });
    bench.live_events(1, &[one(2), disk(), disk()]);
    let gone =
        [remove(&[1, 2]), removed_from(Medium::Host, Default::default(), &[9]), removed_from(Medium::Disk, Default::default(), &[7])];
    bench.live_events(2, &gone);
    bench.is(Trust::Degraded, 0);
    assert_eq!((bench.rank().host_blocks, bench.rank().disk_blocks), (0, 0));
}

#[test]
fn copies_are_counted_again_after_a_clear() {
    let mut bench = Bench::following(1);
    demand(&mut bench, Demand::FullReports);
    bench.pass(OLD);
    bench.live_events(2, &[store(&[8], Some(7), &tokens(&[8]))]);
    bench.live_events(3, &[Event::Cleared, one(5), one(5), remove(&[5])]);
    bench.is(Trust::Exact, 1);
    assert_eq!((&*bench.rank().reason, bench.rank().orphans_total), ("", 1), "counters go on");
}

#[test]
fn copies_are_counted_again_after_a_restart() {
    let mut bench = Bench::following(1);
    demand(&mut bench, Demand::FullReports);
    bench.pass(OLD);
    bench.feed.live(bench.now, other(0));
    bench.is(Trust::Exact, 1);
    bench.live_events(1, &[one(5), one(5), remove(&[5])]);
    bench.is(Trust::Exact, 2);
}

/// Between the loss of a connection and the replay that shows a restart, requests reach the new life.
#[test]
fn a_demand_of_the_new_life_outlives_a_restart_that_shows_late() {
    for (before_the_loss, trust) in [(OLD, Trust::Exact), (Duration::ZERO, Trust::Degraded)] {
        let mut bench = Bench::following(1);
        demand(&mut bench, Demand::FullReports);
        bench.pass(before_the_loss);
        bench.disconnect();
        bench.pass(OLD);
        assert_eq!(bench.connect(), asked(1));
        bench.silent();
        bench.pass(OLD);
        bench.feed.live(bench.now, other(0));
        bench.is(trust, 1);
        assert_eq!(bench.stream().restarts, 1);
    }
}

/// A replay socket that lost the anchor looks like another life's, and then has the same messages.
#[test]
fn a_restart_that_was_none_settles_nothing() {
    let mut bench = Bench::following(1);
    demand(&mut bench, Demand::FullReports);
    bench.pass(OLD);
    bench.disconnect();
    bench.pass(OLD);
    assert_eq!(bench.connect(), asked(1));
    bench.replayed([2]);
    assert_eq!(bench.end(), asked(0));
    bench.replayed(0..3);
    assert_eq!(bench.end(), None);
    assert_eq!(bench.stream().restarts, 1);
    bench.is(Trust::Degraded, 3);
    assert!(bench.rank().reason.contains("full reports"), "{}", bench.rank().reason);
}

/// An engine says its clear with its next step: that of the request itself, if nothing else came since the reset.
#[test]
fn a_clear_or_restart_that_may_be_older_than_the_request_changes_nothing() {
    let mut bench = Bench::following(1);
    demand(&mut bench, Demand::FullReports);
    bench.pass(OLD - Duration::from_millis(1));
    bench.live_events(2, &[Event::Cleared, one(5), one(5), remove(&[5])]);
    bench.is(Trust::Degraded, 0);
    bench.feed.live(bench.now, other(0));
    bench.is(Trust::Degraded, 1);
    demand(&mut bench, Demand::FullReports);
    bench.pass(OLD - Duration::from_millis(1));
    bench.live_events(1, &[Event::Cleared]);
    bench.is(Trust::Degraded, 0);
    bench.pass(Duration::from_millis(1));
    bench.live_events(2, &[Event::Cleared]);
    bench.is(Trust::Exact, 0);
}

#[test]
fn a_replay_brings_the_same_reports_and_clears_of_unknown_age() {
    let mut bench = Bench::following(1);
    demand(&mut bench, Demand::FullReports);
    bench.pass(OLD);
    assert_eq!(bench.live(5), asked(1));
    bench.silent();
    bench.is(Trust::Degraded, 2);
    // A complete replay from the start heals what was missed, and this it does not.
    assert_eq!(bench.wait().map(|(_, replay)| replay), Some(asked(0)));
    bench.replayed(0..3);
    for seq in [3, 4] {
        bench.feed.replayed(bench.now, message(seq, &[Event::Cleared, one(50), one(50)]));
    }
    bench.replayed([5]);
    assert_eq!(bench.end(), None);
    assert_eq!(bench.gaps(), (2, 0, 1, 1), "rebuilt");
    assert!(bench.rank().reason.contains("full reports"), "{}", bench.rank().reason);
    bench.live_events(6, &[remove(&[50])]);
    assert_eq!(bench.overlap(&chain(&[50], Seed::BASE), Lanes::DEVICE), 0);
    bench.live_events(7, &[Event::Cleared]);
    bench.is(Trust::Exact, 0);
}

#[test]
fn what_events_carry_decides_which_demands_degrade() {
    use Demand::{Adapter, NumberedAdapter, Salt};
    let generations = [
        (Generation::Sglang056, Some(false), Some(false), vec![Salt, Adapter, NumberedAdapter]),
        (Generation::Vllm012, Some(false), Some(false), vec![Salt, Adapter]),
        (Generation::Vllm016, Some(true), Some(false), vec![Salt]),
        (Generation::Vllm023, Some(true), Some(true), vec![]),
        (Generation::Vllm033, Some(true), Some(true), vec![]),
        (Generation::Sglang0523, Some(true), Some(true), vec![]),
    ];
    for (generation, adapter, salt, degrading) in generations {
        for demanded in [Salt, Adapter, NumberedAdapter] {
            let mut bench = Bench::joined();
            assert_eq!((bench.rank().carries_adapter(), bench.rank().carries_salt()), (None, None));
            // The first request of all: only what comes of it shows what the events can say.
            demand(&mut bench, demanded);
            bench.is(Trust::Exact, 0);
            bench.feed.live(bench.now, written_by(generation, 0, &[one(1)]));
            let degraded = degrading.contains(&demanded);
            bench.is(if degraded { Trust::Degraded } else { Trust::Exact }, 1);
            let rank = bench.rank();
            assert_eq!((rank.carries_adapter(), rank.carries_salt()), (adapter, salt), "{generation}");
            assert_eq!(rank.hides(demanded), degraded, "{generation} {demanded:?}");
            let named = if demanded == Salt { "salt" } else { "adapter" };
            assert_eq!(rank.reason.contains(named), degraded, "{}", rank.reason);
        }
    }
}

#[test]
fn what_is_not_told_ends_with_a_clear_and_a_restart_may_tell_more() {
    let mut bench = Bench::joined();
    bench.feed.live(bench.now, written_by(Generation::Vllm016, 0, &[one(1)]));
    bench.is(Trust::Exact, 1);
    demand(&mut bench, Demand::Salt);
    bench.is(Trust::Degraded, 1);
    // The salted request is the engine's first step after a reset: its blocks come behind the clear.
    bench.feed.live(bench.now, written_by(Generation::Vllm016, 1, &[Event::Cleared, one(2)]));
    bench.is(Trust::Degraded, 1);
    bench.pass(OLD);
    bench.feed.live(bench.now, written_by(Generation::Vllm016, 2, &[Event::Cleared, one(2)]));
    bench.is(Trust::Exact, 1);
    demand(&mut bench, Demand::Salt);
    bench.is(Trust::Degraded, 1);
    bench.feed.live(bench.now, other(0));
    bench.is(Trust::Exact, 1);
    assert_eq!(bench.rank().carries_salt(), Some(true), "another release took its place");
}

/// Rule 11: what a salted request left behind is believed to be without salt, until an answer contradicts it.
#[test]
fn answers_take_back_what_was_not_told() {
    let mut bench = Bench::joined();
    let tell = |bench: &mut Bench, seq, events: &[Event]| bench.feed.live(bench.now, written_by(Generation::Vllm016, seq, events));
    tell(&mut bench, 0, &[one(1)]);
    demand(&mut bench, Demand::Salt);
    tell(&mut bench, 1, &[store(&[2, 3], None, &tokens(&[2, 3]))]);
    bench.pass(Duration::from_secs(1));
    let seen = Observation {
        rank: 0,
        chain: chain(&[2, 3], Seed::BASE),
        seed: Seed::BASE,
        dispatched: bench.now,
        predicted_blocks: 2,
        reported_blocks: 0,
    };
    bench.feed.observed(bench.now, &seen);
    bench.is(Trust::Degraded, 1);
    assert_eq!(bench.rank().accuracy.retracted_blocks, 2);
}

#[test]
fn a_demand_is_of_one_rank() {
    let targets = Targets::new();
    let two = vec![targets.allocate().unwrap(), targets.allocate().unwrap()];
    let mut bench = Bench::new(FeedConfig { ranks: RankRange { start: 2, size: 2 }, targets: two, ..config(ReplayMode::Available) });
    bench.connect();
    bench.end();
    bench.feed.demanded(bench.now, 3, Demand::FullReports);
    bench.feed.demanded(bench.now, 9, Demand::FullReports);
    let trust: Vec<_> = bench.feed.status().ranks().iter().map(|rank| rank.trust).collect();
    assert_eq!(trust, [Trust::Exact, Trust::Degraded]);
}
