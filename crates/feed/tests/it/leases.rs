//! Rules 11 and 12: blocks held for a while, against a model that is a plain map.

use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

use feed::Leases;
use index::{BlockSize, KvIndexer, Lane, Lanes, Levels, LocalHash, Seed, Target, Targets};
use proptest::prelude::*;

use crate::support::chain;

const TTL: Duration = Duration::from_secs(10);

struct Lease {
    leases: Leases,
    indexer: Arc<KvIndexer>,
    target: Target,
    now: Instant,
}

fn lease(capacity: usize) -> Lease {
    let indexer = KvIndexer::new(BlockSize::new(crate::support::BLOCK).unwrap(), index::Limits::default());
    let target = Targets::new().allocate().unwrap();
    let leases = Leases::new(&indexer, target, Lane::Predicted, TTL, NonZeroUsize::new(capacity).unwrap());
    Lease { leases, indexer, target, now: Instant::now() }
}

impl Lease {
    fn hold(&mut self, blocks: &[u32]) {
        self.leases.hold(self.now, &locals(blocks));
    }

    fn overlap(&self, blocks: &[u32]) -> u32 {
        let mut levels = Levels::default();
        self.indexer.lookup(&locals(blocks), Lanes::PREDICTED, &mut levels);
        levels.depth(self.target.slot)
    }

    fn held(&self) -> usize {
        assert_eq!(self.leases.blocks(), self.indexer.blocks(self.target, Lane::Predicted));
        self.leases.blocks()
    }
}

fn locals(blocks: &[u32]) -> Vec<LocalHash> {
    chain(blocks, Seed::BASE)
}

#[test]
fn a_chain_is_held_for_its_time_and_holding_it_again_prolongs_it() {
    let mut lease = lease(100);
    lease.hold(&[1, 2, 3]);
    assert_eq!(lease.overlap(&[1, 2, 3, 4]), 3);
    lease.now += TTL / 2;
    lease.hold(&[1, 2]);
    lease.now += TTL / 2;
    assert_eq!(lease.leases.next_expiry(), Some(lease.now));
    assert_eq!(lease.leases.expire(lease.now), 1);
    assert_eq!((lease.overlap(&[1, 2, 3]), lease.held()), (2, 2));
    lease.now += TTL / 2;
    assert_eq!(lease.leases.expire(lease.now), 2);
    assert_eq!((lease.held(), lease.leases.next_expiry()), (0, None));
}

#[test]
fn beyond_the_capacity_the_longest_unused_goes_leaf_first() {
    let mut lease = lease(5);
    lease.hold(&[1, 2, 3]);
    lease.hold(&[7, 8]);
    lease.hold(&[1, 4]);
    assert_eq!(lease.held(), 5);
    assert_eq!((lease.overlap(&[1, 2, 3]), lease.overlap(&[7, 8]), lease.overlap(&[1, 4])), (2, 2, 2));
    lease.hold(&[9]);
    assert_eq!((lease.overlap(&[1, 2, 3]), lease.overlap(&[1, 4]), lease.held()), (1, 2, 5));
}

#[test]
fn room_for_a_chain_is_not_made_at_the_cost_of_its_prefix_even_if_time_runs_backwards() {
    let chain = |from: u32, to: u32| (from..to).collect::<Vec<_>>();
    let (mut lease, mut nobodys) = (lease(100), chain(0, 40));
    lease.hold(&chain(0, 50));
    lease.now += Duration::from_millis(2);
    lease.hold(&chain(1000, 1050));
    lease.now -= Duration::from_millis(1);
    lease.hold(&chain(0, 60));
    nobodys.extend(50..60);
    assert_eq!((lease.overlap(&chain(0, 60)), lease.overlap(&nobodys), lease.held()), (60, 40, 100));
}

#[test]
fn a_chain_longer_than_the_capacity_is_held_from_its_start() {
    let mut lease = lease(3);
    lease.hold(&[1, 2, 3, 4, 5]);
    assert_eq!((lease.overlap(&[1, 2, 3, 4, 5]), lease.held()), (3, 3));
    lease.hold(&[1, 2, 3, 4, 5]);
    assert_eq!((lease.overlap(&[1, 2, 3, 4, 5]), lease.held()), (3, 3));
}

