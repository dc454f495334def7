//! Delays between connection attempts: doubling between two bounds, with jitter, for ever.

use std::time::Duration;

use rand::Rng;

#[derive(Debug)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(min: Duration, max: Duration) -> Self {
        let min = min.min(max);
        Self { min, max, next: min }
    }

    /// The delay to wait now, between half and all of the current step, so that many clients of one peer spread.
    pub(crate) fn delay(&mut self, rng: &mut impl Rng) -> Duration {
        let step = self.next;
        self.next = (step * 2).min(self.max);
        step.mul_f64(rng.random_range(0.5..=1.0))
    }

    /// A connection proved good: begin at the smallest step again.
    pub(crate) fn reset(&mut self) {
        self.next = self.min;
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    #[test]
    fn a_publisher_down_for_40_s_is_tried_again_within_2_s_and_never_given_up() {
        let mut rng = SmallRng::seed_from_u64(7);
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        let first = backoff.delay(&mut rng);
        assert!(first >= Duration::from_millis(25) && first <= Duration::from_millis(50), "{first:?}");
        let mut waited = first;
        for _ in 0..10_000 {
            let delay = backoff.delay(&mut rng);
            assert!(delay <= Duration::from_secs(2), "{delay:?}");
            assert!(delay >= Duration::from_millis(50), "{delay:?} is a busy loop");
            waited += delay;
        }
        assert!(waited > Duration::from_secs(40));
        backoff.reset();
        assert!(backoff.delay(&mut rng) <= Duration::from_millis(50));
    }
}
