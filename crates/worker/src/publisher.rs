//! [`KvEventPublisher`]: an engine's calls in, events on the plane out.

use std::{
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
    time::Duration,
};

use feed::publisher::{Call, CallError, PublisherConfig, PublisherState, StoredCall};
use index::{BlockSize, Seed, Window, local_hashes};
use parking_lot::Mutex;
use tokio::time::timeout;
use transport::{
    discovery::Registration,
    plane::{OpenError, PlanePublisher, PublisherOptions},
};
use wire::{
    discovery::{EventChannel, EventSource, recovery_endpoint_name, topic},
    router::Tier,
};

use crate::{
    intake::{self, Closed, Intake, Taken},
    names::{Endpoint, ServeError, Served, register},
    recovery::Recovery,
    runtime::RuntimeError,
    work::{Desk, KvPublisherCounters, Work},
};

/// Default bound of the queue between the engine and the publisher's thread.
const QUEUE_BYTES: usize = 64 << 20;

/// How a publisher publishes.
#[derive(Clone, Debug)]
pub struct KvPublisherOptions {
    /// Tokens per block; the engine's own.
    pub kv_block_size: u32,
    /// Data-parallel rank (0).
    pub dp_rank: u32,
    /// Whether those who missed events can recover here, and overlaps be asked for (false). Without it the publisher is live
    /// only: a consumer that misses an event knows less from then on.
    pub enable_local_indexer: bool,
    /// The worker whose cache it is; the process's own id where none is given.
    pub worker_id: Option<u64>,
    /// Bytes of calls that may wait for the publisher's thread (64 MiB); removals have half as much again.
    pub queue_bytes: usize,
    /// Events kept for those who missed some (100,000).
    pub ring_events: usize,
    /// Bytes of those (64 MiB), whichever bound is met first.
    pub ring_bytes: usize,
    /// What subscribers may cost.
    pub plane: PublisherOptions,
}

impl KvPublisherOptions {
    /// The defaults, for blocks of so many tokens.
    pub fn new(kv_block_size: u32) -> Self {
        Self {
            kv_block_size,
            dp_rank: 0,
            enable_local_indexer: false,
            worker_id: None,
            queue_bytes: QUEUE_BYTES,
            ring_events: 100_000,
            ring_bytes: 64 << 20,
            plane: PublisherOptions::default(),
        }
    }
}

/// Why there is no publisher.
#[derive(Debug, thiserror::Error)]
pub enum PublisherError {
    /// Blocks of no tokens.
    #[error("kv_block_size is 0")]
    BlockSize,
    /// The planes.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// Its channel.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Its recovery service.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Its thread.
    #[error("cannot start the publisher's thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// Why a call was refused. It has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// An argument is wrong.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The publisher was shut down.
    #[error("the publisher was shut down")]
    Closed,
}

impl From<Closed> for PublishError {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}

/// An engine's name of a block: 64 bits, signed or not.
pub trait BlockName: Copy {
    /// The same bits, unsigned.
    fn bits(self) -> u64;
}

impl BlockName for u64 {
    fn bits(self) -> u64 {
        self
    }
}

impl BlockName for i64 {
    fn bits(self) -> u64 {
        self.cast_unsigned()
    }
}

/// Names as a [`StoredCall`] takes them.
pub fn block_names<N: BlockName>(names: &[N]) -> Vec<u64> {
    names.iter().map(|name| name.bits()).collect()
}

/// What a publisher has published so far, at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The last event in it.
    pub last_event_id: u64,
    /// [`index::digest_of`] the blocks held in the device tier; `None` when live only.
    pub digest: Option<u64>,
    /// Distinct blocks held there; `None` when live only.
    pub blocks: Option<usize>,
}

/// Publishes what one rank of an engine has in its cache. Every method may be called from any thread and returns at once.
///
/// Dropping it withdraws its records in the background and loses what is queued; [`shutdown`](Self::shutdown) publishes it first.
#[derive(Debug)]
pub struct KvEventPublisher {
    publisher_id: u64,
    /// Keeps the process's planes up.
    endpoint: Endpoint,
    block_size: BlockSize,
    intake: Intake,
    desk: Arc<Desk>,
    channel: EventChannel,
    plane: Mutex<Option<Open>>,
}

/// What the shutdown takes.
#[derive(Debug)]
struct Open {
    plane: Arc<PlanePublisher>,
    thread: JoinHandle<()>,
    /// Of the source, then of the channel.
    records: Vec<Registration>,
    recovery: Option<Served>,
}

impl KvEventPublisher {
    /// Publishes for an endpoint (of a component, the one that generates) from now on, whether or not its planes are there.
    pub async fn new(endpoint: impl Into<Endpoint>, options: KvPublisherOptions) -> Result<Self, PublisherError> {
        let endpoint = endpoint.into();
        let runtime = endpoint.runtime().clone();
        let block_size = BlockSize::new(options.kv_block_size).ok_or(PublisherError::BlockSize)?;
        let publisher_id = (rand::random::<u64>() >> 11).max(1);
        let worker_id = options.worker_id.unwrap_or(runtime.instance_id());
        let state = PublisherState::new(PublisherConfig {
            worker_id,
            dp_rank: options.dp_rank,
            block_size,
            ring_events: options.ring_events,
            ring_bytes: options.ring_bytes,
            local_indexer: options.enable_local_indexer,
        });
        let desk = Desk::new(state);
        let recovery = match options.enable_local_indexer {
            true => Some(endpoint.sibling(recovery_endpoint_name(publisher_id)).serve(Arc::new(Recovery::new(desk.clone())))?),
            false => None,
        };
        let (socket, scope) = (runtime.event_socket()?, endpoint.id().scope());
        let plane = PlanePublisher::open(socket, scope.clone(), topic::KV_EVENTS, publisher_id, options.plane).await?;
        let (channel, plane) = (plane.channel().clone(), Arc::new(plane));
        let source = EventSource {
            scope,
            topic: topic::KV_EVENTS.to_owned(),
            publisher_id,
            kv_state_endpoint: endpoint.id().clone(),
            worker_id,
            dp_rank: options.dp_rank,
            recovery_target: recovery.as_ref().map(|served| served.record().clone()),
        };
        let (intake, outlet) = intake::queue(options.queue_bytes);
        let thread = Work::spawn(desk.clone(), plane.clone(), outlet)?;
        // The channel first: whoever sees the source may want to subscribe.
        let channel_record = register(&runtime, &channel.clone().into());
        let records = vec![register(&runtime, &source.into()), channel_record];
        let open = Open { plane, thread, records, recovery };
        Ok(Self { publisher_id, endpoint, block_size, intake, desk, channel, plane: Mutex::new(Some(open)) })
    }

