//! The load that workers tell of themselves (topic `kv_metrics`), kept per rank for `GET /workers`.
//!
//! It is shown and nothing else: the scheduler books what is sent through it, and has no place for a second figure of the same
//! thing.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use wire::load::{ActiveLoad, LoadError};

use super::listeners::Hear;
use crate::fleet::Directory;

/// Hears loads.
pub(crate) struct Loads {
    pub(crate) directory: Directory,
    pub(crate) counters: Arc<LoadCounters>,
}

/// What came of the messages.
#[derive(Debug, Default)]
pub(crate) struct LoadCounters {
    pub(crate) received: AtomicU64,
    pub(crate) unreadable: AtomicU64,
}

impl Hear for Loads {
    fn hear(&self, _publisher: u64, payload: &[u8]) -> Result<(), LoadError> {
        let load = ActiveLoad::decode(payload)?;
        self.counters.received.fetch_add(1, Ordering::Relaxed);
        if let Some(worker) = self.directory.worker(load.worker_id)
            && let Some(discovered) = worker.origin.discovered()
        {
            discovered.report(load);
        }
        Ok(())
    }

    fn malformed(&self) {
        self.counters.unreadable.fetch_add(1, Ordering::Relaxed);
    }

    fn left(&self, _publisher: u64) {}
}
