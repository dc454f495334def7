//! Rules 4 to 6, 8 to 10 and 13: what each event does to its target.

use feed::{FeedConfig, Ignored, RankRange, ReplayMode, Trust};
use index::{BlockSize, Lanes, Seed, Targets};
use wire::{
    Adapter, Event, Group, Kind, Locality, Medium, Message, Stored, Tokens,
    encode::{Encoder, Generation},
};

use crate::support::{BLOCK, Bench, chain, config, message, named, remove, removed_from, store, stored, tokens};

fn ignored(bench: &Bench, reason: Ignored) -> u64 {
    bench.rank().ignored.get(reason)
}

fn group(idx: u32, kind: Option<Kind>) -> Group {
    Group { idx: Some(idx), kind }
}

fn window() -> Kind {
    Kind::Other("sliding_window".to_owned())
}

#[test]
fn copies_are_counted_and_the_last_one_counts() {
    let mut bench = Bench::joined();
    bench.live_events(0, &[store(&[1], None, &tokens(&[1])), store(&[1], None, &tokens(&[1]))]);
    bench.live_events(1, &[remove(&[1])]);
    bench.is(Trust::Exact, 1);
    bench.live_events(2, &[remove(&[1]), remove(&[77])]);
    bench.is(Trust::Exact, 0);
    assert_eq!((bench.rank().removals, bench.rank().unknown_removals), (3, 1));
}

#[test]
fn an_orphan_is_not_exact_until_its_parent_comes() {
    let mut bench = Bench::joined();
    bench.live_events(0, &[store(&[2], Some(1), &tokens(&[2]))]);
    bench.is(Trust::Degraded, 0);
    let rank = bench.rank();
    assert_eq!((rank.orphans_parked, rank.orphan_blocks, rank.orphans_total), (1, 1, 1));
    bench.live_events(1, &[store(&[1], None, &tokens(&[1]))]);
    bench.is(Trust::Exact, 2);
    assert_eq!((bench.rank().orphans_parked, bench.rank().orphans_total), (0, 1));
    assert_eq!(bench.overlap(&chain(&[1, 2], Seed::BASE), Lanes::DEVICE), 2);
}

#[test]
fn orphans_that_are_dropped_leave_the_target_degraded() {
    let mut bench = Bench::joined();
    let parked = index::Limits::default().parked_stores as u64;
    for seq in 0..=parked {
        bench.live_events(seq, &[store(&[10 * seq + 2], Some(10 * seq + 1), &tokens(&[seq as u32]))]);
    }
    bench.is(Trust::Degraded, 0);
    assert!(bench.rank().reason.contains("dropped"));
    assert_eq!(bench.rank().orphans_total, parked + 1);
}

#[test]
fn one_odd_event_costs_nothing_but_trust() {
    let mut bench = Bench::joined();
    // Two good stores around an event without a type: [ts, [store, [], store], rank].
    let encoder = Encoder::new(Generation::Vllm033);
    let good = encoder.batch(1.0, 0, &[store(&[1], None, &tokens(&[1])), store(&[2], None, &tokens(&[2]))]);
    let mut bytes = good.to_vec();
    // Header of three, a float of nine bytes, then the array of events.
    assert_eq!((bytes[0], bytes[1], bytes[10]), (0x93, 0xcb, 0x92));
    bytes[10] = 0x93;
    bytes.insert(11, 0x90);
    bench.feed.live(bench.now, Message { seq: 0, payload: bytes.into() });
    bench.is(Trust::Degraded, 2);
    assert_eq!((bench.rank().event_errors, bench.stream().undecodable), (1, 0));
}

#[test]
fn an_unknown_type_is_only_counted() {
    let mut bench = Bench::joined();
    bench.live_events(0, &[Event::Unknown("BlockWarmed".to_owned()), store(&[1], None, &tokens(&[1]))]);
    bench.is(Trust::Exact, 1);
    assert_eq!(ignored(&bench, Ignored::UnknownType), 1);
}

