//! Where the events of a rank come from: a direct stream of its engine, or the publishers of it on the event plane. Both
//! fill the same index and are held by the same reins; who asks need not know which it is.

use std::{ptr, sync::Arc};

use transport::{
    follow::Follower,
    reins::{Link, Reins},
};

/// The source of a rank's events.
#[derive(Clone)]
pub(crate) enum Source {
    /// The engine's own numbered stream, which may speak for several ranks.
    Stream(Arc<Reins>),
    /// Whoever publishes for the rank on the event plane.
    Plane(Arc<Follower>),
}

impl Source {
    /// Its status, and what it is told.
    pub(crate) fn reins(&self) -> &Reins {
        match self {
            Self::Stream(reins) => reins,
            Self::Plane(follower) => follower.reins(),
        }
    }

    /// Why nothing is heard, where that is known.
    pub(crate) fn silence(&self) -> Option<String> {
        match self.reins().link() {
            Link::Down { reason } => Some(reason),
            Link::Starting | Link::Up => None,
        }
    }

    /// Messages on the rank's channels that were none of its publishers'. What a direct stream could not read is in its status.
    pub(crate) fn malformed(&self) -> u64 {
        match self {
            Self::Stream(_) => 0,
            Self::Plane(follower) => follower.malformed(),
        }
    }

    /// Whether both are one: ranks may share a stream.
    pub(crate) fn is(&self, other: &Self) -> bool {
        ptr::eq(self.reins(), other.reins())
    }
}
