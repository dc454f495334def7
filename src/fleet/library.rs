//! The model folders of token-level workers. Each content is read once, however many workers have it and wherever their cards say
//! that it lies, and let go of with the last of them.
//!
//! Reading and taking apart a large vocabulary takes seconds: it is done on threads for blocking work, a few at a time. What
//! cannot be read is tried again after a while, by one of the workers that want it.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use prompt::{Files, Folder, LoadOptions, Pool};
use tokio::sync::Semaphore;

/// Folders that are read at once.
const AT_ONCE: usize = 2;
/// How long reading one may take, once its turn has come.
const WITHIN: Duration = Duration::from_secs(120);
/// First wait after a failure; doubles.
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// Longest such wait.
const RETRY_LONGEST: Duration = Duration::from_secs(60);
/// Places of one content whose failures are remembered.
const MOST_FAILURES: usize = 64;

/// All folders that some worker has.
pub(crate) struct Library {
    /// Held for one look-up.
    shelves: Mutex<HashMap<String, Weak<Shelf>>>,
    turns: Arc<Semaphore>,
    pool: Arc<Pool>,
    counters: Counters,
}

/// What came of reading.
#[derive(Debug, Default)]
struct Counters {
    loaded: AtomicU64,
    failed: AtomicU64,
}

/// One content. Workers hold it as long as they have it.
pub(super) struct Shelf {
    /// Held while it is read: whoever wants it waits for that.
    slot: tokio::sync::Mutex<Slot>,
}

#[derive(Default)]
struct Slot {
    folder: Option<Arc<Folder>>,
    failures: Vec<Failure>,
}

/// Files that could not be read.
struct Failure {
    files: Files,
    reason: String,
    again: Instant,
    wait: Duration,
}

/// Why a folder is not there, and when it is worth another try.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub(super) struct Unread {
    reason: String,
    pub(super) again: Instant,
}

impl Unread {
    pub(super) fn new(reason: String, again: Instant) -> Self {
        Self { reason, again }
    }
}

impl Library {
    pub(super) fn new(pool: Arc<Pool>) -> Self {
        Self { shelves: Mutex::default(), turns: Arc::new(Semaphore::new(AT_ONCE)), pool, counters: Counters::default() }
    }

    /// Where the content of this name is, or will be.
    pub(super) fn shelf(&self, content: &str) -> Arc<Shelf> {
        let mut shelves = self.shelves.lock();
        if let Some(shelf) = shelves.get(content).and_then(Weak::upgrade) {
            return shelf;
        }
        shelves.retain(|_, shelf| shelf.strong_count() > 0);
        let shelf = Arc::new(Shelf { slot: tokio::sync::Mutex::default() });
        shelves.insert(content.to_owned(), Arc::downgrade(&shelf));
        shelf
    }

    /// The folder of a shelf, read from `files` unless it is there.
    pub(super) async fn folder(&self, shelf: &Shelf, files: &Files) -> Result<Arc<Folder>, Unread> {
        let mut slot = shelf.slot.lock().await;
        if let Some(folder) = &slot.folder {
            return Ok(folder.clone());
        }
        let failed = slot.failures.iter().find(|failure| failure.files == *files);
        if let Some(failure) = failed.filter(|failure| failure.again > Instant::now()) {
            return Err(Unread { reason: failure.reason.clone(), again: failure.again });
        }
        match self.read(files).await {
            Ok(folder) => {
                self.counters.loaded.fetch_add(1, Ordering::Relaxed);
                *slot = Slot { folder: Some(folder.clone()), failures: Vec::new() };
                // Whoever asks first must not wait for what each thread makes once.
                drop(slot);
                self.pool.warm(&folder).await;
                Ok(folder)
            }
            Err(reason) => {
                self.counters.failed.fetch_add(1, Ordering::Relaxed);
                Err(slot.failed(files, reason))
            }
        }
    }

    async fn read(&self, files: &Files) -> Result<Arc<Folder>, String> {
        // It fails on a closed one only, and this one is never closed.
        let turn = self.turns.clone().acquire_owned().await.map_err(|error| error.to_string())?;
        let files = files.clone();
        let work = tokio::task::spawn_blocking(move || {
            // Kept until the thread is free, also where nobody waits any more.
            let _turn = turn;
            Folder::load_files(&files, &LoadOptions::default())
        });
        match tokio::time::timeout(WITHIN, work).await {
            Ok(Ok(Ok(folder))) => Ok(Arc::new(folder)),
            Ok(Ok(Err(error))) => Err(error.to_string()),
            Ok(Err(broken)) => Err(format!("reading it broke off: {broken}")),
            Err(_) => Err(format!("its files were not read within {WITHIN:?}")),
        }
    }

    /// Folders that were read, that could not be, and that are held now.
    pub(crate) fn counts(&self) -> (u64, u64, usize) {
        let held = self.shelves.lock().values().filter(|shelf| shelf.strong_count() > 0).count();
        (self.counters.loaded.load(Ordering::Relaxed), self.counters.failed.load(Ordering::Relaxed), held)
    }
}

impl Slot {
    fn failed(&mut self, files: &Files, reason: String) -> Unread {
        let known = self.failures.iter().position(|failure| failure.files == *files);
        let before = known.map(|at| self.failures.remove(at).wait);
        if self.failures.len() >= MOST_FAILURES {
            self.failures.remove(0);
        }
        let wait = before.map_or(RETRY_FIRST, |wait| RETRY_LONGEST.min(wait * 2));
        let again = Instant::now() + wait;
        self.failures.push(Failure { files: files.clone(), reason: reason.clone(), again, wait });
        Unread { reason, again }
    }
}
