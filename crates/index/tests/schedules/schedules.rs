//! The index under a scheduler that decides who goes on at each taking and leaving of a lock: thousands of orders of each
//! scene, random ones and such as a rare order needs (PCT). Nothing is shared but behind the index's locks, so these are
//! all the orders there are. A schedule that fails is printed and can be replayed.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use index::{
    BlockSize, Blocks, Copies, Dump, DumpEvent, EngineHash, Held, Holder, KvIndexer, Lane, Lanes, Levels, Limits, LocalHash, Parent,
    Refusal, Removed, Seed, SequenceHash, Stored, Target, Targets, Writer, digest_of, sequence_hashes,
};
use shuttle::thread;

/// Longer than what is done, and what is looked at, under one hold of the lock.
const LONG: u64 = 600;

fn explore(schedules: usize, scene: impl Fn() + Send + Sync + Clone + 'static) {
    let schedules =
        std::env::var("INDEX_SCHEDULES").ok().and_then(|times| times.parse::<usize>().ok()).map_or(schedules, |times| times * schedules);
    shuttle::check_random(scene.clone(), schedules);
    shuttle::check_pct(scene, schedules / 2, 3);
}

fn indexer() -> Arc<KvIndexer> {
    KvIndexer::new(BlockSize::new(16).unwrap(), Limits::default())
}

fn targets<const N: usize>() -> [Target; N] {
    let targets = Targets::new();
    std::array::from_fn(|_| targets.allocate().unwrap())
}

fn chain(from: u64, to: u64) -> Vec<LocalHash> {
    (from..to).map(|at| LocalHash(at * 31 + 7)).collect()
}

fn names(from: u64, to: u64) -> Vec<EngineHash> {
    (from..to).map(|at| EngineHash(at + 1)).collect()
}

/// Stores blocks `from..to` of the one prompt.
fn store(writer: &mut Writer, from: u64, to: u64) -> Stored {
    let parent = if from == 0 { Parent::Root(Seed::BASE) } else { Parent::Block(EngineHash(from)) };
    writer.store(parent, Blocks::LocalHashes { locals: &chain(from, to), hashes: &names(from, to) })
}

fn depth(indexer: &KvIndexer, target: Target) -> u32 {
    let mut levels = Levels::new();
    indexer.lookup(&chain(0, 2 * LONG), Lanes::DEVICE, &mut levels);
    levels.depth(target.slot)
}

fn identities(blocks: &[u64]) -> Vec<SequenceHash> {
    let mut all = Vec::new();
    sequence_hashes(&chain(0, 2 * LONG), &mut all);
    let mut some: Vec<_> = blocks.iter().map(|at| all[*at as usize]).collect();
    some.sort_unstable();
    some
}

/// Which of its operations a writer has begun and ended, and the depth after each: for whoever looks on.
#[derive(Default)]
struct Log {
    began: AtomicUsize,
    ended: AtomicUsize,
}

impl Log {
    fn op<T>(&self, op: impl FnOnce() -> T) -> T {
        self.began.fetch_add(1, SeqCst);
        let answer = op();
        self.ended.fetch_add(1, SeqCst);
        answer
    }

    /// A lookup shows no more than was true at some time while it ran, and at rest exactly what is true.
    fn check(&self, after: &[u32], look: impl FnOnce() -> u32) {
        let ended = self.ended.load(SeqCst);
        let depth = look();
        let began = self.began.load(SeqCst);
        let most = *after[ended..=began].iter().max().unwrap();
        assert!(depth <= most, "{depth} blocks, of at most {most} that were held in operations {ended} to {began}");
        assert!(ended != began || depth == after[ended], "{depth} blocks at rest, not {}", after[ended]);
    }
}

