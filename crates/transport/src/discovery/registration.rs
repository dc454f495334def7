//! An owner's end of discovery: what it wants registered, and what became of that.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use wire::discovery::Key;

use super::Discovery;

/// How long [`Registration::withdraw`] waits for a store that does not answer. What it could not remove ends with its lease.
const WITHDRAW: Duration = Duration::from_secs(2);

/// What became of a registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// The store has not been reached with it yet, or has lost it and not been reached again.
    Pending,
    /// The store holds it.
    Held,
    /// Another owner holds the key. It is ours when that owner's is gone.
    Contested,
    /// The store will not take it, for this reason.
    Refused(String),
    /// It was withdrawn.
    Withdrawn,
}

/// The store will not hold this registration: its key was registered once more, or discovery was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the registration has ended: its key was registered once more, or discovery was closed")]
pub struct Ended;

/// One key kept in the store: put again after any loss, removed when this is dropped.
#[derive(Debug)]
pub struct Registration {
    discovery: Discovery,
    key: Key,
    turn: u64,
    standing: watch::Receiver<Standing>,
}

impl Registration {
    pub(super) fn new(discovery: Discovery, key: Key, value: Bytes) -> Self {
        let (turn, standing) = discovery.wanted().want(key.clone(), value);
        Self { discovery, key, turn, standing }
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// What became of it, as far as is known.
    pub fn standing(&self) -> Standing {
        self.standing.borrow().clone()
    }

    /// Waits until the store holds it. It never does while the store is away, or another owner stays.
    pub async fn held(&self) -> Result<(), Ended> {
        let mut standing = self.standing.clone();
        let reached = standing.wait_for(|standing| matches!(standing, Standing::Held | Standing::Withdrawn)).await;
        // The sender goes when the key is registered anew.
        if *reached.map_err(|_| Ended)? == Standing::Held { Ok(()) } else { Err(Ended) }
    }

    /// Removes the key and waits until it is removed, 2 s at most.
    pub async fn withdraw(mut self) {
        self.discovery.wanted().unwant(&self.key, self.turn);
        let withdrawn = self.standing.wait_for(|standing| *standing == Standing::Withdrawn);
        if tokio::time::timeout(WITHDRAW, withdrawn).await.is_err() {
            tracing::warn!(key = %self.key, "not removed within {WITHDRAW:?}: it ends with its lease");
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.discovery.wanted().unwant(&self.key, self.turn);
    }
}

/// All a process wants registered, shared by its registrations and the task that keeps them.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// Guards single looks and changes.
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    turns: u64,
    wants: BTreeMap<Key, Want>,
}

#[derive(Debug)]
struct Want {
    value: Bytes,
    turn: u64,
    withdrawn: bool,
    /// What the store was given last: a key that holds this is ours.
    written: Option<Bytes>,
    standing: watch::Sender<Standing>,
}

/// What the keeper has to do for one key.
#[derive(Debug, Clone)]
pub(super) struct Task {
    pub(super) key: Key,
    pub(super) value: Bytes,
    pub(super) written: Option<Bytes>,
    pub(super) withdrawn: bool,
    turn: u64,
}

impl Wanted {
    pub(super) fn want(&self, key: Key, value: Bytes) -> (u64, watch::Receiver<Standing>) {
        let mut state = self.state.lock();
        state.turns += 1;
        let turn = state.turns;
        // Registered once more: the store is given the new value, and the older registration has no say any more.
        let written = state.wants.remove(&key).and_then(|before| before.written);
        let (standing, receiver) = watch::channel(Standing::Pending);
        state.wants.insert(key, Want { value, turn, withdrawn: false, written, standing });
        drop(state);
        self.changed.notify_one();
        (turn, receiver)
    }

    fn unwant(&self, key: &Key, turn: u64) {
        let mut state = self.state.lock();
        let Some(want) = state.wants.get_mut(key).filter(|want| want.turn == turn) else { return };
        want.withdrawn = true;
        drop(state);
        self.changed.notify_one();
    }

    pub(super) fn unwant_all(&self) {
        self.state.lock().wants.values_mut().for_each(|want| want.withdrawn = true);
    }

    /// Until something is wanted or not wanted any more.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(super) fn tasks(&self) -> Vec<Task> {
        let state = self.state.lock();
        let task = |(key, want): (&Key, &Want)| Task {
            key: key.clone(),
            value: want.value.clone(),
            written: want.written.clone(),
            withdrawn: want.withdrawn,
            turn: want.turn,
        };
        state.wants.iter().map(task).collect()
    }

    /// The store has lost everything.
    pub(super) fn lost(&self) {
        for want in self.state.lock().wants.values_mut() {
            want.standing.send_if_modified(|standing| {
                let was_held = *standing == Standing::Held;
                if was_held {
                    *standing = Standing::Pending;
                }
                was_held
            });
        }
    }

    /// The store holds what the task says.
    pub(super) fn held(&self, task: &Task) {
        let mut state = self.state.lock();
        let Some(want) = state.wants.get_mut(&task.key) else { return };
        want.written = Some(task.value.clone());
        if want.turn == task.turn {
            want.standing.send_if_modified(|standing| std::mem::replace(standing, Standing::Held) != Standing::Held);
        }
    }

    /// The store does not hold it, and `standing` says why.
    pub(super) fn not_held(&self, task: &Task, standing: Standing) {
        let mut state = self.state.lock();
        let Some(want) = state.wants.get_mut(&task.key) else { return };
        want.written = None;
        if want.turn != task.turn || *want.standing.borrow() == standing {
            return;
        }
        match &standing {
            Standing::Contested => tracing::warn!(key = %task.key, "another owner holds this key: waiting until it is gone"),
            Standing::Refused(reason) => tracing::warn!(key = %task.key, reason, "discovery does not take this key"),
            Standing::Pending | Standing::Held | Standing::Withdrawn => {}
        }
        want.standing.send_replace(standing);
    }

    /// The store has what was withdrawn no more.
    pub(super) fn removed(&self, task: &Task) {
        let mut state = self.state.lock();
        match state.wants.get_mut(&task.key) {
            Some(want) if want.turn == task.turn => {
                want.standing.send_replace(Standing::Withdrawn);
                state.wants.remove(&task.key);
            }
            // Wanted again meanwhile.
            Some(want) => want.written = None,
            None => {}
        }
    }
}
