//! The index alone, in the shapes that decide how fast it is. `cargo bench -p index --bench index`
//!
//! | group | what is timed |
//! |---|---|
//! | lookup | conversations behind one shared prompt, every (slot, depth) of the answer visited |
//! | deep | one prompt of 16,384 blocks that 8 targets hold, beside comparing as many bytes |
//! | staggered | 2,048 blocks, each target leaves the chain at a depth of its own and goes on elsewhere |
//! | store | prefills of 256 blocks: new ones, and ones another target has |
//! | decode | events of one block |
//! | removal | blocks leaf first, 64 an event; a target with all it holds |
//! | churn | store and remove, nothing left |

use std::{hint::black_box, sync::Arc};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use index::{BlockSize, Blocks, Copies, EngineHash, KvIndexer, Lane, Lanes, Levels, Limits, LocalHash, Parent, Seed, Targets, Writer};

/// Blocks of one prefill.
const PREFILL: usize = 256;

/// An index with a device writer for each of its targets; target `i` has slot `i`.
struct Fleet {
    indexer: Arc<KvIndexer>,
    writers: Vec<Writer>,
}

impl Fleet {
    fn new(targets: usize) -> Self {
        let indexer = KvIndexer::new(BlockSize::new(16).expect("not zero"), Limits::default());
        let numbers = Targets::new();
        let writer = |_| indexer.writer(numbers.allocate().expect("few targets"), Lane::Device, Copies::Set);
        let writers = (0..targets).map(writer).collect();
        Self { indexer, writers }
    }

    /// Target `at` stores `prompt[from..to]`.
    fn store(&mut self, at: usize, prompt: &Prompt, from: usize, to: usize) {
        let parent = from.checked_sub(1).map_or(Parent::Root(Seed::BASE), |last| Parent::Block(prompt.names[last]));
        let blocks = Blocks::LocalHashes { locals: &prompt.locals[from..to], hashes: &prompt.names[from..to] };
        black_box(self.writers[at].store(parent, blocks));
    }

    fn store_all(&mut self, at: usize, prompt: &Prompt) {
        self.store(at, prompt, 0, prompt.locals.len());
    }

    /// Target `at` gives `prompt` up from the end, 64 blocks an event.
    fn remove_all(&mut self, at: usize, prompt: &Prompt) {
        let last_first: Vec<_> = prompt.names.iter().rev().copied().collect();
        for event in last_first.chunks(64) {
            black_box(self.writers[at].remove(event));
        }
    }

    /// The sum over the answer of depth times slot.
    fn look_up(&self, prompt: &Prompt, levels: &mut Levels) -> usize {
        self.indexer.lookup(&prompt.locals, Lanes::DEVICE, levels);
        levels.iter().flat_map(|(depth, slots)| slots.iter().map(move |slot| depth as usize * (slot.index() + 1))).sum()
    }
}

/// A chain of blocks with the names an engine gives them.
struct Prompt {
    locals: Vec<LocalHash>,
    names: Vec<EngineHash>,
}

impl Prompt {
    /// `shared` blocks that all prompts begin with, then `own` blocks of the prompt with this number.
    fn new(number: u64, shared: usize, own: usize) -> Self {
        let of = |number: u64, blocks: usize| (0..blocks as u64).map(move |at| mixed(number << 32 | at));
        let locals: Vec<_> = of(0, shared).chain(of(number + 1, own)).collect();
        let mut name = 0;
        let names = locals.iter().map(|local| {
            name = mixed(name ^ local);
            EngineHash(name)
        });
        Self { names: names.collect(), locals: locals.iter().copied().map(LocalHash).collect() }
    }
}

