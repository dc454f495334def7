//! Where the events of a rank come from: a direct stream of its engine, or the publishers of it on the event plane. Both
//! fill the same index and show the same status; who asks need not know which it is.

use std::sync::Arc;

use feed::{Demand, Observation, Status};
use transport::{
    follow::{self, Follower},
    stream::{self, Stream},
};

/// The source of a rank's events.
#[derive(Clone)]
pub(crate) enum Source {
    /// The engine's own numbered stream, which may speak for several ranks.
    Stream(Arc<Stream>),
    /// Whoever publishes for the rank on the event plane.
    Plane(Arc<Follower>),
}

impl Source {
    /// Trust and counters.
    pub(crate) fn status(&self) -> Arc<Status> {
        match self {
            Self::Stream(stream) => stream.status(),
            Self::Plane(follower) => follower.status(),
        }
    }

    /// Why nothing is heard, where that is known.
    pub(crate) fn silence(&self) -> Option<String> {
        match self {
            Self::Stream(stream) => match stream.link() {
                stream::Link::Down { reason } => Some(reason),
                stream::Link::Starting | stream::Link::Up { .. } => None,
            },
            Self::Plane(follower) => match follower.link() {
                follow::Link::Down { reason } => Some(reason),
                follow::Link::Starting | follow::Link::Up => None,
            },
        }
    }

    /// An answer told how much of its prompt was cached (rule 11).
    pub(crate) fn observe(&self, observation: Observation) {
        match self {
            Self::Stream(stream) => stream.observe(observation),
            Self::Plane(follower) => follower.observe(observation),
        }
    }

    /// Observations dropped because their task was too far behind.
    pub(crate) fn observations_dropped(&self) -> u64 {
        match self {
            Self::Stream(stream) => stream.observations_dropped(),
            Self::Plane(follower) => follower.observations_dropped(),
        }
    }

    /// Messages on the rank's channels that were none of its publishers'. What a direct stream could not read is in its status.
    pub(crate) fn malformed(&self) -> u64 {
        match self {
            Self::Stream(_) => 0,
            Self::Plane(follower) => follower.malformed(),
        }
    }

    /// A request with this demand is about to be sent to a rank (rules 4 and 13).
    pub(crate) fn demand(&self, dp_rank: u32, demand: Demand) {
        match self {
            Self::Stream(stream) => stream.demand(dp_rank, demand),
            Self::Plane(follower) => follower.demand(dp_rank, demand),
        }
    }

    /// A cache reset passed through us and succeeded (rule 5).
    pub(crate) async fn reset(&self) {
        match self {
            Self::Stream(stream) => stream.reset().await,
            Self::Plane(follower) => follower.reset().await,
        }
    }

    /// Ends it; once this returns nothing of it is in the index.
    pub(crate) async fn stop(&self) {
        match self {
            Self::Stream(stream) => stream.stop().await,
            Self::Plane(follower) => follower.stop().await,
        }
    }

    /// Whether both are one: ranks may share a stream.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Stream(one), Self::Stream(other)) => Arc::ptr_eq(one, other),
            (Self::Plane(one), Self::Plane(other)) => Arc::ptr_eq(one, other),
            (Self::Stream(_), Self::Plane(_)) | (Self::Plane(_), Self::Stream(_)) => false,
        }
    }
}
