//! Places that are known by confirmation alone.

use std::collections::VecDeque;

use super::Place;
use crate::{hash::EngineHash, keyed::KeyedMap};

/// Names whose place is known by confirmation alone, oldest first in `order`. A place does not keep its node alive: it
/// is worth something only while others do.
#[derive(Debug, Default)]
pub(super) struct Anchors {
    places: KeyedMap<EngineHash, Place>,
    order: VecDeque<EngineHash>,
}

impl Anchors {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(super) fn get(&self, hash: EngineHash) -> Option<Place> {
        self.places.get(&hash).copied()
    }

    /// Adds one; of more than `limit` the oldest go.
    pub(super) fn add(&mut self, hash: EngineHash, place: Place, limit: usize) {
        self.forget(hash);
        self.places.insert(hash, place);
        self.order.push_back(hash);
        while self.order.len() > limit {
            if let Some(oldest) = self.order.pop_front() {
                self.places.remove(&oldest);
            }
        }
    }

    /// Whether it was there.
    #[inline]
    pub(super) fn forget(&mut self, hash: EngineHash) -> bool {
        !self.places.is_empty() && self.forget_one(hash)
    }

    #[cold]
    fn forget_one(&mut self, hash: EngineHash) -> bool {
        let known = self.places.remove(&hash).is_some();
        if known {
            self.order.retain(|other| *other != hash);
        }
        known
    }
}
