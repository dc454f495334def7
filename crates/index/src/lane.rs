//! Lanes: the kinds of evidence that a target holds a block, kept apart in one index.

use std::ops::BitOr;

/// Where a target holds a block, or why we think it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Lane {
    /// In the accelerator's memory, by the engine's own events.
    Device,
    /// In the host's memory.
    Host,
    /// On the host's disks.
    Disk,
    /// Expected: a prompt with these blocks was sent there a moment ago (rule 12).
    Predicted,
    /// The engine's answer reported more cached tokens than its events had told (rule 11).
    Confirmed,
}

impl Lane {
    /// Every lane, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Device, Self::Host, Self::Disk, Self::Predicted, Self::Confirmed];

    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

/// A set of lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lanes(u8);

impl Lanes {
    /// No lane.
    pub const NONE: Self = Self(0);
    /// [`Lane::Device`] alone.
    pub const DEVICE: Self = Self(1 << Lane::Device as u8);
    /// [`Lane::Host`] alone.
    pub const HOST: Self = Self(1 << Lane::Host as u8);
    /// [`Lane::Disk`] alone.
    pub const DISK: Self = Self(1 << Lane::Disk as u8);
    /// [`Lane::Predicted`] alone.
    pub const PREDICTED: Self = Self(1 << Lane::Predicted as u8);
    /// [`Lane::Confirmed`] alone.
    pub const CONFIRMED: Self = Self(1 << Lane::Confirmed as u8);
    /// Every lane.
    pub const ALL: Self = Self((1 << Lane::ALL.len()) - 1);

    /// Whether `lane` is in the set.
    pub const fn contains(self, lane: Lane) -> bool {
        self.0 & (1 << lane as u8) != 0
    }

    /// Whether the sets share a lane.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether no lane is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The lanes of the set, in the order of their numbers.
    pub fn iter(self) -> impl Iterator<Item = Lane> {
        Lane::ALL.into_iter().filter(move |lane| self.contains(*lane))
    }
}

impl From<Lane> for Lanes {
    fn from(lane: Lane) -> Self {
        Self(1 << lane as u8)
    }
}

impl BitOr for Lanes {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What a second store of the same engine hash means on a stream (rule 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Copies {
    /// A raw engine stream: one more physical copy, removed one by one.
    Counted,
    /// A stream that was counted where it was read: the same fact again; one removal ends it.
    Set,
}
