//! Metrics of the planes, read at each scrape.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
};

use prometheus_client::{
    collector::Collector,
    encoding::DescriptorEncoder,
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

use transport::request::ClientCounters;

use super::Planes;
use crate::metrics::family;

/// Asked at each scrape.
pub(crate) struct PlaneCollector(pub(crate) Arc<Planes>);

impl fmt::Debug for PlaneCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PlaneCollector")
    }
}

/// No label.
const ALONE: [(&str, &str); 0] = [];

impl Collector for PlaneCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let planes = &self.0;
        let discovery = planes.discovery().map(|discovery| ("discovery", discovery.health()));
        let nats = planes.nats().map(|nats| ("nats", nats.health()));
        let stale: Vec<_> = discovery.into_iter().chain(nats).map(|(plane, health)| ([("plane", plane)], !health.is_fresh())).collect();
        let (name, help) = ("plane_stale", "1 while a plane cannot be heard and what it said last is used");
        family(
            &mut encoder,
            "dynamo_frontend",
            name,
            help,
            stale.iter().map(|(labels, stale)| (labels, ConstGauge::new(i64::from(*stale)))),
        )?;
        if let Some(discovery) = planes.discovery() {
            let records = ConstGauge::new(planes.records.load(Ordering::Relaxed) as i64);
            family(&mut encoder, "dynamo_frontend", "discovery_records", "Records that discovery has", [(&ALONE, records)].into_iter())?;
            let counts = discovery.counts();
            for (name, help, count) in [
                ("discovery_losses", "Times the watch of discovery broke", counts.losses),
                ("discovery_unreadable", "Keys or files that are no records", counts.junk),
                ("discovery_left_out", "Records that did not fit the bounds", counts.left_out),
                ("discovery_leases_lost", "Times everything had to be registered again", counts.leases_lost),
            ] {
                family(&mut encoder, "dynamo_frontend", name, help, [(&ALONE, ConstCounter::new(count))].into_iter())?;
            }
        }
        if let Some(nats) = planes.nats() {
            let reconnects = ConstCounter::new(nats.reconnects());
            family(
                &mut encoder,
                "dynamo_frontend",
                "nats_reconnects",
                "Connections to NATS made again after a loss",
                [(&ALONE, reconnects)].into_iter(),
            )?;
        }
        if let Some(requests) = planes.requests() {
            self::requests(requests.counters(), &mut encoder)?;
        }
        let Some(client) = planes.client() else { return Ok(()) };
        let loads = &planes.loads;
        for (name, help, count) in [
            ("plane_unknown_publishers", "Messages of publishers that nobody follows", client.subscriptions.unknown_publishers()),
            ("plane_malformed", "Messages on shared subjects that were no envelopes", client.subscriptions.malformed()),
            ("load_messages", "Loads that workers told of", loads.received.load(Ordering::Relaxed)),
            ("load_unreadable", "Loads that could not be read", loads.unreadable.load(Ordering::Relaxed)),
        ] {
            family(&mut encoder, "dynamo_frontend", name, help, [(&ALONE, ConstCounter::new(count))].into_iter())?;
        }
        Ok(())
    }
}

/// Requests and questions for missed events share one client.
fn requests(calls: ClientCounters, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    for (name, help, count) in [
        ("plane_calls", "Requests to token-level workers, and questions to publishers for events that were missed", calls.calls),
        ("plane_calls_failed", "The same, without any answer", calls.failed),
        ("plane_strangers", "Connections to the port for answers that named no call", calls.strangers),
    ] {
        family(encoder, "dynamo_frontend", name, help, [(&ALONE, ConstCounter::new(count))].into_iter())?;
    }
    for (name, help, count) in [
        ("plane_calls_running", "Calls whose answers are awaited or read", calls.running),
        ("plane_connections", "Connections to workers", calls.connections),
    ] {
        family(encoder, "dynamo_frontend", name, help, [(&ALONE, ConstGauge::new(count as i64))].into_iter())?;
    }
    Ok(())
}
