//! Rule 7: every row of the README's table of states, on streams of one block per message.

use std::time::Duration;

use crate::support::{Bench, asked, config, garbage, message, numbered, other, store, tokens};
use feed::{Limits, ReplayEnd, ReplayMode, Trust};
use wire::Event;

// Joining.

#[test]
fn nothing_heard_is_blind() {
    let bench = Bench::new(config(ReplayMode::Available));
    bench.is(Trust::Blind, 0);
    let bench = Bench::without_replay();
    bench.is(Trust::Blind, 0);
}

#[test]
fn an_engine_that_published_nothing_is_exact_and_empty() {
    let mut bench = Bench::new(config(ReplayMode::Available));
    assert_eq!(bench.connect(), asked(0));
    bench.is(Trust::Recovering, 0);
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 0);
    assert_eq!(bench.gaps(), (0, 0, 0, 0));
}

#[test]
fn a_late_join_is_rebuilt_from_a_complete_replay() {
    let mut bench = Bench::new(config(ReplayMode::Available));
    assert_eq!(bench.connect(), asked(0));
    bench.replayed(0..5);
    bench.is(Trust::Recovering, 5);
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 5);
    assert_eq!(bench.gaps(), (1, 0, 1, 0));
    assert_eq!(bench.stream().last_seq, Some(4));
}

#[test]
fn a_join_beyond_the_replay_buffer_is_degraded_until_a_clear() {
    let mut bench = Bench::new(config(ReplayMode::Available));
    bench.connect();
    bench.feed.replayed(bench.now, message(7, &[store(&[8], None, &tokens(&[1]))]));
    bench.feed.replayed(bench.now, message(8, &[store(&[9], Some(8), &tokens(&[2]))]));
    assert_eq!(bench.end(), None);
    bench.is(Trust::Degraded, 2);
    assert_eq!(bench.gaps(), (1, 0, 0, 1));
    assert_eq!(bench.feed.deadline(), None, "asking again would bring nothing");
    bench.live_events(9, &[Event::Cleared, store(&[1], None, &tokens(&[1]))]);
    bench.is(Trust::Exact, 1);
}

#[test]
fn a_clear_inside_a_truncated_replay_makes_it_exact() {
    let mut bench = Bench::new(config(ReplayMode::Available));
    bench.connect();
    bench.replayed([7]);
    bench.feed.replayed(bench.now, message(8, &[Event::Cleared, store(&[8], None, &tokens(&[1]))]));
    bench.end();
    bench.is(Trust::Exact, 1);
}

#[test]
fn without_a_replay_socket_only_the_first_message_is_a_whole_start() {
    let mut bench = Bench::without_replay();
    assert_eq!(bench.live(0), None);
    bench.is(Trust::Exact, 1);

    let mut bench = Bench::without_replay();
    assert_eq!(bench.live_events(3, &[store(&[1], None, &tokens(&[1]))]), None);
    bench.is(Trust::Degraded, 1);
    assert!(bench.rank().reason.contains("joined at message 3"));
    bench.live_events(4, &[Event::Cleared]);
    bench.is(Trust::Exact, 0);
}

#[test]
fn live_messages_during_a_join_are_folded_in_once() {
    let mut bench = Bench::new(config(ReplayMode::Available));
    bench.connect();
    for seq in 2..5 {
        assert_eq!(bench.live(seq), None);
    }
    assert!(bench.stream().held_bytes > 0);
    bench.replayed(0..4);
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 5);
    assert_eq!((bench.stream().messages, bench.stream().held_bytes), (5, 0));
}

#[test]
fn a_replay_may_overtake_the_live_socket() {
    let mut bench = Bench::new(config(ReplayMode::Available));
    bench.connect();
    bench.replayed(0..600);
    for seq in 0..600 {
        assert_eq!(bench.live(seq), None);
    }
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 600);
    assert_eq!((bench.stream().restarts, bench.stream().duplicates), (0, 600));
}

#[test]
fn an_unanswered_join_goes_on_live_and_is_retried() {
    let mut bench = Bench::new(config(ReplayMode::Available));
    bench.connect();
    bench.live_events(3, &[store(&[1], None, &tokens(&[1]))]);
    assert_eq!(bench.silent(), None);
    bench.is(Trust::Degraded, 1);
    assert_eq!(bench.wait(), Some((Duration::from_secs(1), asked(0))));
    bench.is(Trust::Degraded, 1);
    bench.replayed(0..4);
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 4);
    assert_eq!(bench.gaps(), (2, 0, 1, 1));
}

#[test]
fn an_unanswered_join_is_exact_if_the_live_stream_begins_at_its_start() {
    let mut bench = Bench::new(config(ReplayMode::Available));
    bench.connect();
    bench.live(0);
    assert_eq!(bench.silent(), None);
    bench.is(Trust::Exact, 1);
}

