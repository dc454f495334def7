//! The queue between an engine's threads and the publisher's: bounded in bytes, never waited for.
//!
//! What is lost when it is full may hide blocks and never invents any. A store that finds no room is dropped: consumers know
//! less than is there. Dropping a removal would leave a block in the index that the engine no longer holds, so removals have a
//! reserve of their own; where even that is full, everything is given up, and the publisher begins anew with a clear. Both leave
//! a marker in the queue, on which an event id is skipped.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
    mpsc,
};

use feed::publisher::Call;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Bytes a queued call is charged beyond its own.
const ENTRY_BYTES: usize = 64;

/// What the publisher's thread is handed.
#[derive(Debug)]
pub(crate) enum Entry {
    Call(Call),
    /// Stores were dropped here.
    Missed,
    /// Removals were dropped here: nothing that is thought to be held can be trusted.
    Untrusted,
    /// Somebody waits until everything before this is published.
    Flush(oneshot::Sender<()>),
}

/// What became of a call that was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is queued.
    Queued,
    /// The queue is full: it is dropped, counted, and consumers will see a gap.
    Dropped,
}

/// The publisher has been shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

#[derive(Debug)]
pub(crate) struct Intake {
    /// Guards the end of the queue; held for one push.
    end: Mutex<End>,
    shared: Arc<Level>,
    limit: usize,
}

/// How full the queue is, and what was dropped.
#[derive(Debug, Default)]
pub(crate) struct Level {
    bytes: AtomicUsize,
    pub(crate) dropped_stores: AtomicU64,
    pub(crate) dropped_removals: AtomicU64,
}

#[derive(Debug)]
struct End {
    sender: Option<mpsc::Sender<Entry>>,
    last: Last,
}

/// The last thing in the queue: markers that would say the same again are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    Call,
    Missed,
    Untrusted,
}

/// The reading end.
#[derive(Debug)]
pub(crate) struct Outlet {
    pub(crate) entries: mpsc::Receiver<Entry>,
    level: Arc<Level>,
}

/// A queue of at most `limit` bytes, and half as much again for removals.
pub(crate) fn queue(limit: usize) -> (Intake, Outlet) {
    let (sender, entries) = mpsc::channel();
    let level = Arc::new(Level::default());
    let end = Mutex::new(End { sender: Some(sender), last: Last::Call });
    (Intake { end, shared: level.clone(), limit }, Outlet { entries, level })
}

impl Intake {
    /// Queues a call, or drops it where there is no room.
    pub(crate) fn push(&self, call: Call) -> Result<Taken, Closed> {
        let cost = call.bytes() + ENTRY_BYTES;
        let mut end = self.end.lock();
        let bytes = self.shared.bytes.load(Ordering::Acquire);
        let (limit, marker, dropped) = match call {
            // One call of any size fits into an empty queue.
            Call::Stored(_) if bytes == 0 => (usize::MAX, Last::Missed, &self.shared.dropped_stores),
            Call::Stored(_) => (self.limit, Last::Missed, &self.shared.dropped_stores),
            Call::Removed { .. } | Call::Cleared => (self.limit + self.limit / 2, Last::Untrusted, &self.shared.dropped_removals),
        };
        if bytes.saturating_add(cost) <= limit {
            end.send(Entry::Call(call), Last::Call)?;
            self.shared.bytes.fetch_add(cost, Ordering::Release);
            return Ok(Taken::Queued);
        }
        dropped.fetch_add(1, Ordering::Relaxed);
        end.mark(marker)?;
        Ok(Taken::Dropped)
    }

    /// Something was lost before it came here.
    pub(crate) fn missed(&self) -> Result<(), Closed> {
        self.end.lock().mark(Last::Missed)
    }

    /// Resolves once everything queued until now is published.
    pub(crate) fn flush(&self) -> Result<oneshot::Receiver<()>, Closed> {
        let (done, waits) = oneshot::channel();
        let mut end = self.end.lock();
        let last = end.last;
        end.send(Entry::Flush(done), last)?;
        Ok(waits)
    }

    /// Nothing more comes. What is queued is still read.
    pub(crate) fn close(&self) {
        self.end.lock().sender = None;
    }

