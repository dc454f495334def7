//! The writers of one target's lanes, each made with its first event.

use index::{Copies, Lane, Target, Writer};

use crate::fold::Fold;

#[derive(Debug)]
pub(super) struct Lanes {
    target: Target,
    /// Device, host, disk.
    writers: [Option<Writer>; 3],
    /// Stores parked by writers that are gone.
    orphans_before: u64,
    /// Parked stores of the device dropped, as far as they were noticed.
    orphans_dropped: u64,
}

impl Lanes {
    pub(super) fn new(target: Target) -> Self {
        Self { target, writers: [None, None, None], orphans_before: 0, orphans_dropped: 0 }
    }

    /// The writer of a lane that events fill; `None` before the block size is known.
    pub(super) fn writer(&mut self, lane: Lane, copies: Copies, fold: &Fold) -> Option<&mut Writer> {
        let writer = &mut self.writers[position(lane)?];
        if writer.is_none() {
            *writer = fold.writer(self.target, lane, copies);
        }
        writer.as_mut()
    }

    /// The same, where something was written already.
    pub(super) fn get(&self, lane: Lane) -> Option<&Writer> {
        self.writers[position(lane)?].as_ref()
    }

    pub(super) fn get_mut(&mut self, lane: Lane) -> Option<&mut Writer> {
        self.writers[position(lane)?].as_mut()
    }

    pub(super) fn each(&mut self, act: impl FnMut(&mut Writer)) {
        self.writers.iter_mut().flatten().for_each(act);
    }

    /// The writers go, and with them what they hold.
    pub(super) fn drop_writers(&mut self) {
        *self = Self { orphans_before: self.orphans(), ..Self::new(self.target) };
    }

    /// Stores parked so far.
    pub(super) fn orphans(&self) -> u64 {
        self.orphans_before + self.writers.iter().flatten().map(|writer| writer.parked().total).sum::<u64>()
    }

    /// Stores that are parked now, and their blocks.
    pub(super) fn parked(&self) -> (usize, usize) {
        let parked = self.writers.iter().flatten().map(Writer::parked);
        parked.fold((0, 0), |(stores, blocks), parked| (stores + parked.stores, blocks + parked.blocks))
    }

    /// Whether parked stores of the device were dropped that this has not told before.
    pub(super) fn dropped_orphans(&mut self) -> bool {
        let dropped = self.get(Lane::Device).map_or(0, |device| device.parked().dropped);
        let are_more = dropped > self.orphans_dropped;
        self.orphans_dropped = self.orphans_dropped.max(dropped);
        are_more
    }
}

fn position(lane: Lane) -> Option<usize> {
    match lane {
        Lane::Device => Some(0),
        Lane::Host => Some(1),
        Lane::Disk => Some(2),
        Lane::Predicted | Lane::Confirmed => None,
    }
}
