//! Block hashes against a plain loop over the hash function. `cargo bench -p index --bench hash`

use std::{hint::black_box, sync::Arc};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use index::{BlockSize, RecentPrompts, Recipe, Seed, Window, local_hashes, sequence_hashes};
use xxhash_rust::xxh3::xxh3_64_with_seed;

const TOKENS: u32 = 8192;

fn blocks(criterion: &mut Criterion) {
    let tokens: Vec<u32> = (0..TOKENS).map(|at| at.wrapping_mul(0x9e37_79b1) % 150_000).collect();
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    for size in [16, 32, 64, 128] {
        let block_size = BlockSize::new(size).expect("not zero");
        let mut group = criterion.benchmark_group(format!("blocks of {size} tokens"));
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        let mut out = Vec::new();
        group.bench_function("ours", |bencher| {
            bencher.iter(|| local_hashes(black_box(&tokens), block_size, Seed::BASE, Window::Plain, &mut out));
        });
        let mut plain: Vec<u64> = Vec::new();
        group.bench_function("plain loop", |bencher| {
            bencher.iter(|| {
                plain.clear();
                let blocks = black_box(&bytes).chunks_exact(4 * size as usize);
                plain.extend(blocks.map(|block| xxh3_64_with_seed(block, Seed::BASE.get())));
            });
        });
        group.finish();
        // Filtered out, either has nothing to compare.
        if !out.is_empty() && !plain.is_empty() {
            assert!(out.iter().map(|local| local.0).eq(plain.iter().copied()), "the same values");
        }
    }
}

fn chain(criterion: &mut Criterion) {
    let tokens: Vec<u32> = (0..TOKENS).collect();
    let (mut locals, mut out) = (Vec::new(), Vec::new());
    local_hashes(&tokens, BlockSize::new(16).expect("not zero"), Seed::BASE, Window::Plain, &mut locals);
    criterion.bench_function("sequence hashes of 512 blocks", |bencher| bencher.iter(|| sequence_hashes(black_box(&locals), &mut out)));
}

/// A prompt that has grown by 512 tokens, with what it has grown from remembered and not.
fn extended(criterion: &mut Criterion) {
    for (tokens, size) in [(8_192, 16), (8_192, 64), (131_072, 16), (131_072, 64)] {
        let recipe = Recipe { block_size: BlockSize::new(size).expect("not zero"), window: Window::Plain, seed: Seed::BASE };
        let before: Arc<[u32]> = (0..tokens).collect();
        let after: Arc<[u32]> = (0..tokens + 512).collect();
        let seen = || {
            let recent = RecentPrompts::new(16 << 20);
            recent.hash(&before, before.len(), recipe);
            recent
        };
        let hash = |recent: RecentPrompts| (recent.hash(&after, after.len(), recipe), recent);
        let mut group = criterion.benchmark_group(format!("{tokens} tokens and 512 more, blocks of {size}"));
        group.bench_function("extends one just seen", |bencher| bencher.iter_batched(seen, hash, BatchSize::SmallInput));
        group.bench_function("never seen", |bencher| bencher.iter_batched(|| RecentPrompts::new(16 << 20), hash, BatchSize::SmallInput));
        group.finish();
    }
}

criterion_group!(benches, blocks, chain, extended);
criterion_main!(benches);
