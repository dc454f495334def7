//! Rule 4: copies are counted until their writer is told that they cannot be.

use index::{Blocks, Copies, EngineHash, Lane, Lanes, Levels, Limits, LocalHash, Parent, Removed, Stored, Targets};

use crate::long::{depth, indexer, names, store};

#[test]
fn copies_counted_until_then_are_one_in_a_set_and_so_are_later_ones() {
    let (indexer, targets) = (indexer(Limits::default()), Targets::new());
    let target = targets.allocate().unwrap();
    let mut writer = indexer.writer(target, Lane::Device, Copies::Counted);
    for added in [6, 0, 0] {
        assert_eq!(store(&mut writer, 0, 6), Stored::Applied { added });
    }
    let one = Removed { removed: 1, unknown: 0 };
    assert_eq!((writer.remove(&names(5, 6)), depth(&indexer, target, 6)), (one, 6), "two more copies are counted");
    writer.count_as_set();
    assert_eq!((writer.blocks(), depth(&indexer, target, 6)), (6, 6), "what was held still is");
    assert_eq!((writer.remove(&names(5, 6)), depth(&indexer, target, 6)), (one, 5));
    assert_eq!(writer.remove(&names(5, 6)), Removed { removed: 0, unknown: 1 });
    for added in [1, 0] {
        assert_eq!(store(&mut writer, 5, 6), Stored::Applied { added });
    }
    assert_eq!((writer.remove(&names(5, 6)), depth(&indexer, target, 6)), (one, 5));
}

#[test]
fn parked_copies_are_one_in_a_set_as_well() {
    let (indexer, targets) = (indexer(Limits::default()), Targets::new());
    let mut writer = indexer.writer(targets.allocate().unwrap(), Lane::Device, Copies::Counted);
    for _ in 0..2 {
        assert_eq!(store(&mut writer, 3, 4), Stored::Parked);
    }
    writer.count_as_set();
    assert_eq!(writer.remove(&names(3, 4)).removed, 1);
    assert_eq!(writer.parked().stores, 0);
}

#[test]
fn a_block_that_ended_two_stores_and_went_is_found_where_it_is_stored_next() {
    let (indexer, targets) = (indexer(Limits::default()), Targets::new());
    let target = targets.allocate().unwrap();
    let mut writer = indexer.writer(target, Lane::Device, Copies::Set);
    for added in [1, 0] {
        assert_eq!(store(&mut writer, 0, 1), Stored::Applied { added });
    }
    assert_eq!(writer.remove(&names(0, 1)).removed, 1);
    assert_eq!(store(&mut writer, 0, 3), Stored::Applied { added: 3 });
    assert_eq!(writer.remove(&names(1, 3)).removed, 2);
    assert_eq!(store(&mut writer, 1, 3), Stored::Applied { added: 2 }, "its first place is not where it is now");
    assert_eq!(depth(&indexer, target, 3), 3);
}

/// What one target holds in pieces in two lanes, and another whole, before and after the place where a prompt parts.
#[test]
fn lanes_that_make_up_a_whole_together_end_where_they_end() {
    let (indexer, targets) = (indexer(Limits::default()), Targets::new());
    let [whole, pieces] = [(); 2].map(|()| targets.allocate().unwrap());
    let mut first = indexer.writer(whole, Lane::Device, Copies::Set);
    let [mut device, mut host] = [Lane::Device, Lane::Host].map(|lane| indexer.writer(pieces, lane, Copies::Set));
    for writer in [&mut first, &mut device, &mut host] {
        assert_eq!(store(writer, 0, 20), Stored::Applied { added: 20 });
    }
    device.remove(&names(5, 20));
    host.remove(&names(0, 5));
    host.remove(&names(10, 20));
    let other = Blocks::LocalHashes { locals: &[LocalHash(1_000_000)], hashes: &[EngineHash(1_000_000)] };
    assert_eq!(first.store(Parent::Block(names(9, 10)[0]), other), Stored::Applied { added: 1 });
    let (chain, mut levels) = (crate::long::locals(0, 20), Levels::new());
    indexer.lookup(&chain, Lanes::DEVICE | Lanes::HOST, &mut levels);
    assert_eq!([levels.depth(whole.slot), levels.depth(pieces.slot)], [20, 10]);
}
