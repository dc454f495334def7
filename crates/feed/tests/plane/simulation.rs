//! Thousands of virtual worlds: whatever links, publishers and discovery do, what is shown as exact is exact.

use testkit::world::plane::{PlaneReport, PlaneWorld};

/// Seeds that found something once.
const PINNED: &[u64] = &[882, 3289, 3294, 20018];

/// Seeds of each run; `FEED_SEEDS=FROM..TO` runs others.
const SEEDS: std::ops::Range<u64> = 0..2_000;

/// Worlds run on so many threads.
const THREADS: u64 = 2;

#[test]
fn exact_targets_equal_their_publishers() {
    let seeds = seeds();
    let part = |thread| PINNED.iter().copied().chain(seeds.clone()).skip(thread as usize).step_by(THREADS as usize);
    let sum = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || run(part(thread)))).collect();
        let reports = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|failed| std::panic::resume_unwind(failed)));
        reports.fold(PlaneReport::default(), |sum, report| add(sum, &report))
    });
    println!("{sum:?}");
    // The worlds are no use if nothing of a kind happens in them.
    assert!(sum.replayed > 0 && sum.rebuilt > 0 && sum.degraded > 0 && sum.dumps > 0 && sum.restarts > 0, "{sum:?}");
    assert!(sum.failures > 0 && sum.overflows > 0 && sum.duplicates > 0, "{sum:?}");
    assert!(sum.comparisons > 20 * sum.checks, "rarely exact while things go on: {sum:?}");
    assert!(sum.exact * 2 > sum.checks && sum.exact < sum.checks, "always or rarely exact in the end: {sum:?}");
}

fn run(seeds: impl Iterator<Item = u64>) -> PlaneReport {
    let mut sum = PlaneReport::default();
    for seed in seeds {
        let report = PlaneWorld::run(seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        sum = add(sum, &report);
    }
    sum
}

fn seeds() -> std::ops::Range<u64> {
    let Ok(given) = std::env::var("FEED_SEEDS") else { return SEEDS };
    let (from, to) = given.split_once("..").expect("FEED_SEEDS is FROM..TO");
    from.parse().expect("a number")..to.parse().expect("a number")
}

fn add(mut sum: PlaneReport, report: &PlaneReport) -> PlaneReport {
    sum.replayed += report.replayed;
    sum.rebuilt += report.rebuilt;
    sum.degraded += report.degraded;
    sum.dumps += report.dumps;
    sum.restarts += report.restarts;
    sum.queries += report.queries;
    sum.failures += report.failures;
    sum.overflows += report.overflows;
    sum.duplicates += report.duplicates;
    sum.exact += report.exact;
    sum.checks += report.checks;
    sum.comparisons += report.comparisons;
    sum
}
