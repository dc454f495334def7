//! One writer per lane is in force, and a slot never shows what an earlier target of it held.

use index::{Blocks, Copies, EngineHash, Lane, Lanes, Levels, Limits, Parent, Refusal, Seed, Stored, Target, Targets, sequence_hashes};

use crate::long::{depth, indexer, locals, names, store};

#[test]
fn a_later_target_in_a_slot_starts_empty_though_the_old_writers_live() {
    let (indexer, targets) = (indexer(Limits::default()), Targets::new());
    let old = targets.allocate().unwrap();
    let neighbour = targets.allocate().unwrap();
    let mut old_device = indexer.writer(old, Lane::Device, Copies::Counted);
    let mut old_host = indexer.writer(old, Lane::Host, Copies::Set);
    let mut other = indexer.writer(neighbour, Lane::Device, Copies::Set);
    for writer in [&mut old_device, &mut old_host, &mut other] {
        store(writer, 0, 2000);
    }
    targets.release(old);
    let new = targets.allocate().unwrap();
    assert_eq!((new.slot, new.generation), (old.slot, old.generation + 1));

    let mut new_host = indexer.writer(new, Lane::Host, Copies::Set);
    let mut levels = Levels::new();
    indexer.lookup(&locals(0, 2000), Lanes::ALL, &mut levels);
    assert_eq!((levels.depth(new.slot), levels.depth(neighbour.slot)), (0, 2000));
    assert_eq!((indexer.blocks(new, Lane::Device), indexer.digest(new), indexer.digest(old)), (0, 0, 0));

    assert_eq!(store(&mut new_host, 0, 10), Stored::Applied { added: 10 });
    assert_eq!(store(&mut old_host, 10, 20), Stored::Refused(Refusal::Superseded));
    assert_eq!(old_device.remove(&names(0, 5)).removed, 5, "it knew them until it noticed");
    assert_eq!((old_device.blocks(), old_host.blocks()), (0, 0));
    old_host.clear();
    drop((old_device, old_host));
    assert_eq!((indexer.blocks(new, Lane::Host), indexer.blocks(old, Lane::Host)), (10, 0));
    assert_eq!(indexer.held(old, Lane::Host), []);

    let mut late = indexer.writer(old, Lane::Device, Copies::Counted);
    assert_eq!(store(&mut late, 0, 1), Stored::Refused(Refusal::Superseded));
    drop((late, new_host, other));
    assert_eq!(indexer.distinct_blocks(), 0);
}

#[test]
fn a_second_writer_of_a_lane_replaces_the_first_and_leaves_other_lanes_alone() {
    let (indexer, targets) = (indexer(Limits::default()), Targets::new());
    let target = targets.allocate().unwrap();
    let mut first = indexer.writer(target, Lane::Device, Copies::Counted);
    let mut host = indexer.writer(target, Lane::Host, Copies::Counted);
    store(&mut first, 0, 600);
    store(&mut host, 0, 600);
    let mut second = indexer.writer(target, Lane::Device, Copies::Counted);
    assert_eq!((depth(&indexer, target, 600), indexer.blocks(target, Lane::Host)), (0, 600));
    store(&mut second, 0, 7);
    drop(first);
    assert_eq!(depth(&indexer, target, 600), 7);
    assert_eq!(store(&mut host, 600, 601), Stored::Applied { added: 1 });
}

#[test]
fn a_cleared_lane_shows_what_is_stored_next() {
    let (indexer, targets) = (indexer(Limits::default()), Targets::new());
    let target = targets.allocate().unwrap();
    let mut writer = indexer.writer(target, Lane::Device, Copies::Counted);
    for blocks in [1500, 3] {
        store(&mut writer, 0, blocks);
        assert_eq!(depth(&indexer, target, 1500), blocks as u32);
        writer.clear();
        assert_eq!((depth(&indexer, target, 1500), indexer.distinct_blocks()), (0, 0));
    }
}

#[test]
fn slots_are_dense_and_reused_in_order_of_release() {
    let targets = Targets::new();
    let all: Vec<Target> = (0..5).map(|_| targets.allocate().unwrap()).collect();
    assert!(all.iter().enumerate().all(|(index, target)| target.slot.index() == index && target.generation == 0));
    assert!(targets.release(all[3]) && targets.release(all[1]));
    assert!(!targets.release(all[3]), "released already");
    assert_eq!(targets.len(), 3);
    let again = targets.allocate().unwrap();
    assert_eq!((again.slot, again.generation), (all[3].slot, 1));
    assert!(targets.is_live(again) && !targets.is_live(all[3]) && !targets.is_live(all[1]));
    let rest = (0..index::Slot::LIMIT - 4).filter(|_| targets.allocate().is_some()).count();
    assert_eq!(rest, index::Slot::LIMIT - 4);
    assert_eq!(targets.allocate(), None, "every slot is taken");
}

#[test]
fn a_lane_goes_from_one_state_to_the_next_over_what_both_have() {
    let (indexer, targets) = (indexer(Limits::default()), Targets::new());
    let target = targets.allocate().unwrap();
    let mut writer = indexer.writer(target, Lane::Device, Copies::Set);
    store(&mut writer, 0, 1200);
    let parent = Parent::Block(EngineHash(u64::MAX));
    let waiting = Blocks::LocalHashes { locals: &locals(5, 6), hashes: &names(7_000, 7_001) };
    assert_eq!(writer.store(parent, waiting), Stored::Parked);

    // The next state: the first 900 blocks and one more branch, and the name of block 3 means something else.
    let mut identities = Vec::new();
    sequence_hashes(&locals(0, 900), &mut identities);
    let listed = |name: EngineHash, identity| name != EngineHash(4) && identities.get(name.0 as usize - 1) == Some(&identity);
    assert_eq!(writer.keep(listed), 301);
    assert_eq!((writer.blocks(), depth(&indexer, target, 1200), writer.parked().stores), (899, 3, 0));
    let blocks = Blocks::LocalHashes { locals: &locals(3, 4), hashes: &[EngineHash(8_000)] };
    assert_eq!(writer.store(Parent::Block(EngineHash(3)), blocks), Stored::Applied { added: 1 });
    assert_eq!(depth(&indexer, target, 1200), 900);
    assert_eq!(writer.keep(|_, _| false), 900);
    assert_eq!((writer.blocks(), indexer.distinct_blocks()), (0, 0));
}

/// A restarted publisher's first list may have nothing of what its predecessor held: that goes in time that grows with its number.
#[test]
fn a_large_lane_of_which_nothing_is_listed_goes_at_once() {
    const CHAIN: u64 = 50;
    let (indexer, targets) = (indexer(Limits::default()), Targets::new());
    let mut writer = indexer.writer(targets.allocate().unwrap(), Lane::Device, Copies::Set);
    let mut last_of = |chains: u64| {
        for chain in 0..chains {
            let (from, to) = (1 + chain * CHAIN, 1 + (chain + 1) * CHAIN);
            let blocks = Blocks::LocalHashes { locals: &locals(from, to), hashes: &names(from, to) };
            assert_eq!(writer.store(Parent::Root(Seed::BASE), blocks), Stored::Applied { added: CHAIN as usize });
        }
        let since = std::time::Instant::now();
        assert_eq!(writer.keep(|_, _| false), (chains * CHAIN) as usize);
        since.elapsed()
    };
    let (small, large) = (last_of(400), last_of(3200));
    // Eight times as many; squared it would be 64 times as long.
    assert!(large < 25 * small + std::time::Duration::from_millis(200), "{small:?} {large:?}");
}
