//! Discovery in a directory that processes share, laid out as 1.6.1 does: `<root>/v1/<bucket>/<rest of the key>`, one file per
//! key. An owner touches its files; a file nobody touches for its time to live is dead, and whoever notices removes it.
//!
//! Watching is polling: a directory's own time tells of new, removed and replaced files, and a full look each second of those
//! that were touched or died. Change notifications of the kernel would not reach network file systems.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, mpsc::RecvTimeoutError},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{sync::mpsc, time::timeout};
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
use scan::{Found, Junk, Scanner};

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

    /// Looks for ever, and tells what changed. The looks have a thread to themselves, which wakes this task only when there is
    /// something to tell: at least with each full look. A file system that hangs holds up nothing else.
    pub(super) async fn follow(self, prefix: String, mut sink: Sink) {
        let (tell, mut told) = mpsc::channel(1);
        let (_going, stopped) = std::sync::mpsc::channel();
        let scanner = Scanner::new(self, &prefix);
        tokio::task::spawn_blocking(move || look(scanner, &tell, &stopped));
        loop {
            let heard = tokio::select! {
                heard = timeout(LOOK, told.recv()) => heard,
                () = sink.deadline() => {
                    sink.tick();
                    continue;
                }
            };
            match heard {
                Ok(Some((found, junk))) => {
                    for (file, reason) in junk {
                        sink.junk(&file, reason);
                    }
                    match found {
                        Ok(Found::Same) => {}
                        Ok(Found::All(list)) => sink.listed(list),
                        Err(reason) => sink.lost(&reason),
                    }
                    sink.tick();
                }
                // The looks end before this only by a panic that the runtime reported.
                Ok(None) => return,
                Err(_) => sink.lost(&format!("the file system does not answer for {LOOK:?}")),
            }
        }
    }
}

/// Looks until nobody listens. The other end of `stopped` is never sent to: it ends a rest when it is dropped.
fn look(mut scanner: Scanner, tell: &mpsc::Sender<(Result<Found, String>, Junk)>, stopped: &std::sync::mpsc::Receiver<()>) {
    loop {
        let found = scanner.look(Instant::now());
        let junk = std::mem::take(&mut scanner.junk);
        let is_news = !junk.is_empty() || !matches!(found, Ok(Found::Same));
        if is_news && tell.blocking_send((found, junk)).is_err() {
            return;
        }
        match stopped.recv_timeout(POLL) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
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
