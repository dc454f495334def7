//! Why no target could be chosen.

use std::fmt;

use thiserror::Error;

use crate::candidate::Exclusion;

/// No target could be chosen for a request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoWorker {
    /// There is no candidate at all.
    #[error("no worker is known")]
    NoCandidates,
    /// Every candidate is out.
    #[error("no worker can take the request: {0}")]
    AllExcluded(Reasons),
    /// Mode direct, and the request names no worker.
    #[error("the router mode is direct and the request names no worker, name one")]
    TargetRequired,
}

/// How many candidates are out for which reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reasons {
    counts: [u32; Exclusion::ALL.len()],
}

impl Reasons {
    /// The reasons that occur, each with its number of candidates.
    pub fn iter(&self) -> impl Iterator<Item = (Exclusion, u32)> {
        Exclusion::ALL.into_iter().zip(self.counts).filter(|(_, count)| *count > 0)
    }

    /// How many candidates are out for this reason.
    pub fn count(&self, exclusion: Exclusion) -> u32 {
        self.iter().find(|(reason, _)| *reason == exclusion).map_or(0, |(_, count)| count)
    }
}

impl FromIterator<Exclusion> for Reasons {
    fn from_iter<I: IntoIterator<Item = Exclusion>>(exclusions: I) -> Self {
        let mut reasons = Reasons::default();
        for exclusion in exclusions {
            // `ALL` lists the reasons in the order of declaration.
            reasons.counts[exclusion as usize] += 1;
        }
        reasons
    }
}

impl fmt::Display for Reasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (reason, count)) in self.iter().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            write!(f, "{separator}{count} {reason}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_counts_each_reason() {
        let reasons = [Exclusion::NotPinned, Exclusion::Draining, Exclusion::NotPinned].into_iter().collect::<Reasons>();
        assert_eq!(reasons.count(Exclusion::NotPinned), 2);
        assert_eq!(reasons.count(Exclusion::Removed), 0);
        assert_eq!(NoWorker::AllExcluded(reasons).to_string(), "no worker can take the request: 1 draining, 2 not the pinned worker");
    }

    #[test]
    fn reasons_are_listed_in_the_order_they_are_counted_in() {
        for (at, exclusion) in Exclusion::ALL.into_iter().enumerate() {
            assert_eq!(exclusion as usize, at);
        }
    }
}
