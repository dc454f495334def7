//! Metrics of workers and their event streams, read from the fleet at each scrape.

use std::{fmt, sync::Arc, time::Instant};

use feed::Trust;
use prometheus_client::{
    collector::Collector,
    encoding::DescriptorEncoder,
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

use crate::{
    fleet::{Fleet, Rank, Worker},
    metrics::family,
};

/// Every trust state, so that a dashboard sees the zero of those that are not.
const TRUST_STATES: [Trust; 4] = [Trust::Blind, Trust::Exact, Trust::Recovering, Trust::Degraded];

/// Asked at each scrape.
pub(crate) struct FleetCollector(pub(crate) Arc<Fleet>);

impl fmt::Debug for FleetCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FleetCollector")
    }
}

type Labels = [(&'static str, String); 2];

/// One rank with its labels.
struct Row {
    labels: Labels,
    rank: Arc<Rank>,
}

impl Collector for FleetCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let view = self.0.view();
        let rows: Vec<Row> = view
            .workers
            .iter()
            .filter_map(|worker| Some((worker, worker.serving()?)))
            .flat_map(|(worker, serving)| serving.ranks.iter().map(|rank| row(worker, rank)).collect::<Vec<_>>())
            .collect();
        load(&self.0, &rows, &mut encoder)?;
        streams(&rows, &mut encoder)?;
        trust(&rows, &mut encoder)?;
        ignored(&rows, &mut encoder)?;
        self_checks(&rows, &mut encoder)?;
        workers(&view.workers, &mut encoder)?;
        models(&self.0, &view.workers, &mut encoder)?;
        scheduler(self.0.scheduler.counters(), &mut encoder)
    }
}

fn row(worker: &Worker, rank: &Arc<Rank>) -> Row {
    let labels = [("worker_id", worker.id().to_owned()), ("dp_rank", rank.dp_rank.to_string())];
    Row { labels, rank: rank.clone() }
}

fn load(fleet: &Fleet, rows: &[Row], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let now = Instant::now();
    let loads: Vec<_> = rows.iter().map(|row| (&row.labels, fleet.scheduler.load(now, row.rank.target))).collect();
    type Read = fn(&sched::Load) -> u64;
    let gauges: [(&str, &str, Read); 3] = [
        ("worker_active_prefill_tokens", "Prompt tokens dispatched and not yet prefilled", |load| load.active_prefill_tokens),
        ("worker_active_decode_blocks", "Distinct prompt blocks of running requests", |load| load.active_blocks),
        ("worker_active_requests", "Running sequences", |load| load.active_requests),
    ];
    for (name, help, value) in gauges {
        family(encoder, "dynamo_frontend", name, help, loads.iter().map(|(labels, load)| (*labels, ConstGauge::new(value(load) as i64))))?;
    }
    Ok(())
}

