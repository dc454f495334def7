//! Thousands of virtual worlds: whatever links, publishers and discovery do, what is shown as exact is exact.

use testkit::world::{plane::PlaneWorld, run_all};

/// Seeds that found something once.
const PINNED: &[u64] = &[882, 3289, 3294, 20018];

#[test]
fn exact_targets_equal_their_publishers() {
    let run = |seed| PlaneWorld::run(seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    let sum = run_all(PINNED, 2, run);
    println!("{sum:?}");
    // The worlds are no use if nothing of a kind happens in them.
    assert!(sum.replayed > 0 && sum.rebuilt > 0 && sum.degraded > 0 && sum.dumps > 0 && sum.restarts > 0, "{sum:?}");
    assert!(sum.failures > 0 && sum.overflows > 0 && sum.duplicates > 0, "{sum:?}");
    assert!(sum.comparisons > 20 * sum.checks, "rarely exact while things go on: {sum:?}");
    assert!(sum.exact * 2 > sum.checks && sum.exact < sum.checks, "always or rarely exact in the end: {sum:?}");
}
