//! Gaps, restarts and odd events, one by one.

use feed::ReplayMode;
use index::{BlockSize, Seed, Window, local_hashes};
use wire::{
    Adapter, Event, Group, Kind, Locality, Medium, Message, Removed, Stored, Tokens,
    encode::{Encoder, Generation},
    router::{KvData, Tier},
};

use crate::Both;

const BLOCK: u32 = 4;

fn tokens(block: u32) -> Vec<u32> {
    (block * BLOCK..(block + 1) * BLOCK).collect()
}

fn stored(hash: u64, parent: Option<u64>, block: u32) -> Stored {
    Stored { block_hashes: vec![hash], parent, tokens: Tokens::Plain(tokens(block)), block_size: BLOCK, ..Stored::default() }
}

fn removed(hash: u64) -> Event {
    Event::Removed(Removed { block_hashes: vec![hash], ..Removed::default() })
}

fn message(seq: u64, events: &[Event]) -> Message {
    Message { seq, payload: Encoder::new(Generation::Vllm033).batch(1.0 + seq as f64, 0, events) }
}

/// Message `seq` of one life: one more block of one chain.
fn numbered(life: u64, seq: u64) -> Message {
    let hash = |seq: u64| 1000 * life + seq;
    message(seq, &[Event::Stored(stored(hash(seq + 1), (seq > 0).then_some(hash(seq)), seq as u32))])
}

/// Connected, and nothing was published before.
fn joined() -> Both {
    let mut both = Both::new(BLOCK, ReplayMode::Available);
    assert_eq!(both.replayed(&[]), None);
    both
}

fn alike(both: &Both) {
    let [indexed, published] = both.held();
    assert_eq!(indexed, published);
}

#[test]
fn a_gap_that_is_replayed_leaves_no_trace() {
    let mut both = joined();
    both.live(&numbered(1, 0));
    assert!(both.live(&numbered(1, 3)).is_some());
    let missing: Vec<Message> = (0..=3).map(|seq| numbered(1, seq)).collect();
    assert_eq!(both.replayed(&missing), None);
    both.live(&numbered(1, 4));
    alike(&both);
    assert_eq!(both.published.len(), 5);
    assert!(both.skipped().is_empty());
}

#[test]
fn a_gap_that_cannot_be_replayed_is_a_skipped_number() {
    let mut both = Both::new(BLOCK, ReplayMode::Unavailable);
    both.live(&numbered(1, 0));
    both.live(&message(5, &[Event::Stored(stored(77, None, 9))]));
    alike(&both);
    assert_eq!(both.skipped(), [2]);
    let ids: Vec<u64> = both.published.iter().map(|event| event.event.event_id).collect();
    assert_eq!(ids, [1, 3]);
}

#[test]
fn a_restart_is_a_clear() {
    let mut both = joined();
    for seq in 0..3 {
        both.live(&numbered(1, seq));
    }
    both.live(&numbered(2, 0));
    alike(&both);
    assert_eq!(both.published.iter().filter(|event| event.event.data == KvData::Cleared).count(), 1);
    assert_eq!(both.held()[1].0, 1);
    assert!(both.skipped().is_empty());
}

#[test]
fn an_unreadable_batch_and_an_odd_event_are_skipped_numbers() {
    let mut both = joined();
    both.live(&numbered(1, 0));
    both.live(&Message { seq: 1, payload: b"\xc1"[..].to_vec().into() });
    both.live(&message(2, &[Event::Stored(stored(5, None, 5))]));
    assert_eq!(both.skipped(), [2]);
    let odd = Message { seq: 3, payload: b"\x93\xc0\x91\x91\xacBlockRemoved\x00"[..].to_vec().into() };
    both.live(&odd);
    both.live(&message(4, &[Event::Stored(stored(6, None, 6))]));
    assert_eq!(both.skipped(), [2, 4]);
    alike(&both);
}

#[test]
fn a_store_of_other_lengths_is_refused_and_a_skipped_number() {
    let mut both = joined();
    let short = Stored { block_hashes: vec![1, 2], ..stored(1, None, 1) };
    both.live(&message(0, &[Event::Stored(short)]));
    both.live(&message(1, &[Event::Stored(stored(3, None, 3))]));
    assert_eq!(both.refused.len(), 1, "{:?}", both.refused);
    assert_eq!(both.skipped(), [1]);
}

