//! The Tokio runtime of this process, and what becomes of things made in another one.
//!
//! A `fork` copies memory but no thread: in the child nothing of the parent's runtime runs, and taking it apart there would take the
//! parent's sockets out of the epoll instance that both share. So whatever belongs to a runtime remembers its process ([`Own`]): in
//! another one it says so instead of being silent, and is never taken apart. A runtime is made anew in the child when something needs it.

use std::{process, thread, time::Duration};

use parking_lot::Mutex;
use pyo3::{exceptions::PyRuntimeError, prelude::*};
use tokio::runtime::{Builder, Handle, Runtime};

/// Threads that carry sockets; hashing has threads of its own, one for each publisher.
const THREADS: usize = 2;
/// Threads for work that blocks, at most; those that have nothing to do end by themselves.
const BLOCKING_THREADS: usize = 32;
/// How long the end of the interpreter waits for queued events and for records to be withdrawn.
const LEAVE: Duration = Duration::from_secs(2);

/// Held for a look, with the GIL held, so that whoever forks holds it in no other thread.
static HOST: Mutex<Option<Own<Runtime>>> = Mutex::new(None);
/// What is taken apart at the end of the interpreter. Held for a look, with the GIL held.
static GUESTS: Mutex<Vec<Guest>> = Mutex::new(Vec::new());

/// A process on the planes with the publishers it has, as the end of the interpreter sees it.
type Guest = Own<std::sync::Weak<dyn Leaves>>;

/// What is to be taken apart before the interpreter ends.
pub(crate) trait Leaves: Send + Sync {
    /// Publishes what is queued and withdraws every record, within that time.
    fn leave(&self, within: Duration) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// Something of one process. In another one it can neither be used nor be dropped.
#[derive(Debug)]
pub(crate) struct Own<T> {
    process: u32,
    /// Taken by the drop alone.
    value: Option<T>,
}

impl<T> Own<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { process: process::id(), value: Some(value) }
    }

    /// It, in its own process.
    pub(crate) fn here(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.process == process::id())
    }

    /// It, or an error that names it as `what`.
    pub(crate) fn get(&self, what: &str) -> PyResult<&T> {
        self.here().ok_or_else(|| {
            let (made, here) = (self.process, process::id());
            PyRuntimeError::new_err(format!(
                "this {what} belongs to process {made}, and this is process {here}, forked from it: make a new one here"
            ))
        })
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        let value = self.value.take();
        if self.process != process::id() {
            std::mem::forget(value);
        }
    }
}

/// The runtime; made by the first who asks in this process.
pub(crate) fn handle() -> PyResult<Handle> {
    let mut host = HOST.lock();
    if let Some(runtime) = host.as_ref().and_then(Own::here) {
        return Ok(runtime.handle().clone());
    }
    // A forked child has its parent's generator, and would draw the ids that the parent and its other children draw.
    rand::rng().reseed().map_err(|error| PyRuntimeError::new_err(format!("no randomness: {error}")))?;
    let made = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("dynamo-llm")
        .enable_all()
        .build()
        .map_err(|error| PyRuntimeError::new_err(format!("cannot start threads: {error}")))?;
    Ok(host.insert(Own::new(made)).here().map_or_else(Handle::current, |runtime| runtime.handle().clone()))
}

/// Waits for a future with the GIL released. From any thread but the runtime's own.
pub(crate) fn wait<T: Send>(py: Python<'_>, future: impl Future<Output = T> + Send) -> PyResult<T> {
    let handle = handle()?;
    Ok(py.detach(|| handle.block_on(future)))
}

/// Remembers something for the end of the interpreter, for as long as it is there.
pub(crate) fn remember(guest: std::sync::Weak<dyn Leaves>) {
    let mut guests = GUESTS.lock();
    guests.retain(|known| known.here().is_some_and(|known| known.strong_count() > 0));
    guests.push(Own::new(guest));
}

/// The interpreter ends: what was not shut down leaves, within a bound; the threads end with the process.
#[pyfunction]
pub(crate) fn leave(py: Python<'_>) {
    let guests: Vec<Guest> = std::mem::take(&mut *GUESTS.lock());
    let guests: Vec<_> = guests.iter().filter_map(|guest| guest.here()?.upgrade()).collect();
    let Some(runtime) = HOST.lock().take() else { return };
    let Some(handle) = runtime.here().map(|runtime| runtime.handle().clone()) else { return };
    py.detach(|| {
        if !guests.is_empty() {
            let all = futures_util::future::join_all(guests.iter().map(|guest| guest.leave(LEAVE)));
            // Beyond that time records run out by themselves.
            let _ = handle.block_on(async { tokio::time::timeout(LEAVE, all).await });
        }
    });
    // Whoever still uses the runtime meets one that does no more; it is not waited for.
    let mut runtime = runtime;
    if let Some(runtime) = runtime.value.take() {
        runtime.shutdown_background();
    }
    thread::yield_now();
}
