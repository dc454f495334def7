//! The owner's side of etcd: one lease whose id is the instance's, and everything wanted on it.
//!
//! The lease's id is chosen here and granted again after a loss, so that it stays the instance id that is in every record. Every
//! few seconds etcd is asked how long the lease has and which keys hang on it: that one answer shows an expired lease, wiped data
//! and keys deleted by hand alike.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use wire::discovery::{Key, MAX_DOCUMENT_BYTES};

use super::{
    api::{self, Done, TimeToLive, Txn},
    client::{Client, Member},
    error::CallError,
};
use crate::discovery::{
    Counters,
    keeper::Trouble,
    registration::{Standing, Task, Wanted},
};

/// Between two looks, at most.
const LOOK: Duration = Duration::from_secs(3);

/// After so long a key that etcd refused is tried again with the same value: its user may have been given the right.
const REFUSED_AGAIN: Duration = Duration::from_secs(30);

/// What the passes remember.
pub(in crate::discovery) struct Keeper {
    client: Arc<Client>,
    lease: u64,
    /// Whether etcd has granted it and it was not given back.
    granted: bool,
    /// What etcd refused.
    refused: HashMap<Key, Refused>,
    counters: Arc<Counters>,
}

#[derive(Debug)]
struct Refused {
    value: Bytes,
    reason: String,
    at: Instant,
}

/// The keys that hang on the lease.
type Attached = HashSet<Vec<u8>>;

impl Keeper {
    pub(in crate::discovery) fn new(client: Arc<Client>, lease: u64, counters: Arc<Counters>) -> Self {
        Self { client, lease, granted: false, refused: HashMap::new(), counters }
    }

    /// Until the next pass: soon enough to renew the lease several times within its time.
    pub(in crate::discovery) fn pause(&self) -> Duration {
        LOOK.min(self.client.lease() / 5)
    }

    /// One pass. An error is that of the first call that failed: the rest is not tried on a member that is away.
    pub(in crate::discovery) async fn keep(&mut self, wanted: &Wanted) -> Result<(), Trouble> {
        let member = self.client.member();
        let pass = self.pass(member, wanted).await;
        pass.map_err(|error| {
            if !error.is_not_found() {
                self.client.failed(member);
            }
            Trouble { lasts: error.is_lasting(), reason: error.to_string() }
        })
    }

    async fn pass(&mut self, member: Member, wanted: &Wanted) -> Result<(), CallError> {
        let tasks = wanted.tasks();
        if tasks.iter().all(|task| task.withdrawn) {
            // The lease takes all its keys with it, in one step.
            self.give_back(member).await?;
            tasks.iter().for_each(|task| wanted.removed(task));
            return Ok(());
        }
        let attached = self.renewed(member, wanted).await?;
        let keys: HashSet<&Key> = tasks.iter().map(|task| &task.key).collect();
        self.refused.retain(|key, _| keys.contains(key));
        for task in &tasks {
            self.one(member, task, &attached, wanted).await?;
        }
        Ok(())
    }

    /// The lease, granted if it is not there and renewed if it is.
    async fn renewed(&mut self, member: Member, wanted: &Wanted) -> Result<Attached, CallError> {
        let look: TimeToLive = self.client.call(member, "lease/timetolive", &api::time_to_live(self.lease)).await?;
        if look.left > 0 {
            self.granted = true;
            if look.left <= look.granted * 5 / 6 {
                let Done {} = self.client.call_line(member, "lease/keepalive", &api::lease(self.lease)).await?;
            }
            return Ok(look.keys.into_iter().map(|key| key.0).collect());
        }
        if self.granted {
            self.granted = false;
            wanted.lost();
            self.counters.leases_lost.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(lease = format!("{:x}", self.lease), "the lease in etcd is gone: registering everything again");
        }
        let seconds = self.client.lease().as_secs();
        match self.client.call::<Done>(member, "lease/grant", &api::grant(self.lease, seconds)).await {
            Ok(Done {}) => self.granted = true,
            // An answer was lost, or the lease is just ending: the next pass sees which.
            Err(error) if error.is_lease_exists() => {}
            Err(error) => return Err(error),
        }
        Ok(Attached::new())
    }

    async fn one(&mut self, member: Member, task: &Task, attached: &Attached, wanted: &Wanted) -> Result<(), CallError> {
        let key = task.key.as_str().as_bytes();
        if task.withdrawn {
            let _: Txn = self.client.call(member, "kv/txn", &api::delete(key, self.lease)).await?;
            wanted.removed(task);
        } else if task.value.len() > MAX_DOCUMENT_BYTES {
            let reason = format!("its document has {} bytes, at most {MAX_DOCUMENT_BYTES} are read", task.value.len());
            wanted.not_held(task, Standing::Refused(reason));
        } else if let Some(refused) = self.refused.get(&task.key).filter(|refused| refused.counts_for(task)) {
            wanted.not_held(task, Standing::Refused(refused.reason.clone()));
        } else if attached.contains(key) && task.written.as_ref() == Some(&task.value) {
            wanted.held(task);
        } else {
            match self.put(member, key, &task.value).await {
                Ok(Put::Held) => wanted.held(task),
                Ok(Put::Contested) => wanted.not_held(task, Standing::Contested),
                Err(error) if error.is_final() => {
                    let reason = error.to_string();
                    wanted.not_held(task, Standing::Refused(reason.clone()));
                    self.refused.insert(task.key.clone(), Refused { value: task.value.clone(), reason, at: Instant::now() });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn put(&self, member: Member, key: &[u8], value: &[u8]) -> Result<Put, CallError> {
        let created: Txn = self.client.call(member, "kv/txn", &api::create(key, value, self.lease)).await?;
        if created.succeeded {
            return Ok(Put::Held);
        }
        let ours = created.found().is_some_and(|found| found.lease.unsigned_abs() == self.lease);
        if !ours {
            return Ok(Put::Contested);
        }
        let replaced: Txn = self.client.call(member, "kv/txn", &api::replace(key, value, self.lease)).await?;
        Ok(if replaced.succeeded { Put::Held } else { Put::Contested })
    }

    async fn give_back(&mut self, member: Member) -> Result<(), CallError> {
        if self.granted {
            match self.client.call::<Done>(member, "lease/revoke", &api::lease(self.lease)).await {
                Ok(Done {}) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
            self.granted = false;
        }
        Ok(())
    }
}

impl Refused {
    fn counts_for(&self, task: &Task) -> bool {
        self.value == task.value && self.at.elapsed() < REFUSED_AGAIN
    }
}

enum Put {
    Held,
    Contested,
}
