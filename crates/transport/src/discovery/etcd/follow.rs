//! A consumer's side of etcd: list, watch from there on, and list again after whatever breaks the watch.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;
use wire::discovery::{Key, MAX_DOCUMENT_BYTES};

use super::{
    api::{self, Event, EventKind, KeyValue, Line, WatchLine, end_of_prefix},
    backoff,
    client::{Client, Member},
    error::CallError,
};
use crate::discovery::{view::Listed, watch::Sink};

/// How often the member that a watch hangs on is asked whether it lives: a silent watch says nothing of that.
const PROBE: Duration = Duration::from_secs(3);

/// Never ends.
pub(in crate::discovery) async fn follow(client: Arc<Client>, prefix: String, mut sink: Sink) {
    let mut refusals = 0;
    loop {
        let member = client.member();
        let Err(error) = session(&client, member, prefix.as_bytes(), &mut sink).await else {
            refusals = 0;
            continue;
        };
        client.failed(member);
        sink.lost(&error.to_string());
        refusals = if error.is_lasting() { refusals + 1 } else { 0 };
        tokio::time::sleep(backoff(refusals)).await;
    }
}

/// Until the watch breaks, or all should be listed anew.
async fn session(client: &Client, member: Member, prefix: &[u8], sink: &mut Sink) -> Result<(), CallError> {
    let end = end_of_prefix(prefix);
    let (revision, all) = client.list(member, prefix, &end).await?;
    let list = all.into_iter().filter_map(|one| record(one, sink)).collect();
    // Opened before the list is told: a plane that cannot be watched is not heard.
    let mut lines = client.stream(member, "watch", &api::watch(prefix, &end, revision + 1)).await?;
    sink.listed(list);
    sink.tick();
    let mut created = false;
    let mut probe = Instant::now() + client.call_time();
    loop {
        tokio::select! {
            line = lines.next() => created |= apply(&line?, sink)?,
            // The grace is over. Before anything is removed everything is listed: this process may have been frozen, with
            // news of those who came back still on the way.
            () = sink.deadline() => return Ok(()),
            () = tokio::time::sleep_until(probe) => {
                if !created {
                    return Err(CallError::Away(format!("etcd did not open the watch within {:?}", client.call_time())));
                }
                client.probe(member, prefix, &end).await?;
                probe = Instant::now() + PROBE;
            }
        }
    }
}

/// Whether the line says that the watch was opened.
pub(super) fn apply(line: &Bytes, sink: &mut Sink) -> Result<bool, CallError> {
    let line: Line<WatchLine> =
        serde_json::from_slice(line).map_err(|error| CallError::Away(format!("etcd sent no line of a watch: {error}")))?;
    if let Some(refusal) = line.error {
        return Err(refusal.into());
    }
    let Some(line) = line.result else { return Ok(false) };
    if line.compact_revision > 0 {
        return Err(CallError::Away("etcd has compacted what the watch would have told".to_owned()));
    }
    if line.canceled {
        return Err(CallError::Away(format!("etcd canceled the watch: {}", line.cancel_reason)));
    }
    let mut gone = Gone::default();
    for Event { kind, kv } in line.events {
        match kind {
            EventKind::Delete => gone.add(kv, sink),
            EventKind::Put => {
                gone.tell(sink);
                if let Some(record) = record(kv, sink) {
                    sink.put(record);
                }
            }
        }
    }
    gone.tell(sink);
    Ok(line.created)
}

/// Keys deleted in one revision, told together: that shows whether an owner withdrew or somebody wiped the store.
#[derive(Default)]
struct Gone {
    revision: i64,
    keys: Vec<Key>,
}

impl Gone {
    fn add(&mut self, kv: KeyValue, sink: &mut Sink) {
        if kv.mod_revision != self.revision {
            self.tell(sink);
            self.revision = kv.mod_revision;
        }
        self.keys.extend(key(&kv.key));
    }

    fn tell(&mut self, sink: &mut Sink) {
        if !self.keys.is_empty() {
            sink.deleted(std::mem::take(&mut self.keys));
        }
    }
}

fn key(bytes: &[u8]) -> Option<Key> {
    std::str::from_utf8(bytes).ok().and_then(|text| Key::parse(text).ok())
}

fn record(kv: KeyValue, sink: &Sink) -> Option<Listed> {
    let Some(key) = key(&kv.key) else {
        sink.junk(&String::from_utf8_lossy(&kv.key), "no key of discovery");
        return None;
    };
    if kv.value.len() > MAX_DOCUMENT_BYTES {
        sink.junk(key.as_str(), "too large");
        return None;
    }
    // Ids of leases are positive; 0 is none.
    Some(Listed { key, value: kv.value.into(), owner: kv.lease.unsigned_abs() })
}
