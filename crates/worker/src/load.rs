//! [`LoadPublisher`]: how loaded an engine is, told when it changes, and again now and then for those who missed it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use transport::{
    discovery::Registration,
    plane::{PlanePublisher, PublisherOptions},
};
use wire::{
    discovery::{EventChannel, topic},
    load::ActiveLoad,
};

use crate::{
    names::{Endpoint, register},
    options::PublisherError,
};

/// How often the last figures are told again: messages may be lost, and subscribers come late.
const AGAIN: Duration = Duration::from_secs(5);
/// Ranks whose figures are kept; further ones are told once.
const RANKS: usize = 1024;

/// Figures of one rank; `None` where the engine does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Blocks of requests being decoded.
    pub active_decode_blocks: Option<u64>,
    /// Tokens still to be prefilled.
    pub active_prefill_tokens: Option<u64>,
    /// Blocks of the cache in use.
    pub kv_used_blocks: Option<u64>,
}

/// Publishes the load of a worker's ranks. Every method but the shutdown returns at once, on any thread.
#[derive(Debug)]
pub struct LoadPublisher {
    worker_id: u64,
    channel: EventChannel,
    shared: Arc<Shared>,
    stop: CancellationToken,
    open: Mutex<Option<(AbortOnDropHandle<()>, Registration)>>,
}

#[derive(Debug)]
struct Shared {
    /// Taken by the shutdown.
    plane: Mutex<Option<PlanePublisher>>,
    /// The last figures of each rank. Held for a look.
    last: Mutex<BTreeMap<u32, ActiveLoad>>,
}

impl LoadPublisher {
    /// Publishes for an endpoint (of a component, the one that generates) from now on.
    pub async fn new(endpoint: impl Into<Endpoint>, worker_id: Option<u64>) -> Result<Self, PublisherError> {
        let endpoint = endpoint.into();
        let runtime = endpoint.runtime().clone();
        let worker_id = worker_id.unwrap_or(runtime.instance_id());
        let publisher_id = (rand::random::<u64>() >> 11).max(1);
        let (socket, scope) = (runtime.event_socket()?, endpoint.id().scope());
        let plane = PlanePublisher::open(socket, scope, topic::KV_METRICS, publisher_id, PublisherOptions::default()).await?;
        let channel = plane.channel().clone();
        let record = register(&runtime, &channel.clone().into());
        let shared = Arc::new(Shared { plane: Mutex::new(Some(plane)), last: Mutex::default() });
        let stop = CancellationToken::new();
        let task = tokio::spawn(again(shared.clone(), stop.clone()));
        let open = Mutex::new(Some((AbortOnDropHandle::new(task), record)));
        Ok(Self { worker_id, channel, shared, stop, open })
    }

    /// Where it publishes.
    pub fn channel(&self) -> &EventChannel {
        &self.channel
    }

    /// The figures of one rank now; published if they differ from the last ones.
    pub fn update(&self, dp_rank: u32, load: Load) {
        let load = ActiveLoad {
            worker_id: self.worker_id,
            dp_rank,
            active_decode_blocks: load.active_decode_blocks,
            active_prefill_tokens: load.active_prefill_tokens,
            kv_used_blocks: load.kv_used_blocks,
        };
        {
            let mut last = self.shared.last.lock();
            if last.get(&dp_rank) == Some(&load) {
                return;
            }
            if last.len() < RANKS || last.contains_key(&dp_rank) {
                last.insert(dp_rank, load);
            }
        }
        self.shared.publish(&load);
    }

    /// Delivers what is queued and withdraws the record. A second call does nothing.
    pub async fn shutdown(&self, within: Duration) {
        self.stop.cancel();
        let Some((task, record)) = self.open.lock().take() else { return };
        if timeout(within, task).await.is_err() {
            tracing::debug!("the task that tells load again did not end in time");
        }
        let plane = self.shared.plane.lock().take();
        if let Some(plane) = plane {
            plane.shutdown(within).await;
        }
        record.withdraw().await;
    }
}

impl Shared {
    fn publish(&self, load: &ActiveLoad) {
        if let Some(plane) = self.plane.lock().as_ref() {
            // What is dropped here is told again soon.
            plane.publish(load.encode());
        }
    }
}

async fn again(shared: Arc<Shared>, stop: CancellationToken) {
    let mut ticks = interval(AGAIN);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        let last: Vec<_> = shared.last.lock().values().copied().collect();
        last.iter().for_each(|load| shared.publish(load));
    }
}
