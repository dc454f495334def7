//! Several frontends before one fleet tell each other what they have in flight, so that each books the others' load too
//! (`--router-replica-sync`; topic `active_sequences_events`, as Dynamo 1.6.1). The index needs none of it: every frontend
//! reads the workers' own events.
//!
//! Best effort in both directions: a request never waits for it, what does not fit is dropped and counted.

mod heard;
mod metrics;
mod told;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::mpsc;
use wire::{
    discovery::EndpointId,
    load::{ActiveSequenceEvent, AddRequest, PrefillHint, SequenceData},
};

pub(crate) use heard::Heard;
pub(crate) use metrics::ReplicaCollector;

use crate::{
    fleet::{Directory, Fleet, Member},
    planes::Planes,
    walk::Plan,
};
use sched::Ticket;
use told::Order;

/// Events that wait to be published; of more the newest are dropped.
const MOST_WAITING: usize = 100_000;
/// How often requests that were forgotten are looked for.
const EXPIRY_EVERY: Duration = Duration::from_secs(30);

/// Both directions.
pub(crate) struct Replicas {
    router_id: u64,
    orders: mpsc::Sender<Order>,
    dropped: Arc<AtomicU64>,
    pub(crate) heard: Arc<Heard>,
}

impl Replicas {
    /// Begins to tell and to hear; `None`: it is off, or there is nobody to tell.
    pub(crate) fn start(fleet: &Arc<Fleet>, planes: &Arc<Planes>, directory: Directory) -> Option<Arc<Self>> {
        let discovery = planes.discovery().filter(|_| fleet.config.replica_sync)?;
        let router_id = discovery.instance_id();
        let (orders, ordered) = mpsc::channel(MOST_WAITING);
        let heard = Arc::new(Heard::new(router_id, directory, fleet.scheduler.clone()));
        fleet.spawn_on_events(told::run(planes.clone(), discovery.clone(), heard.clone(), ordered));
        fleet.spawn_on_events(expire(heard.clone()));
        Some(Arc::new(Self { router_id, orders, dropped: Arc::default(), heard }))
    }

    /// Workers of this endpoint are there: those who follow them should find us before the first request.
    pub(crate) fn serves(&self, endpoint: &EndpointId) {
        // Where there is no room it is opened with the first event.
        let _ = self.orders.try_send(Order::Open(endpoint.clone()));
    }

    /// Events dropped because too many waited.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// A request was booked; `None` for a worker that others cannot know by the same number.
    pub(crate) fn booked(&self, plan: &Plan, member: &Member, ticket: &Ticket) -> Option<Announced> {
        let discovered = member.worker.origin.discovered()?;
        let costed = ticket.costed();
        let chains = plan.prompts.iter().filter_map(|prompt| prompt.chains.iter().find(|chain| chain.block_size == costed.block_size));
        let add = AddRequest {
            token_sequence: Some(chains.flat_map(|chain| chain.hashes.iter().map(|hash| hash.0)).collect()),
            track_prefill_tokens: true,
            expected_output_tokens: None,
            prefill_load_hint: Some(PrefillHint {
                initial_effective_prefill_tokens: costed.new_prefill_tokens,
                expected_prefill_duration: None,
            }),
        };
        let announced = Announced {
            endpoint: discovered.endpoint.clone(),
            event: ActiveSequenceEvent {
                // Not the client's: two clients may use one.
                request_id: format!("{:032x}", rand::random::<u128>()),
                worker_id: discovered.worker_id,
                dp_rank: member.rank.dp_rank,
                data: SequenceData::Free,
                router_id: self.router_id,
                lora_name: None,
            },
            orders: self.orders.clone(),
            dropped: self.dropped.clone(),
        };
        announced.tell(SequenceData::AddRequest(add));
        Some(announced)
    }
}

/// A request that others have been told of. Dropping it tells that it is over.
pub(crate) struct Announced {
    endpoint: EndpointId,
    /// Told when it is dropped.
    event: ActiveSequenceEvent,
    orders: mpsc::Sender<Order>,
    dropped: Arc<AtomicU64>,
}

impl Announced {
    /// The prefill is over.
    pub(crate) fn first_event(&self) {
        self.tell(SequenceData::MarkPrefillCompleted);
    }

    fn tell(&self, data: SequenceData) {
        let event = ActiveSequenceEvent { data, ..self.event.clone() };
        if self.orders.try_send(Order::Tell(self.endpoint.clone(), event)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        self.tell(SequenceData::Free);
    }
}

async fn expire(heard: Arc<Heard>) {
    loop {
        tokio::time::sleep(EXPIRY_EVERY).await;
        heard.expire(Instant::now());
    }
}
