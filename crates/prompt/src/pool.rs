//! Threads of its own for what would hold up the async workers: reading large bodies, hashing, rendering, tokenising. The
//! queue is bounded; where it is full the caller is told at once and routes by load. A panic in a job is that job's failure.
//!
//! A tokenisation may take seconds, reading a body takes milliseconds. So brief work goes ahead of what waits to be
//! tokenised, and one thread does nothing else: however long the tokenisations that run, it never waits for their end.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::SystemTime;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::body;
use crate::error::{BadRequest, TokenError};
use crate::folder::Folder;
use crate::request::{Endpoint, Inputs, Request, Tokens};

/// Bodies up to this size are read on the calling thread: some 40 microseconds.
const INLINE_BODY_BYTES: usize = 64 << 10;
/// Encoded once by each thread when a folder is new, so that no request pays for the tokenizer's first call.
const WARM_UP: &str = "The quick brown fox jumps over the lazy dog 0123456789.\n";

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

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Its value.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What preparing prompts costs, for metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Jobs done by the pool's threads.
    pub pooled: Counter,
    /// Requests that needed no thread: token ids, and bodies small enough to read at once.
    pub inline: Counter,
    /// Jobs refused because the queue was full.
    pub busy: Counter,
    /// Jobs that panicked.
    pub panicked: Counter,
    /// Chats rendered.
    pub rendered: Counter,
    /// Texts whose token ids were remembered.
    pub text_cache_hits: Counter,
    /// Bytes of text tokenised.
    pub encoded_bytes: Counter,
    /// Tokens that came of it.
    pub encoded_tokens: Counter,
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

type Job = Box<dyn FnOnce() + Send>;

struct Shared {
    /// Guards the waiting jobs; held to push or pop.
    queue: Mutex<Queue>,
    /// Wakes threads that take any job.
    ready: Condvar,
    /// Wakes the thread that takes brief jobs alone.
    brief_ready: Condvar,
    counters: Arc<Counters>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("counters", &self.counters).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Queue {
    /// Taken before `jobs`.
    brief: VecDeque<Job>,
    jobs: VecDeque<Job>,
    /// Folders not yet used by every thread, oldest first.
    warm_ups: VecDeque<WarmUp>,
    /// Warm-ups that every thread has behind it: the number of the first in `warm_ups`.
    warmed: usize,
    closed: bool,
}

impl Queue {
    fn waiting(&self) -> usize {
        self.brief.len() + self.jobs.len()
    }
}

struct WarmUp {
    folder: Arc<Folder>,
    threads_left: usize,
    _done: oneshot::Sender<()>,
}

/// Which jobs a thread takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    Any,
    Brief,
}

enum Next {
    Job(Job),
    WarmUp(Arc<Folder>),
    Stop,
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

impl Shared {
    fn work(&self, takes: Takes) {
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
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn pool(threads: usize, queue: usize) -> Pool {
        Pool::new(PoolOptions { threads, queue }).expect("threads")
    }

    #[tokio::test]
    async fn a_full_queue_refuses_at_once() {
        let pool = Arc::new(pool(1, 1));
        let (release, gate) = mpsc::channel::<()>();
        let (started, running) = oneshot::channel();
        let first = tokio::spawn({
            let pool = pool.clone();
            async move {
                pool.run(move || {
                    started.send(()).expect("the test waits");
                    gate.recv().expect("released");
                })
                .await
            }
        });
        running.await.expect("running");
        let waiting = tokio::spawn({
            let pool = pool.clone();
            async move { pool.run(|| 2).await }
        });
        while pool.queued() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(pool.run(|| 3).await, Err(TokenError::Busy { queued: 1 }));
        assert_eq!(pool.counters().busy.value(), 1);
        release.send(()).expect("the job waits");
        assert_eq!(first.await.expect("joined"), Ok(()));
        assert_eq!(waiting.await.expect("joined"), Ok(2));
    }

    #[tokio::test]
    async fn a_panic_is_one_jobs_failure() {
        let pool = pool(1, 8);
        let lost: Result<(), _> = pool.run(|| panic!("on purpose")).await;
        assert_eq!(lost, Err(TokenError::Failed));
        assert_eq!(pool.run(|| 1).await, Ok(1));
        assert_eq!(pool.counters().panicked.value(), 1);
    }

    #[tokio::test]
    async fn brief_work_waits_for_no_tokenisation() {
        let pool = Arc::new(pool(1, 8));
        let (release, gate) = mpsc::channel::<()>();
        let (started, running) = oneshot::channel();
        let long = tokio::spawn({
            let pool = pool.clone();
            async move {
                pool.run(move || {
                    started.send(()).expect("the test waits");
                    gate.recv().expect("released");
                })
                .await
            }
        });
        running.await.expect("running");
        // The only thread that tokenises is busy until the test lets it go.
        assert_eq!(pool.run_brief(|| 1).await, Ok(1));
        let body = Bytes::from(format!(r#"{{"model": "m", "prompt": "{}"}}"#, "x".repeat(INLINE_BODY_BYTES)));
        assert_eq!(pool.parse(Endpoint::Completions, &body).await.expect("a good body").model, "m");
        release.send(()).expect("the job waits");
        assert_eq!(long.await.expect("joined"), Ok(()));
    }

    #[test]
    fn dropping_joins_the_threads() {
        let pool = pool(3, 8);
        let shared = Arc::downgrade(&pool.shared);
        drop(pool);
        assert!(shared.upgrade().is_none(), "no thread holds the queue any more");
    }
}
