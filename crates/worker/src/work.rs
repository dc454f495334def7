//! The publisher's own thread: takes calls from the queue, folds them into the state, publishes what they change.
//!
//! A thread and not a task: hashing a long prompt takes milliseconds that no runtime of an engine's process should lose.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{RecvTimeoutError, TryRecvError},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use feed::publisher::{Call, MESSAGE_BLOCKS, PublisherState, partition};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use transport::plane::PlanePublisher;
use wire::router::{RouterEvent, encode_events};

use crate::intake::{Entry, Outlet};

/// Entries taken from the queue at once, at most.
const BATCH_ENTRIES: usize = 1024;
/// After a message was dropped for a subscriber, or an id was skipped, and nothing followed for so long, an event without content is
/// published, so that subscribers see that something is missing; after a further drop twice as long later, and so on.
const BEACON_FIRST: Duration = Duration::from_secs(1);
/// The longest wait between two of them.
const BEACON_LONGEST: Duration = Duration::from_secs(30);

/// What a publisher has done, and what it could not do. Since its start unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvPublisherCounters {
    /// Events published.
    pub events: u64,
    /// The id of the last one; ids that were skipped count, too.
    pub last_event_id: u64,
    /// Messages they travelled in.
    pub messages: u64,
    /// Messages dropped for a subscriber, or for NATS, that took too little.
    pub dropped_messages: u64,
    /// Stores dropped because the queue was full.
    pub dropped_stores: u64,
    /// Removals and clears dropped because even their reserve was full; everything held was then given up.
    pub dropped_removals: u64,
    /// Event ids skipped to tell consumers of a gap.
    pub missed: u64,
    /// Stores refused because the publisher's own index is full.
    pub refused: u64,
    /// Removals of blocks that were not held.
    pub unknown_removals: u64,
    /// Stores that wait for their parents now.
    pub orphans: usize,
    /// Such stores given up for want of room.
    pub orphans_dropped: u64,
    /// Bytes queued now.
    pub queued_bytes: usize,
}

/// What the thread, the recovery service and the publisher's owner share.
#[derive(Debug)]
pub(crate) struct Desk {
    /// The published state. Held for one call, the hashing of its tokens included, as a child's seed is its parent's; or for one
    /// decision about a query.
    pub(crate) state: Mutex<PublisherState>,
    pub(crate) events: AtomicU64,
    pub(crate) refused: AtomicU64,
}

impl Desk {
    pub(crate) fn new(state: PublisherState) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(state), events: AtomicU64::new(0), refused: AtomicU64::new(0) })
    }
}

/// The thread's side.
#[derive(Debug)]
pub(crate) struct Work {
    desk: Arc<Desk>,
    plane: Arc<PlanePublisher>,
    outlet: Outlet,
    /// Somebody may not know that something is missing: a message was dropped for them, or an id was skipped, and none has been
    /// published since. When to publish a beacon.
    unsure: Option<Duration>,
    /// That the index is full was said.
    complained: bool,
}

/// What one turn of the thread does.
#[derive(Debug, Default)]
struct Batch {
    steps: Vec<Step>,
    flushed: Option<oneshot::Sender<()>>,
    blocks: usize,
}

#[derive(Debug)]
enum Step {
    Call(Call),
    Missed,
    Untrusted,
    Beacon,
}

impl Work {
    /// Begins. The thread ends when the queue is closed and empty.
    pub(crate) fn spawn(desk: Arc<Desk>, plane: Arc<PlanePublisher>, outlet: Outlet) -> io::Result<JoinHandle<()>> {
        let work = Self { desk, plane, outlet, unsure: None, complained: false };
        thread::Builder::new().name("kv-publisher".to_owned()).spawn(move || work.run())
    }

    fn run(mut self) {
        while let Some(batch) = self.batch() {
            let (mut events, mut skipped) = (Vec::new(), false);
            for step in batch.steps {
                let skips = matches!(step, Step::Missed | Step::Untrusted);
                let before = events.len();
                events.extend(self.apply(step));
                skipped = skips || (skipped && events.len() == before);
            }
            self.publish(&events);
            if skipped {
                // An engine that is idle now would publish nothing that shows the gap.
                self.unsure.get_or_insert(BEACON_FIRST);
            }
            if let Some(flushed) = batch.flushed {
                // Nobody may wait any more.
                let _ = flushed.send(());
            }
        }
    }

    /// What is queued, up to the bounds of a turn; waits for something.
    fn batch(&mut self) -> Option<Batch> {
        let mut batch = Batch::default();
        let first = match self.unsure {
            Some(patience) => self.outlet.entries.recv_timeout(patience),
            None => self.outlet.entries.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match first {
            Ok(entry) => self.take(&mut batch, entry),
            Err(RecvTimeoutError::Timeout) => {
                self.unsure = self.unsure.map(|patience| BEACON_LONGEST.min(2 * patience));
                batch.steps.push(Step::Beacon);
            }
            Err(RecvTimeoutError::Disconnected) => return None,
        }
        while batch.flushed.is_none() && batch.steps.len() < BATCH_ENTRIES && batch.blocks < MESSAGE_BLOCKS {
            match self.outlet.entries.try_recv() {
                Ok(entry) => self.take(&mut batch, entry),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        Some(batch)
    }

    fn take(&self, batch: &mut Batch, entry: Entry) {
        match entry {
            Entry::Call(call) => {
                self.outlet.took(&call);
                batch.blocks += call.blocks();
                let rest = match batch.steps.last_mut() {
                    Some(Step::Call(last)) => last.coalesce(call),
                    Some(Step::Missed | Step::Untrusted | Step::Beacon) | None => Some(call),
                };
                batch.steps.extend(rest.map(Step::Call));
            }
            Entry::Missed => batch.steps.push(Step::Missed),
            Entry::Untrusted => batch.steps.push(Step::Untrusted),
            Entry::Flush(done) => batch.flushed = Some(done),
        }
    }

    fn apply(&mut self, step: Step) -> Vec<RouterEvent> {
        let mut state = self.desk.state.lock();
        match step {
            Step::Call(call) => {
                let applied = state.apply(&call);
                drop(state);
                applied.unwrap_or_else(|error| {
                    self.desk.refused.fetch_add(1, Ordering::Relaxed);
                    if !self.complained {
                        self.complained = true;
                        tracing::warn!(%error, "a store cannot be published; further ones are counted");
                    }
                    Vec::new()
                })
            }
            Step::Missed => {
                state.missed();
                Vec::new()
            }
            Step::Untrusted => {
                // A clear makes consumers whole, and here nobody is: the engine still holds what is given up.
                let cleared = state.cleared();
                state.missed();
                vec![cleared]
            }
            Step::Beacon => vec![state.beacon()],
        }
    }

    fn publish(&mut self, events: &[RouterEvent]) {
        self.desk.events.fetch_add(events.len() as u64, Ordering::Relaxed);
        for message in partition(events) {
            let everybody = self.plane.publish(encode_events(message));
            self.unsure = if everybody { None } else { Some(self.unsure.unwrap_or(BEACON_FIRST)) };
        }
    }
}