    pub(crate) fn level(&self) -> &Level {
        &self.shared
    }

    /// Bytes it holds, at most; removals have half as much again.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes queued.
    pub(crate) fn bytes(&self) -> usize {
        self.shared.bytes.load(Ordering::Relaxed)
    }
}

impl End {
    fn send(&mut self, entry: Entry, last: Last) -> Result<(), Closed> {
        let sender = self.sender.as_ref().ok_or(Closed)?;
        sender.send(entry).map_err(|_| Closed)?;
        self.last = last;
        Ok(())
    }

    fn mark(&mut self, marker: Last) -> Result<(), Closed> {
        if self.sender.is_none() {
            return Err(Closed);
        }
        match (self.last, marker) {
            (Last::Untrusted, _) | (Last::Missed, Last::Missed) | (_, Last::Call) => Ok(()),
            (Last::Call, Last::Missed) => self.send(Entry::Missed, Last::Missed),
            (Last::Call | Last::Missed, Last::Untrusted) => self.send(Entry::Untrusted, Last::Untrusted),
        }
    }
}

impl Outlet {
    /// The call is no longer queued.
    pub(crate) fn took(&self, call: &Call) {
        self.level.bytes.fetch_sub(call.bytes() + ENTRY_BYTES, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use feed::publisher::StoredCall;
    use index::BlockSize;
    use wire::router::Tier;

    use super::*;

    fn store(blocks: u64) -> Call {
        let call = StoredCall {
            token_ids: vec![1; blocks as usize],
            num_block_tokens: vec![1; blocks as usize],
            block_hashes: (0..blocks).collect(),
            ..StoredCall::default()
        };
        Call::Stored(call.checked(BlockSize::new(1).unwrap()).unwrap())
    }

    fn removal() -> Call {
        Call::Removed { hashes: vec![1], tier: Tier::Device }
    }

    /// The queue as letters.
    fn drained(outlet: &Outlet) -> String {
        let mut seen = String::new();
        while let Ok(entry) = outlet.entries.try_recv() {
            seen.push(match &entry {
                Entry::Call(Call::Stored(_)) => 's',
                Entry::Call(Call::Removed { .. } | Call::Cleared) => 'r',
                Entry::Missed => 'M',
                Entry::Untrusted => 'U',
                Entry::Flush(_) => 'f',
            });
            if let Entry::Call(call) = &entry {
                outlet.took(call);
            }
        }
        seen
    }

    #[test]
    fn a_full_queue_drops_stores_first_and_says_so_once() {
        let (intake, outlet) = queue(2000);
        while intake.push(store(4)) == Ok(Taken::Queued) {}
        assert_eq!(intake.push(store(4)), Ok(Taken::Dropped));
        assert_eq!(intake.push(removal()), Ok(Taken::Queued), "removals have a reserve");
        assert_eq!(intake.push(store(4)), Ok(Taken::Dropped));
        let seen = drained(&outlet);
        assert!(seen.ends_with("sMrM"), "{seen}");
        assert_eq!(intake.level().dropped_stores.load(Ordering::Relaxed), 3);
        assert_eq!((intake.bytes(), intake.push(store(4))), (0, Ok(Taken::Queued)));
    }

    #[test]
    fn a_lost_removal_makes_everything_before_it_untrusted() {
        let (intake, outlet) = queue(2000);
        while intake.push(removal()) == Ok(Taken::Queued) {}
        assert_eq!(intake.push(removal()), Ok(Taken::Dropped));
        assert_eq!(intake.push(store(4)), Ok(Taken::Dropped));
        let seen = drained(&outlet);
        assert!(seen.ends_with("rU"), "one marker is enough: {seen}");
        assert_eq!(intake.level().dropped_removals.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn one_call_of_any_size_fits_an_empty_queue_and_a_closed_one_takes_nothing() {
        let (intake, outlet) = queue(10);
        assert_eq!(intake.push(store(1000)), Ok(Taken::Queued));
        assert_eq!(intake.push(store(1)), Ok(Taken::Dropped));
        intake.close();
        assert_eq!((intake.push(removal()), intake.missed(), intake.flush().err()), (Err(Closed), Err(Closed), Some(Closed)));
        assert_eq!(drained(&outlet), "sM");
    }
}
