//! Rule 7, the rows of the README's table about joins, gaps and replays, on streams of one block per message.

use std::time::Duration;

use crate::support::{Bench, asked, config, message, numbered, store, tokens};
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

/// A reader that sees in the stream's counters that a message was folded in finds it in the rank as well.
#[test]
fn ranks_are_shown_before_the_stream() {
    const MESSAGES: u64 = 3_000;
    let mut bench = Bench::joined();
    let status = bench.feed.status();
    let reader = std::thread::spawn(move || {
        let mut looks = 0_u64;
        loop {
            let last = status.stream().last_seq;
            let stores = status.rank(0).unwrap().stores;
            assert!(last.is_none_or(|last| stores > last), "{stores} stores after message {last:?}");
            looks += 1;
            if last == Some(MESSAGES - 1) {
                return looks;
            }
        }
    });
    for seq in 0..MESSAGES {
        bench.live(seq);
    }
    assert!(reader.join().unwrap() > 0);
}
