//! The list of workers, in the order of addition. Each change of it costs the same however long it is.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use engine::BaseUrl;
use tokio_util::sync::CancellationToken;

use super::{AddError, Worker};

/// All workers. One that was removed stays until its last request is over.
#[derive(Default)]
pub(super) struct Roster {
    kept: BTreeMap<u64, Kept>,
    added: u64,
    /// Those that were not removed, by what no two of them share.
    ids: HashMap<String, u64>,
    urls: HashMap<BaseUrl, u64>,
}

/// A worker with the way to end its task.
struct Kept {
    worker: Arc<Worker>,
    stop: CancellationToken,
}

impl Roster {
    /// Whether a worker of this id, or at this URL, can be added.
    pub(super) fn free(&self, id: &str, url: Option<&BaseUrl>) -> Result<(), AddError> {
        if self.ids.contains_key(id) {
            return Err(AddError::SameId(id.to_owned()));
        }
        match url.filter(|url| self.urls.contains_key(url)) {
            Some(url) => Err(AddError::SameUrl(url.to_string())),
            None => Ok(()),
        }
    }

    /// Adds a worker that is free to be. Returns its number here.
    pub(super) fn add(&mut self, worker: Arc<Worker>, stop: CancellationToken) -> u64 {
        self.added += 1;
        self.ids.insert(worker.id().to_owned(), self.added);
        if let Some(server) = worker.server() {
            self.urls.insert(server.spec.url.clone(), self.added);
        }
        self.kept.insert(self.added, Kept { worker, stop });
        self.added
    }

    /// Has the worker drain: its id and its URL are free. `false`: there is none with this id, or it was removed before.
    pub(super) fn remove(&mut self, id: &str) -> bool {
        let Some(kept) = self.ids.remove(id).and_then(|number| self.kept.get(&number)) else { return false };
        if let Some(server) = kept.worker.server() {
            self.urls.remove(&server.spec.url);
        }
        kept.worker.drain();
        kept.stop.cancel();
        true
    }

    /// The worker's task is over: it was removed, or the whole fleet stops.
    pub(super) fn retire(&mut self, number: u64) {
        self.kept.remove(&number);
    }

    /// All of them, in the order of addition.
    pub(super) fn workers(&self) -> Vec<Arc<Worker>> {
        self.kept.values().map(|kept| kept.worker.clone()).collect()
    }
}
