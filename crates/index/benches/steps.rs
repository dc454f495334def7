//! How long the index keeps others waiting while much is given up or copied. `cargo bench -p index --bench steps`
//!
//! A million held blocks, 8 targets. While one target goes, is emptied, loses all it holds in one call or is taken over, and
//! while a dump is taken, another thread asks for the lock without pause; the longest it was kept waiting bounds every step. A
//! thread that is not scheduled waits as well, so of some repetitions the least counts: it must stay under a millisecond. What
//! was hardly looked at is repeated.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use index::{BlockSize, Blocks, Copies, EngineHash, KvIndexer, Lane, Limits, LocalHash, Parent, Seed, Target, Targets, Writer};

const TARGETS: usize = 8;
const PROMPTS: u64 = 2000;
const SHARED: u64 = 32;
const BLOCKS: u64 = 96;
/// Repetitions of each operation, and looks that make one count.
const TIMES: usize = 12;
const LOOKS: usize = 100;
const MOST: Duration = Duration::from_millis(1);

fn main() {
    println!(
        "| while | longest wait: least, median, most of {TIMES} | the whole takes (median) | looks meanwhile (mean) |\n|---|---|---|---|"
    );
    let mut late = Vec::new();
    for (what, operation) in operations() {
        let mut fleet = Fleet::new();
        let mut seen: Vec<_> = std::iter::repeat_with(|| fleet.watch(operation)).filter(|seen| seen.looks >= LOOKS).take(TIMES).collect();
        seen.sort_unstable();
        let (least, median, most) = (seen[0].longest, seen[TIMES / 2].longest, seen[TIMES - 1].longest);
        let mut whole: Vec<_> = seen.iter().map(|seen| seen.whole).collect();
        whole.sort_unstable();
        let looks = seen.iter().map(|seen| seen.looks).sum::<usize>() / TIMES;
        println!("| {what} | {least:.0?}, {median:.0?}, {most:.0?} | {:.1?} | {looks} |", whole[TIMES / 2]);
        if least >= MOST {
            late.push(what);
        }
    }
    assert!(late.is_empty(), "a step is longer than {MOST:?}: {late:?}");
}

type Operation = fn(&Fleet, Writer);

fn operations() -> [(&'static str, Operation); 5] {
    [
        ("a target goes", |_, writer| drop(writer)),
        ("a target is emptied", |_, mut writer| {
            writer.clear();
        }),
        ("a target loses all it holds, named in one call", |_, mut writer| {
            writer.remove(&names(writer.target()));
        }),
        ("a target is taken over from a writer that lives", |fleet, writer| {
            drop(fleet.indexer.writer(writer.target(), Lane::Device, Copies::Set));
        }),
        ("a dump is taken", |fleet, _| drop(fleet.indexer.dump())),
    ]
}

/// What another thread saw while something was done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    longest: Duration,
    whole: Duration,
    looks: usize,
}

/// An index in which each target holds prompts of its own behind a start that all share.
struct Fleet {
    indexer: Arc<KvIndexer>,
    writers: VecDeque<Writer>,
}

impl Fleet {
    fn new() -> Self {
        let indexer = KvIndexer::new(BlockSize::new(16).expect("not zero"), Limits::default());
        let targets = Targets::new();
        let mut fleet = Self { indexer, writers: VecDeque::new() };
        for _ in 0..TARGETS {
            let target = targets.allocate().expect("few targets");
            let writer = fleet.filled(target);
            fleet.writers.push_back(writer);
        }
        fleet
    }

    fn filled(&self, target: Target) -> Writer {
        let mut writer = self.indexer.writer(target, Lane::Device, Copies::Set);
        for prompt in 0..PROMPTS {
            let (locals, hashes): (Vec<_>, Vec<_>) = blocks(target.slot.index() as u64, prompt).unzip();
            writer.store(Parent::Root(Seed::BASE), Blocks::LocalHashes { locals: &locals, hashes: &hashes });
        }
        writer
    }

    /// Does it to the next target, and fills that again.
    fn watch(&mut self, operation: Operation) -> Seen {
        let writer = self.writers.pop_front().expect("there are targets");
        let target = writer.target();
        let (over, begun, looking) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
        let seen = std::thread::scope(|scope| {
            let watching = scope.spawn(|| {
                let (mut longest, mut looks) = (Duration::ZERO, 0);
                while !over.load(Ordering::Relaxed) {
                    let asked = Instant::now();
                    std::hint::black_box(self.indexer.distinct_blocks());
                    let waited = asked.elapsed();
                    looking.store(true, Ordering::Relaxed);
                    if begun.load(Ordering::Relaxed) {
                        (longest, looks) = (longest.max(waited), looks + 1);
                    }
                }
                (longest, looks)
            });
            while !looking.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            begun.store(true, Ordering::Relaxed);
            let began = Instant::now();
            operation(self, writer);
            let whole = began.elapsed();
            over.store(true, Ordering::Relaxed);
            let (longest, looks) = watching.join().expect("the watcher does not panic");
            Seen { longest, whole, looks }
        });
        let writer = self.filled(target);
        self.writers.push_back(writer);
        seen
    }
}

/// The names of all that a target holds.
fn names(target: Target) -> Vec<EngineHash> {
    let own = |prompt| blocks(target.slot.index() as u64, prompt).skip(if prompt == 0 { 0 } else { SHARED as usize });
    (0..PROMPTS).flat_map(own).map(|(_, name)| name).collect()
}

/// The blocks of a prompt of a target, with their names: the same name means the same block on every target, as engines
/// with one seed have it.
fn blocks(target: u64, prompt: u64) -> impl Iterator<Item = (LocalHash, EngineHash)> {
    (0..BLOCKS).map(move |at| {
        let own = if at < SHARED { at } else { mixed((target * PROMPTS + prompt) << 16 | at) };
        (LocalHash(mixed(own)), EngineHash(mixed(own ^ 1 << 60)))
    })
}

/// A number spread over all bits (splitmix64).
fn mixed(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
