//! Thousands of virtual worlds: whatever the link and the engine do, what is shown as exact is exact.

use testkit::world::{Report, World};

/// Seeds that found something once.
const PINNED: &[u64] = &[313, 636];

/// Seeds of each run; `FEED_SEEDS=FROM..TO` runs others.
const SEEDS: std::ops::Range<u64> = 0..2_000;

/// Worlds run on so many threads.
const THREADS: u64 = 4;

#[test]
fn exact_targets_equal_their_engines() {
    let seeds = seeds();
    let part = |thread| PINNED.iter().copied().chain(seeds.clone()).skip(thread as usize).step_by(THREADS as usize);
    let sum = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || run(part(thread)))).collect();
        let reports = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|failed| std::panic::resume_unwind(failed)));
        reports.fold(Report::default(), |sum, report| add(sum, &report))
    });
    println!("{sum:?}");
    // The worlds are no use if nothing of a kind happens in them.
    assert!(sum.replayed > 0 && sum.rebuilt > 0 && sum.degraded > 0 && sum.overflows > 0 && sum.duplicates > 0, "{sum:?}");
    assert!(sum.demands > 0, "{sum:?}");
    assert!(sum.exact * 2 > sum.checks, "few targets are ever exact: {sum:?}");
    assert!(sum.exact < sum.checks, "no target is ever degraded: {sum:?}");
}

fn run(seeds: impl Iterator<Item = u64>) -> Report {
    let mut sum = Report::default();
    for seed in seeds {
        let report = World::run(seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        assert!(report.replayed + report.rebuilt + report.degraded > 0, "seed {seed} has no gap");
        assert!(report.restarts > 0, "seed {seed} has no restart");
        assert!(report.orphans > 0, "seed {seed} has no orphan");
        sum = add(sum, &report);
    }
    sum
}

fn seeds() -> std::ops::Range<u64> {
    let Ok(given) = std::env::var("FEED_SEEDS") else { return SEEDS };
    let (from, to) = given.split_once("..").expect("FEED_SEEDS is FROM..TO");
    from.parse().expect("a number")..to.parse().expect("a number")
}

fn add(mut sum: Report, report: &Report) -> Report {
    sum.replayed += report.replayed;
    sum.rebuilt += report.rebuilt;
    sum.degraded += report.degraded;
    sum.restarts += report.restarts;
    sum.orphans += report.orphans;
    sum.overflows += report.overflows;
    sum.duplicates += report.duplicates;
    sum.demands += report.demands;
    sum.exact += report.exact;
    sum.checks += report.checks;
    sum
}
