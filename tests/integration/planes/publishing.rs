//! A worker as its sidecar shows it: an engine that can be sent requests, a publisher of what it holds, and their records.
//! What the engine holds is what the test says.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use mocker::Handle;
use transport::{
    discovery::{Options, Registration},
    plane::PlaneKind,
};
use wire::discovery::{EndpointId, OpenAiWorker, Record};
use worker::{KvEventPublisher, KvPublisherOptions, Runtime, RuntimeConfig, StoredCall};

use super::Place;
use crate::support::{
    eventually,
    frontend::Frontend,
    seen,
    simulated::{BLOCK, quick},
};

/// Names blocks of engines apart.
static ENGINES: AtomicU64 = AtomicU64::new(1);

pub(super) struct Publishing {
    /// Stops with the worker.
    _engine: Handle,
    pub(super) runtime: Runtime,
    pub(super) publisher: KvEventPublisher,
    seed: u64,
    _record: Registration,
}

/// A process on the planes of this place.
pub(super) async fn runtime(place: &Place) -> Runtime {
    let nats = place.nats_url();
    let event_plane = if nats.is_some() { PlaneKind::Nats } else { PlaneKind::Zmq };
    let mut config = RuntimeConfig { event_plane, ..RuntimeConfig::local(place.backend()) };
    config.discovery_options = Options { ttl: Some(super::TTL), ..Options::default() };
    config.nats_server = nats.unwrap_or(config.nats_server);
    Runtime::start(config).await.unwrap()
}

impl Publishing {
    /// With a publisher that answers those who missed something.
    pub(super) async fn start(place: &Place) -> Self {
        Self::of(place, true).await
    }

    pub(super) async fn of(place: &Place, enable_local_indexer: bool) -> Self {
        Self::on(runtime(place).await, enable_local_indexer).await
    }

    /// As a process that takes part already.
    pub(super) async fn on(runtime: Runtime, enable_local_indexer: bool) -> Self {
        let engine = quick().await;
        let publisher = publisher(&runtime, enable_local_indexer).await;
        let record = Record::from(OpenAiWorker {
            id: EndpointId::new("dynamo", "backend", "generate"),
            instance_id: runtime.instance_id(),
            url: engine.url(),
            model: "mock-model".to_owned(),
            block_size: Some(BLOCK as u32),
            dp_start: 0,
            dp_size: 1,
            no_events: None,
        });
        let registration = runtime.discovery().register(record.key(), record.to_json());
        registration.held().await.unwrap();
        Self { _engine: engine, runtime, publisher, seed: ENGINES.fetch_add(1, Ordering::Relaxed), _record: registration }
    }

    /// What the frontend calls it.
    pub(super) fn id(&self) -> String {
        self.runtime.instance_id().to_string()
    }

    /// The engine stores the whole blocks of a prompt.
    pub(super) fn store(&self, tokens: &[u32]) {
        store(&self.publisher, self.seed, tokens);
    }

    /// The engine lets go of the blocks of a prompt from this one on.
    pub(super) fn remove(&self, tokens: &[u32], from: usize) {
        self.publisher.publish_removed(&names(self.seed, tokens)[from..]).unwrap();
    }

    /// Another publisher of the same rank, as after an update of the sidecar, which knows of these prompts.
    pub(super) async fn update(&mut self, prompts: &[&[u32]]) -> KvEventPublisher {
        let newer = publisher(&self.runtime, true).await;
        for tokens in prompts {
            store(&newer, self.seed, tokens);
        }
        std::mem::replace(&mut self.publisher, newer)
    }

    /// Waits until the frontend's index of it is what it published, event for event.
    pub(super) async fn equals(&self, frontend: &Frontend) {
        self.publisher.flush().await.unwrap();
        eventually("the index equals what is published", async || {
            let (standing, rank) = (self.publisher.standing(), frontend.rank(&self.id()).await);
            let equal = rank["trust"] == "exact"
                && rank["last_seq"].as_u64().unwrap_or(0) == standing.last_event_id
                && rank["digest"].as_str() == Some(&format!("{:016x}", standing.digest.unwrap()))
                && rank["blocks"].as_u64() == standing.blocks.map(|blocks| blocks as u64);
            seen(equal, (standing, &rank))
        })
        .await;
    }
}

async fn publisher(runtime: &Runtime, enable_local_indexer: bool) -> KvEventPublisher {
    let endpoint = runtime.component("backend").endpoint("generate");
    let options = KvPublisherOptions { enable_local_indexer, ..KvPublisherOptions::new(BLOCK as u32) };
    KvEventPublisher::new(endpoint, options).await.unwrap()
}

fn store(publisher: &KvEventPublisher, seed: u64, tokens: &[u32]) {
    let names = names(seed, tokens);
    let call = StoredCall {
        token_ids: tokens[..names.len() * BLOCK].to_vec(),
        num_block_tokens: vec![BLOCK as u32; names.len()],
        block_hashes: names,
        ..StoredCall::default()
    };
    publisher.publish_stored(call).unwrap();
}

/// The engine's own names of a prompt's whole blocks.
fn names(seed: u64, tokens: &[u32]) -> Vec<u64> {
    let mut name = seed;
    let next = |block: &[u32]| {
        let mut hasher = DefaultHasher::new();
        (name, block).hash(&mut hasher);
        name = hasher.finish();
        name
    };
    tokens.chunks_exact(BLOCK).map(next).collect()
}

/// How long a worker that ends may take to publish the last of it.
pub(super) const END_WITHIN: Duration = Duration::from_secs(5);
