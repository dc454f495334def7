//! What requests ask of an engine that its events may not tell (rules 4 and 13).

use std::time::{Duration, Instant};

use wire::{Carries, Naming};

/// What was published so long before is here by now, and what was dispatched so long before has shown in the engine.
pub(crate) const ON_ITS_WAY: Duration = Duration::from_secs(10);

/// Something about a request that its target's events may not tell. Whoever dispatches one says so with
/// [`crate::Heeds::demanded`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Demand {
    /// The engine reports the blocks it hit as if they were stored once more (rule 4).
    FullReports,
    /// Its blocks are of a cache salt.
    Salt,
    /// Its blocks are of an adapter.
    Adapter,
    /// Its blocks are of an adapter whose number the configuration maps to its name.
    NumberedAdapter,
}

impl Demand {
    /// Every demand, in the order of the enum.
    pub const ALL: [Self; 4] = [Self::FullReports, Self::Salt, Self::Adapter, Self::NumberedAdapter];

    /// Why events that carry no more than this cannot be believed once the demand was made; `None`: they can.
    pub(crate) fn untold_by(self, carries: Option<Carries>) -> Option<&'static str> {
        let naming = carries.map(|carries| carries.adapter);
        match self {
            Self::FullReports => Some("full reports were asked for: which blocks have copies cannot be told from what was hit"),
            Self::Salt => carries
                .filter(|carries| !carries.salt)
                .map(|_| "a request with a cache salt was sent there, and the events carry none: its blocks look like those without"),
            Self::Adapter if naming == Some(Naming::Numbers) => {
                Some("a request for an adapter was sent there, and the events name adapters by number at most; lora=ID:NAME maps one")
            }
            Self::Adapter | Self::NumberedAdapter => naming
                .filter(|naming| *naming == Naming::Nothing)
                .map(|_| "a request for an adapter was sent there, and the events name none: its blocks look like the base model's"),
        }
    }
}

/// When each demand was last made, as far as the cache may still hold what came of it.
#[derive(Debug, Default)]
pub(crate) struct Demands([Option<Instant>; Demand::ALL.len()]);

impl Demands {
    pub(crate) fn made(&mut self, now: Instant, demand: Demand) {
        self.0[demand as usize] = Some(now);
    }

    pub(crate) fn has(&self, demand: Demand) -> bool {
        self.0[demand as usize].is_some()
    }

    /// The cache was emptied then, or later: forgets what was demanded before that. A request of the last moments may have
    /// reached the engine after it, so that demand stays.
    pub(crate) fn emptied(&mut self, at: Instant) {
        for made in &mut self.0 {
            *made = made.filter(|made| at < *made + ON_ITS_WAY);
        }
    }

    /// Why events that carry no more than this cannot be believed.
    pub(crate) fn untold_by(&self, carries: Option<Carries>) -> Option<&'static str> {
        Demand::ALL.into_iter().filter(|demand| self.has(*demand)).find_map(|demand| demand.untold_by(carries))
    }
}