#[test]
fn lookups_beside_a_writer_show_no_more_than_was_true() {
    explore(1_500, || {
        let (indexer, [target, other]) = (indexer(), targets());
        let (log, after) = (Arc::new(Log::default()), [0, LONG as u32, 300, LONG as u32 + 5, 0, 2]);
        let writing = {
            let (indexer, log) = (indexer.clone(), log.clone());
            thread::spawn(move || {
                let mut writer = log_writer(&indexer, target);
                log.op(|| store(&mut writer, 0, LONG));
                log.op(|| writer.remove(&names(300, 301)));
                log.op(|| {
                    // Two steps to a reader, of which neither shows more than the second.
                    store(&mut writer, 300, 301);
                    store(&mut writer, LONG, LONG + 5)
                });
                log.op(|| writer.clear());
                log.op(|| store(&mut writer, 0, 2));
                writer
            })
        };
        let sharing = {
            let indexer = indexer.clone();
            thread::spawn(move || {
                let mut writer = log_writer(&indexer, other);
                store(&mut writer, 0, 400);
                writer.remove(&names(100, 400));
                drop(writer);
            })
        };
        for _ in 0..4 {
            log.check(&after, || depth(&indexer, target));
        }
        let writer = writing.join().unwrap();
        sharing.join().unwrap();
        assert_eq!((depth(&indexer, target), indexer.distinct_blocks()), (2, 2));
        assert_eq!(indexer.digest(target), digest_of(identities(&[0, 1])));
        drop(writer);
        assert_eq!(indexer.distinct_blocks(), 0);
    });
}

fn log_writer(indexer: &Arc<KvIndexer>, target: Target) -> Writer {
    indexer.writer(target, Lane::Device, Copies::Counted)
}

/// The way down is so long that a lookup lets writers in, and the target never holds its first block and block 580 at once.
#[test]
fn a_lookup_never_joins_pieces_that_were_not_held_together() {
    explore(200, || {
        let (indexer, [target, steady, comb]) = (indexer(), targets());
        let [mut writer, mut steady_writer, mut comb] = [target, steady, comb].map(|target| log_writer(&indexer, target));
        store(&mut comb, 0, LONG);
        for at in 1..LONG {
            let tooth = Blocks::LocalHashes { locals: &[LocalHash(at + 50_000)], hashes: &[EngineHash(at + 50_000)] };
            comb.store(Parent::Block(EngineHash(at)), tooth);
        }
        store(&mut steady_writer, 0, LONG);
        store(&mut writer, 0, LONG);
        writer.remove(&names(580, 581));
        let writing = thread::spawn(move || {
            for _ in 0..2 {
                writer.remove(&names(0, 1));
                store(&mut writer, 580, 581);
                writer.remove(&names(580, 581));
                store(&mut writer, 0, 1);
            }
            writer
        });
        let mut levels = Levels::new();
        for _ in 0..3 {
            indexer.lookup(&chain(0, LONG), Lanes::DEVICE, &mut levels);
            assert!(levels.depth(target.slot) <= 580, "{} blocks were never held", levels.depth(target.slot));
            assert_eq!(levels.depth(steady.slot), LONG as u32, "others do not matter to a target that changes nothing");
        }
        let _writer = writing.join().unwrap();
        assert_eq!(depth(&indexer, target), 580);
    });
}

/// From the moment a clear or a drop has begun a lookup shows all or nothing, and nothing once it has seen nothing.
#[test]
fn emptying_a_lane_is_one_step_to_lookups_and_lets_them_in_between() {
    static DURING: AtomicUsize = AtomicUsize::new(0);
    explore(1_000, || {
        let (indexer, [target, other]) = (indexer(), targets());
        let [mut writer, mut sharing] = [target, other].map(|target| log_writer(&indexer, target));
        // So many nodes that giving them up takes some holds of the lock.
        store(&mut writer, 0, LONG);
        for at in 0..LONG / 2 {
            let tooth = Blocks::LocalHashes { locals: &[LocalHash(at + 50_000)], hashes: &[EngineHash(at + 50_000)] };
            writer.store(Parent::Block(EngineHash(at + 1)), tooth);
        }
        store(&mut sharing, 0, 20);
        let log = Arc::new(Log::default());
        let emptying = {
            let log = log.clone();
            thread::spawn(move || log.op(|| drop(writer)))
        };
        let mut gone = false;
        for _ in 0..5 {
            let blocks = depth(&indexer, target);
            assert!(blocks == 0 || !gone && blocks == LONG as u32, "{blocks} blocks of a lane that is being emptied");
            assert_eq!(depth(&indexer, other), 20);
            gone |= blocks == 0;
            let ended = log.ended.load(SeqCst) == 1;
            DURING.fetch_add(usize::from(gone && !ended), SeqCst);
        }
        emptying.join().unwrap();
        assert_eq!((depth(&indexer, target), indexer.distinct_blocks(), indexer.digest(target)), (0, 20, 0));
    });
    assert!(DURING.load(SeqCst) > 100, "lookups wait until a lane is empty");
}

