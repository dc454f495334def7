//! Metrics of what frontends tell each other, read at each scrape.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
};

use prometheus_client::{
    collector::Collector,
    encoding::DescriptorEncoder,
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

use super::Replicas;
use crate::metrics::family;

/// Asked at each scrape.
pub(crate) struct ReplicaCollector(pub(crate) Arc<Replicas>);

impl fmt::Debug for ReplicaCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplicaCollector")
    }
}

/// No label.
const ALONE: [(&str, &str); 0] = [];

impl Collector for ReplicaCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (replicas, heard) = (&self.0, &self.0.heard.counters);
        let booked = ConstGauge::new(replicas.heard.len() as i64);
        let help = "Requests of other frontends that are booked here";
        family(&mut encoder, "dynamo_router_replica", "requests", help, [(&ALONE, booked)].into_iter())?;
        for (name, help, count) in [
            ("events_applied", "What other frontends told of requests and was booked", heard.applied.load(Ordering::Relaxed)),
            (
                "events_dropped",
                "The same, of workers or requests not known here, too many at once, or with too long an id",
                heard.dropped.load(Ordering::Relaxed),
            ),
            ("events_unreadable", "Messages of other frontends that could not be read", heard.unreadable.load(Ordering::Relaxed)),
            (
                "events_not_told",
                "Events of requests of this frontend that too many others waited before, or that could not be published",
                replicas.dropped(),
            ),
        ] {
            family(&mut encoder, "dynamo_router_replica", name, help, [(&ALONE, ConstCounter::new(count))].into_iter())?;
        }
        Ok(())
    }
}
