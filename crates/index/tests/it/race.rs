//! Readers beside writers: an answer may be behind, never more than was true.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
};

use index::{BlockSize, Blocks, Copies, EngineHash, KvIndexer, Lane, Lanes, Levels, Limits, Parent, Target, Targets};

use crate::{
    long::{indexer, local, locals, names, store},
    model::{Content, Model, ModelParent},
    world::{self, outcome},
};

const ROUNDS: usize = 400;
const READERS: usize = 2;

/// Runs `check` over and over on `READERS` threads until `write` is done.
fn beside_readers(check: impl Fn(&mut Levels) + Sync, write: impl FnOnce()) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                let mut levels = Levels::new();
                while !done.load(SeqCst) {
                    check(&mut levels);
                }
            });
        }
        write();
        done.store(true, SeqCst);
    });
}

/// The target never holds both the first block and block 1800, but it holds everything between and after: a reader that
/// lets the writer in on its way must not put the two together.
#[test]
fn a_lookup_never_joins_pieces_that_were_not_held_together() {
    let (indexer, targets) = (indexer(Limits::default()), Targets::new());
    let target = targets.allocate().unwrap();
    let steady = targets.allocate().unwrap();
    let mut writer = indexer.writer(target, Lane::Device, Copies::Set);
    let mut steady_writer = indexer.writer(steady, Lane::Device, Copies::Set);
    store(&mut steady_writer, 0, 1900);
    store(&mut writer, 0, 2000);
    writer.remove(&names(1800, 1801));
    // Somebody else parts from the prompt after each block, so each is a piece of its own and the way down is long.
    let mut comb = indexer.writer(targets.allocate().unwrap(), Lane::Device, Copies::Set);
    store(&mut comb, 0, 1900);
    for at in 1..1900 {
        let tooth = Blocks::LocalHashes { locals: &[local(at + 50_000)], hashes: &[EngineHash(at + 50_000)] };
        comb.store(Parent::Block(EngineHash(at)), tooth);
    }
    let prompt = locals(0, 2000);
    let check = |levels: &mut Levels| {
        indexer.lookup(&prompt, Lanes::DEVICE, levels);
        assert!(levels.depth(target.slot) <= 1800, "{} blocks were never held", levels.depth(target.slot));
        assert_eq!(levels.depth(steady.slot), 1900, "others do not matter to a target that changes nothing");
    };
    beside_readers(check, || {
        for _ in 0..ROUNDS * 20 {
            writer.remove(&names(0, 1));
            store(&mut writer, 1800, 1801);
            writer.remove(&names(1800, 1801));
            store(&mut writer, 0, 1);
        }
    });
}

/// What the writer is doing; even phases are at rest. A lookup that begins and ends in one of those must be exact, and a
/// clear must be seen in one step.
#[test]
fn answers_are_exact_at_rest_and_a_clear_is_one_step() {
    const BLOCKS: u64 = 3000;
    let (indexer, targets) = (indexer(Limits::default()), Targets::new());
    let target = targets.allocate().unwrap();
    let mut writer = indexer.writer(target, Lane::Device, Copies::Counted);
    let phase = AtomicU64::new(0);
    let prompt = locals(0, BLOCKS);
    let check = |levels: &mut Levels| {
        let began = phase.load(SeqCst);
        indexer.lookup(&prompt, Lanes::DEVICE, levels);
        let depth = u64::from(levels.depth(target.slot));
        if phase.load(SeqCst) != began {
            return;
        }
        match began % 4 {
            0 => assert_eq!(depth, 0, "nothing is held"),
            1 => assert!(depth <= BLOCKS),
            2 => assert_eq!(depth, BLOCKS, "everything is held"),
            _ => assert!(depth == 0 || depth == BLOCKS, "{depth} blocks in the middle of a clear"),
        }
    };
    beside_readers(check, || {
        for _ in 0..ROUNDS / 4 {
            phase.fetch_add(1, SeqCst);
            store(&mut writer, 0, BLOCKS);
            phase.fetch_add(1, SeqCst);
            phase.fetch_add(1, SeqCst);
            writer.clear();
            phase.fetch_add(1, SeqCst);
        }
    });
}

/// Writers of different targets share every node and prune under each other's feet.
#[test]
fn writers_side_by_side_leave_what_each_alone_would() {
    let indexer = KvIndexer::new(BlockSize::new(world::BLOCK_SIZE).unwrap(), Limits::default());
    let targets = Targets::new();
    let targets: Vec<Target> = (0..4).map(|_| targets.allocate().unwrap()).collect();
    let indexer = &indexer;
    let ended: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = targets.iter().map(|target| scope.spawn(move || write_alone(indexer, *target))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut levels = Levels::new();
    let mut everything = std::collections::BTreeSet::new();
    for (target, (writer, model)) in targets.iter().zip(&ended) {
        let lane = &model.lanes[&(0, Lane::Device)];
        assert_eq!(writer.blocks(), lane.chains().len());
        for chain in lane.chains() {
            everything.extend((1..=chain.len()).map(|depth| chain[..depth].to_vec()));
            indexer.lookup(&world::locals(chain), Lanes::DEVICE, &mut levels);
            assert_eq!(levels.depth(target.slot) as usize, model.overlap(0, &[Lane::Device], chain));
        }
    }
    assert_eq!(indexer.distinct_blocks(), everything.len());
    drop(ended);
    assert_eq!(indexer.distinct_blocks(), 0);
}

fn write_alone(indexer: &Arc<KvIndexer>, target: Target) -> (index::Writer, Model) {
    let key = (0, Lane::Device);
    let mut writer = indexer.writer(target, Lane::Device, Copies::Counted);
    let mut model = Model::default();
    model.open(key, Copies::Counted);
    let mut random = target.slot.index() as u64 + 1;
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 11) % below
    };
    for _ in 0..ROUNDS * 3 {
        let known = model.names(key);
        let some = if known.is_empty() { 0 } else { known[next(known.len() as u64) as usize] };
        match next(10) {
            0 if next(20) == 0 => {
                writer.clear();
                model.clear(key);
            }
            0..5 => {
                let (parent, start) = match next(3) {
                    0 => (ModelParent::Root(0), 1),
                    _ => (ModelParent::Block(some), some),
                };
                let symbols: Vec<_> = (0..=next(4)).map(|_| next(2) as u8).collect();
                // Names as engines give them: what a name means never changes.
                let names: Vec<_> = symbols
                    .iter()
                    .scan(start, |name, symbol| {
                        *name = world::next_name(*name, *symbol);
                        Some(*name)
                    })
                    .collect();
                let content = Content::Tokens(symbols);
                let stored = world::store(&mut writer, parent, &content, &names);
                let expected = model.store(key, parent, content, &names);
                assert_eq!(outcome(stored), expected, "{stored:?}");
            }
            _ => {
                let removed = writer.remove(&world::engine(&[some]));
                assert_eq!((removed.removed, removed.unknown), model.remove(key, &[some]));
            }
        }
    }
    (writer, model)
}