// Gaps.

#[test]
fn a_gap_is_replayed_while_live_messages_wait() {
    let mut bench = Bench::following(3);
    assert_eq!(bench.live(6), asked(3));
    bench.is(Trust::Recovering, 4);
    assert_eq!(bench.live(7), None);
    bench.replayed(3..7);
    bench.is(Trust::Recovering, 7);
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 8);
    assert_eq!(bench.gaps(), (1, 1, 0, 0));
}

#[test]
fn several_gaps_during_one_query_cost_one_query() {
    let mut bench = Bench::following(1);
    assert_eq!(bench.live(4), asked(1));
    for seq in [6, 7, 10] {
        assert_eq!(bench.live(seq), None);
    }
    bench.replayed(1..11);
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 11);
    assert_eq!(bench.gaps(), (1, 1, 0, 0));
    assert_eq!(bench.stream().replay_requests, 2, "the join's and the gap's");
}

#[test]
fn a_gap_that_a_replay_came_too_early_for_is_asked_for_again() {
    let mut bench = Bench::following(1);
    assert_eq!(bench.live(4), asked(1));
    bench.replayed(1..5);
    assert_eq!(bench.live(7), None);
    assert_eq!(bench.end(), asked(4));
    bench.replayed(4..8);
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 8);
    assert_eq!(bench.gaps(), (2, 2, 0, 0));
}

#[test]
fn a_gap_the_publisher_does_not_have_is_degraded_and_not_asked_for_in_circles() {
    let mut bench = Bench::following(1);
    assert_eq!(bench.live(4), asked(1));
    bench.replayed([1, 2]);
    assert_eq!(bench.end(), None);
    bench.is(Trust::Degraded, 3);
    assert_eq!(bench.rank().orphans_parked, 1);
    assert_eq!(bench.gaps(), (1, 0, 0, 1));
}

#[test]
fn a_gap_older_than_the_replay_buffer_leaves_blocks_and_goes_on_live() {
    let mut bench = Bench::following(3);
    assert_eq!(bench.live_events(9, &[store(&[50], Some(1), &tokens(&[50]))]), asked(3));
    bench.feed.replayed(bench.now, message(8, &[store(&[40], Some(1), &tokens(&[40]))]));
    assert_eq!(bench.end(), None);
    bench.is(Trust::Degraded, 6);
    assert!(bench.rank().reason.contains("messages 4 to 7 are missing"), "{}", bench.rank().reason);
    assert_eq!(bench.gaps(), (1, 0, 0, 1));
    assert_eq!(bench.feed.deadline(), None);
    assert_eq!(bench.live_events(10, &[store(&[51], Some(50), &tokens(&[51]))]), None);
    bench.is(Trust::Degraded, 7);
}

#[test]
fn the_message_after_the_cursor_may_be_the_buffers_oldest() {
    let mut bench = Bench::following(3);
    assert_eq!(bench.live(6), asked(3));
    bench.replayed(4..7);
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 7);
    assert_eq!(bench.gaps(), (1, 1, 0, 0));
}

#[test]
fn an_unanswered_gap_is_retried_with_growing_waits_and_in_the_end_no_more() {
    let mut bench = Bench::following(1);
    assert_eq!(bench.live(4), asked(1));
    assert_eq!(bench.silent(), None);
    bench.is(Trust::Degraded, 2);
    let mut waits = Vec::new();
    while let Some((waited, replay)) = bench.wait() {
        assert_eq!(replay, asked(0), "only the whole stream can make it exact again");
        assert_eq!(bench.silent(), None);
        waits.push(waited.as_secs());
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30, 30]);
    assert_eq!(bench.gaps(), (1, 0, 0, 1));
    bench.is(Trust::Degraded, 2);
}

#[test]
fn no_query_begins_while_the_wait_after_a_failure_lasts() {
    let mut bench = Bench::following(1);
    bench.live(4);
    bench.feed.replay_ended(bench.now, ReplayEnd::Failed("refused".to_owned()));
    assert_eq!(bench.live(7), None, "a new gap goes on as degraded");
    assert_eq!(bench.gaps(), (2, 0, 0, 2));
    assert_eq!(bench.stream().last_seq, Some(7));
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.live(9), asked(7));
}

#[test]
fn a_degraded_target_is_rebuilt_by_a_later_complete_replay() {
    let mut bench = Bench::following(1);
    bench.live(3);
    bench.silent();
    bench.wait();
    bench.live(4);
    bench.replayed(0..4);
    bench.is(Trust::Recovering, 4);
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 5);
    assert_eq!(bench.gaps(), (2, 0, 1, 1));
    assert_eq!((bench.stream().restarts, bench.feed.deadline()), (0, None));
}

