//! An engine on record: its publishers, its relays, its load and its record, made together and withdrawn together.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::Context;
use engine::discover::Metrics;
use feed::RankRange;
use futures_util::future::{join_all, join3};
use transport::discovery::Registration;
use wire::discovery::{OpenAiWorker, Record};
use worker::{KvEventPublisher, KvPublisherOptions, Load, LoadPublisher, Relay, RelaySource, Runtime};

use crate::{
    flags::Settings,
    identity::{Identity, Socket},
    losses::Counts,
    sidecar::LEAVE,
};

/// What is on the planes for a living engine.
pub(crate) struct Service {
    identity: Identity,
    record: Registration,
    relays: Vec<Relay>,
    publishers: BTreeMap<u32, Arc<KvEventPublisher>>,
    load: LoadPublisher,
}

impl Service {
    /// Puts an engine on record. Its publishers come first: whoever sees the record may look for them.
    pub(crate) async fn begin(settings: &Settings, runtime: &Runtime, identity: Identity) -> anyhow::Result<Self> {
        let id = &settings.id;
        let endpoint = runtime.namespace(&id.namespace).component(&id.component).endpoint(&id.endpoint);
        let load = LoadPublisher::new(&endpoint, None).await.context("cannot publish load")?;
        let mut publishers = BTreeMap::new();
        let sockets = identity.events.as_deref().unwrap_or_default();
        if let (Some(block_size), false) = (identity.block_size, sockets.is_empty()) {
            for rank in identity.dp_start..identity.dp_start + identity.dp_size {
                let options = KvPublisherOptions { dp_rank: rank, enable_local_indexer: true, ..KvPublisherOptions::new(block_size.get()) };
                let publisher =
                    KvEventPublisher::new(&endpoint, options).await.with_context(|| format!("cannot publish events of rank {rank}"))?;
                publishers.insert(rank, Arc::new(publisher));
            }
        }
        let relays = sockets.iter().filter_map(|socket| relay(settings, &identity, socket, &publishers)).collect();
        let record = Record::from(OpenAiWorker {
            id: id.clone(),
            instance_id: runtime.instance_id(),
            url: settings.advertised.clone(),
            model: identity.model.clone(),
            block_size: identity.block_size.map(index::BlockSize::get),
            dp_start: identity.dp_start,
            dp_size: identity.dp_size,
            no_events: identity.events.as_ref().err().cloned(),
        });
        let record = runtime.discovery().register(record.key(), record.to_json());
        let Identity { model, dp_size, events, .. } = &identity;
        let url = &settings.advertised;
        match events {
            Ok(sockets) => tracing::info!(model, ranks = dp_size, sockets = sockets.len(), url, "registered, events are relayed"),
            Err(reason) => tracing::warn!(model, ranks = dp_size, reason, url, "registered, and no events are relayed"),
        }
        Ok(Self { identity, record, relays, publishers, load })
    }

    /// What the engine was when it was put on record.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Tells what the engine's page says of its load.
    pub(crate) fn tell_load(&self, metrics: &Metrics) {
        let block_size = self.identity.block_size.map(index::BlockSize::get);
        let Identity { dp_start, dp_size, .. } = self.identity;
        for (rank, cache) in &metrics.cache {
            // An engine whose ranks start elsewhere counts its own from 0.
            let position = rank.checked_sub(dp_start).unwrap_or(*rank);
            if position < dp_size {
                let load = Load { kv_used_blocks: cache.used_blocks(block_size), ..Load::default() };
                self.load.update(dp_start + position, load);
            }
        }
    }

    /// What it could not publish or pass on, by rank.
    pub(crate) fn losses(&self) -> Counts {
        let publishers = self.publishers.iter().flat_map(|(rank, publisher)| {
            let counters = publisher.counters();
            let losses = [
                ("dropped_messages", counters.dropped_messages),
                ("dropped_stores", counters.dropped_stores),
                ("dropped_removals", counters.dropped_removals),
                ("refused_stores", counters.refused),
                ("dropped_orphans", counters.orphans_dropped),
                ("skipped_ids", counters.missed),
            ];
            losses.map(|(name, count)| (format!("rank {rank} {name}"), count))
        });
        let relays = self.relays.iter().map(Relay::counters).enumerate().flat_map(|(socket, counters)| {
            let losses = [("refused", counters.refused), ("dropped", counters.dropped)];
            losses.map(|(name, count)| (format!("relay {socket} {name}"), count))
        });
        publishers.chain(relays).collect()
    }

    /// Takes it off the record: at once for those who route, and meanwhile what it published. A discovery that is away is waited for
    /// once and not for each record.
    pub(crate) async fn end(self) {
        let Self { record, relays, publishers, load, identity: _ } = self;
        let published = async {
            join_all(relays.iter().map(Relay::stop)).await;
            join_all(publishers.values().map(|publisher| publisher.shutdown(LEAVE))).await;
        };
        join3(record.withdraw(), published, load.shutdown(LEAVE)).await;
    }
}

fn relay(settings: &Settings, identity: &Identity, socket: &Socket, publishers: &BTreeMap<u32, Arc<KvEventPublisher>>) -> Option<Relay> {
    let all = RankRange { start: identity.dp_start, size: identity.dp_size };
    let (ranks, socket_rank) = match socket.rank {
        Some(rank) => (RankRange { start: rank, size: 1 }, rank),
        None => (all, identity.dp_start),
    };
    let label = format!("{} rank {socket_rank}", settings.url);
    let source = RelaySource {
        replay: socket.replay.clone(),
        topic: socket.topic.clone(),
        ranks,
        adapters: settings.adapters.clone(),
        ..RelaySource::new(label, socket.source.clone(), identity.block_size?, socket_rank)
    };
    let of_socket = (ranks.start..ranks.start + ranks.size).filter_map(|rank| Some((rank, publishers.get(&rank)?.clone())));
    Some(Relay::start(source, of_socket.collect()))
}
