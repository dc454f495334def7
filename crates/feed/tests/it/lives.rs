//! Rule 7, the rows of the README's table about restarts, reconnects, losses and polls, on streams of one block per message.

use std::time::Duration;

use feed::{Heeds, ReplayMode, Trust};
use wire::Event;

use crate::support::{Bench, asked, config, garbage, message, other, store, tokens};

// Restarts and duplicates.

#[test]
fn the_same_message_again_is_a_duplicate() {
    let mut bench = Bench::following(3);
    assert_eq!(bench.live(3), None);
    assert_eq!(bench.live(1), None);
    bench.is(Trust::Exact, 4);
    assert_eq!((bench.stream().duplicates, bench.stream().restarts), (2, 0));
    assert_eq!(bench.live(4), None);
    bench.is(Trust::Exact, 5);
}

#[test]
fn a_restart_seen_from_its_first_message_needs_no_replay() {
    let mut bench = Bench::following(3);
    assert_eq!(bench.feed.live(bench.now, other(0)), None);
    bench.is(Trust::Exact, 1);
    assert_eq!((bench.stream().restarts, bench.gaps()), (1, (0, 0, 0, 0)));
}

#[test]
fn a_restart_seen_later_is_rebuilt_from_its_start() {
    let mut bench = Bench::following(3);
    assert_eq!(bench.feed.live(bench.now, other(2)), asked(0));
    bench.is(Trust::Recovering, 0);
    (0..3).for_each(|seq| bench.feed.replayed(bench.now, other(seq)));
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 3);
    assert_eq!(bench.gaps(), (1, 0, 1, 0));
}

#[test]
fn a_restart_while_a_replay_is_pending_replaces_it() {
    let mut bench = Bench::following(3);
    assert_eq!(bench.live(6), asked(3));
    assert_eq!(bench.feed.live(bench.now, other(1)), asked(0));
    bench.is(Trust::Recovering, 0);
    (0..2).for_each(|seq| bench.feed.replayed(bench.now, other(seq)));
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 2);
    assert_eq!(bench.stream().restarts, 1);
}

#[test]
fn a_replay_that_contradicts_what_came_live_is_of_another_life() {
    let mut bench = Bench::following(1);
    assert_eq!(bench.live(4), asked(1));
    bench.replayed(1..4);
    bench.feed.replayed(bench.now, other(4));
    assert_eq!(bench.end(), asked(0));
    bench.is(Trust::Recovering, 0);
    bench.replayed(0..5);
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 5);
}

#[test]
fn whoever_holds_leases_sees_when_the_cache_was_emptied() {
    let mut bench = Bench::following(1);
    assert_eq!(bench.rank().emptied, 0);
    bench.feed.live(bench.now, other(0));
    assert_eq!(bench.rank().emptied, 1);
    bench.live_events(1, &[Event::Cleared]);
    bench.feed.reset(bench.now);
    assert_eq!(bench.rank().emptied, 3);
    bench.feed.live(bench.now, other(5));
    bench.silent();
    bench.wait();
    bench.feed.replayed(bench.now, other(0));
    assert_eq!(bench.rank().emptied, 3, "a rebuild empties our index, not the engine");
}

#[test]
fn sglang_announces_a_restart_by_a_clear() {
    let mut bench = Bench::without_replay();
    bench.live_events(0, &[Event::Cleared, store(&[1], None, &tokens(&[1]))]);
    bench.live(1);
    bench.live_events(0, &[Event::Cleared, store(&[7], None, &tokens(&[7]))]);
    bench.is(Trust::Exact, 1);
}

// Reconnects.

#[test]
fn after_a_reconnect_the_last_message_shows_that_nothing_happened() {
    let mut bench = Bench::following(3);
    bench.disconnect();
    bench.is(Trust::Recovering, 4);
    assert_eq!(bench.connect(), asked(3));
    bench.replayed([3]);
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 4);
    assert_eq!(bench.gaps(), (0, 0, 0, 0));
}

#[test]
fn after_a_reconnect_what_was_missed_is_replayed() {
    let mut bench = Bench::following(3);
    bench.disconnect();
    assert_eq!(bench.connect(), asked(3));
    bench.live(6);
    bench.replayed(3..7);
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 7);
    assert_eq!(bench.gaps(), (1, 1, 0, 0));
}

#[test]
fn after_a_reconnect_another_last_message_is_a_restart_even_if_the_numbers_go_on() {
    let mut bench = Bench::following(3);
    bench.disconnect();
    bench.connect();
    assert_eq!(bench.feed.live(bench.now, other(4)), None);
    (3..5).for_each(|seq| bench.feed.replayed(bench.now, other(seq)));
    assert_eq!(bench.end(), asked(0));
    bench.is(Trust::Recovering, 0);
    (0..5).for_each(|seq| bench.feed.replayed(bench.now, other(seq)));
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 5);
    assert_eq!((bench.stream().restarts, bench.gaps()), (1, (1, 0, 1, 0)));
}

