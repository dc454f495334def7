//! Many worlds.

use std::{ops::AddAssign, thread};

/// Seeds of each run; `FEED_SEEDS=FROM..TO` runs others.
const SEEDS: std::ops::Range<u64> = 0..2_000;

/// Runs the worlds of these seeds and of the first 2,000, or of `FEED_SEEDS=FROM..TO`, on so many threads, and adds up what
/// happened in them.
pub fn run_all<R: AddAssign + Default + Send>(pinned: &[u64], threads: usize, run: impl Fn(u64) -> R + Sync) -> R {
    let seeds = seeds();
    let part = |thread: usize| {
        let mut sum = R::default();
        pinned.iter().copied().chain(seeds.clone()).skip(thread).step_by(threads).for_each(|seed| sum += run(seed));
        sum
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || part(thread))).collect();
        let mut sum = R::default();
        for thread in threads {
            sum += thread.join().unwrap_or_else(|failed| std::panic::resume_unwind(failed));
        }
        sum
    })
}

fn seeds() -> std::ops::Range<u64> {
    let Ok(given) = std::env::var("FEED_SEEDS") else { return SEEDS };
    let range = || Some(given.split_once("..")?).and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    range().unwrap_or_else(|| panic!("FEED_SEEDS is FROM..TO, not {given}"))
}