#[test]
fn groups_that_do_not_attend_to_all_are_left_out_with_their_removals() {
    let mut bench = Bench::joined();
    let sliding = Stored { group: group(1, Some(window())), block_size: 9, ..stored(&[1], None, &tokens(&[1])) };
    let full = Stored { group: group(0, Some(Kind::FullAttention)), ..stored(&[1], None, &tokens(&[1])) };
    bench.live_events(0, &[Event::Stored(sliding), Event::Stored(full)]);
    bench.is(Trust::Exact, 1);
    bench.live_events(1, &[removed_from(Medium::Device, group(1, None), &[1]), removed_from(Medium::Device, group(7, None), &[1])]);
    bench.is(Trust::Exact, 1);
    assert_eq!((ignored(&bench, Ignored::OtherAttention), ignored(&bench, Ignored::UnlearnedGroup)), (2, 1));
    bench.live_events(2, &[removed_from(Medium::Device, group(0, None), &[1])]);
    bench.is(Trust::Exact, 0);
}

#[test]
fn the_same_hash_in_two_full_groups_is_two_copies() {
    let mut bench = Bench::joined();
    let in_group = |idx| Event::Stored(Stored { group: group(idx, Some(Kind::FullAttention)), ..stored(&[1], None, &tokens(&[1])) });
    bench.live_events(0, &[in_group(0), in_group(2)]);
    bench.live_events(1, &[removed_from(Medium::Device, group(2, None), &[1])]);
    bench.is(Trust::Exact, 1);
    bench.live_events(2, &[removed_from(Medium::Device, group(0, None), &[1])]);
    bench.is(Trust::Exact, 0);
}

#[test]
fn lower_tiers_have_lanes_of_their_own() {
    let mut bench = Bench::joined();
    let on = |medium: Medium| Event::Stored(Stored { medium, ..stored(&[1], None, &tokens(&[1])) });
    bench.live_events(
        0,
        &[on(Medium::Device), on(Medium::Host), on(Medium::Disk), on(Medium::External), on(Medium::Unknown("FS".to_owned()))],
    );
    let rank = bench.rank();
    assert_eq!((rank.blocks, rank.host_blocks, rank.disk_blocks), (1, 1, 1));
    assert_eq!((ignored(&bench, Ignored::ExternalMedium), ignored(&bench, Ignored::UnknownMedium)), (1, 1));
    bench.live_events(1, &[remove(&[1])]);
    let rank = bench.rank();
    assert_eq!((rank.blocks, rank.host_blocks, rank.disk_blocks), (0, 1, 1));
    bench.live_events(2, &[Event::Cleared]);
    assert_eq!((bench.rank().host_blocks, bench.rank().disk_blocks), (0, 0));
}

#[test]
fn memory_of_others_and_placeholders_are_left_out() {
    let mut bench = Bench::joined();
    let remote = Stored { locality: Locality::Remote, ..stored(&[1], None, &tokens(&[1])) };
    let placeholder = Stored { block_size: 0, tokens: Tokens::default(), ..stored(&[1], None, &[]) };
    bench.live_events(0, &[Event::Stored(remote), Event::Stored(placeholder)]);
    bench.is(Trust::Exact, 0);
    assert_eq!((ignored(&bench, Ignored::RemoteLocality), ignored(&bench, Ignored::Placeholder)), (1, 1));
    assert_eq!(bench.rank().ignored.total(), 2);
}

#[test]
fn another_block_size_than_configured_is_blind_with_both_numbers() {
    let mut bench = Bench::joined();
    let wide = Stored { block_size: 8, ..stored(&[1], None, &tokens(&[1, 2])) };
    bench.live_events(0, &[Event::Stored(wide.clone())]);
    bench.is(Trust::Blind, 0);
    let reason = bench.rank().reason;
    assert!(reason.contains('8') && reason.contains('4'), "{reason}");
    bench.live_events(1, &[Event::Stored(wide)]);
    assert_eq!(ignored(&bench, Ignored::BlockSize), 2);
    // The engine is restarted with the right size.
    bench.live_events(0, &[store(&[5], None, &tokens(&[1]))]);
    bench.is(Trust::Exact, 1);
}

#[test]
fn a_block_size_that_is_not_configured_is_adopted_and_follows_a_restart() {
    let mut bench = Bench::new(FeedConfig { block_size: None, ..config(ReplayMode::Available) });
    bench.connect();
    bench.end();
    assert_eq!(bench.rank().block_size, None);
    bench.live_events(0, &[remove(&[9]), store(&[1], None, &tokens(&[1]))]);
    bench.is(Trust::Exact, 1);
    assert_eq!(bench.rank().block_size, Some(BLOCK));
    let wide = Event::Stored(Stored { block_size: 8, ..stored(&[1], None, &tokens(&[1, 2])) });
    bench.live_events(1, std::slice::from_ref(&wide));
    bench.is(Trust::Blind, 1);
    bench.live_events(0, &[wide]);
    bench.is(Trust::Exact, 1);
    assert_eq!(bench.rank().block_size, Some(8));
    assert_eq!(bench.indexer().distinct_blocks(), 0, "the old size's blocks are gone");
}

