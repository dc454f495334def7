//! Discovery in a directory that processes share, laid out as 1.6.1 does: `<root>/v1/<bucket>/<rest of the key>`, one file per
//! key. An owner touches its files; a file nobody touches for its time to live is dead, and whoever notices removes it.
//!
//! Watching is polling: a directory's own time tells of new, removed and replaced files, and a full look each second of those
//! that were touched or died. Change notifications of the kernel would not reach network file systems.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use wire::discovery::{Bucket, Key};

use super::{
    registration::{Standing, Wanted},
    watch::Sink,
};

mod keep;
mod lock;
mod name;
mod scan;

pub(super) use keep::Keeper;
use keep::Outcome;
use scan::{Found, Scanner};

/// How often directories are looked at.
const POLL: Duration = Duration::from_millis(250);

/// How long one look may take before the directory counts as away. A network file system can hang for ever.
const LOOK: Duration = Duration::from_secs(5);

/// Where and how long.
#[derive(Debug, Clone)]
pub(super) struct FileStore {
    pub(super) root: PathBuf,
    pub(super) ttl: Duration,
}

impl FileStore {
    fn folder(&self, bucket: Bucket) -> PathBuf {
        self.root.join(bucket.prefix())
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.folder(key.bucket()).join(name::encode(key.rest()))
    }

    /// Looks for ever, and tells what changed.
    pub(super) async fn follow(self, prefix: String, mut sink: Sink) {
        let mut scanner = Scanner::new(self, &prefix);
        loop {
            let look = tokio::task::spawn_blocking(move || {
                let found = scanner.look(Instant::now());
                (scanner, found)
            });
            let Some((back, found)) = looked(look, &mut sink).await else { return };
            scanner = back;
            for (file, reason) in scanner.junk.drain(..) {
                sink.junk(&file, reason);
            }
            match found {
                Ok(Found::Same) => {}
                Ok(Found::All(list)) => sink.listed(list),
                Err(reason) => sink.lost(&reason),
            }
            sink.tick();
            tokio::time::sleep(POLL).await;
        }
    }
}

/// Waits for one look however long it takes, since a second one would hang as well; says so when it takes long. `None` at the
/// end of the runtime.
async fn looked<T>(mut look: tokio::task::JoinHandle<T>, sink: &mut Sink) -> Option<T> {
    loop {
        match tokio::time::timeout(LOOK, &mut look).await {
            Ok(found) => return found.ok(),
            Err(_) => sink.lost(&format!("the file system does not answer for {LOOK:?}")),
        }
    }
}

/// Registers, touches and removes what is wanted, once. A pass that is given up goes on, and the next one waits for it.
pub(super) async fn keep(keeper: &Arc<Mutex<Keeper>>, wanted: &Wanted) -> Result<(), String> {
    let keeper = keeper.clone();
    let tasks = wanted.tasks();
    let pass = tokio::task::spawn_blocking(move || keeper.lock().keep(tasks, Instant::now()));
    let (outcomes, result) = pass.await.map_err(|error| format!("the pass over files ended early: {error}"))?;
    for (task, outcome) in outcomes {
        match outcome {
            Outcome::Held => wanted.held(&task),
            Outcome::Removed => wanted.removed(&task),
            Outcome::Contested => wanted.not_held(&task, Standing::Contested),
            Outcome::Refused(reason) => wanted.not_held(&task, Standing::Refused(reason)),
        }
    }
    result
}

fn failed(what: &str, path: &Path, error: &std::io::Error) -> String {
    format!("{what} {} failed: {error}", path.display())
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