    /// Its id in records and messages, drawn anew for each publisher.
    pub fn publisher_id(&self) -> u64 {
        self.publisher_id
    }

    /// Whose blocks it publishes.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Where it publishes.
    pub fn channel(&self) -> &EventChannel {
        &self.channel
    }

    /// Blocks were stored. What is wrong with the call is said at once; the rest happens on the publisher's thread.
    pub fn publish_stored(&self, call: StoredCall) -> Result<Taken, PublishError> {
        let checked = call.checked(self.block_size)?;
        Ok(self.intake.push(Call::Stored(checked))?)
    }

    /// One copy of each of these blocks is gone from the accelerator's memory.
    pub fn publish_removed<N: BlockName>(&self, block_hashes: &[N]) -> Result<Taken, PublishError> {
        self.publish_removed_from(block_hashes, Tier::Device)
    }

    /// One copy of each of these blocks is gone from a tier.
    pub fn publish_removed_from<N: BlockName>(&self, block_hashes: &[N], tier: Tier) -> Result<Taken, PublishError> {
        Ok(self.intake.push(Call::Removed { hashes: block_names(block_hashes), tier })?)
    }

    /// Every block of every tier is gone.
    pub fn publish_cleared(&self) -> Result<Taken, PublishError> {
        Ok(self.intake.push(Call::Cleared)?)
    }

    /// Something the engine did was not heard: consumers will see a gap here.
    pub fn publish_missed(&self) -> Result<(), PublishError> {
        Ok(self.intake.missed()?)
    }

    /// Bytes of calls its queue holds, at most.
    pub(crate) fn queue_bytes(&self) -> usize {
        self.intake.limit()
    }

    /// Waits until all that was handed over before is on the plane.
    pub async fn flush(&self) -> Result<(), PublishError> {
        let done = self.intake.flush()?;
        done.await.map_err(|_| PublishError::Closed)
    }

    /// Leading blocks of a prompt that are held in the accelerator's memory; `None` when live only.
    pub fn find_matches(&self, token_ids: &[u32], lora_name: Option<&str>, salt: Option<&str>) -> Option<u32> {
        let mut chain = Vec::new();
        local_hashes(token_ids, self.block_size, Seed::new(lora_name, salt), Window::Plain, &mut chain);
        self.desk.state.lock().find_matches(&chain)
    }

    /// What has been published so far.
    pub fn standing(&self) -> Standing {
        let state = self.desk.state.lock();
        Standing { last_event_id: state.last_event_id(), digest: state.digest(), blocks: state.blocks() }
    }

    /// What it has done, and what it could not do.
    pub fn counters(&self) -> KvPublisherCounters {
        let (last_event_id, state) = {
            let state = self.desk.state.lock();
            (state.last_event_id(), state.counters())
        };
        let plane = self.plane.lock().as_ref().map(|open| open.plane.counters()).unwrap_or_default();
        let level = self.intake.level();
        KvPublisherCounters {
            events: self.desk.events.load(Ordering::Relaxed),
            last_event_id,
            messages: plane.published,
            dropped_messages: plane.dropped,
            dropped_stores: level.dropped_stores.load(Ordering::Relaxed),
            dropped_removals: level.dropped_removals.load(Ordering::Relaxed),
            missed: state.missed,
            refused: self.desk.refused.load(Ordering::Relaxed),
            unknown_removals: state.unknown_removals,
            orphans: state.orphans,
            orphans_dropped: state.orphans_dropped,
            queued_bytes: self.intake.bytes(),
        }
    }

    /// Takes no further call, publishes what is queued, and withdraws the records. What is not done `within` that time is
    /// lost. A second call does nothing.
    pub async fn shutdown(&self, within: Duration) {
        self.intake.close();
        let Some(Open { plane, thread, records, recovery }) = self.plane.lock().take() else { return };
        let end = tokio::time::Instant::now() + within;
        let joined = tokio::task::spawn_blocking(move || thread.join());
        let drained = timeout(within, joined).await.is_ok();
        match Arc::into_inner(plane).filter(|_| drained) {
            Some(plane) => plane.shutdown(end.saturating_duration_since(tokio::time::Instant::now())).await,
            None => tracing::warn!(publisher = self.publisher_id, "calls that were queued are lost: not published in time"),
        }
        for record in records {
            record.withdraw().await;
        }
        if let Some(recovery) = recovery {
            recovery.withdraw().await;
        }
    }
}

impl Drop for KvEventPublisher {
    /// The thread ends once it has emptied the queue.
    fn drop(&mut self) {
        self.intake.close();
    }
}
