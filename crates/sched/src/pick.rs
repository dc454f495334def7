//! Picking one of several eligible candidates. Each function returns a position in the slice it was given.
//!
//! Candidates of equal cost or load are told apart by chance, never by their order: else every idle fleet would send its cold prompts to
//! the worker listed first. The slices are not empty; position 0 would be returned for an empty one.

use rand::Rng;

/// How often [`softmax`] draws before it weighs every cost.
const TRIES: usize = 16;

/// The lowest value; one of several lowest at random.
pub(crate) fn lowest<T: PartialOrd + Copy>(values: &[T], rng: &mut impl Rng) -> usize {
    let Some(&first) = values.first() else { return 0 };
    // In lanes, so that no comparison waits for the one before.
    let (chunks, rest) = values.as_chunks::<4>();
    let mut lanes = [first; 4];
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = if *value < *lane { *value } else { *lane };
        }
    }
    let lowest = lanes.iter().chain(rest).fold(first, |lowest, value| if *value < lowest { *value } else { lowest });
    let ties = values.iter().filter(|value| **value == lowest).count();
    let drawn = if ties > 1 { rng.random_range(0..ties) } else { 0 };
    let mut tied = values.iter().enumerate().filter(|(_, value)| **value == lowest);
    tied.nth(drawn).map_or(0, |(at, _)| at)
}

/// The first of the lowest values: for a turn order, where equal ones are those not yet served.
pub(crate) fn first_lowest(values: &[u64]) -> usize {
    (0..values.len()).min_by_key(|at| values[*at]).unwrap_or(0)
}

/// A cost at random: softmax over costs scaled to 0..1 between the lowest and the highest, divided by the temperature.
/// Temperature 0, and costs that are all equal, leave the lowest with random ties.
pub(crate) fn softmax(costs: &[f64], temperature: f64, rng: &mut impl Rng) -> usize {
    if temperature == 0.0 {
        return lowest(costs, rng);
    }
    let (mut lowest_cost, mut highest_cost) = (f64::INFINITY, f64::NEG_INFINITY);
    for &cost in costs {
        lowest_cost = if cost < lowest_cost { cost } else { lowest_cost };
        highest_cost = if cost > highest_cost { cost } else { highest_cost };
    }
    let scale = (highest_cost - lowest_cost) * temperature;
    if scale.is_nan() || scale <= 0.0 {
        return lowest(costs, rng);
    }
    let weight = |cost: f64| (-(cost - lowest_cost) / scale).exp();
    // Anyone, kept with the chance of its weight: the same distribution, mostly without weighing them all.
    for _ in 0..TRIES {
        let at = random(costs.len(), rng);
        if rng.random::<f64>() < weight(costs[at]) {
            return at;
        }
    }
    let total: f64 = costs.iter().map(|cost| weight(*cost)).sum();
    let mut left = rng.random::<f64>() * total;
    for (at, cost) in costs.iter().enumerate() {
        left -= weight(*cost);
        if left < 0.0 {
            return at;
        }
    }
    // Rounding can leave a rest that no weight has used up. The lowest cost always has a weight of 1.
    lowest(costs, rng)
}

/// Any of `count`.
pub(crate) fn random(count: usize, rng: &mut impl Rng) -> usize {
    rng.random_range(0..count.max(1))
}

/// Of two distinct positions at random the one with the lower load, by chance if equal.
pub(crate) fn power_of_two(loads: &[u64], rng: &mut impl Rng) -> usize {
    if loads.len() < 2 {
        return 0;
    }
    let first = rng.random_range(0..loads.len());
    // One of the others: a draw that skips `first`.
    let second = rng.random_range(0..loads.len() - 1);
    let second = if second < first { second } else { second + 1 };
    // Both orders of a pair are equally likely, so taking the first of equals is already by chance.
    if loads[second] < loads[first] { second } else { first }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    const DRAWS: u32 = 30_000;

    /// Share of draws per position, from a fixed seed.
    fn shares(count: usize, mut draw: impl FnMut(&mut SmallRng) -> usize) -> Vec<f64> {
        let mut rng = SmallRng::seed_from_u64(7);
        let mut hits = vec![0_u32; count];
        for _ in 0..DRAWS {
            hits[draw(&mut rng)] += 1;
        }
        hits.into_iter().map(|hits| f64::from(hits) / f64::from(DRAWS)).collect()
    }

    fn assert_near(shares: &[f64], expected: &[f64]) {
        for (share, expected) in shares.iter().zip(expected) {
            assert!((share - expected).abs() < 0.015, "{shares:?}, expected {expected:?}");
        }
    }

    #[test]
    fn ties_are_broken_evenly() {
        assert_near(&shares(5, |rng| lowest(&[2.0, 1.0, 1.0, 3.0, 1.0], rng)), &[0.0, 1.0 / 3.0, 1.0 / 3.0, 0.0, 1.0 / 3.0]);
        assert_near(&shares(3, |rng| softmax(&[4.0, 4.0, 4.0], 0.7, rng)), &[1.0 / 3.0; 3]);
    }

    #[test]
    fn temperature_follows_the_formula() {
        let costs = [10.0, 20.0, 110.0];
        for temperature in [0.1_f64, 0.5, 1.0, 10.0] {
            let weights: Vec<f64> = [0.0, 0.1, 1.0].iter().map(|x: &f64| (-x / temperature).exp()).collect();
            let total: f64 = weights.iter().sum();
            let expected: Vec<f64> = weights.iter().map(|weight| weight / total).collect();
            assert_near(&shares(3, |rng| softmax(&costs, temperature, rng)), &expected);
        }
    }

    #[test]
    fn temperature_is_free_of_scale() {
        let small = shares(2, |rng| softmax(&[1.0, 2.0], 1.0, rng));
        let large = shares(2, |rng| softmax(&[1e9, 2e9], 1.0, rng));
        assert_eq!(small, large);
    }

    #[test]
    fn a_vanishing_temperature_takes_the_lowest() {
        assert_near(&shares(2, |rng| softmax(&[1.0, 2.0], 0.0, rng)), &[1.0, 0.0]);
        assert_near(&shares(2, |rng| softmax(&[1.0, 1.0 + f64::EPSILON], 1e-300, rng)), &[1.0, 0.0]);
        assert_near(&shares(2, |rng| softmax(&[0.0, f64::MIN_POSITIVE], 1e-300, rng)), &[1.0, 0.0]);
    }

    #[test]
    fn power_of_two_never_takes_the_highest() {
        // Every pair is equally likely: the lowest wins two of three pairs, the middle one the third.
        assert_near(&shares(3, |rng| power_of_two(&[5, 1, 3], rng)), &[0.0, 2.0 / 3.0, 1.0 / 3.0]);
        assert_near(&shares(2, |rng| power_of_two(&[4, 4], rng)), &[0.5, 0.5]);
        assert_near(&shares(1, |rng| power_of_two(&[4], rng)), &[1.0]);
    }
}
