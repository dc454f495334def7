//! [`KvEventPublisher`]: an engine's calls in, events on the plane out.

use std::{
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
    time::Duration,
};

use feed::publisher::{Call, PublisherConfig, PublisherState, StoredCall};
use futures_util::future::{join, join_all};
use index::{BlockSize, Seed, Window, local_hashes};
use parking_lot::Mutex;
use tokio::time::timeout;
use transport::{discovery::Registration, plane::PlanePublisher};
use wire::{
    discovery::{EventChannel, EventSource, recovery_endpoint_name, topic},
    router::Tier,
};

use crate::{
    intake::{self, Intake, Taken},
    names::{Endpoint, Served, register},
    options::{BlockName, KvPublisherOptions, PublishError, PublisherError, block_names},
    recovery::Recovery,
    work::{Desk, KvPublisherCounters, Work},
};

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

/// Publishes what one rank of an engine has in its cache. Every method may be called from any thread. Those that publish return at
/// once; [`find_matches`](Self::find_matches), [`standing`](Self::standing) and [`counters`](Self::counters) wait for the call that
/// is being applied, which takes milliseconds for a long prompt.
///
/// ```no_run
/// use worker::{KvEventPublisher, KvPublisherOptions, Runtime, RuntimeConfig, StoredCall};
///
/// # async fn engine() -> Result<(), Box<dyn std::error::Error>> {
/// let runtime = Runtime::start(RuntimeConfig::from_env()?).await?;
/// let options = KvPublisherOptions { enable_local_indexer: true, ..KvPublisherOptions::new(16) };
/// let publisher = KvEventPublisher::new(runtime.component("backend"), options).await?;
/// // Two blocks of 16 tokens, called 71 and 72 by the engine, at the start of a prompt.
/// publisher.publish_stored(StoredCall {
///     token_ids: (0..32).collect(),
///     num_block_tokens: vec![16, 16],
///     block_hashes: vec![71, 72],
///     ..StoredCall::default()
/// })?;
/// publisher.publish_removed(&[72_i64])?;
/// publisher.shutdown(std::time::Duration::from_secs(5)).await;
/// # Ok(())
/// # }
/// ```
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
            true => {
                Some(endpoint.sibling(recovery_endpoint_name(publisher_id)).serve(Arc::new(Recovery::new(publisher_id, desk.clone())))?)
            }
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
    pub fn find_matches(&self, token_ids: &[u32], lora_name: Option<&str>, cache_salt: Option<&str>) -> Option<u32> {
        let mut chain = Vec::new();
        local_hashes(token_ids, self.block_size, Seed::new(lora_name, cache_salt), Window::Plain, &mut chain);
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
        // Together: each waits for a store that may be away.
        let recovery = async {
            if let Some(recovery) = recovery {
                recovery.withdraw().await;
            }
        };
        join(join_all(records.into_iter().map(Registration::withdraw)), recovery).await;
    }
}

impl Drop for KvEventPublisher {
    /// The thread ends once it has emptied the queue.
    fn drop(&mut self) {
        self.intake.close();
    }
}
