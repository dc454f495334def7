//! What a consumer was told, folded.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use bytes::Bytes;
use transport::discovery::{Backend, Change, Discovery, Options, Watch};
use wire::discovery::{Bucket, Key};

/// The longest any step of these tests takes on a slow machine.
const LIMIT: Duration = Duration::from_secs(30);

pub(crate) type Records = BTreeMap<String, Bytes>;

/// With short times, so that what 1.6.1's times are made for happens within a test.
pub(crate) fn open(backend: Backend) -> Discovery {
    let ttl = match backend {
        Backend::Mem(_) | Backend::File { .. } => 2,
        Backend::Etcd(_) => 3,
    };
    let options = Options { ttl: Some(Duration::from_secs(ttl)), grace: Duration::from_secs(3), call: Duration::from_secs(1) };
    Discovery::open(backend, options).unwrap()
}

pub(crate) fn key(name: &str) -> Key {
    Key::new(Bucket::Instances, &format!("dynamo/backend/generate/{name}"))
}

pub(crate) fn value(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// A watch, what it adds up to, and all it told.
pub(crate) struct Seen {
    watch: Watch,
    pub(crate) records: Records,
    pub(crate) told: Vec<Change>,
}

impl Seen {
    pub(crate) fn of(discovery: &Discovery) -> Self {
        Self::below(discovery, "v1/")
    }

    pub(crate) fn below(discovery: &Discovery, prefix: &str) -> Self {
        Self { watch: discovery.watch(prefix), records: Records::new(), told: Vec::new() }
    }

    /// The next change, applied; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Change> {
        let change = self.watch.next().await?;
        match change.clone() {
            Change::Reset(all) => self.records = all.into_iter().map(|(key, value)| (key.to_string(), value)).collect(),
            Change::Add(key, value) => drop(self.records.insert(key.to_string(), value)),
            Change::Remove(key) => drop(self.records.remove(key.as_str())),
        }
        self.told.push(change.clone());
        Some(change)
    }

    /// Reads until the records are as they should be, and says how long that took.
    pub(crate) async fn until(&mut self, what: &str, is_so: impl Fn(&Records) -> bool) -> Duration {
        let start = Instant::now();
        while !is_so(&self.records) {
            let left = LIMIT.saturating_sub(start.elapsed());
            let change = tokio::time::timeout(left, self.next()).await;
            assert!(matches!(change, Ok(Some(_))), "not seen: {what}; seen: {:?}", self.told);
        }
        start.elapsed()
    }

    /// Reads until a second (third, ...) reset: the watch broke and came back.
    pub(crate) async fn until_resets(&mut self, count: usize) {
        let limit = tokio::time::Instant::now() + LIMIT;
        while self.resets() < count {
            let change = tokio::time::timeout_at(limit, self.next()).await;
            assert!(matches!(change, Ok(Some(_))), "no reset {count}; seen: {:?}", self.told);
        }
    }

    /// Reads what comes within a time.
    pub(crate) async fn during(&mut self, time: Duration) {
        let end = tokio::time::Instant::now() + time;
        while let Ok(Some(_)) = tokio::time::timeout_at(end, self.next()).await {}
    }

    pub(crate) fn resets(&self) -> usize {
        self.told.iter().filter(|change| matches!(change, Change::Reset(_))).count()
    }

    /// Whether a key was ever missing after it was there.
    pub(crate) fn lost_any(&self) -> bool {
        let mut before: Vec<String> = Vec::new();
        let mut lost = false;
        for change in &self.told {
            match change {
                Change::Reset(all) => {
                    let now: Vec<String> = all.iter().map(|(key, _)| key.to_string()).collect();
                    lost |= before.iter().any(|key| !now.contains(key));
                    before = now;
                }
                Change::Add(key, _) => before.push(key.to_string()),
                Change::Remove(_) => lost = true,
            }
        }
        lost
    }
}

/// Waits until something is so that sends no event.
pub(crate) async fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
