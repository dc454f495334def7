//! A consumer's end of discovery.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{sync::Notify, task::JoinHandle};
use wire::discovery::Key;

use super::{
    Counters, Discovery,
    view::{Listed, View},
};
use crate::health::HealthPart;

/// One step from what a consumer knows to what discovery says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// All there is; what it lacks is gone. The first change, and again after any loss of the watch.
    Reset(Vec<(Key, Bytes)>),
    /// A key is new, or has a new value.
    Add(Key, Bytes),
    /// A key is gone.
    Remove(Key),
}

/// What discovery holds below a prefix, as it changes. Dropping it ends its task.
///
/// A consumer that reads late gets fewer changes, never a backlog: several of one key become the last of them.
#[derive(Debug)]
pub struct Watch {
    /// A watch is a handle of discovery like others: it does not end with them.
    _discovery: Discovery,
    mail: Arc<Mailbox>,
    task: JoinHandle<()>,
}

impl Watch {
    pub(super) fn new(discovery: Discovery, mail: Arc<Mailbox>, task: JoinHandle<()>) -> Self {
        Self { _discovery: discovery, mail, task }
    }

    /// The next change; `None` once discovery was closed. Cancel-safe.
    pub async fn next(&mut self) -> Option<Change> {
        loop {
            let told = self.mail.told.notified();
            let (change, ended) = self.mail.state.lock().take();
            if change.is_some() || ended {
                return change;
            }
            told.await;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Changes on their way to one consumer.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    /// Guards pushes and takes.
    state: Mutex<Mail>,
    told: Notify,
}

/// At most one change per key, and a reset before all of them.
#[derive(Debug, Default)]
struct Mail {
    reset: Option<BTreeMap<Key, Bytes>>,
    changes: BTreeMap<Key, Option<Bytes>>,
    /// No more will come.
    ended: bool,
}

impl Mail {
    fn push(&mut self, change: Change) {
        match change {
            Change::Reset(all) => {
                self.reset = Some(all.into_iter().collect());
                self.changes.clear();
            }
            Change::Add(key, value) => match &mut self.reset {
                Some(all) => drop(all.insert(key, value)),
                None => drop(self.changes.insert(key, Some(value))),
            },
            Change::Remove(key) => match &mut self.reset {
                Some(all) => drop(all.remove(&key)),
                None => drop(self.changes.insert(key, None)),
            },
        }
    }

    /// The next change, and whether none will follow when there is none.
    fn take(&mut self) -> (Option<Change>, bool) {
        let reset = self.reset.take().map(|all| Change::Reset(all.into_iter().collect()));
        let change = reset.or_else(|| {
            let (key, value) = self.changes.pop_first()?;
            Some(match value {
                Some(value) => Change::Add(key, value),
                None => Change::Remove(key),
            })
        });
        (change, self.ended)
    }
}

/// A store's end of a watch: what it says goes through the view to the consumer.
pub(super) struct Sink {
    view: View,
    mail: Arc<Mailbox>,
    health: HealthPart,
    counters: Arc<Counters>,
}

impl Sink {
    pub(super) fn new(view: View, mail: Arc<Mailbox>, health: HealthPart, counters: Arc<Counters>) -> Self {
        Self { view, mail, health, counters }
    }

    pub(super) fn lost(&mut self, reason: &str) {
        self.health.stale(reason);
        if self.view.lost() {
            self.counters.losses.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn listed(&mut self, list: Vec<Listed>) {
        self.health.fresh();
        let changes = self.view.listed(Instant::now(), list);
        self.tell(changes);
    }

    pub(super) fn put(&mut self, one: Listed) {
        let change = self.view.put(one);
        self.tell(change.into_iter().collect());
    }

    pub(super) fn deleted(&mut self, keys: Vec<Key>) {
        let changes = self.view.deleted(Instant::now(), keys);
        self.tell(changes);
    }

    pub(super) fn tick(&mut self) {
        let changes = self.view.tick(Instant::now());
        self.tell(changes);
    }

    /// A key or file that is not a valid record.
    pub(super) fn junk(&self, key: &str, reason: &str) {
        self.counters.junk.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(key, reason, "not a record of discovery, left out");
    }

    /// Until the view has something to do; for ever if it has not.
    pub(super) async fn deadline(&self) {
        match self.view.deadline() {
            Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
            None => std::future::pending().await,
        }
    }

    fn tell(&self, changes: Vec<Change>) {
        self.counters.left_out.fetch_max(self.view.left_out(), Ordering::Relaxed);
        if changes.is_empty() {
            return;
        }
        let mut mail = self.mail.state.lock();
        changes.into_iter().for_each(|change| mail.push(change));
        drop(mail);
        self.mail.told.notify_one();
    }
}

impl Drop for Sink {
    /// The watch's task ends: its consumer must not wait any longer.
    fn drop(&mut self) {
        self.mail.state.lock().ended = true;
        self.mail.told.notify_one();
    }
}