fn streams(rows: &[Row], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    // The stream first: what its counters say has happened is then in the rank's state too.
    let read = |rank: &Rank| {
        let stream = rank.source.as_ref()?.reins().status().stream();
        Some((rank.status()?, stream))
    };
    let heard: Vec<_> = rows.iter().filter_map(|row| read(&row.rank).map(|(rank, stream)| (&row.labels, rank, stream))).collect();
    type Read = fn(&feed::RankStatus, &feed::StreamStatus) -> u64;
    let gauges: [(&str, &str, Read); 4] = [
        ("blocks", "Blocks in the device lane", |rank, _| rank.blocks as u64),
        ("orphans_parked", "Stores waiting for their parent", |rank, _| rank.orphans_parked as u64),
        ("connected", "1 while the event socket is connected", |_, stream| u64::from(stream.connected)),
        ("held_bytes", "Bytes of live messages held during a replay", |_, stream| stream.held_bytes as u64),
    ];
    for (name, help, value) in gauges {
        family(
            encoder,
            "dynamo_router_kv",
            name,
            help,
            heard.iter().map(|(labels, rank, stream)| (*labels, ConstGauge::new(value(rank, stream) as i64))),
        )?;
    }
    let counters: [(&str, &str, Read); 21] = [
        ("messages", "Event batches applied", |_, stream| stream.messages),
        ("stores", "BlockStored events applied", |rank, _| rank.stores),
        ("removals", "BlockRemoved events applied", |rank, _| rank.removals),
        ("clears", "AllBlocksCleared events, and resets that passed through", |rank, _| rank.clears + rank.resets),
        ("gaps", "Stretches of the stream that were missing", |_, stream| stream.gaps),
        ("gaps_replayed", "Gaps a replay filled", |_, stream| stream.replayed),
        ("gaps_rebuilt", "Gaps that ended in a replay from the start", |_, stream| stream.rebuilt),
        ("dumps", "Dumps of everything a publisher holds, taken into the index", |_, stream| stream.dumps),
        ("gaps_degraded", "Gaps that could not be filled", |_, stream| stream.degraded_gaps),
        ("restarts", "Engine restarts seen in the stream", |_, stream| stream.restarts),
        ("duplicates", "Batches that came twice", |_, stream| stream.duplicates),
        ("malformed", "ZMQ messages that were no batch", |_, stream| stream.malformed),
        ("undecodable", "Batches that could not be decoded", |_, stream| stream.undecodable),
        ("event_errors", "Events that could not be decoded", |rank, _| rank.event_errors),
        ("refused", "Stores that contradict themselves or the index", |rank, _| rank.refused),
        ("orphans", "Stores whose parent was unknown when they came", |rank, _| rank.orphans_total),
        ("dropped", "Messages dropped because a queue was full", |_, stream| stream.dropped + stream.held_overflow),
        ("unknown_removals", "Blocks removed that were not held", |rank, _| rank.unknown_removals),
        ("rank_mismatches", "Batches that named a rank outside of the configured ones", |rank, _| rank.rank_mismatches),
        ("replay_requests", "Replays asked for", |_, stream| stream.replay_requests),
        ("replay_failures", "Replays that stayed unanswered, broke off, or brought nothing of use", |_, stream| stream.replay_failures),
    ];
    for (name, help, value) in counters {
        family(
            encoder,
            "dynamo_router_kv",
            name,
            help,
            heard.iter().map(|(labels, rank, stream)| (*labels, ConstCounter::new(value(rank, stream)))),
        )?;
    }
    Ok(())
}

/// Rule 11, by how it came out, and what the sources themselves count.
fn self_checks(rows: &[Row], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let (mut checks, mut dropped, mut malformed) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        let (Some(status), Some(source)) = (row.rank.status(), &row.rank.source) else { continue };
        let accuracy = status.accuracy;
        for (result, count) in [("equal", accuracy.equal), ("over", accuracy.over), ("under", accuracy.under)] {
            let [worker, rank] = row.labels.clone();
            checks.push(([worker, rank, ("result", result.to_owned())], count));
        }
        dropped.push((&row.labels, source.reins().observations_dropped()));
        malformed.push((&row.labels, source.malformed()));
    }
    family(
        encoder,
        "dynamo_router_kv",
        "self_checks",
        "Answers compared with what their worker was known to hold: as known, less (over) or more (under) cached",
        checks.iter().map(|(labels, count)| (labels, ConstCounter::new(*count))),
    )?;
    family(
        encoder,
        "dynamo_router_kv",
        "channel_malformed",
        "Messages on the event plane that were none of their publisher's, or unreadable",
        malformed.iter().map(|(labels, count)| (*labels, ConstCounter::new(*count))),
    )?;
    family(
        encoder,
        "dynamo_router_kv",
        "self_checks_dropped",
        "Answers not compared because the stream's task was too far behind",
        dropped.iter().map(|(labels, count)| (*labels, ConstCounter::new(*count))),
    )
}

fn trust(rows: &[Row], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let mut states = Vec::new();
    for row in rows {
        let Some(status) = row.rank.status() else { continue };
        for state in TRUST_STATES {
            let [worker, rank] = row.labels.clone();
            states.push(([worker, rank, ("trust", state.as_str().to_owned())], i64::from(status.trust == state)));
        }
    }
    family(
        encoder,
        "dynamo_router_kv",
        "trust",
        "1 for the state the rank's index is in",
        states.iter().map(|(labels, is)| (labels, ConstGauge::new(*is))),
    )
}

