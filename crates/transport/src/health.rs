//! Whether what a plane said last still holds: fresh, or stale since a time and for a reason.
//!
//! A plane that is away makes its words stale, never gone (rule 14). It is logged here once per change, so that no task of a
//! plane logs its retries.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use parking_lot::Mutex;

/// The state of a plane.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlaneHealth {
    /// Since when it cannot be heard; `None` while it can.
    pub stale_since: Option<SystemTime>,
    /// What was tried and how it failed; empty while it is fresh.
    pub reason: String,
}

impl PlaneHealth {
    /// Whether it can be heard.
    pub fn is_fresh(&self) -> bool {
        self.stale_since.is_none()
    }
}

/// The state of a plane as its tasks tell it: stale while any of them is. Cheap to clone.
#[derive(Debug, Clone)]
pub struct HealthBoard(Arc<Board>);

#[derive(Debug)]
struct Board {
    plane: String,
    /// The parts that are stale. Guards single reads and writes.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    stale: BTreeMap<u64, PlaneHealth>,
}

impl HealthBoard {
    /// Of a plane with this name, such as `etcd http://127.0.0.1:2379`.
    pub fn new(plane: impl Into<String>) -> Self {
        Self(Arc::new(Board { plane: plane.into(), state: Mutex::default() }))
    }

    /// A part of it, fresh until it says otherwise.
    pub fn part(&self) -> HealthPart {
        let mut state = self.0.state.lock();
        state.next += 1;
        HealthPart { board: self.0.clone(), part: state.next }
    }

    /// The part that is stale for longest speaks for the plane.
    pub fn health(&self) -> PlaneHealth {
        let state = self.0.state.lock();
        state.stale.values().min_by_key(|part| part.stale_since).cloned().unwrap_or_default()
    }
}

/// What one task says about the plane. A part that is dropped says nothing any more.
#[derive(Debug)]
pub struct HealthPart {
    board: Arc<Board>,
    part: u64,
}

impl HealthPart {
    /// It cannot be heard. The first call after [`fresh`](Self::fresh) counts as the time, the last one's reason is told.
    pub fn stale(&self, reason: impl Into<String>) {
        let reason = reason.into();
        let mut state = self.board.state.lock();
        let was_fresh = state.stale.is_empty();
        let part = state.stale.entry(self.part).or_default();
        part.stale_since.get_or_insert_with(SystemTime::now);
        part.reason.clone_from(&reason);
        drop(state);
        if was_fresh {
            tracing::warn!(plane = self.board.plane, reason, "stale: what it said last is kept");
        }
    }

    /// It is heard.
    pub fn fresh(&self) {
        if self.heals() {
            tracing::info!(plane = self.board.plane, "fresh again");
        }
    }

    /// Takes back what it said; whether that was the last that was said.
    fn heals(&self) -> bool {
        let mut state = self.board.state.lock();
        state.stale.remove(&self.part).is_some() && state.stale.is_empty()
    }
}

impl Drop for HealthPart {
    fn drop(&mut self) {
        self.heals();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plane_is_stale_since_its_first_stale_part_and_fresh_after_the_last() {
        let board = HealthBoard::new("test");
        let (one, other) = (board.part(), board.part());
        assert!(board.health().is_fresh());
        one.stale("refused");
        let since = board.health().stale_since;
        one.stale("no answer within 2 s");
        other.stale("closed");
        assert_eq!(board.health(), PlaneHealth { stale_since: since, reason: "no answer within 2 s".to_owned() });
        one.fresh();
        assert_eq!(board.health().reason, "closed");
        drop(other);
        assert!(board.health().is_fresh());
    }
}
