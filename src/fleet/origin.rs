//! Who says that a worker is there, and what else discovery and the event plane say of it.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use transport::follow::SourceSpec;
use wire::{
    discovery::{Endpoint, EndpointId, EventChannel},
    load::ActiveLoad,
};

/// Who says that a worker is there.
pub(crate) enum Origin {
    /// The `--worker` list or `POST /workers`.
    Listed,
    /// Records of discovery.
    Discovered(Discovered),
}

/// A worker of which discovery has records.
pub(crate) struct Discovered {
    /// Its number in events; its id is this in decimal.
    pub(crate) worker_id: u64,
    /// The endpoint it is an instance of.
    pub(crate) endpoint: EndpointId,
    /// Who publishes for each rank. Held for a copy, or while it is handed out.
    publishers: Mutex<BTreeMap<u32, Vec<Publisher>>>,
    /// The last load each rank told of. Held for a copy.
    loads: Mutex<BTreeMap<u32, ActiveLoad>>,
}

/// A publisher of one rank's events, as its records say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Publisher {
    pub(crate) id: u64,
    /// Where it publishes, once that is recorded.
    pub(crate) channel: Option<EventChannel>,
    /// Who answers for what was missed.
    pub(crate) recovery: Option<Endpoint>,
}

/// Most ranks of one worker whose load is kept: what events name must not grow without bound.
const MOST_LOADS: usize = 1024;

impl Origin {
    /// What discovery says of it, if discovery found it.
    pub(crate) fn discovered(&self) -> Option<&Discovered> {
        match self {
            Self::Listed => None,
            Self::Discovered(discovered) => Some(discovered),
        }
    }
}

impl Discovered {
    pub(crate) fn new(worker_id: u64, endpoint: EndpointId) -> Self {
        Self { worker_id, endpoint, publishers: Mutex::default(), loads: Mutex::default() }
    }

    /// Takes over who publishes for its ranks; `false`: nothing has changed.
    pub(super) fn set_publishers(&self, now: &BTreeMap<u32, Vec<Publisher>>) -> bool {
        let mut publishers = self.publishers.lock();
        if *publishers == *now {
            return false;
        }
        publishers.clone_from(now);
        true
    }

    /// Who publishes for a rank.
    pub(crate) fn publishers(&self, dp_rank: u32) -> Vec<Publisher> {
        self.publishers.lock().get(&dp_rank).cloned().unwrap_or_default()
    }

    /// Gives each follower its rank's publishers. Holds the lock, so that concurrent calls cannot apply an older list last.
    pub(super) fn hand_out(&self, give: impl FnOnce(&dyn Fn(u32) -> Vec<SourceSpec>)) {
        let publishers = self.publishers.lock();
        let source = |publisher: &Publisher| SourceSpec {
            publisher_id: publisher.id,
            channel: publisher.channel.clone(),
            recovery: publisher.recovery.clone(),
        };
        give(&|dp_rank| publishers.get(&dp_rank).into_iter().flatten().map(source).collect());
    }

    /// A rank has told its load.
    pub(crate) fn report(&self, load: ActiveLoad) {
        let mut loads = self.loads.lock();
        if loads.len() < MOST_LOADS || loads.contains_key(&load.dp_rank) {
            loads.insert(load.dp_rank, load);
        }
    }

    /// The last load a rank told of.
    pub(crate) fn reported(&self, dp_rank: u32) -> Option<ActiveLoad> {
        self.loads.lock().get(&dp_rank).cloned()
    }
}
