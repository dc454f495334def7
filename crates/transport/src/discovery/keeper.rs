//! The task that keeps registrations, and the choice between stores.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Backend, Counters, MemStore, OpenError, Options, etcd, file, registration::Wanted, watch::Sink};
use crate::health::HealthPart;

/// 1.6.1's time to live of a file.
const FILE_TTL: Duration = Duration::from_secs(10);

/// How often a directory is looked at for files of ours that vanished.
const FILE_PASS: Duration = Duration::from_secs(1);

/// How long removing everything may take at the end, and between two tries of it: the next may reach another member.
const FAREWELL: Duration = Duration::from_secs(2);
const FAREWELL_PAUSE: Duration = Duration::from_millis(50);

/// A store, as watches and the keeper reach it.
#[derive(Debug, Clone)]
pub(super) enum Store {
    Mem(MemStore),
    File(file::FileStore),
    Etcd(Arc<etcd::Client>),
}

impl Store {
    pub(super) fn new(backend: Backend, options: &Options) -> Result<Self, OpenError> {
        Ok(match backend {
            Backend::Mem(store) => Store::Mem(store),
            Backend::File { root } => Store::File(file::FileStore { root, ttl: options.ttl.unwrap_or(FILE_TTL) }),
            Backend::Etcd(config) => Store::Etcd(Arc::new(etcd::Client::new(&config, options)?)),
        })
    }

    /// Runs one watch, for ever.
    pub(super) async fn follow(self, prefix: String, sink: Sink) {
        match self {
            Store::Mem(store) => store.follow(prefix, sink).await,
            Store::File(store) => store.follow(prefix, sink).await,
            Store::Etcd(client) => etcd::follow(client, prefix, sink).await,
        }
    }
}

impl fmt::Display for Store {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Store::Mem(_) => out.write_str("discovery in memory"),
            Store::File(store) => write!(out, "discovery in {}", store.root.display()),
            Store::Etcd(client) => write!(out, "discovery in etcd {}", client.addresses()),
        }
    }
}

/// Why a pass was not completed.
pub(super) struct Trouble {
    pub(super) reason: String,
    /// The store is there and says no: it will say so again until somebody changes its settings or ours.
    pub(super) lasts: bool,
}

/// Keeps what is wanted in the store, for one process.
pub(super) struct Keeper {
    kind: Kind,
}

enum Kind {
    Mem {
        store: MemStore,
        owner: u64,
        changes: watch::Receiver<()>,
    },
    /// Guarded from one pass to the next, which runs on a thread of its own.
    File(Arc<Mutex<file::Keeper>>),
    Etcd(etcd::Keeper),
}

impl Keeper {
    pub(super) fn new(store: &Store, instance_id: u64, counters: Arc<Counters>) -> Self {
        let kind = match store.clone() {
            Store::Mem(store) => Kind::Mem { changes: store.changes(), store, owner: instance_id },
            Store::File(store) => Kind::File(Arc::new(Mutex::new(file::Keeper::new(store)))),
            Store::Etcd(client) => Kind::Etcd(etcd::Keeper::new(client, instance_id, counters)),
        };
        Self { kind }
    }

    /// Until `stop`, and then removes everything.
    pub(super) async fn run(mut self, wanted: Arc<Wanted>, health: HealthPart, stop: CancellationToken) {
        // Of the store, in a row, each of which it would answer alike.
        let mut refusals = 0;
        while !stop.is_cancelled() {
            let pass = tokio::select! {
                pass = self.keep(&wanted) => pass,
                () = stop.cancelled() => break,
            };
            // Before another try; `None` while all is kept.
            let pause = match pass {
                Ok(()) => {
                    refusals = 0;
                    health.fresh();
                    None
                }
                Err(trouble) => {
                    refusals = if trouble.lasts { refusals + 1 } else { 0 };
                    health.stale(trouble.reason);
                    Some(etcd::backoff(refusals))
                }
            };
            tokio::select! {
                () = wanted.changed(), if pause.is_none() => {}
                () = self.pause(&wanted, pause) => {}
                () = stop.cancelled() => {}
            }
        }
        wanted.unwant_all();
        if let Err(reason) = self.farewell(&wanted).await {
            tracing::warn!(reason, "what this process registered was not removed: it ends with its time to live");
        }
    }

    /// Removes everything, with as many tries as there is time for.
    async fn farewell(&mut self, wanted: &Wanted) -> Result<(), String> {
        let mut reason = format!("no answer within {FAREWELL:?}");
        let removed = async {
            while let Err(trouble) = self.keep(wanted).await {
                reason = trouble.reason;
                tokio::time::sleep(FAREWELL_PAUSE).await;
            }
        };
        tokio::time::timeout(FAREWELL, removed).await.map_err(|_| reason)
    }

    async fn keep(&mut self, wanted: &Wanted) -> Result<(), Trouble> {
        match &mut self.kind {
            Kind::Mem { store, owner, .. } => {
                store.keep(*owner, wanted);
                Ok(())
            }
            Kind::File(keeper) => file::keep(keeper, wanted).await.map_err(|reason| Trouble { reason, lasts: false }),
            Kind::Etcd(keeper) => keeper.keep(wanted).await,
        }
    }

    /// Until the next pass is due, unless something is wanted before.
    async fn pause(&mut self, wanted: &Wanted, pause: Option<Duration>) {
        if let Some(pause) = pause {
            return tokio::time::sleep(pause).await;
        }
        if wanted.tasks().is_empty() {
            return std::future::pending().await;
        }
        match &mut self.kind {
            Kind::Mem { changes, .. } => {
                // It fails without a store, and `store` is one.
                let _ = changes.changed().await;
            }
            Kind::File(_) => tokio::time::sleep(FILE_PASS).await,
            Kind::Etcd(keeper) => tokio::time::sleep(keeper.pause()).await,
        }
    }
}
