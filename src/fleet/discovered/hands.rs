//! What is done about each worker that has a record, or has none any more.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Instant,
};

use tracing::{info, warn};
use wire::discovery::{Endpoint, topic};

use super::{Hands, Peers, breathe};
use crate::fleet::{
    gone::{Fate, Gone},
    records::{Instance, Kind, Records, Wanted},
    worker::Worker,
};

impl Hands {
    /// Makes the fleet what the records say. Whatever that changes, requests see at once, in one snapshot.
    pub(super) async fn make(&mut self, records: &Records) {
        let wanted = records.workers();
        self.refused.retain(|instance, _| wanted.contains_key(instance));
        let gone: Vec<_> = {
            let workers = self.fleet.directory.0.read();
            workers
                .iter()
                .filter(|(instance, _)| !wanted.contains_key(*instance))
                .map(|(instance, worker)| (instance.clone(), worker.clone()))
                .collect()
        };
        let addresses = addresses(&wanted);
        for (at, (instance, worker)) in gone.into_iter().enumerate() {
            self.let_go(instance, &worker, &addresses);
            breathe(at).await;
        }
        for (at, (instance, wanted)) in wanted.into_iter().enumerate() {
            self.keep(instance, &wanted);
            breathe(at).await;
        }
        if std::mem::take(&mut self.changed) {
            self.fleet.publish();
        }
        self.loads.follow(&records.channels(topic::KV_METRICS));
        let peers = self.peers(records);
        self.peers.send_if_modified(|known| {
            let changed = *known != peers;
            *known = peers;
            changed
        });
        self.planes.set_records(records.len());
    }

    fn peers(&self, records: &Records) -> Peers {
        let workers = self.fleet.directory.0.read();
        let endpoints = workers.values().filter_map(|worker| worker.origin.discovered()).map(|discovered| discovered.endpoint.clone());
        let channels = records.channels(topic::ACTIVE_SEQUENCES).into_iter().map(|(publisher, channel)| (publisher, channel.clone()));
        Peers { endpoints: endpoints.collect(), channels: channels.collect() }
    }

    /// Discovery has no record of the worker. What streams tokens is kept for a while, unless another is at its address.
    fn let_go(&mut self, instance: Instance, worker: &Worker, addresses: &BTreeSet<&str>) {
        let Some(tokens) = worker.tokens() else {
            info!(worker = worker.id(), "discovery has no record of the worker any more; it takes no new requests");
            return self.remove(&instance);
        };
        let (now, health) = (Instant::now(), worker.pulse().status());
        let is_replaced = tokens.endpoint().transport.tcp_parts().is_some_and(|(address, _)| addresses.contains(address));
        let gone = self.gone.entry(instance.clone()).or_insert_with(|| {
            let (worker, state) = (worker.id(), health.state.name());
            if self.lost_until.is_some_and(|until| now < until) {
                warn!(worker, state, "discovery was away and has no record of the worker any more; it gets requests as long as it answers");
                Gone::lost(now)
            } else {
                info!(worker, state, "discovery has no record of the worker any more; it takes no new requests");
                tokens.pulse().probe_soon();
                Gone::new(now, &health)
            }
        });
        match gone.fate(now, &health) {
            Fate::Awaited if !tokens.is_gone() => {
                tokens.leave();
                self.changed = true;
            }
            Fate::Serving if tokens.is_gone() && !is_replaced => {
                info!(worker = worker.id(), "the worker answers again, and gets requests although discovery has no record of it");
                tokens.come_back();
                self.changed = true;
            }
            Fate::Awaited | Fate::Serving if !is_replaced => {}
            Fate::Awaited | Fate::Serving | Fate::Over => {
                tokens.leave();
                self.remove(&instance);
            }
        }
    }

    fn keep(&mut self, instance: Instance, wanted: &Wanted<'_>) {
        let known = self.fleet.directory.get(&instance);
        let worker = match known {
            Some(known) if self.can_stay(&known, &wanted.kind) => {
                self.take_back(&instance, &known);
                known
            }
            Some(known) => {
                info!(worker = known.id(), "the worker's record names another engine or another address now; it is added anew");
                self.remove(&instance);
                match self.add(instance, &wanted.kind) {
                    Some(worker) => worker,
                    None => return,
                }
            }
            None => match self.add(instance, &wanted.kind) {
                Some(worker) => worker,
                None => return,
            },
        };
        let Some(discovered) = worker.origin.discovered() else { return };
        self.look_for_others(wanted);
        if discovered.set_publishers(&wanted.publishers) {
            worker.hand_out_sources();
        }
    }

    /// Discovery has a record of the worker, perhaps again.
    fn take_back(&mut self, instance: &Instance, worker: &Worker) {
        if self.gone.remove(instance).is_some()
            && let Some(tokens) = worker.tokens()
        {
            info!(worker = worker.id(), "discovery has a record of the worker again");
            tokens.come_back();
            self.changed = true;
        }
    }

    /// A worker on another host cannot call back to loopback, with its answers or with what was missed; that is said once.
    fn look_for_others(&mut self, wanted: &Wanted<'_>) {
        if self.warned || self.planes.options().response_host.is_some() {
            return;
        }
        let recoveries = wanted.publishers.values().flatten().filter_map(|publisher| publisher.recovery.as_ref());
        let generates = match wanted.kind {
            Kind::Tokens { endpoint, .. } => Some(endpoint),
            Kind::Server(_) => None,
        };
        let elsewhere = |endpoint: &Endpoint| {
            let host = endpoint.transport.tcp_parts()?.0.rsplit_once(':')?.0.trim_matches(['[', ']']);
            let here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
            (!here).then(|| host.to_owned())
        };
        if let Some(host) = generates.into_iter().chain(recoveries).filter_map(elsewhere).next() {
            self.warned = true;
            warn!(
                host,
                "a worker is on another host, which cannot call back to 127.0.0.1 with its answers: set --tcp-response-stream-host (DYN_TCP_RESPONSE_STREAM_HOST) to an address of this host"
            );
        }
    }

    pub(super) fn remove(&mut self, instance: &Instance) {
        self.gone.remove(instance);
        let Some(worker) = self.fleet.directory.0.write().remove(instance) else { return };
        // An operator may have removed it before.
        self.changed |= self.fleet.take_out(worker.id());
    }
}

/// Where the token-level workers are reached that have records.
fn addresses<'a>(wanted: &BTreeMap<Instance, Wanted<'a>>) -> BTreeSet<&'a str> {
    let endpoints = wanted.values().filter_map(|wanted| match wanted.kind {
        Kind::Tokens { endpoint, .. } => endpoint.transport.tcp_parts(),
        Kind::Server(_) => None,
    });
    endpoints.map(|(address, _)| address).collect()
}
