//! A replay that was asked for: why, what must come first, and how far it got.

use std::time::Instant;

use crate::life::Mark;

/// Ask the publisher for every message from `from` on, inclusive, over a connection of its own, and feed the answer back
/// with [`crate::Feed::replayed`] and [`crate::Feed::replay_ended`].
///
/// At most one replay is pending: a later one replaces it, and nothing more of the replaced one may be fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replay {
    /// The first sequence number wanted.
    pub from: u64,
}

/// How a replay ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayEnd {
    /// With the publisher's end marker.
    Marker,
    /// Nothing came for [`crate::Limits::replay_silence`].
    Silent,
    /// The connection could not be made or broke; the text says how.
    Failed(String),
}

/// Why a replay is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Nothing of this life is known: everything from its start.
    Join,
    /// The stream jumped: what is between.
    Gap,
    /// After a reconnect: is it still the same life, and what was missed?
    Check,
    /// The same question while connected, because the stream is suspiciously still.
    Poll,
    /// Something is missing for good: is everything from the start still to be had?
    Heal,
}

impl Purpose {
    /// What a target waits for that would be exact if this went well; nothing for questions asked on the side.
    pub(crate) fn awaited(self) -> Option<&'static str> {
        match self {
            Self::Join => Some("replaying the stream from its start"),
            Self::Gap => Some("replaying a gap in the stream"),
            Self::Check => Some("checking after a reconnect what was missed"),
            Self::Poll | Self::Heal => None,
        }
    }

    /// Whether the publisher's not having the message we know last means that it restarted (rule 7).
    pub(crate) fn missing_is_restart(self) -> bool {
        match self {
            Self::Check | Self::Poll => true,
            Self::Join | Self::Gap | Self::Heal => false,
        }
    }
}

/// How far a pending replay got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nothing came yet.
    Waiting,
    /// Messages are folded in as they come.
    Folding,
    /// One was missing in the middle; the rest is of no use, and is asked for again.
    Holed,
    /// It is of another life than what we know.
    Restarted,
    /// It begins too late to be of use.
    Useless,
}

/// The pending replay.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub(crate) purpose: Purpose,
    /// What must come first, byte for byte; without one the request is from 0.
    pub(crate) anchor: Option<Mark>,
    pub(crate) progress: Progress,
    /// The anchor of an earlier request of this recovery came as expected.
    pub(crate) verified: bool,
    /// Something of what was asked for cannot be had.
    pub(crate) lacking: bool,
    /// The newest live message when it was asked for: a gap before that one is in the answer or nowhere.
    pub(crate) covers: Option<u64>,
    /// Requests made for this recovery.
    pub(crate) requests: u32,
    /// None while the request waits for its turn to be sent.
    pub(crate) deadline: Option<Instant>,
}

impl Query {
    pub(crate) fn replay(&self) -> Replay {
        Replay { from: self.anchor.map_or(0, |anchor| anchor.seq) }
    }
}
