//! Chains of many chunks of work, and the bounds of an index (rule 16).

use std::sync::Arc;

use index::{
    BlockSize, Blocks, Copies, EngineHash, KvIndexer, Lane, Lanes, Levels, Limits, LocalHash, Parent, Refusal, Removed, Seed, Stored,
    Target, Targets, Writer,
};

pub(crate) fn indexer(limits: Limits) -> Arc<KvIndexer> {
    KvIndexer::new(BlockSize::new(16).unwrap(), limits)
}

/// Block `n` of the one prompt these tests use.
pub(crate) fn local(n: u64) -> LocalHash {
    LocalHash(n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

pub(crate) fn locals(from: u64, to: u64) -> Vec<LocalHash> {
    (from..to).map(local).collect()
}

pub(crate) fn names(from: u64, to: u64) -> Vec<EngineHash> {
    (from..to).map(|n| EngineHash(n + 1)).collect()
}

/// Stores blocks `from..to`, after block `from - 1`.
pub(crate) fn store(writer: &mut Writer, from: u64, to: u64) -> Stored {
    let parent = if from == 0 { Parent::Root(Seed::BASE) } else { Parent::Block(EngineHash(from)) };
    writer.store(parent, Blocks::LocalHashes { locals: &locals(from, to), hashes: &names(from, to) })
}

pub(crate) fn depth(indexer: &KvIndexer, target: Target, blocks: u64) -> u32 {
    let mut levels = Levels::new();
    indexer.lookup(&locals(0, blocks), Lanes::DEVICE, &mut levels);
    levels.depth(target.slot)
}

#[test]
fn long_chains_are_found_shared_cut_and_healed() {
    let (indexer, targets) = (indexer(Limits::default()), Targets::new());
    let (long, short) = (targets.allocate().unwrap(), targets.allocate().unwrap());
    let mut long_writer = indexer.writer(long, Lane::Device, Copies::Set);
    let mut short_writer = indexer.writer(short, Lane::Device, Copies::Set);
    assert_eq!(store(&mut long_writer, 0, 3000), Stored::Applied { added: 3000 });
    assert_eq!(store(&mut short_writer, 0, 1700), Stored::Applied { added: 1700 });
    assert_eq!(indexer.distinct_blocks(), 3000);
    let mut levels = Levels::new();
    indexer.lookup(&locals(0, 4000), Lanes::DEVICE, &mut levels);
    let found: Vec<_> = levels.iter().map(|(depth, slots)| (depth, slots.iter().next().unwrap())).collect();
    assert_eq!(found, [(3000, long.slot), (1700, short.slot)]);

    assert_eq!(long_writer.remove(&names(1000, 1001)), Removed { removed: 1, unknown: 0 });
    assert_eq!((depth(&indexer, long, 4000), depth(&indexer, short, 4000)), (1000, 1700));
    assert_eq!(store(&mut long_writer, 1000, 1001), Stored::Applied { added: 1 });
    assert_eq!(depth(&indexer, long, 4000), 3000);

    assert_eq!(long_writer.remove(&names(0, 2999)).removed, 2999);
    assert_eq!((long_writer.blocks(), indexer.distinct_blocks()), (1, 3000), "one block at the far end keeps the way to it");
    drop(short_writer);
    assert_eq!(indexer.distinct_blocks(), 3000);
    assert_eq!(long_writer.remove(&names(2999, 3000)).removed, 1);
    assert_eq!(indexer.distinct_blocks(), 0, "and nothing once it is gone");
}

#[test]
fn retracting_spares_other_branches_and_what_lies_above() {
    let (indexer, targets) = (indexer(Limits::default()), Targets::new());
    let target = targets.allocate().unwrap();
    let mut writer = indexer.writer(target, Lane::Device, Copies::Counted);
    store(&mut writer, 0, 2000);
    store(&mut writer, 0, 2000);
    let branch: Vec<_> = (0..700).map(|n| local(n + 50_000)).collect();
    let branch_names: Vec<_> = (0..700).map(|n| EngineHash(n + 50_000)).collect();
    writer.store(Parent::Block(EngineHash(900)), Blocks::LocalHashes { locals: &branch, hashes: &branch_names });
    assert_eq!(writer.retract(&locals(0, 1500), 1500), 0, "the chain ends before that position");
    assert_eq!(writer.retract(&locals(0, 4000), 1200), 800, "copies do not matter");
    assert_eq!(writer.blocks(), 1200 + 700);
    assert_eq!(writer.retract(&locals(0, 901), 900), 300, "what follows block 900, and not the branch beside it");
    let both = [locals(0, 900), branch].concat();
    let mut levels = Levels::new();
    indexer.lookup(&both, Lanes::DEVICE, &mut levels);
    assert_eq!(levels.depth(target.slot), 1600);
    assert_eq!(writer.remove(&names(1200, 1201)), Removed { removed: 0, unknown: 1 });
    assert_eq!(writer.retract(&locals(0, 1), 0), 1600);
    assert_eq!(indexer.distinct_blocks(), 0);
}

#[test]
fn a_long_orphan_with_a_long_hole_is_attached_around_it() {
    let (indexer, targets) = (indexer(Limits::default()), Targets::new());
    let target = targets.allocate().unwrap();
    let mut writer = indexer.writer(target, Lane::Device, Copies::Counted);
    assert_eq!(store(&mut writer, 1, 2500), Stored::Parked);
    assert_eq!(writer.remove(&names(300, 1700)).removed, 1400);
    assert_eq!(store(&mut writer, 0, 1), Stored::Applied { added: 1 + 2499 - 1400 });
    assert_eq!((depth(&indexer, target, 2500), indexer.distinct_blocks()), (300, 2500));
    assert_eq!(store(&mut writer, 300, 1700), Stored::Applied { added: 1400 });
    assert_eq!(depth(&indexer, target, 2500), 2500);
}

#[test]
fn a_dump_is_one_instant_and_rebuilds_long_chains_with_holes() {
    let (first, targets) = (indexer(Limits::default()), Targets::new());
    let (one, two) = (targets.allocate().unwrap(), targets.allocate().unwrap());
    let mut first_writer = first.writer(one, Lane::Device, Copies::Counted);
    let mut second_writer = first.writer(two, Lane::Device, Copies::Counted);
    store(&mut first_writer, 0, 2000);
    store(&mut second_writer, 0, 700);
    for (from, to) in [(100, 101), (250, 900), (1500, 2000)] {
        first_writer.remove(&names(from, to));
    }
    let dump = first.dump();
    first_writer.clear();
    let second = indexer(Limits::default());
    let rebuilt: Vec<_> = dump.lanes().map(|(target, lane)| crate::world::rebuild(&second, &dump, target, lane)).collect();
    assert_eq!(rebuilt.iter().map(Writer::blocks).collect::<Vec<_>>(), [1500 - 651, 700]);
    assert_eq!((depth(&second, one, 2000), depth(&second, two, 2000), second.distinct_blocks()), (100, 700, 1500));
    assert_eq!((second.digest(two), first.digest(one)), (first.digest(two), 0));
}

#[test]
fn bounds_refuse_and_change_nothing() {
    let limits = Limits { chain_blocks: 100, writer_blocks: 150, index_blocks: 170, ..Limits::default() };
    let (indexer, targets) = (indexer(limits), Targets::new());
    let (one, two) = (targets.allocate().unwrap(), targets.allocate().unwrap());
    let mut first = indexer.writer(one, Lane::Device, Copies::Counted);
    let mut second = indexer.writer(two, Lane::Device, Copies::Counted);
    assert_eq!(store(&mut first, 0, 101), Stored::Refused(Refusal::ChainTooLong { limit: 100 }));
    assert_eq!((first.blocks(), indexer.distinct_blocks()), (0, 0));
    store(&mut first, 0, 60);
    assert_eq!(store(&mut first, 60, 101), Stored::Refused(Refusal::ChainTooLong { limit: 100 }));
    assert_eq!(store(&mut first, 60, 100), Stored::Applied { added: 40 });
    assert_eq!(depth(&indexer, one, 500), 100, "a longer prompt is looked up to the bound");

    let other = |from: u64, to: u64| -> (Vec<_>, Vec<_>) { (locals(from + 1000, to + 1000), names(from + 1000, to + 1000)) };
    let (locals, hashes) = other(0, 51);
    let blocks = Blocks::LocalHashes { locals: &locals, hashes: &hashes };
    assert_eq!(first.store(Parent::Root(Seed::BASE), blocks), Stored::Refused(Refusal::WriterFull { limit: 150 }));
    let (locals, hashes) = other(0, 71);
    let blocks = Blocks::LocalHashes { locals: &locals, hashes: &hashes };
    assert_eq!(second.store(Parent::Root(Seed::BASE), blocks), Stored::Refused(Refusal::IndexFull { limit: 170 }));
    assert_eq!((first.blocks(), second.blocks(), indexer.distinct_blocks()), (100, 0, 100));
    let (locals, hashes) = other(0, 50);
    let blocks = Blocks::LocalHashes { locals: &locals, hashes: &hashes };
    assert_eq!(first.store(Parent::Root(Seed::BASE), blocks), Stored::Applied { added: 50 });
    assert_eq!(first.store(Parent::Root(Seed::BASE), blocks), Stored::Applied { added: 0 }, "known blocks need no room");
}

#[test]
fn unbelievable_stores_change_nothing() {
    let (indexer, targets) = (indexer(Limits::default()), Targets::new());
    let mut writer = indexer.writer(targets.allocate().unwrap(), Lane::Device, Copies::Counted);
    let tokens: Vec<u32> = (0..64).collect();
    let mut store = |parent, tokens: &[u32], window, hashes: &[u64]| {
        let hashes: Vec<_> = hashes.iter().map(|hash| EngineHash(*hash)).collect();
        writer.store(parent, Blocks::Tokens { tokens, window, hashes: &hashes })
    };
    use index::Window::{Eagle, Plain};
    let root = Parent::Root(Seed::BASE);
    let length = |expected, given| Stored::Refused(Refusal::LengthMismatch { expected, given });
    assert_eq!(store(root, &tokens[..47], Plain, &[1, 2, 3]), length(48, 47));
    assert_eq!(store(root, &tokens[..64], Plain, &[1, 2, 3]), length(48, 64));
    assert_eq!(store(root, &tokens[..48], Eagle, &[1, 2, 3]), length(49, 48));
    assert_eq!(store(root, &tokens[..1], Plain, &[]), length(0, 1));
    assert_eq!(store(root, &[], Plain, &[1]), length(16, 0));
    assert_eq!(store(root, &tokens[..48], Plain, &[1, 2, 1]), Stored::Refused(Refusal::DuplicateHash(EngineHash(1))));
    let own = Parent::Block(EngineHash(2));
    assert_eq!(store(own, &tokens[..48], Plain, &[1, 2, 3]), Stored::Refused(Refusal::SelfParent(EngineHash(2))));
    assert_eq!(store(own, &[], Plain, &[]), Stored::Applied { added: 0 }, "nothing to park");
    assert_eq!(store(root, &tokens[..49], Eagle, &[1, 2, 3]), Stored::Applied { added: 3 });
    assert_eq!((writer.parked(), indexer.distinct_blocks()), (index::Parked::default(), 3));
}
