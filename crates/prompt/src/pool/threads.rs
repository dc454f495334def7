//! What waits, and what the threads do.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::{counters::Counters, folder::Folder};

/// Encoded once by each thread when a folder is new, so that no request pays for the tokenizer's first call.
const WARM_UP: &str = "The quick brown fox jumps over the lazy dog 0123456789.\n";

pub(super) type Job = Box<dyn FnOnce() + Send>;

pub(super) struct Shared {
    /// Guards the waiting jobs; held to push or pop.
    pub(super) queue: Mutex<Queue>,
    /// Wakes threads that take any job.
    pub(super) ready: Condvar,
    /// Wakes the thread that takes brief jobs alone.
    pub(super) brief_ready: Condvar,
    pub(super) counters: Arc<Counters>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("counters", &self.counters).finish_non_exhaustive()
    }
}

#[derive(Default)]
pub(super) struct Queue {
    /// Taken before `jobs`.
    pub(super) brief: VecDeque<Job>,
    pub(super) jobs: VecDeque<Job>,
    /// Folders not yet used by every thread, oldest first.
    pub(super) warm_ups: VecDeque<WarmUp>,
    /// Warm-ups that every thread has behind it: the number of the first in `warm_ups`.
    warmed: usize,
    pub(super) closed: bool,
}

impl Queue {
    pub(super) fn waiting(&self) -> usize {
        self.brief.len() + self.jobs.len()
    }
}

pub(super) struct WarmUp {
    pub(super) folder: Arc<Folder>,
    pub(super) threads_left: usize,
    pub(super) _done: oneshot::Sender<()>,
}

/// Which jobs a thread takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    Any,
    Brief,
}

enum Next {
    Job(Job),
    WarmUp(Arc<Folder>),
    Stop,
}

impl Shared {
    pub(super) fn work(&self, takes: Takes) {
        // Warm-ups this thread has done; each thread does each one, in order.
        let mut warmed = 0;
        loop {
            match self.next(takes, &mut warmed) {
                Next::Stop => return,
                Next::WarmUp(folder) => {
                    // A tokenizer that panics will do so on a request too, where it is counted.
                    let _ = catch_unwind(AssertUnwindSafe(|| folder.warm(WARM_UP)));
                    self.warmed(warmed - 1);
                }
                Next::Job(job) => {
                    self.counters.pooled.add(1);
                    if catch_unwind(AssertUnwindSafe(job)).is_err() {
                        self.counters.panicked.add(1);
                        tracing::error!("a job of the prompt pool panicked; its request is routed by load");
                    }
                }
            }
        }
    }

    fn next(&self, takes: Takes, warmed: &mut usize) -> Next {
        let mut queue = self.queue.lock();
        loop {
            if queue.closed {
                return Next::Stop;
            }
            if takes == Takes::Any
                && let Some(warm_up) = queue.warm_ups.get(*warmed - queue.warmed)
            {
                *warmed += 1;
                return Next::WarmUp(warm_up.folder.clone());
            }
            if let Some(job) = queue.brief.pop_front() {
                return Next::Job(job);
            }
            match takes {
                Takes::Brief => self.brief_ready.wait(&mut queue),
                Takes::Any => match queue.jobs.pop_front() {
                    Some(job) => return Next::Job(job),
                    None => self.ready.wait(&mut queue),
                },
            }
        }
    }

    fn warmed(&self, number: usize) {
        let mut queue = self.queue.lock();
        let at = number - queue.warmed;
        if let Some(warm_up) = queue.warm_ups.get_mut(at) {
            warm_up.threads_left -= 1;
        }
        while queue.warm_ups.front().is_some_and(|first| first.threads_left == 0) {
            queue.warm_ups.pop_front();
            queue.warmed += 1;
        }
    }
}