#[test]
fn a_take_over_leaves_nothing_of_the_old_writer_whatever_it_still_does() {
    explore(1_500, || {
        let (indexer, [target]) = (indexer(), targets());
        let mut old = log_writer(&indexer, target);
        store(&mut old, 0, LONG);
        let ghost = thread::spawn(move || {
            old.remove(&names(5, 6));
            let stored = [store(&mut old, 5, 6), store(&mut old, LONG, 2 * LONG)];
            old.clear();
            assert!(!matches!(store(&mut old, 0, 30), Stored::Parked), "what follows the root has its place");
            (old, stored)
        });
        let mut new = log_writer(&indexer, target);
        for _ in 0..2 {
            assert_eq!((depth(&indexer, target), indexer.blocks(target, Lane::Device), indexer.digest(target)), (0, 0, 0));
        }
        assert_eq!(store(&mut new, 0, 10), Stored::Applied { added: 10 });
        assert_eq!(depth(&indexer, target), 10);
        let (mut old, _) = ghost.join().unwrap();
        assert_eq!(store(&mut old, 0, 1), Stored::Refused(Refusal::Superseded));
        drop(old);
        assert_eq!((depth(&indexer, target), indexer.distinct_blocks()), (10, 10));
        assert_eq!(indexer.digest(target), digest_of(identities(&(0..10).collect::<Vec<_>>())));
        assert_eq!(new.remove(&names(0, 10)), Removed { removed: 10, unknown: 0 });
        assert_eq!(indexer.distinct_blocks(), 0);
    });
}

/// Holds blocks `from..to` of the one prompt, after `after`.
fn hold(holder: &mut Holder, after: Option<&Held>, from: u64, to: u64) -> Held {
    let mut sequences = Vec::new();
    sequence_hashes(&chain(0, to), &mut sequences);
    holder.hold(after, &chain(from, to), &sequences[from as usize..]).unwrap()
}

fn predicted(indexer: &KvIndexer, target: Target) -> u32 {
    let mut levels = Levels::new();
    indexer.lookup(&chain(0, 2 * LONG), Lanes::PREDICTED, &mut levels);
    levels.depth(target.slot)
}

#[test]
fn what_a_holder_gives_back_is_not_seen_and_what_it_holds_on_to_is() {
    explore(1_500, || {
        let (indexer, [target, other]) = (indexer(), targets());
        let mut holder = indexer.holder(target, Lane::Predicted);
        let mut writer = log_writer(&indexer, other);
        let writing = thread::spawn(move || {
            // The same nodes, parted and pruned elsewhere.
            store(&mut writer, 0, 20);
            writer.remove(&names(7, 20));
            store(&mut writer, 7, 12);
            writer
        });
        let first = hold(&mut holder, None, 0, LONG);
        let mut rest = hold(&mut holder, Some(&first), LONG, LONG + 10);
        assert_eq!(predicted(&indexer, target), LONG as u32 + 10);
        let end = rest.split_off(4);
        let looking = {
            let indexer = indexer.clone();
            thread::spawn(move || predicted(&indexer, target))
        };
        holder.give_back(&[end]);
        assert_eq!((predicted(&indexer, target), indexer.blocks(target, Lane::Predicted)), (LONG as u32 + 4, LONG as usize + 4));
        assert!(looking.join().unwrap() <= LONG as u32 + 10);
        holder.clear([first, rest].into_iter());
        assert_eq!((predicted(&indexer, target), indexer.blocks(target, Lane::Predicted)), (0, 0));
        // What is not given back is found by walking.
        hold(&mut holder, None, 0, 5);
        drop(holder);
        let _writer = writing.join().unwrap();
        assert_eq!((predicted(&indexer, target), indexer.blocks(target, Lane::Predicted)), (0, 0));
        assert_eq!((depth(&indexer, other), indexer.distinct_blocks()), (12, 12));
    });
}