#[test]
fn after_a_reconnect_a_missing_last_message_is_a_restart() {
    let mut bench = Bench::following(3);
    bench.disconnect();
    assert_eq!(bench.connect(), asked(3));
    assert_eq!(bench.end(), asked(0));
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 0);
    assert_eq!(bench.stream().restarts, 1);

    let mut bench = Bench::following(3);
    bench.disconnect();
    bench.connect();
    bench.replayed([9]);
    assert_eq!(bench.end(), asked(0));
    bench.is(Trust::Recovering, 0);
}

#[test]
fn a_restart_in_the_middle_of_a_check_is_noticed() {
    let mut bench = Bench::following(3);
    bench.disconnect();
    assert_eq!(bench.connect(), asked(3));
    bench.replayed([3]);
    assert_eq!(bench.silent(), asked(3));
    assert_eq!(bench.end(), asked(0), "not even the message that was there a moment ago");
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 0);
}

#[test]
fn an_unanswered_check_is_degraded_until_it_is_answered() {
    let mut bench = Bench::following(3);
    bench.disconnect();
    bench.connect();
    assert_eq!(bench.silent(), None);
    bench.is(Trust::Degraded, 4);
    assert_eq!(bench.live(4), None);
    bench.is(Trust::Degraded, 5);
    assert_eq!(bench.wait(), Some((Duration::from_secs(1), asked(3))));
    bench.replayed(3..5);
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 5);
    assert_eq!(bench.gaps(), (0, 0, 0, 0));
}

#[test]
fn without_a_replay_socket_a_reconnect_is_degraded_until_a_clear() {
    let mut bench = Bench::without_replay();
    bench.live(0);
    bench.disconnect();
    assert_eq!(bench.connect(), None);
    bench.is(Trust::Degraded, 1);
    bench.live(1);
    bench.is(Trust::Degraded, 2);
    bench.live_events(2, &[Event::Cleared]);
    bench.is(Trust::Exact, 0);
}

#[test]
fn a_replay_of_an_earlier_connection_is_not_taken() {
    let mut bench = Bench::following(3);
    bench.live(6);
    bench.disconnect();
    bench.replayed(3..7);
    assert_eq!(bench.end(), None);
    bench.is(Trust::Recovering, 4);
    assert_eq!(bench.connect(), asked(3));
    bench.replayed(3..7);
    bench.end();
    bench.is(Trust::Exact, 7);
    assert_eq!(bench.gaps(), (1, 1, 0, 0));
}

// What cannot be read, what was lost on our side, and what is too quiet.

#[test]
fn an_unreadable_batch_is_degraded_and_not_asked_for() {
    let mut bench = Bench::following(1);
    assert_eq!(bench.feed.live(bench.now, garbage(2)), None);
    bench.is(Trust::Degraded, 2);
    assert_eq!((bench.stream().undecodable, bench.feed.deadline()), (1, None));
    assert_eq!(bench.live_events(3, &[store(&[9], Some(1), &tokens(&[9]))]), None);
    bench.is(Trust::Degraded, 3);
}

#[test]
fn unreadable_frames_are_counted_and_looked_after() {
    let mut bench = Bench::following(1);
    bench.feed.malformed(bench.now, &wire::FrameError::Count(1));
    bench.is(Trust::Exact, 2);
    assert_eq!(bench.stream().malformed, 1);
    assert_eq!(bench.wait(), Some((Duration::from_secs(1), asked(1))));
    bench.replayed(1..3);
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 3);
}

#[test]
fn a_socket_of_something_else_stays_blind_and_says_so() {
    let mut bench = Bench::without_replay();
    bench.feed.malformed(bench.now, &wire::FrameError::Count(1));
    bench.is(Trust::Blind, 0);
    assert!(bench.rank().reason.contains("no stream"));
}

#[test]
fn messages_dropped_on_our_side_are_asked_for_at_once() {
    let mut bench = Bench::following(1);
    assert_eq!(bench.feed.dropped(bench.now, 2), asked(1));
    bench.is(Trust::Recovering, 2);
    bench.replayed(1..4);
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 4);
    assert_eq!((bench.gaps(), bench.stream().dropped), ((1, 1, 0, 0), 2));

    let mut bench = Bench::without_replay();
    bench.live(0);
    assert_eq!(bench.feed.dropped(bench.now, 1), None);
    bench.is(Trust::Degraded, 1);
}

#[test]
fn messages_dropped_while_a_replay_is_pending_are_asked_for_after_it() {
    let mut bench = Bench::following(1);
    assert_eq!(bench.live(3), asked(1));
    assert_eq!(bench.feed.dropped(bench.now, 1), None);
    bench.replayed(1..4);
    assert_eq!(bench.end(), asked(3));
    bench.is(Trust::Recovering, 4);
    bench.replayed(3..5);
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 5);
    assert_eq!(bench.gaps(), (2, 2, 0, 0));
}

