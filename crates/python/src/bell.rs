//! From Tokio's threads to an asyncio loop: a queue of what is to be done there, and a socket that wakes the loop.
//!
//! The usual bridge takes the GIL on a runtime's thread for each result, which holds up every socket of the runtime while Python
//! computes, must not happen once the interpreter ends, and ties a process to one runtime for good, so that a forked child has none.
//! Here a runtime's thread writes a byte, and the loop, which has the GIL anyway, empties the queue.

use std::{
    collections::VecDeque,
    io::{ErrorKind, Read, Write},
    os::{fd::AsRawFd, unix::net::UnixStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use pyo3::{IntoPyObjectExt, prelude::*, sync::PyOnceLock, types::PyModule};

use crate::host;

/// Something to be done on the loop, with the GIL held.
pub(crate) type Errand = Box<dyn FnOnce(Python<'_>) -> PyResult<()> + Send>;

/// One loop's. The loop watches its file descriptor and drains it.
#[pyclass(frozen, name = "Bell", module = "dynamo.llm")]
pub(crate) struct Bell {
    rope: Arc<Rope>,
    /// Closed with the bell: then nobody can ring any more.
    far: UnixStream,
}

/// Nobody does errands any more.
#[derive(Debug)]
pub(crate) struct Ended;

/// The end that Tokio's threads pull.
#[derive(Debug)]
pub(crate) struct Rope {
    /// Held for a push or a swap.
    errands: Mutex<Errands>,
    /// The loop has been woken and has not looked yet.
    rung: AtomicBool,
    near: UnixStream,
}

#[derive(Default)]
struct Errands(VecDeque<Errand>);

impl std::fmt::Debug for Errands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} errands", self.0.len())
    }
}

impl Rope {
    /// Has it done soon. From any thread, without the GIL.
    pub(crate) fn send(&self, errand: Errand) -> Result<(), Ended> {
        self.errands.lock().0.push_back(errand);
        if self.rung.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        match (&self.near).write(&[1]) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                self.errands.lock().0.clear();
                self.rung.store(false, Ordering::Release);
                Err(Ended)
            }
            // Full means rung.
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

impl Drop for Bell {
    /// Whoever waits for an errand learns that it is not done.
    fn drop(&mut self) {
        self.rope.errands.lock().0.clear();
        self.rope.rung.store(false, Ordering::Release);
    }
}

#[pymethods]
impl Bell {
    #[new]
    fn new() -> PyResult<Self> {
        let (near, far) = UnixStream::pair()?;
        near.set_nonblocking(true)?;
        far.set_nonblocking(true)?;
        Ok(Self { rope: Arc::new(Rope { errands: Mutex::default(), rung: AtomicBool::new(false), near }), far })
    }

    fn fileno(&self) -> i32 {
        self.far.as_raw_fd()
    }

    /// Does what is to be done. What fails is shown as an exception that nobody could take.
    fn drain(&self, py: Python<'_>) {
        let mut bytes = [0; 16];
        // Nothing there: it was drained before.
        let _ = (&self.far).read(&mut bytes);
        self.rope.rung.store(false, Ordering::Release);
        let errands = std::mem::take(&mut self.rope.errands.lock().0);
        for errand in errands {
            if let Err(error) = errand(py) {
                error.write_unraisable(py, None);
            }
        }
    }
}

/// A running loop: to make futures on it and to reach it from other threads.
pub(crate) struct Loop<'py> {
    running: Bound<'py, PyAny>,
    rope: Arc<Rope>,
}

impl<'py> Loop<'py> {
    /// The one that runs here.
    pub(crate) fn here(py: Python<'py>) -> PyResult<Self> {
        static OF_LOOP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let bell_of =
            OF_LOOP.get_or_try_init(py, || Ok::<_, PyErr>(PyModule::import(py, "dynamo.llm._loops")?.getattr("bell")?.unbind()))?;
        let (running, bell): (Bound<'py, PyAny>, Bound<'py, Bell>) = bell_of.bind(py).call0()?.extract()?;
        Ok(Self { running, rope: bell.get().rope.clone() })
    }

    pub(crate) fn rope(&self) -> &Arc<Rope> {
        &self.rope
    }

    pub(crate) fn future(&self) -> PyResult<Bound<'py, PyAny>> {
        self.running.call_method0("create_future")
    }
}

/// An asyncio future of what a Rust future gives, which `finish` makes a Python object of, on the loop.
pub(crate) fn future<'py, T, P>(
    py: Python<'py>,
    work: impl Future<Output = PyResult<T>> + Send + 'static,
    finish: impl FnOnce(Python<'_>, T) -> PyResult<P> + Send + 'static,
) -> PyResult<Bound<'py, PyAny>>
where
    T: Send + 'static,
    P: for<'a> IntoPyObject<'a>,
{
    let here = Loop::here(py)?;
    let promised = here.future()?;
    let (rope, future) = (here.rope.clone(), promised.clone().unbind());
    host::handle()?.spawn(async move {
        let result = work.await;
        // A loop that has ended waits for nothing.
        let _ = rope.send(Box::new(move |py| {
            let result = result.and_then(|value| finish(py, value));
            settle(py, future.bind(py), result)
        }));
    });
    Ok(promised)
}

/// Gives a future its result, unless it was cancelled meanwhile.
fn settle<'py, T: IntoPyObject<'py>>(py: Python<'py>, future: &Bound<'py, PyAny>, result: PyResult<T>) -> PyResult<()> {
    if future.call_method0("done")?.is_truthy()? {
        return Ok(());
    }
    match result {
        Ok(value) => drop(future.call_method1("set_result", (value.into_py_any(py)?,))?),
        Err(error) => drop(future.call_method1("set_exception", (error.into_value(py),))?),
    }
    Ok(())
}