#[test]
fn what_makes_no_prefix_hit_takes_no_number() {
    let mut both = joined();
    let group = |idx, kind| Group { idx: Some(idx), kind };
    let window = Kind::Other("sliding_window".to_owned());
    let kept = Stored { group: group(0, Some(Kind::FullAttention)), ..stored(1, None, 1) };
    let left = [
        Stored { group: group(1, Some(window.clone())), ..stored(2, None, 2) },
        Stored { group: group(7, None), ..stored(3, None, 3) },
        Stored { locality: Locality::Remote, ..stored(4, None, 4) },
        Stored { medium: Medium::Unknown("HOLOGRAM".to_owned()), ..stored(5, None, 5) },
        Stored { block_size: 0, tokens: Tokens::default(), ..stored(6, None, 6) },
    ];
    let mut events = vec![Event::Stored(kept)];
    events.extend(left.into_iter().map(Event::Stored));
    events.push(Event::Removed(Removed { block_hashes: vec![1], group: group(1, None), ..Removed::default() }));
    events.push(Event::Unknown("BlockWatered".to_owned()));
    both.live(&message(0, &events));
    both.live(&message(1, &[removed(1)]));
    alike(&both);
    let ids: Vec<u64> = both.published.iter().map(|event| event.event.event_id).collect();
    assert_eq!(ids, [1, 2]);
}

#[test]
fn copies_are_counted_so_that_a_set_is_published() {
    let mut both = joined();
    both.live(&message(0, &[Event::Stored(stored(1, None, 1)), Event::Stored(stored(1, None, 1))]));
    both.live(&message(1, &[removed(1)]));
    assert_eq!(both.published.len(), 1);
    both.live(&message(2, &[removed(1)]));
    assert_eq!(both.published.len(), 2);
    alike(&both);
}

#[test]
fn children_of_a_salted_block_are_salted() {
    let mut both = joined();
    let salted = Stored { salt: Some("tenant".to_owned()), ..stored(1, None, 1) };
    both.live(&message(0, &[Event::Stored(salted)]));
    both.live(&message(1, &[Event::Stored(stored(2, Some(1), 2))]));
    alike(&both);
    let chain = |seed| {
        let mut locals = Vec::new();
        let prompt = [tokens(1), tokens(2)].concat();
        local_hashes(&prompt, BlockSize::new(BLOCK).unwrap(), seed, Window::Plain, &mut locals);
        locals
    };
    assert_eq!(both.publisher.find_matches(&chain(Seed::new(None, Some("tenant")))), Some(2));
    assert_eq!(both.publisher.find_matches(&chain(Seed::BASE)), Some(0));
}

#[test]
fn text_in_front_of_media_is_published_and_what_follows_matches_no_text() {
    let mut both = joined();
    let tokens = Tokens::Plain([tokens(1), tokens(2), tokens(3)].concat());
    let image = Stored { block_hashes: vec![1, 2, 3], tokens, media_from: Some(1), ..stored(1, None, 1) };
    both.live(&message(0, &[Event::Stored(image)]));
    both.live(&message(1, &[Event::Stored(stored(4, Some(3), 4))]));
    let mut locals = Vec::new();
    let prompt: Vec<u32> = (BLOCK..5 * BLOCK).collect();
    local_hashes(&prompt, BlockSize::new(BLOCK).unwrap(), Seed::BASE, Window::Plain, &mut locals);
    assert_eq!(both.publisher.find_matches(&locals), Some(1));
    let [indexed, published] = both.held();
    assert_eq!((indexed.0, published.0), (4, 4), "the chain is there, so that nothing waits for a parent");
    both.live(&message(2, &[removed(2)]));
    assert_eq!(both.published.len(), 3);
}

#[test]
fn tiers_and_adapters_are_told() {
    let mut both = joined();
    let host = Stored { medium: Medium::Host, ..stored(2, None, 2) };
    let adapted = Stored { adapter: Adapter::Named("sql".to_owned()), ..stored(3, None, 3) };
    both.live(&message(0, &[Event::Stored(stored(1, None, 1)), Event::Stored(host), Event::Stored(adapted)]));
    alike(&both);
    let tiers: Vec<Tier> = both.published.iter().map(|event| event.storage_tier).collect();
    assert_eq!(tiers, [Tier::Device, Tier::HostPinned, Tier::Device]);
}
