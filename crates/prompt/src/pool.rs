//! Threads of its own for what would hold up the async workers: reading large bodies, hashing, rendering, tokenising. The
//! queue is bounded; where it is full the caller is told at once and routes by load. A panic in a job is that job's failure.
//!
//! A tokenisation may take seconds, reading a body takes milliseconds. So brief work goes ahead of what waits to be
//! tokenised, and one thread does nothing else: however long the tokenisations that run, it never waits for their end.

mod threads;

use std::{sync::Arc, thread::JoinHandle, time::SystemTime};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::{
    body,
    counters::Counters,
    error::{BadRequest, TokenError},
    folder::Folder,
    request::{Endpoint, Inputs, Request, Tokens},
};
use threads::{Job, Shared, Takes, WarmUp};

/// Bodies up to this size are read on the calling thread: some 40 microseconds.
const INLINE_BODY_BYTES: usize = 64 << 10;
/// Size of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolOptions {
    /// Threads that tokenise, at least 1; one more does brief work alone.
    pub threads: usize,
    /// Jobs that may wait, of either kind together.
    pub queue: usize,
}

impl Default for PoolOptions {
    /// Half of the machine's cores, at least one; 1024 jobs.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { threads: (cores / 2).max(1), queue: 1024 }
    }
}

/// A bounded pool. Dropping it finishes the jobs that run, drops those that wait, and joins the threads.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Those of them that tokenise.
    tokenizers: usize,
    queue_limit: usize,
}

impl Pool {
    /// Starts the threads.
    ///
    /// # Errors
    /// Where the system gives no thread.
    pub fn new(options: PoolOptions) -> std::io::Result<Self> {
        let (ready, brief_ready) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { queue: Mutex::default(), ready, brief_ready, counters: Arc::default() });
        let tokenizers = options.threads.max(1);
        let mut pool = Self { shared, threads: Vec::new(), tokenizers, queue_limit: options.queue };
        // On an error `pool` is dropped, which ends the threads that did start.
        for number in 0..tokenizers {
            pool.start(format!("prompt-{number}"), Takes::Any)?;
        }
        pool.start("prompt-brief".to_owned(), Takes::Brief)?;
        Ok(pool)
    }

    fn start(&mut self, name: String, takes: Takes) -> std::io::Result<()> {
        let shared = self.shared.clone();
        self.threads.push(std::thread::Builder::new().name(name).spawn(move || shared.work(takes))?);
        Ok(())
    }

    /// What the pool and the folders used with it have cost so far.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.shared.counters
    }

    /// Jobs that wait now.
    pub fn queued(&self) -> usize {
        self.shared.queue.lock().waiting()
    }

    /// [`crate::parse`], on a thread of the pool where the body is large. If the queue is full it is read at once all
    /// the same: a body cannot be refused for being unread.
    ///
    /// # Errors
    /// As [`crate::parse`].
    pub async fn parse(&self, endpoint: Endpoint, body: &Bytes) -> Result<Request, BadRequest> {
        if body.len() > INLINE_BODY_BYTES {
            let copy = body.clone();
            if let Ok(parsed) = self.run_brief(move || body::parse(endpoint, &copy)).await {
                return parsed;
            }
        }
        self.shared.counters.inline.add(1);
        body::parse(endpoint, body)
    }

    /// The token ids of each prompt of `request`. Prompts that are token ids already cost nothing; all else runs on the
    /// pool.
    ///
    /// # Errors
    /// [`TokenError`]; the request is then routed by load.
    pub async fn tokens(&self, folder: &Arc<Folder>, request: &Arc<Request>, now: SystemTime) -> Result<Vec<Tokens>, TokenError> {
        if request.inputs.are_ids() || matches!(request.inputs, Inputs::Opaque) {
            self.shared.counters.inline.add(1);
            return folder.tokens(request, now, &self.shared.counters);
        }
        let (folder, request, counters) = (folder.clone(), request.clone(), self.shared.counters.clone());
        self.run(move || folder.tokens(&request, now, &counters)).await?
    }

    /// Lets each thread use `folder` once: a tokenizer's first call on a thread costs up to a fifth of a second. Resolves
    /// when all have; a caller that leaves loses nothing.
    pub async fn warm(&self, folder: &Arc<Folder>) {
        let (sender, receiver) = oneshot::channel();
        {
            let mut queue = self.shared.queue.lock();
            queue.warm_ups.push_back(WarmUp { folder: folder.clone(), threads_left: self.tokenizers, _done: sender });
        }
        self.shared.ready.notify_all();
        // The sender is dropped, not used, when the last thread is done.
        let _ = receiver.await;
    }

    /// Runs `work` on a thread of the pool. Work whose caller has left is not begun.
    ///
    /// # Errors
    /// [`TokenError::Busy`] where the queue is full, [`TokenError::Failed`] where `work` panicked.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, TokenError> {
        self.enqueue(Takes::Any, work).await
    }

    /// [`Pool::run`] for work of milliseconds: it goes ahead of all other, and waits for none.
    ///
    /// # Errors
    /// As [`Pool::run`].
    pub async fn run_brief<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, TokenError> {
        self.enqueue(Takes::Brief, work).await
    }

    async fn enqueue<T: Send + 'static>(&self, kind: Takes, work: impl FnOnce() -> T + Send + 'static) -> Result<T, TokenError> {
        let (sender, receiver) = oneshot::channel();
        let job: Job = Box::new(move || {
            if !sender.is_closed() {
                // The caller may leave at any time.
                let _ = sender.send(work());
            }
        });
        {
            let mut queue = self.shared.queue.lock();
            if queue.waiting() >= self.queue_limit {
                self.shared.counters.busy.add(1);
                return Err(TokenError::Busy { queued: queue.waiting() });
            }
            match kind {
                Takes::Any => queue.jobs.push_back(job),
                Takes::Brief => queue.brief.push_back(job),
            }
        }
        if kind == Takes::Brief {
            self.shared.brief_ready.notify_one();
        }
        // A brief job may be taken by any thread: whoever is first.
        self.shared.ready.notify_one();
        receiver.await.map_err(|_| TokenError::Failed)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let waiting = {
            let mut queue = self.shared.queue.lock();
            queue.closed = true;
            (std::mem::take(&mut queue.brief), std::mem::take(&mut queue.jobs), std::mem::take(&mut queue.warm_ups))
        };
        drop(waiting);
        self.shared.ready.notify_all();
        self.shared.brief_ready.notify_all();
        for thread in self.threads.drain(..) {
            // A thread catches its jobs' panics; there is nothing else to learn from it.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
