//! Thousands of virtual worlds: whatever the link and the engine do, what is shown as exact is exact.

use testkit::world::{World, run_all};

/// Seeds that found something once.
const PINNED: &[u64] = &[313, 636];

#[test]
fn exact_targets_equal_their_engines() {
    let sum = run_all(PINNED, 4, |seed| {
        let report = World::run(seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        assert!(report.replayed + report.rebuilt + report.degraded > 0, "seed {seed} has no gap");
        assert!(report.restarts > 0, "seed {seed} has no restart");
        assert!(report.orphans > 0, "seed {seed} has no orphan");
        report
    });
    println!("{sum:?}");
    // The worlds are no use if nothing of a kind happens in them.
    assert!(sum.replayed > 0 && sum.rebuilt > 0 && sum.degraded > 0 && sum.overflows > 0 && sum.duplicates > 0, "{sum:?}");
    assert!(sum.demands > 0, "{sum:?}");
    assert!(sum.exact * 2 > sum.checks, "few targets are ever exact: {sum:?}");
    assert!(sum.exact < sum.checks, "no target is ever degraded: {sum:?}");
}
