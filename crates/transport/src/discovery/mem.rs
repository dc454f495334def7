//! Discovery inside one process: every [`Discovery`](super::Discovery) opened on one store sees what the others register.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use wire::discovery::Key;

use super::{
    registration::{Standing, Wanted},
    view::Listed,
    watch::Sink,
};

/// A store in memory. Clones are the same store.
#[derive(Debug, Clone, Default)]
pub struct MemStore(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Guards single looks and changes.
    records: Mutex<BTreeMap<Key, Record>>,
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct Record {
    owner: u64,
    value: Bytes,
}

impl MemStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) fn keep(&self, owner: u64, wanted: &Wanted) {
        let mut changed = false;
        let mut records = self.0.records.lock();
        for task in wanted.tasks() {
            let other = records.get(&task.key).is_some_and(|record| record.owner != owner);
            if task.withdrawn {
                changed |= !other && records.remove(&task.key).is_some();
                wanted.removed(&task);
            } else if other {
                wanted.not_held(&task, Standing::Contested);
            } else {
                let before = records.insert(task.key.clone(), Record { owner, value: task.value.clone() });
                changed |= before.is_none_or(|before| before.value != task.value);
                wanted.held(&task);
            }
        }
        drop(records);
        if changed {
            self.0.changed.send_replace(());
        }
    }

    /// Until a record changes.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.0.changed.subscribe()
    }

    pub(super) async fn follow(self, prefix: String, mut sink: Sink) {
        let mut changes = self.changes();
        // The store outlives this: `self` holds it.
        while changes.has_changed().is_ok() {
            changes.mark_unchanged();
            let list = self.list(&prefix);
            sink.listed(list);
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    fn list(&self, prefix: &str) -> Vec<Listed> {
        let records = self.0.records.lock();
        let below = records.iter().filter(|(key, _)| key.as_str().starts_with(prefix));
        below.map(|(key, record)| Listed { key: key.clone(), value: record.value.clone(), owner: record.owner }).collect()
    }
}