#[test]
fn a_partial_block_is_no_contradiction() {
    let mut bench = Bench::joined();
    let partial = Stored { block_size: 2, ..stored(&[2], Some(1), &[7, 8]) };
    bench.live_events(0, &[store(&[1], None, &tokens(&[1])), Event::Stored(partial)]);
    bench.is(Trust::Exact, 1);
    assert_eq!(ignored(&bench, Ignored::PartialBlock), 1);
}

#[test]
fn a_connectors_own_block_size_does_not_blind_the_device_lane() {
    let mut bench = Bench::joined();
    let offloaded = Stored { medium: Medium::Host, block_size: 8, ..stored(&[1], None, &tokens(&[1, 2])) };
    bench.live_events(0, &[Event::Stored(offloaded), store(&[1], None, &tokens(&[1]))]);
    bench.is(Trust::Exact, 1);
    assert_eq!(ignored(&bench, Ignored::BlockSize), 1);
}

#[test]
fn media_hold_their_place_in_the_chain_and_match_no_text() {
    let mut bench = Bench::joined();
    let image = Stored { media_from: Some(0), ..stored(&[2], Some(1), &tokens(&[2])) };
    let events = [store(&[1], None, &tokens(&[1])), Event::Stored(image), store(&[3], Some(2), &tokens(&[3]))];
    bench.live_events(0, &events);
    bench.is(Trust::Exact, 3);
    assert_eq!(bench.rank().orphans_total, 0);
    assert_eq!(bench.overlap(&chain(&[1, 2, 3], Seed::BASE), Lanes::DEVICE), 1);
    bench.live_events(1, &[remove(&[2])]);
    bench.is(Trust::Exact, 2);
}

/// An engine puts the text in front of an image and the image's blocks into one event.
#[test]
fn text_in_front_of_media_in_one_store_is_credited_up_to_them() {
    let mut bench = Bench::joined();
    let prompt = Stored { media_from: Some(2), salt: Some("tenant".to_owned()), ..stored(&[1, 2, 3, 4], None, &tokens(&[1, 2, 3, 4])) };
    bench.live_events(0, &[Event::Stored(prompt)]);
    bench.is(Trust::Exact, 4);
    let seed = Seed::new(None, Some("tenant"));
    let overlap = |bench: &Bench, blocks: &[u32]| bench.overlap(&chain(blocks, seed), Lanes::DEVICE);
    assert_eq!(overlap(&bench, &[1, 2, 3, 4]), 2);
    // Chunked prefill: the next part follows the image, and another prompt the text in front of it.
    let other = Stored { media_from: Some(1), ..stored(&[6, 7], Some(2), &tokens(&[6, 3])) };
    bench.live_events(1, &[store(&[5], Some(4), &tokens(&[5])), Event::Stored(other)]);
    bench.is(Trust::Exact, 7);
    assert_eq!((overlap(&bench, &[1, 2, 6, 3]), bench.rank().orphans_total, bench.rank().stores), (3, 0, 3));
    bench.live_events(2, &[remove(&[2, 3, 7])]);
    bench.is(Trust::Exact, 4);
    assert_eq!(overlap(&bench, &[1, 2, 3, 4]), 1);
}

#[test]
fn text_and_media_whose_parent_comes_late_are_one_chain() {
    let mut bench = Bench::joined();
    let part = Stored { media_from: Some(1), ..stored(&[2, 3], Some(1), &tokens(&[2, 3])) };
    bench.live_events(0, &[Event::Stored(part)]);
    bench.is(Trust::Degraded, 0);
    bench.live_events(1, &[store(&[1], None, &tokens(&[1]))]);
    bench.is(Trust::Exact, 3);
    assert_eq!(bench.overlap(&chain(&[1, 2, 3], Seed::BASE), Lanes::DEVICE), 2);
}

#[test]
fn a_store_of_media_without_the_tokens_of_its_text_is_refused_whole() {
    let mut bench = Bench::joined();
    let short = Stored { media_from: Some(2), ..stored(&[1, 2, 3], None, &tokens(&[1])) };
    bench.live_events(0, &[Event::Stored(short)]);
    bench.is(Trust::Degraded, 0);
    assert_eq!((bench.rank().refused, bench.rank().orphans_total), (1, 0));
}

