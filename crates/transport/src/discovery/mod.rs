//! Who is there: records that owners keep alive in a store, and consumers that see them come and go.
//!
//! One type, [`Discovery`], over a [`MemStore`], a directory or etcd, with the keys, file names, leases and times of 1.6.1, so that
//! both generations see each other. Kubernetes would be one more [`Backend`]. What the records mean is `wire`'s and the consumer's.
//!
//! A store is no lifeline (rule 14). Opening never fails because one is away, and nothing that happens to it ends a task here:
//! - What it said last stays with the consumers while it is away, and [`Discovery::health`] says since when and why. After it is
//!   back, records that are missing are removed only when their owners had [`Options::grace`] to register again.
//! - Registrations are put again after any loss, within seconds: an expired lease, wiped data, a removed directory, a process
//!   that was frozen.
//! - A key belongs to whoever put it first, for as long as that owner keeps it alive. Another owner's registration of it is
//!   [`Standing::Contested`] until then, and takes its place after.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use wire::discovery::Key;

use crate::health::{HealthBoard, PlaneHealth};

mod etcd;
mod file;
mod keeper;
mod mem;
mod registration;
mod view;
mod watch;

pub use etcd::EtcdConfig;
pub use mem::MemStore;
pub use registration::{Ended, Registration, Standing};
pub use watch::{Change, Watch};

use keeper::Store;
use registration::Wanted;
use view::View;
use watch::{Mailbox, Sink};

/// The directory of records below the temporary one, unless told, as 1.6.1 has it.
pub const FOLDER: &str = "dynamo_store_kv";

/// Where records are kept.
#[derive(Debug, Clone)]
pub enum Backend {
    /// In this process.
    Mem(MemStore),
    /// In a directory that processes share, 1.6.1's `DYN_FILE_KV`.
    File {
        /// The directory; it is made if it is not there.
        root: PathBuf,
    },
    /// In etcd.
    Etcd(EtcdConfig),
}

/// Times. The defaults are 1.6.1's where it has them.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long a record outlives an owner that died. Default: 10 s in a directory, 30 s in etcd (at least 2 s there).
    pub ttl: Option<Duration>,
    /// How long after a loss owners have to register again before what is missing is removed. Default 10 s: owners of ours
    /// need at most 5.
    pub grace: Duration,
    /// How long one call of etcd may take, connecting included. Default 3 s.
    pub call: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { ttl: None, grace: Duration::from_secs(10), call: Duration::from_secs(3) }
    }
}

/// A configuration that cannot work.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An invalid address of etcd.
    #[error("\"{0}\" is an invalid etcd address: expected http://HOST:PORT or https://HOST:PORT")]
    Address(String),
    /// The TLS settings of etcd.
    #[error("tls for etcd cannot be set up: {0}")]
    Tls(String),
}

/// Discovery as one process takes part in it. Cheap to clone; clones are the same participant.
#[derive(Debug, Clone)]
pub struct Discovery(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    instance_id: u64,
    options: Options,
    board: HealthBoard,
    wanted: Arc<Wanted>,
    counters: Arc<Counters>,
    stop: CancellationToken,
    /// Guards the taking of the handle.
    keeper: Mutex<Option<JoinHandle<()>>>,
}

/// What happened so far.
#[derive(Debug, Default)]
struct Counters {
    junk: AtomicU64,
    left_out: AtomicU64,
    losses: AtomicU64,
    leases_lost: AtomicU64,
}

/// What happened so far in one [`Discovery`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Keys or files that are not valid records, or files beyond the bytes that are kept; each time one is seen anew.
    pub junk: u64,
    /// Records of one watch that did not fit its bounds of 200,000 keys and 256 MiB.
    pub left_out: u64,
    /// Times a watch broke.
    pub losses: u64,
    /// Times a lease was lost and everything was registered again.
    pub leases_lost: u64,
}

impl Discovery {
    /// Takes part from now on, whether or not the store is there. Needs a Tokio runtime, which runs its tasks.
    pub fn open(backend: Backend, options: Options) -> Result<Self, OpenError> {
        // 53 bits pass through every JSON reader.
        let instance_id = (rand::random::<u64>() >> 11).max(1);
        let store = Store::new(backend, &options)?;
        let board = HealthBoard::new(store.to_string());
        let wanted = Arc::new(Wanted::default());
        let counters = Arc::new(Counters::default());
        let stop = CancellationToken::new();
        let keeper = keeper::Keeper::new(&store, instance_id, counters.clone());
        let keeper = tokio::spawn(keeper.run(wanted.clone(), board.part(), stop.clone()));
        let keeper = Mutex::new(Some(keeper));
        Ok(Self(Arc::new(Inner { store, instance_id, options, board, wanted, counters, stop, keeper })))
    }

    /// This process in keys and records. In etcd it is the lease's id too, also of a lease granted anew after a loss.
    pub fn instance_id(&self) -> u64 {
        self.0.instance_id
    }

    /// Keeps a record in the store until the registration is dropped. A key that this process has registered already gets the
    /// new value, and its older registration has no effect any more.
    pub fn register(&self, key: Key, value: Bytes) -> Registration {
        Registration::new(self.clone(), key, value)
    }

    /// Follows all records whose keys start with `prefix`, such as [`Bucket::prefix`](wire::discovery::Bucket::prefix) or `v1/`.
    pub fn watch(&self, prefix: &str) -> Watch {
        let mail = Arc::new(Mailbox::default());
        let view = View::new(self.0.options.grace);
        let sink = Sink::new(view, mail.clone(), self.0.board.part(), self.0.counters.clone());
        let follow = self.0.store.clone().follow(prefix.to_owned(), sink);
        let stop = self.0.stop.clone();
        let task = tokio::spawn(async move {
            tokio::select! {
                () = follow => {}
                () = stop.cancelled() => {}
            }
        });
        Watch::new(self.clone(), mail, task)
    }

    /// Whether the store can be heard and written.
    pub fn health(&self) -> PlaneHealth {
        self.0.board.health()
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        let counters = &self.0.counters;
        Counts {
            junk: counters.junk.load(Ordering::Relaxed),
            left_out: counters.left_out.load(Ordering::Relaxed),
            losses: counters.losses.load(Ordering::Relaxed),
            leases_lost: counters.leases_lost.load(Ordering::Relaxed),
        }
    }

    /// Removes everything registered, ends all watches and waits for both, a few seconds at most.
    pub async fn close(&self) {
        self.0.stop.cancel();
        let keeper = self.0.keeper.lock().take();
        if let Some(keeper) = keeper {
            // It ends by itself: a panic would have been told already.
            let _ = keeper.await;
        }
    }

    fn wanted(&self) -> &Wanted {
        &self.0.wanted
    }
}

impl Drop for Inner {
    /// The keeper removes what is registered, as far as the runtime lives on.
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