#[test]
fn a_holder_that_is_dropped_while_its_lane_is_taken_over_leaves_nothing_and_takes_nothing() {
    explore(1_500, || {
        let (indexer, [target]) = (indexer(), targets());
        let mut old = indexer.holder(target, Lane::Predicted);
        hold(&mut old, None, 0, LONG);
        let dropping = thread::spawn(move || drop(old));
        let mut new = indexer.holder(target, Lane::Predicted);
        assert_eq!(predicted(&indexer, target), 0);
        hold(&mut new, None, 0, 9);
        dropping.join().unwrap();
        assert_eq!((predicted(&indexer, target), indexer.blocks(target, Lane::Predicted), indexer.distinct_blocks()), (9, 9, 9));
    });
}

/// Two at once claim a lane of a third that still writes: one is in force then, and what is held is what it stored.
#[test]
fn of_two_take_overs_at_once_one_is_in_force() {
    explore(1_500, || {
        let (indexer, [target]) = (indexer(), targets());
        let mut first = log_writer(&indexer, target);
        store(&mut first, 0, 40);
        let claims = [3_u64, 7].map(|blocks| {
            let indexer = indexer.clone();
            thread::spawn(move || {
                let mut writer = log_writer(&indexer, target);
                store(&mut writer, 0, blocks);
                writer
            })
        });
        let late = store(&mut first, 40, 45);
        assert!(matches!(late, Stored::Applied { added: 5 } | Stored::Refused(Refusal::Superseded)), "{late:?}");
        drop(first);
        let mut claims = claims.map(|claim| claim.join().unwrap());
        let held = u64::from(depth(&indexer, target));
        assert_eq!(held as usize, indexer.distinct_blocks());
        assert!(held == 3 || held == 7, "{held} blocks of two writers");
        let in_force =
            claims.iter_mut().map(|writer| store(writer, 0, 1)).filter(|stored| matches!(stored, Stored::Applied { .. })).count();
        assert_eq!(in_force, 1);
        drop(claims);
        assert_eq!(indexer.distinct_blocks(), 0);
    });
}

/// What a dump says is held, per target.
fn dumped(dump: &Dump, target: Target) -> Vec<SequenceHash> {
    let mut held = BTreeSet::new();
    for event in dump.events(target, Lane::Device) {
        match event {
            DumpEvent::Stored { hashes, .. } => held.extend(hashes),
            DumpEvent::Removed { hashes } => hashes.iter().for_each(|hash| assert!(held.remove(hash))),
        }
    }
    held.into_iter().map(|hash| SequenceHash(hash.0)).collect()
}

/// One thread tells two targets the same events in turn: at each instant the second has had as many as the first or one
/// fewer. So it is in each dump, and what it has of each is what that target held after one of its events.
#[test]
fn a_dump_is_one_instant_of_all_targets() {
    let all = |ranges: &[std::ops::Range<u64>]| identities(&ranges.iter().cloned().flatten().collect::<Vec<_>>());
    let states = Arc::new([all(&[]), all(&[0..300]), all(&[0..100, 101..300]), all(&[0..100, 101..400]), all(&[]), all(&[0..2])]);
    let event = |writer: &mut Writer, number: usize| match number {
        0 => drop(store(writer, 0, 300)),
        1 => drop(writer.remove(&names(100, 101))),
        2 => drop(store(writer, 300, 400)),
        3 => writer.clear(),
        _ => drop(store(writer, 0, 2)),
    };
    explore(1_500, move || {
        let (indexer, [one, two]) = (indexer(), targets());
        let log = [Arc::new(Log::default()), Arc::new(Log::default())];
        let writing = {
            let (indexer, log) = (indexer.clone(), log.clone());
            thread::spawn(move || {
                let mut writers = [one, two].map(|target| log_writer(&indexer, target));
                for number in 0..5 {
                    for (writer, log) in writers.iter_mut().zip(&log) {
                        log.op(|| event(writer, number));
                    }
                }
                writers
            })
        };
        for _ in 0..4 {
            let ended = [0, 1].map(|at| log[at].ended.load(SeqCst));
            let dump = indexer.dump();
            let began = [0, 1].map(|at| log[at].began.load(SeqCst));
            let held = [one, two].map(|target| dumped(&dump, target));
            let fits = |first: usize, second: usize| states[first] == held[0] && states[second] == held[1];
            let found = (ended[0]..=began[0])
                .any(|first| (ended[1]..=began[1]).any(|second| first >= second && first - second <= 1 && fits(first, second)));
            assert!(found, "{} and {} blocks are of no one instant", held[0].len(), held[1].len());
        }
        drop(writing.join().unwrap());
    });
}

