//! The load that workers tell of themselves (topic `kv_metrics`), kept per rank for `GET /workers`.
//!
//! It is shown and nothing else: the scheduler books what is sent through it, and has no place for a second figure of the same
//! thing.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use wire::load::{ActiveLoad, LoadError};

use super::Directory;
use crate::planes::{LoadCounters, listeners::Hear};

/// Hears loads.
pub(super) struct Loads {
    pub(super) directory: Directory,
    pub(super) counters: Arc<LoadCounters>,
}

impl Hear for Loads {
    /// Workers tell their load with each step of their engine.
    const LEISURE: Option<Duration> = Some(Duration::from_millis(500));

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
