//! What a client counts: every call once at its beginning, and once at its end by how it ended.

use std::sync::atomic::{AtomicU64, Ordering};

use super::super::error::Cause;

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) calls: AtomicU64,
    pub(super) resent: AtomicU64,
    pub(super) pings: AtomicU64,
    pub(super) pings_failed: AtomicU64,
    refused: AtomicU64,
    unreachable: AtomicU64,
    unacknowledged: AtomicU64,
    lost: AtomicU64,
    no_call_home: AtomicU64,
    failed_otherwise: AtomicU64,
    pub(super) completed: AtomicU64,
    pub(super) broken_off: AtomicU64,
    pub(super) abandoned: AtomicU64,
}

/// A reading of a client's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounters {
    /// Calls begun.
    pub calls: u64,
    /// Calls that failed before their first item. The next six say how.
    pub failed: u64,
    /// Of these: the worker refused.
    pub refused: u64,
    /// Of these: no connection to the worker, or nobody at the subject.
    pub unreachable: u64,
    /// Of these: no acknowledgement, in time or before the connection broke.
    pub unacknowledged: u64,
    /// Of these: acknowledged by a worker that then closed its connection and did not call back.
    pub lost: u64,
    /// Of these: acknowledged, and no call back in time.
    pub no_call_home: u64,
    /// Of these: anything else, such as a worker that failed, or more calls than are allowed.
    pub failed_otherwise: u64,
    /// Requests sent a second time, because a connection broke before they were acknowledged.
    pub resent: u64,
    /// Answers read to their end.
    pub completed: u64,
    /// Answers that broke off: silence, a broken connection, bytes that are no answer.
    pub broken_off: u64,
    /// Answers that were dropped before their end; their workers were told to stop.
    pub abandoned: u64,
    /// Pings begun.
    pub pings: u64,
    /// Pings that were not answered.
    pub pings_failed: u64,
    /// Calls that run now, their answers not yet read or dropped.
    pub running: usize,
    /// Calls that wait for their worker to call back.
    pub awaited: usize,
    /// Connections to workers.
    pub connections: usize,
    /// Connections to the listener that have not yet named their call.
    pub newcomers: usize,
    /// Connections to the listener that named no call that is waited for.
    pub strangers: u64,
}

impl Counters {
    pub(super) fn failed(&self, cause: &Cause) {
        let counter = match cause {
            Cause::Refused { .. } => &self.refused,
            Cause::Unreachable(_) => &self.unreachable,
            Cause::Unacknowledged(_) | Cause::Broken(_) => &self.unacknowledged,
            Cause::Lost(_) => &self.lost,
            Cause::NoCallHome { .. } => &self.no_call_home,
            Cause::Address
            | Cause::Request(_)
            | Cause::Busy(_)
            | Cause::Stopped
            | Cause::Way(_)
            | Cause::NoPong(_)
            | Cause::Failed { .. }
            | Cause::Item(_)
            | Cause::Silent(_)
            | Cause::Truncated(_)
            | Cause::TooLarge { .. }
            | Cause::Malformed(_) => &self.failed_otherwise,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// What is counted; the rest is for whoever knows what runs now.
    pub(super) fn read(&self) -> ClientCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (refused, unreachable, unacknowledged) = (read(&self.refused), read(&self.unreachable), read(&self.unacknowledged));
        let (lost, no_call_home, failed_otherwise) = (read(&self.lost), read(&self.no_call_home), read(&self.failed_otherwise));
        ClientCounters {
            calls: read(&self.calls),
            failed: refused + unreachable + unacknowledged + lost + no_call_home + failed_otherwise,
            refused,
            unreachable,
            unacknowledged,
            lost,
            no_call_home,
            failed_otherwise,
            resent: read(&self.resent),
            completed: read(&self.completed),
            broken_off: read(&self.broken_off),
            abandoned: read(&self.abandoned),
            pings: read(&self.pings),
            pings_failed: read(&self.pings_failed),
            ..ClientCounters::default()
        }
    }
}