#[test]
fn adapters_and_salts_are_kept_apart() {
    let names = [(7, "mapped".to_owned())].into();
    let mut bench = Bench::new(FeedConfig { adapters: names, ..config(ReplayMode::Unavailable) });
    bench.connect();
    let by = |hash: u64, adapter: Adapter, salt: Option<&str>| {
        Event::Stored(Stored { adapter, salt: salt.map(str::to_owned), ..stored(&[hash], None, &tokens(&[1])) })
    };
    let sglang = Encoder::new(Generation::Sglang0523);
    let events = [by(1, named("sql"), None), by(2, Adapter::Base, Some("tenant"))];
    bench.feed.live(bench.now, Message { seq: 0, payload: sglang.batch(1.0, 0, &events) });
    let old = Encoder::new(Generation::Vllm012);
    let events = [by(3, Adapter::Numbered(7), None), by(4, Adapter::Numbered(8), None)];
    bench.feed.live(bench.now, Message { seq: 1, payload: old.batch(1.0, 0, &events) });
    bench.is(Trust::Exact, 4);
    let overlap = |adapter, salt| bench.overlap(&chain(&[1], Seed::new(adapter, salt)), Lanes::DEVICE);
    assert_eq!(overlap(Some("sql"), None), 1);
    assert_eq!(overlap(None, Some("tenant")), 1);
    assert_eq!(overlap(Some("mapped"), None), 1);
    assert_eq!(overlap(None, None), 0, "a number without a name is not the base model");
    assert_eq!(overlap(Some("tenant"), None), 0);
}

#[test]
fn a_batch_goes_to_its_rank_or_else_to_the_sockets() {
    let targets = Targets::new();
    let two = vec![targets.allocate().unwrap(), targets.allocate().unwrap()];
    let ranks = RankRange { start: 2, size: 2 };
    let config = FeedConfig { ranks, socket_rank: 3, targets: two, ..config(ReplayMode::Unavailable) };
    let mut bench = Bench::new(config);
    bench.connect();
    for (seq, rank) in [2, 3, 0].into_iter().enumerate() {
        let payload = Encoder::new(Generation::Vllm033).batch(5.0, rank, &[store(&[seq as u64], None, &tokens(&[seq as u32]))]);
        bench.feed.live(bench.now, Message { seq: seq as u64, payload });
    }
    let ranks = bench.feed.status().ranks();
    let shown: Vec<_> = ranks.iter().map(|rank| (rank.rank, rank.blocks, rank.rank_mismatches, rank.last_timestamp)).collect();
    assert_eq!(shown, [(2, 1, 0, Some(5.0)), (3, 2, 1, Some(5.0))]);
    assert!(ranks.iter().all(|rank| rank.trust == Trust::Exact));
    // A clear empties its own target only.
    let payload = Encoder::new(Generation::Vllm033).batch(6.0, 3, &[Event::Cleared]);
    bench.feed.live(bench.now, Message { seq: 3, payload });
    let blocks: Vec<_> = bench.feed.status().ranks().iter().map(|rank| rank.blocks).collect();
    assert_eq!(blocks, [1, 0]);
}

#[test]
fn a_store_the_index_refuses_is_degraded() {
    let mut bench = Bench::joined();
    bench.live_events(0, &[store(&[1, 2], None, &tokens(&[1]))]);
    bench.is(Trust::Degraded, 0);
    assert_eq!(bench.rank().refused, 1);
}

#[test]
fn dropping_the_feed_gives_its_blocks_back() {
    let bench = Bench::following(3);
    let indexer = bench.indexer();
    assert_eq!(indexer.distinct_blocks(), 4);
    drop(bench);
    assert_eq!(indexer.distinct_blocks(), 0);
}

#[test]
fn hostile_streams_neither_panic_nor_grow() {
    let mut bench = Bench::joined();
    for seq in [0, u64::MAX, 5, u64::MAX - 1, 0, 1, u64::MAX] {
        let live = bench.feed.live(bench.now, message(seq, &[store(&[seq], Some(seq), &tokens(&[1]))]));
        if live.is_some() {
            bench.feed.replayed(bench.now, message(u64::MAX, &[]));
            bench.feed.replayed(bench.now, message(0, &[]));
            bench.silent();
        }
    }
    let none = BlockSize::new(0);
    assert!(none.is_none());
    assert_eq!(bench.stream().held_bytes, 0);
}