#[test]
fn a_replay_that_begins_too_late_to_rebuild_costs_no_block() {
    let mut bench = Bench::following(1);
    bench.live(3);
    bench.silent();
    bench.wait();
    bench.replayed(2..4);
    bench.is(Trust::Degraded, 2);
    assert_eq!(bench.live(4), None);
    assert_eq!(bench.end(), None);
    assert_eq!((bench.stream().last_seq, bench.feed.deadline()), (Some(4), None));
}

#[test]
fn without_a_replay_socket_a_gap_is_degraded_at_once() {
    let mut bench = Bench::without_replay();
    bench.live(0);
    assert_eq!(bench.live_events(2, &[store(&[9], Some(1), &tokens(&[9]))]), None);
    bench.is(Trust::Degraded, 2);
    assert_eq!(bench.gaps(), (1, 0, 0, 1));
}

// Replays that are not what they should be.

#[test]
fn a_hole_in_a_replay_is_asked_for_from_there() {
    let mut bench = Bench::following(0);
    assert_eq!(bench.live(6), asked(0));
    bench.replayed([0, 1, 2, 4, 5, 6]);
    bench.is(Trust::Recovering, 3);
    assert_eq!(bench.end(), asked(2));
    bench.replayed([2, 3, 4, 5, 6]);
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 7);
    assert_eq!(bench.gaps(), (1, 1, 0, 0));
}

#[test]
fn requests_for_a_hole_are_bounded_and_the_last_answer_is_taken_as_it_is() {
    let mut bench = Bench::following(0);
    bench.live(6);
    let mut requests = 1;
    loop {
        bench.replayed([0, 1, 2, 4, 5, 6]);
        if bench.end().is_none() {
            break;
        }
        requests += 1;
    }
    assert_eq!(requests, Limits::default().requests);
    bench.is(Trust::Degraded, 3);
    assert_eq!(bench.rank().orphans_parked, 3, "what came after the hole is not lost");
    assert_eq!(bench.gaps(), (1, 0, 0, 1));
    assert_eq!(bench.wait().map(|(_, replay)| replay), Some(asked(0)));
}

#[test]
fn a_replay_without_a_marker_is_complete_where_it_meets_the_live_stream() {
    let mut bench = Bench::following(0);
    bench.live(4);
    bench.replayed(0..4);
    assert_eq!(bench.silent(), None);
    bench.is(Trust::Exact, 5);
    assert_eq!(bench.gaps(), (1, 1, 0, 0));
}

#[test]
fn a_replay_that_stops_short_is_asked_to_go_on() {
    let mut bench = Bench::following(0);
    bench.live(4);
    bench.replayed(0..2);
    assert_eq!(bench.silent(), asked(1));
    bench.replayed(1..5);
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 5);
}

#[test]
fn a_replay_that_never_ends_is_cut_off() {
    let mut bench = Bench::following(0);
    bench.live(9);
    bench.replayed(0..3);
    let (waited, replay) = bench.wait().unwrap();
    assert_eq!((waited, replay), (Limits::default().replay_total, asked(2)));
    let (_, replay) = bench.wait().unwrap();
    assert_eq!(replay, None, "nothing came at all");
    bench.is(Trust::Degraded, 3);
    bench.replayed(2..9);
    bench.is(Trust::Degraded, 3);
}

#[test]
fn nothing_is_held_beyond_the_bound_and_what_was_dropped_is_asked_for() {
    let size = numbered(5).payload.len();
    let limits = Limits { held_bytes: 3 * size, ..Limits::default() };
    let mut bench = Bench::new(feed::FeedConfig { limits, ..config(ReplayMode::Available) });
    bench.connect();
    bench.end();
    bench.live(0);
    assert_eq!(bench.live(2), asked(0));
    for seq in 3..20 {
        assert_eq!(bench.live(seq), None);
        assert!(bench.stream().held_bytes <= limits.held_bytes);
    }
    assert!(bench.stream().held_overflow > 10);
    bench.replayed(0..10);
    assert_eq!(bench.end(), asked(9));
    bench.replayed(9..20);
    assert_eq!(bench.end(), None);
    bench.is(Trust::Exact, 20);
}

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
fn a_reset_that_no_event_follows_is_degraded() {
    let mut bench = Bench::following(3);
    bench.feed.reset(bench.now);
    bench.pass(Duration::from_secs(60));
    bench.is(Trust::Recovering, 0);
    bench.live_events(4, &[store(&[50], None, &tokens(&[50]))]);
    bench.is(Trust::Degraded, 1);
}