#[test]
fn a_poll_of_an_idle_publisher_changes_nothing() {
    let mut bench = Bench::following(1);
    assert_eq!(bench.feed.poll(bench.now), asked(1));
    bench.is(Trust::Exact, 2);
    assert_eq!(bench.feed.poll(bench.now), None, "one at a time");
    bench.replayed([1]);
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 2);
    let changes = bench.rank().trust_changes;
    assert_eq!(changes, 2, "recovering and exact, when it was joined");
}

#[test]
fn a_poll_finds_what_a_deaf_socket_missed() {
    let mut bench = Bench::following(1);
    bench.feed.poll(bench.now);
    bench.replayed(1..4);
    bench.is(Trust::Recovering, 4);
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 4);
    assert_eq!(bench.gaps(), (1, 1, 0, 0));
}

#[test]
fn a_poll_finds_a_restart_behind_a_dead_connection() {
    let mut bench = Bench::following(1);
    bench.feed.poll(bench.now);
    assert_eq!(bench.end(), asked(0));
    bench.feed.replayed(bench.now, other(0));
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 1);
    assert_eq!(bench.stream().restarts, 1);
}

#[test]
fn polls_without_an_answer_are_degraded_after_the_third() {
    let mut bench = Bench::following(1);
    assert_eq!(bench.feed.poll(bench.now), asked(1));
    for trust in [Trust::Exact, Trust::Exact] {
        assert_eq!(bench.silent(), None);
        bench.is(trust, 2);
        assert_eq!(bench.wait().map(|(_, replay)| replay), Some(asked(1)));
    }
    bench.silent();
    bench.is(Trust::Degraded, 2);
    assert_eq!(bench.wait().map(|(_, replay)| replay), Some(asked(1)));
    bench.replayed([1]);
    bench.end();
    bench.is(Trust::Exact, 2);
}

// Resets.

#[test]
fn a_reset_clears_at_once_and_is_exact_again_with_the_engines_event() {
    let mut bench = Bench::following(3);
    bench.feed.reset(bench.now);
    bench.is(Trust::Recovering, 0);
    // It was on its way when the reset passed.
    bench.live_events(4, &[store(&[50], None, &tokens(&[50]))]);
    bench.is(Trust::Recovering, 1);
    bench.live_events(5, &[Event::Cleared, store(&[60], None, &tokens(&[60]))]);
    bench.is(Trust::Exact, 1);
    assert_eq!((bench.rank().resets, bench.rank().clears), (1, 1));
}

#[test]
fn a_clear_event_in_a_replay_may_be_older_than_the_reset() {
    let mut bench = Bench::following(3);
    let alone = |block: u32| store(&[u64::from(block)], None, &tokens(&[block]));
    assert_eq!(bench.live_events(6, &[alone(70)]), asked(3));
    bench.feed.reset(bench.now);
    bench.replayed([3]);
    bench.feed.replayed(bench.now, message(4, &[Event::Cleared]));
    bench.feed.replayed(bench.now, message(5, &[alone(50)]));
    assert_eq!(bench.end(), None);
    bench.is(Trust::Recovering, 2);
    bench.pass(Duration::from_secs(10));
    bench.live_events(7, &[alone(60)]);
    bench.is(Trust::Exact, 3);
}

#[test]
fn a_reset_that_no_event_follows_is_degraded() {
    let mut bench = Bench::following(3);
    bench.feed.reset(bench.now);
    bench.pass(Duration::from_secs(60));
    bench.is(Trust::Recovering, 0);
    bench.live_events(4, &[store(&[50], None, &tokens(&[50]))]);
    bench.is(Trust::Degraded, 1);
}

// Turns.

#[test]
fn a_replay_that_waits_for_its_turn_has_no_deadline() {
    let mut bench = Bench::new(config(ReplayMode::Available));
    assert_eq!(bench.connect(), asked(0));
    bench.feed.replay_waits(bench.now);
    assert_eq!(bench.feed.deadline(), None);
    bench.pass(Duration::from_secs(3600));
    assert_eq!(bench.live(4), None);
    assert_eq!(bench.feed.tick(bench.now), None);
    bench.is(Trust::Recovering, 0);
    assert!(bench.stream().held_bytes > 0);
    bench.feed.replay_begins(bench.now);
    assert_eq!(bench.feed.deadline(), Some(bench.now + Duration::from_secs(60)));
    bench.replayed(0..4);
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 5);
    assert_eq!((bench.stream().replay_waits, bench.stream().replay_failures), (1, 0));
}

#[test]
fn a_poll_that_waits_for_its_turn_holds_messages_back_so_nothing_is_exact() {
    let mut bench = Bench::following(3);
    assert_eq!(bench.feed.poll(bench.now), asked(3));
    bench.is(Trust::Exact, 4);
    bench.feed.replay_waits(bench.now);
    assert_eq!(bench.live(4), None);
    bench.is(Trust::Recovering, 4);
    bench.feed.replay_begins(bench.now);
    bench.replayed([3]);
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 5);
    // Nothing is pending any more.
    bench.feed.replay_waits(bench.now);
    bench.is(Trust::Exact, 5);
    assert_eq!(bench.stream().replay_waits, 1);
}
