//! What passes through us on its way to an engine and back, as it concerns a feed.

use std::time::Instant;

use crate::{Feed, demand::Demand, observation::Observation};

/// A feed, as far as it is told what passes through us.
pub trait Heeds {
    /// Rule 5: a cache reset that passed through us succeeded. Every target of the feed is empty now.
    fn reset(&mut self, now: Instant);

    /// Rule 11: an answer said how much of its prompt was cached. What the engine has beyond `predicted_blocks` is the
    /// caller's to hold in [`index::Lane::Confirmed`]; here waiting stores that continue it are attached, and a degraded
    /// target that reported less loses what it did not have.
    fn observed(&mut self, now: Instant, observation: &Observation);

    /// Rules 4 and 13: a request with this demand is dispatched to a rank. Call it before any message that the engine may send
    /// because of it.
    fn demanded(&mut self, now: Instant, rank: u32, demand: Demand);
}

impl Heeds for Feed {
    fn reset(&mut self, now: Instant) {
        self.each(|rank| rank.reset(now));
        self.show(now);
    }

    fn observed(&mut self, now: Instant, observation: &Observation) {
        let position = self.position(observation.rank);
        if let Some(rank) = position.and_then(|position| self.ranks.get_mut(position)) {
            rank.observed(now, observation);
        }
        self.show(now);
    }

    fn demanded(&mut self, now: Instant, rank: u32, demand: Demand) {
        let position = self.position(rank);
        if let Some(rank) = position.and_then(|position| self.ranks.get_mut(position)) {
            rank.demanded(now, demand);
        }
        self.show(now);
    }
}