#[test]
fn what_did_not_happen_is_given_back_and_what_others_hold_stays() {
    let mut lease = lease(100);
    lease.hold(&[1, 2]);
    lease.now += TTL / 10;
    let (long, short) = (locals(&[1, 2, 3, 4, 5]), locals(&[1, 2, 3]));
    let added = lease.leases.hold(lease.now, &long);
    lease.leases.give_back(&long, added);
    assert_eq!((lease.overlap(&[1, 2, 3, 4, 5]), lease.held()), (2, 2), "what was held before");
    let added = lease.leases.hold(lease.now, &long);
    lease.now += TTL / 10;
    let again = lease.leases.hold(lease.now, &short);
    lease.leases.give_back(&long, added);
    assert_eq!((lease.overlap(&[1, 2, 3, 4, 5]), lease.held()), (3, 3), "what was held again");
    lease.leases.give_back(&short, again);
    assert_eq!(lease.held(), 3, "it added nothing");
    lease.leases.clear();
    lease.leases.give_back(&long, added);
    assert_eq!(lease.held(), 0);
}

#[test]
fn a_hold_beyond_the_capacity_gives_back_what_it_held() {
    let mut lease = lease(3);
    let long = locals(&[1, 2, 3, 4, 5]);
    let added = lease.leases.hold(lease.now, &long);
    lease.leases.give_back(&long, added);
    assert_eq!((lease.overlap(&[1, 2, 3]), lease.held()), (0, 0));
}

#[test]
fn expiry_is_in_bounded_steps() {
    let mut lease = lease(5_000);
    let long: Vec<u32> = (0..2_000).collect();
    lease.hold(&long);
    lease.now += TTL;
    let mut steps = Vec::new();
    while lease.leases.next_expiry().is_some_and(|at| at <= lease.now) {
        steps.push(lease.leases.expire(lease.now));
        let left = lease.held();
        assert_eq!(lease.overlap(&long) as usize, left, "the start goes last");
    }
    assert_eq!(steps, [512, 512, 512, 464]);
}

#[test]
fn dropped_or_cleared_leases_hold_nothing() {
    let mut lease = lease(10);
    lease.hold(&[1, 2]);
    lease.leases.clear();
    assert_eq!((lease.held(), lease.leases.next_expiry()), (0, None));
    lease.hold(&[1, 2]);
    let (indexer, target) = (lease.indexer.clone(), lease.target);
    drop(lease);
    assert_eq!(indexer.blocks(target, Lane::Predicted), 0);
}

#[derive(Clone, Debug)]
enum Step {
    Hold(Vec<u32>),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let hold = prop::collection::vec(0..3u32, 1..6).prop_map(Step::Hold);
    let pass = (0..8u64).prop_map(Step::Pass);
    prop::collection::vec(prop_oneof![3 => hold, 1 => pass], 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// With room for all, exactly the prefixes held less than the time to live ago are there.
    #[test]
    fn what_is_held_is_what_was_held_of_late(steps in steps()) {
        let mut lease = lease(10_000);
        let mut model = BTreeMap::<Vec<u32>, Instant>::new();
        for step in steps {
            match step {
                Step::Hold(blocks) => {
                    lease.hold(&blocks);
                    model.extend((1..=blocks.len()).map(|depth| (blocks[..depth].to_vec(), lease.now)));
                }
                Step::Pass(seconds) => lease.now += Duration::from_secs(seconds),
            }
            lease.leases.expire(lease.now);
            model.retain(|_, held| *held + TTL > lease.now);
            prop_assert_eq!(lease.held(), model.len());
            for path in model.keys() {
                prop_assert_eq!(lease.overlap(path) as usize, path.len());
            }
        }
    }

    /// With little room, the bound holds, the last chain is there, and no block stays without the ones before it.
    #[test]
    fn the_capacity_holds_and_leaves_no_holes(steps in steps(), capacity in 1..12usize) {
        let mut lease = lease(capacity);
        let mut seen = Vec::new();
        for step in steps {
            let Step::Hold(blocks) = step else { continue };
            lease.hold(&blocks);
            prop_assert_eq!(lease.overlap(&blocks) as usize, blocks.len().min(capacity));
            seen.extend((1..=blocks.len()).map(|depth| blocks[..depth].to_vec()));
            seen.sort();
            seen.dedup();
            let whole = seen.iter().filter(|path| lease.overlap(path) as usize == path.len()).count();
            prop_assert_eq!(lease.held(), whole, "a block is held that no prompt can reach");
            prop_assert!(lease.held() <= capacity);
        }
    }
}
