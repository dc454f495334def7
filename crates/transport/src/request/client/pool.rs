//! Connections to workers, by address. An idle one is used again; a new one is opened while all of a worker's are waiting
//! for acknowledgements, up to a bound; beyond it the least loaded takes one more.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::super::options::ClientOptions;
use super::expected::Expected;
use super::pipe::Pipe;

#[derive(Debug)]
pub(super) struct Pool {
    pipes: Shared,
    options: Arc<ClientOptions>,
    expected: Arc<Expected>,
    runtime: Handle,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// Held to choose, add or forget one; never while anything is waited for.
type Shared = Arc<Mutex<Pipes>>;

#[derive(Debug, Default)]
struct Pipes {
    by_address: HashMap<Arc<str>, Vec<Pipe>>,
    /// Tasks that run, of all addresses.
    open: usize,
}

/// Which connection a request may go out on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Any,
    /// One that was not there before: those that were broke.
    New,
}

/// As many connections or waiting requests as are allowed.
#[derive(Debug)]
pub(super) struct Full(pub(super) usize);

impl Pool {
    /// Connections live on the current runtime.
    pub(super) fn new(options: Arc<ClientOptions>, expected: Arc<Expected>, tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self { pipes: Arc::default(), options, expected, runtime: Handle::current(), tasks, stop }
    }

    /// Connections open or being opened.
    pub(super) fn connections(&self) -> usize {
        self.pipes.lock().open
    }

    pub(super) fn choose(&self, address: &str, wanted: Wanted) -> Result<Pipe, Full> {
        let mut pipes = self.pipes.lock();
        let full = pipes.open >= self.options.max_connections;
        let address: Arc<str> = match pipes.by_address.get_key_value(address) {
            Some((known, _)) => known.clone(),
            None => address.into(),
        };
        let here = pipes.by_address.entry(address.clone()).or_default();
        here.retain(|pipe| !pipe.is_closed());
        // Those that replace broken ones may be as many again.
        let most = self.options.connections_per_worker * if wanted == Wanted::New { 2 } else { 1 };
        let least = here.iter().min_by_key(|pipe| pipe.load());
        if let Some(pipe) = least
            && (full || here.len() >= most || (wanted == Wanted::Any && pipe.load() == 0))
        {
            return match pipe.load() < self.options.max_unacknowledged {
                true => Ok(pipe.clone()),
                false => Err(Full(self.options.max_unacknowledged)),
            };
        }
        if full {
            pipes.forget_closed(&address);
            return Err(Full(self.options.max_connections));
        }
        let pipe = self.open(address);
        here.push(pipe.clone());
        pipes.open += 1;
        Ok(pipe)
    }

    fn open(&self, address: Arc<str>) -> Pipe {
        let (pipe, run) = Pipe::open(address.clone(), self.options.clone(), self.expected.clone());
        let (pipes, stop) = (self.pipes.clone(), self.stop.clone());
        let run = async move {
            stop.run_until_cancelled_owned(run).await;
            let mut pipes = pipes.lock();
            pipes.open -= 1;
            pipes.forget_closed(&address);
        };
        self.tasks.spawn_on(run, &self.runtime);
        pipe
    }
}

impl Pipes {
    fn forget_closed(&mut self, address: &Arc<str>) {
        if let Some(here) = self.by_address.get_mut(address) {
            here.retain(|pipe| !pipe.is_closed());
            if here.is_empty() {
                self.by_address.remove(address);
            }
        }
    }
}
