//! Several frontends before one fleet tell each other what they have in flight, so that each books the others' load too
//! (`--router-replica-sync`; topic `active_sequences_events`, as Dynamo 1.6.1). The index needs none of it: every frontend
//! reads the workers' own events.
//!
//! Best effort in both directions: a request never waits for it, what does not fit is dropped and counted.

mod booked;
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

use sched::{Prompt, Ticket};
use tokio::sync::{mpsc, watch};
use wire::{
    discovery::EndpointId,
    load::{ActiveSequenceEvent, AddRequest, PrefillHint, SequenceData},
};

pub(crate) use metrics::ReplicaCollector;

use crate::{
    fleet::{Fleet, Member, Peers},
    planes::{Planes, listeners::Listeners},
};
use heard::{Heard, Own};
use told::{Tell, Teller};

/// Events that wait to be published; of more the newest are dropped.
const MOST_WAITING: usize = 100_000;
/// How often requests that were forgotten are looked for.
const EXPIRY_EVERY: Duration = Duration::from_secs(30);

/// Both directions.
pub(crate) struct Replicas {
    router_id: u64,
    orders: mpsc::Sender<Tell>,
    dropped: Arc<AtomicU64>,
    heard: Arc<Heard>,
}

impl Replicas {
    /// Begins to tell and to hear, as `peers` says whom; `None`: it is off, or there is nobody to tell.
    pub(crate) fn start(fleet: &Arc<Fleet>, planes: &Arc<Planes>, peers: watch::Receiver<Peers>) -> Option<Arc<Self>> {
        let discovery = planes.discovery().filter(|_| fleet.config.replica_sync)?;
        let router_id = discovery.instance_id();
        let (orders, ordered) = mpsc::channel(MOST_WAITING);
        let heard = Arc::new(Heard::new(router_id, fleet.directory.clone(), fleet.scheduler.clone()));
        let (own, dropped) = (Own::default(), Arc::<AtomicU64>::default());
        let on = planes.clone();
        let teller = Teller::new(move || on.own_socket(), discovery.clone(), own.clone(), dropped.clone());
        fleet.spawn_on_events(teller.run(peers.clone(), ordered));
        fleet.spawn_on_events(hear(Listeners::new(planes.clone(), heard.clone()), own, peers));
        fleet.spawn_on_events(expire(heard.clone()));
        Some(Arc::new(Self { router_id, orders, dropped, heard }))
    }

    /// Events dropped because too many waited, or because they could not be published.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// A request was booked; `None` for a worker that others cannot know by the same number.
    pub(crate) fn booked(&self, prompts: &[Prompt], member: &Member, ticket: &Ticket) -> Option<Announced> {
        let discovered = member.worker.origin.discovered()?;
        let costed = ticket.costed();
        let chains = prompts.iter().filter_map(|prompt| prompt.chains.iter().find(|chain| chain.block_size == costed.block_size));
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
    orders: mpsc::Sender<Tell>,
    dropped: Arc<AtomicU64>,
}

impl Announced {
    /// The prefill is over.
    pub(crate) fn first_event(&self) {
        self.tell(SequenceData::MarkPrefillCompleted);
    }

    fn tell(&self, data: SequenceData) {
        let event = ActiveSequenceEvent { data, ..self.event.clone() };
        if self.orders.try_send((self.endpoint.clone(), event)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        self.tell(SequenceData::Free);
    }
}

/// Follows the channels of others.
async fn hear(mut listeners: Listeners<Heard>, own: Own, mut peers: watch::Receiver<Peers>) {
    loop {
        let channels = peers.borrow_and_update().channels.clone();
        listeners.follow(&channels.iter().filter(|(publisher, _)| !own.holds(**publisher)).map(|(id, channel)| (*id, channel)).collect());
        if peers.changed().await.is_err() {
            return;
        }
    }
}

async fn expire(heard: Arc<Heard>) {
    loop {
        tokio::time::sleep(EXPIRY_EVERY).await;
        heard.expire(Instant::now());
    }
}