/// A number spread over all bits (splitmix64).
fn mixed(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn prompts(count: u64, shared: usize, own: usize) -> Vec<Prompt> {
    (0..count).map(|number| Prompt::new(number, shared, own)).collect()
}

fn lookup(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("lookup");
    for targets in [32, 1024] {
        let prompts = prompts(2048, 128, 384);
        let mut fleet = Fleet::new(targets);
        for (number, prompt) in prompts.iter().enumerate() {
            fleet.store_all(number % targets, prompt);
        }
        let mut levels = Levels::new();
        let mut next = prompts.iter().cycle();
        group.bench_function(format!("conversations, {targets} targets"), |bencher| {
            bencher.iter(|| next.next().map(|prompt| fleet.look_up(prompt, &mut levels)));
        });
    }
    group.finish();
}

fn deep(criterion: &mut Criterion) {
    let prompt = Prompt::new(1, 0, 16_384);
    let mut fleet = Fleet::new(8);
    for at in 0..8 {
        for from in (0..prompt.locals.len()).step_by(512) {
            fleet.store(at, &prompt, from, from + 512);
        }
    }
    let (mut levels, stored) = (Levels::new(), prompt.locals.clone());
    let mut group = criterion.benchmark_group("deep");
    group.bench_function("lookup", |bencher| bencher.iter(|| fleet.look_up(&prompt, &mut levels)));
    let words = |locals: &[LocalHash]| locals.iter().map(|local| local.0).collect::<Vec<_>>();
    let (asked, stored) = (words(&prompt.locals), words(&stored));
    group.bench_function("memcmp", |bencher| bencher.iter(|| black_box(&asked[..]) == black_box(&stored[..])));
    group.finish();
}

fn staggered(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("staggered");
    let whole = Prompt::new(0, 2048, 0);
    for targets in [64, 1024] {
        let mut fleet = Fleet::new(targets);
        for at in 0..targets {
            fleet.store_all(at, &Prompt::new(at as u64 + 1, 2048 * (at + 1) / targets, 8));
        }
        let mut levels = Levels::new();
        group.bench_function(format!("{targets} targets"), |bencher| bencher.iter(|| fleet.look_up(&whole, &mut levels)));
    }
    group.finish();
}

fn store(criterion: &mut Criterion) {
    let prompts = prompts(256, 0, PREFILL);
    let store_all = |mut fleet: Fleet, at: usize| {
        for (number, prompt) in prompts.iter().enumerate() {
            fleet.store_all((number + at) % 32, prompt);
        }
        fleet
    };
    let mut group = criterion.benchmark_group("store");
    group.throughput(Throughput::Elements((prompts.len() * PREFILL) as u64));
    group.bench_function("new prompts", |bencher| {
        bencher.iter_batched(|| Fleet::new(32), |fleet| store_all(fleet, 0), BatchSize::LargeInput);
    });
    group.bench_function("prompts another target has", |bencher| {
        bencher.iter_batched(|| store_all(Fleet::new(32), 0), |fleet| store_all(fleet, 7), BatchSize::LargeInput);
    });
    group.finish();
}

fn decode(criterion: &mut Criterion) {
    const ANSWER: usize = 32;
    let prompts = prompts(256, 0, PREFILL + ANSWER);
    let prefilled = || {
        let mut fleet = Fleet::new(32);
        for (number, prompt) in prompts.iter().enumerate() {
            fleet.store(number % 32, prompt, 0, PREFILL);
        }
        fleet
    };
    let answer = |mut fleet: Fleet| {
        for block in PREFILL..PREFILL + ANSWER {
            for (number, prompt) in prompts.iter().enumerate() {
                fleet.store(number % 32, prompt, block, block + 1);
            }
        }
        fleet
    };
    let mut group = criterion.benchmark_group("decode");
    group.throughput(Throughput::Elements((prompts.len() * ANSWER) as u64));
    group.bench_function("one block an event", |bencher| bencher.iter_batched(prefilled, answer, BatchSize::LargeInput));
    group.finish();
}

fn removal(criterion: &mut Criterion) {
    let prompts = prompts(256, 16, PREFILL);
    // Two targets hold everything, so what one gives up stays in memory for the other.
    let full = || {
        let mut fleet = Fleet::new(2);
        for prompt in &prompts {
            fleet.store_all(0, prompt);
            fleet.store_all(1, prompt);
        }
        fleet
    };
    let by_events = |mut fleet: Fleet| {
        for prompt in &prompts {
            fleet.remove_all(1, prompt);
        }
        fleet
    };
    let whole = |mut fleet: Fleet| {
        fleet.writers.pop();
        fleet
    };
    let mut group = criterion.benchmark_group("removal");
    group.throughput(Throughput::Elements((prompts.len() * PREFILL) as u64));
    group.bench_function("leaf first, 64 an event", |bencher| bencher.iter_batched(full, by_events, BatchSize::LargeInput));
    group.bench_function("a target with all it holds", |bencher| bencher.iter_batched(full, whole, BatchSize::LargeInput));
    group.finish();
}

fn churn(criterion: &mut Criterion) {
    let prompts = prompts(32, 0, PREFILL);
    let mut fleet = Fleet::new(8);
    let mut group = criterion.benchmark_group("churn");
    group.throughput(Throughput::Elements(2 * (prompts.len() * PREFILL) as u64));
    group.bench_function("store and remove", |bencher| {
        bencher.iter(|| {
            for (number, prompt) in prompts.iter().enumerate() {
                fleet.store_all(number % 8, prompt);
                fleet.remove_all(number % 8, prompt);
            }
        });
    });
    group.finish();
    assert_eq!(fleet.indexer.distinct_blocks(), 0, "nothing is left");
}

criterion_group!(benches, lookup, deep, staggered, store, decode, removal, churn);
criterion_main!(benches);