fn ignored(rows: &[Row], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let mut counts = Vec::new();
    for row in rows {
        let Some(status) = row.rank.status() else { continue };
        for (reason, count) in status.ignored.iter() {
            let [worker, rank] = row.labels.clone();
            counts.push(([worker, rank, ("reason", reason.as_str().to_owned())], count));
        }
    }
    family(
        encoder,
        "dynamo_router_kv",
        "ignored",
        "Events left out on purpose, by reason",
        counts.iter().map(|(labels, count)| (labels, ConstCounter::new(*count))),
    )
}

fn workers(workers: &[Arc<Worker>], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let labels = |worker: &Worker| [("worker_id", worker.id().to_owned()), ("state", worker.state().to_owned())];
    let up: Vec<_> = workers.iter().map(|worker| (labels(worker), i64::from(worker.exclusion().is_none()))).collect();
    family(
        encoder,
        "dynamo_frontend",
        "worker_routable",
        "1 where requests may be sent",
        up.iter().map(|(labels, up)| (labels, ConstGauge::new(*up))),
    )?;
    type Read = fn(&Worker, &engine::health::Status) -> u64;
    let counters: [(&str, &str, Read); 3] = [
        ("prompt_token_mismatches", "Answers whose prompt_tokens differ from the router's count", |worker, _| worker.mismatches().0),
        ("worker_breaker_opened", "Times too many requests in a row failed there", |_, health| health.breaker_opened),
        ("worker_deaths", "Times it was found dead", |_, health| health.deaths),
    ];
    let known: Vec<_> = workers.iter().map(|worker| ([("worker_id", worker.id().to_owned())], worker, worker.pulse().status())).collect();
    for (name, help, value) in counters {
        let rows = known.iter().map(|(labels, worker, health)| (labels, ConstCounter::new(value(worker, health))));
        family(encoder, "dynamo_frontend", name, help, rows)?;
    }
    Ok(())
}

/// Token-level workers' models: who is refused, and the folders that requests are prepared with.
fn models(fleet: &Fleet, workers: &[Arc<Worker>], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let refused = workers.iter().filter_map(|worker| Some((worker, worker.tokens()?.refused()?)));
    let refused: Vec<_> = refused.map(|(worker, _)| [("worker_id", worker.id().to_owned())]).collect();
    family(
        encoder,
        "dynamo_frontend",
        "worker_refused",
        "1 where a worker's model card contradicts that of one that came first: it gets no requests",
        refused.iter().map(|labels| (labels, ConstGauge::new(1))),
    )?;
    const ALONE: [(&str, &str); 0] = [];
    let (loaded, failed, held) = fleet.library.counts();
    let (name, help) = ("model_folders", "Model folders of token-level workers that are loaded or being loaded");
    family(encoder, "dynamo_frontend", name, help, [(&ALONE, ConstGauge::new(held as i64))].into_iter())?;
    for (name, help, count) in [
        ("model_folder_loads", "Model folders of token-level workers that were loaded", loaded),
        ("model_folder_failures", "Attempts to load one that failed", failed),
    ] {
        family(encoder, "dynamo_frontend", name, help, [(&ALONE, ConstCounter::new(count))].into_iter())?;
    }
    Ok(())
}

fn scheduler(counters: sched::Counters, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    const ALONE: [(&str, &str); 0] = [];
    let (blocks, short) = (ConstGauge::new(counters.active_blocks as i64), ConstCounter::new(counters.short_walks));
    let (name, help) = ("active_blocks", "Distinct prompt blocks of running requests, all workers together");
    family(encoder, "dynamo_router", name, help, [(&ALONE, blocks)].into_iter())?;
    let (name, help) = ("short_walks", "Requests too long for all of their blocks to be compared with those of running requests");
    family(encoder, "dynamo_router", name, help, [(&ALONE, short)].into_iter())
}
