//! The task that publishes what this frontend has in flight: one publisher for each endpoint whose workers it sends requests
//! to, with a record in discovery.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::sync::mpsc;
use tracing::{info, warn};
use transport::{
    discovery::{Discovery, Registration},
    plane::{PlanePublisher, PlaneSocket, PublisherOptions},
};
use wire::{
    discovery::{ChannelTransport, EndpointId, Record, topic},
    load::{ActiveSequenceEvent, encode_sequences},
};

use super::Heard;
use crate::planes::Planes;

/// Events of one message over ZMQ, at most.
const BATCH: usize = 256;
/// How long the first of a batch may wait for more.
const BATCH_WITHIN: Duration = Duration::from_millis(1);
/// Pause before a publisher that could not be opened is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What the task is asked to do.
pub(super) enum Order {
    /// Be found for this endpoint.
    Open(EndpointId),
    /// Publish this.
    Tell(EndpointId, ActiveSequenceEvent),
}

struct Publisher {
    publisher: PlanePublisher,
    _registration: Registration,
}

/// Publishes until it is dropped.
pub(super) async fn run(planes: Arc<Planes>, discovery: Discovery, heard: Arc<Heard>, mut orders: mpsc::Receiver<Order>) {
    let mut publishers: HashMap<EndpointId, Publisher> = HashMap::new();
    let mut batch = Vec::new();
    while let Some(order) = orders.recv().await {
        batch.push(order);
        tokio::time::sleep(BATCH_WITHIN).await;
        while batch.len() < BATCH
            && let Ok(order) = orders.try_recv()
        {
            batch.push(order);
        }
        let mut events: HashMap<EndpointId, Vec<ActiveSequenceEvent>> = HashMap::new();
        for order in batch.drain(..) {
            match order {
                Order::Open(endpoint) => drop(events.entry(endpoint).or_default()),
                Order::Tell(endpoint, event) => events.entry(endpoint).or_default().push(event),
            }
        }
        for (endpoint, events) in events {
            if !publishers.contains_key(&endpoint) {
                match open(&planes, &discovery, &heard, &endpoint).await {
                    Ok(publisher) => drop(publishers.insert(endpoint.clone(), publisher)),
                    Err(reason) => {
                        warn!(%endpoint, reason, "other frontends cannot be told of requests (--event-plane-host)");
                        tokio::time::sleep(RETRY_AFTER).await;
                    }
                }
            }
            if let Some(publisher) = publishers.get(&endpoint) {
                publisher.publish(&events);
            }
        }
    }
}

async fn open(planes: &Planes, discovery: &Discovery, heard: &Heard, endpoint: &EndpointId) -> Result<Publisher, String> {
    // 53 bits, as other publishers' ids.
    let publisher_id = (rand::random::<u64>() >> 11).max(1);
    let socket: PlaneSocket = planes.own_socket();
    let opened = PlanePublisher::open(socket, endpoint.scope(), topic::ACTIVE_SEQUENCES, publisher_id, PublisherOptions::default()).await;
    let publisher = opened.map_err(|error| error.to_string())?;
    heard.add_own(publisher_id);
    let record = Record::from(publisher.channel().clone());
    let registration = discovery.register(record.key(), record.to_json());
    info!(%endpoint, channel = ?publisher.channel().transport, "other frontends are told of requests");
    Ok(Publisher { publisher, _registration: registration })
}

impl Publisher {
    /// Several in one message over ZMQ, one in each over NATS, as 1.6.1 does.
    fn publish(&self, events: &[ActiveSequenceEvent]) {
        if events.is_empty() {
            return;
        }
        match self.publisher.channel().transport {
            ChannelTransport::Nats { .. } => {
                for event in events {
                    self.publisher.publish(event.encode());
                }
            }
            ChannelTransport::Zmq { .. } | ChannelTransport::ZmqBroker { .. } => {
                self.publisher.publish(encode_sequences(events));
            }
        }
    }
}