/// So many nodes that a dump takes some holds of the lock, and giving them up as well: what it has is of the instant at which
/// it began all the same, of a target that is emptied meanwhile, and of one that grows, parts what is there and loses blocks.
#[test]
fn a_dump_of_many_nodes_is_one_instant_though_it_lets_writers_in() {
    const TEETH: u64 = LONG;
    static BETWEEN: AtomicUsize = AtomicUsize::new(0);
    const MORE: u64 = LONG + 100;
    /// Stores blocks of its own after block `after` of the prompt.
    fn fork(writer: &mut Writer, after: u64, blocks: u64) -> Stored {
        let own = 50_000 + after;
        let (locals, hashes): (Vec<_>, Vec<_>) = (own..own + blocks).map(|own| (LocalHash(own), EngineHash(own))).unzip();
        writer.store(Parent::Block(EngineHash(after + 1)), Blocks::LocalHashes { locals: &locals, hashes: &hashes })
    }
    explore(150, || {
        let (indexer, [emptied, grows]) = (indexer(), targets());
        let [mut first, mut second] = [emptied, grows].map(|target| log_writer(&indexer, target));
        store(&mut first, 0, LONG);
        store(&mut second, 0, LONG);
        for at in 0..TEETH {
            fork(&mut first, at, 1);
        }
        // Has one of the last numbers, so that it is parted before it is copied.
        store(&mut second, LONG, MORE);
        let whole = dumped(&indexer.dump(), emptied);
        assert_eq!(whole.len() as u64, LONG + TEETH);
        let log = [Arc::new(Log::default()), Arc::new(Log::default())];
        let threads = {
            let log = log.clone();
            let emptying = {
                let log = log[0].clone();
                thread::spawn(move || {
                    log.op(|| first.clear());
                    log.op(|| store(&mut first, 0, 2));
                    first
                })
            };
            let growing = {
                let log = log[1].clone();
                thread::spawn(move || {
                    log.op(|| second.remove(&names(MORE - 1, MORE)));
                    // Parts a node.
                    log.op(|| fork(&mut second, LONG + 50, 2));
                    log.op(|| store(&mut second, MORE - 1, MORE + 3));
                    log.op(|| second.remove(&names(10, 11)));
                    second
                })
            };
            (emptying, growing)
        };
        let all = |blocks: &[std::ops::Range<u64>]| identities(&blocks.iter().cloned().flatten().collect::<Vec<_>>());
        let with_fork = |mut blocks: Vec<SequenceHash>| {
            let parent = all(&[LONG + 50..LONG + 51])[0];
            let first = SequenceHash::after(Some(parent), LocalHash(50_000 + LONG + 50));
            blocks.extend([first, SequenceHash::after(Some(first), LocalHash(50_000 + LONG + 51))]);
            blocks.sort_unstable();
            blocks
        };
        let forked = [all(&[0..MORE - 1]), all(&[0..MORE + 3]), all(&[0..10, 11..MORE + 3])].map(with_fork);
        let states = [vec![whole, all(&[]), all(&[0..2])], [vec![all(&[0..MORE]), all(&[0..MORE - 1])], forked.to_vec()].concat()];
        for _ in 0..3 {
            let ended = [0, 1].map(|at| log[at].ended.load(SeqCst));
            let dump = indexer.dump();
            let began = [0, 1].map(|at| log[at].began.load(SeqCst));
            BETWEEN.fetch_add(usize::from(began != ended), SeqCst);
            for (at, target) in [emptied, grows].into_iter().enumerate() {
                let held = dumped(&dump, target);
                let found = (ended[at]..=began[at]).any(|state| states[at][state] == held);
                assert!(found, "{} blocks of target {at} are of no instant between {ended:?} and {began:?}", held.len());
            }
        }
        let _writers = (threads.0.join().unwrap(), threads.1.join().unwrap());
        let dump = indexer.dump();
        assert_eq!([emptied, grows].map(|target| dumped(&dump, target)), [states[0][2].clone(), states[1][4].clone()]);
    });
    assert!(BETWEEN.load(SeqCst) > 0);
}
