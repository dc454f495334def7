//! Metric names and labels; the only place that knows them.
//!
//! Names are Dynamo's (`dynamo_frontend_*`) where the meaning is the same. What belongs to workers and their event
//! streams is read from the fleet when a scrape comes ([`crate::fleet_metrics`]), so that it cannot go stale or leak.

use std::{fmt, sync::Arc, time::Duration};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

/// Labels of a request: all values are from closed sets or are names of served models.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    pub(crate) model: Arc<str>,
    pub(crate) endpoint: Surface,
    pub(crate) request_type: Shape,
    pub(crate) status: Outcome,
}

/// The model alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ModelLabel {
    pub(crate) model: Arc<str>,
}

/// The model, and what part of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct PhaseLabel {
    pub(crate) model: Arc<str>,
    pub(crate) phase: &'static str,
}

/// The reason of something counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ReasonLabel {
    pub(crate) reason: &'static str,
}

/// The endpoint of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "the variants are the label values")]
pub(crate) enum Surface {
    completions,
    chat_completions,
}

/// Streaming or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "the variants are the label values")]
pub(crate) enum Shape {
    unary,
    stream,
}

/// How a request ended for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "the variants are the label values")]
pub(crate) enum Outcome {
    success,
    client_error,
    error,
    broken,
    client_left,
}

/// Where the tokens of a prompt came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TokenSource {
    /// The request had ids.
    Ids,
    /// A model folder.
    Folder,
    /// An engine's `/tokenize`.
    Engine,
    /// Nothing could tell: the request was routed by load.
    None,
}

impl fmt::Display for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl TokenSource {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ids => "ids",
            Self::Folder => "folder",
            Self::Engine => "engine",
            Self::None => "none",
        }
    }
}

/// Label of [`Metrics::prompts`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct SourceLabel {
    pub(crate) source: &'static str,
}

/// Every metric that requests move.
pub(crate) struct Metrics {
    registry: parking_lot::Mutex<Registry>,
    pub(crate) requests: Family<RequestLabels, Counter>,
    pub(crate) inflight: Family<ModelLabel, Gauge>,
    pub(crate) client_left: Counter,
    pub(crate) implausible_usage: Counter,
    pub(crate) bodies_refused: Counter,
    pub(crate) retries: Family<ReasonLabel, Counter>,
    pub(crate) migrations: Family<ReasonLabel, Counter>,
    pub(crate) legs: Family<PhaseLabel, Counter>,
    pub(crate) prompts: Family<SourceLabel, Counter>,
    pub(crate) untokenized: Family<ReasonLabel, Counter>,
    pub(crate) duration: Family<ModelLabel, Histogram>,
    pub(crate) first_event: Family<ModelLabel, Histogram>,
    pub(crate) tokenize: Histogram,
    pub(crate) routing: Histogram,
    pub(crate) input_tokens: Family<ModelLabel, Counter>,
    pub(crate) output_tokens: Family<ModelLabel, Counter>,
    pub(crate) cached_tokens: Family<ModelLabel, Counter>,
    pub(crate) predicted_tokens: Family<ModelLabel, Counter>,
}

/// Bounds of histograms in seconds, from a tenth of a millisecond to ten minutes.
fn seconds() -> Histogram {
    Histogram::new([
        0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0,
    ])
}

impl Metrics {
    pub(crate) fn new() -> Arc<Self> {
        let metrics = Self {
            registry: parking_lot::Mutex::new(Registry::default()),
            requests: Family::default(),
            inflight: Family::default(),
            client_left: Counter::default(),
            implausible_usage: Counter::default(),
            bodies_refused: Counter::default(),
            retries: Family::default(),
            migrations: Family::default(),
            legs: Family::default(),
            prompts: Family::default(),
            untokenized: Family::default(),
            duration: Family::new_with_constructor(seconds),
            first_event: Family::new_with_constructor(seconds),
            tokenize: seconds(),
            routing: seconds(),
            input_tokens: Family::default(),
            output_tokens: Family::default(),
            cached_tokens: Family::default(),
            predicted_tokens: Family::default(),
        };
        metrics.register();
        Arc::new(metrics)
    }

    fn register(&self) {
        let mut registry = self.registry.lock();
        let frontend = registry.sub_registry_with_prefix("dynamo_frontend");
        frontend.register("requests", "Requests that ended, by how", self.requests.clone());
        frontend.register("inflight_requests", "Requests being answered", self.inflight.clone());
        frontend.register(
            "implausible_usage",
            "Answers whose token counts cannot be; they count for nothing",
            self.implausible_usage.clone(),
        );
        frontend.register(
            "refused_bodies",
            "Request bodies refused because too many bytes of bodies were held",
            self.bodies_refused.clone(),
        );
        frontend.register("disconnected_clients", "Clients that left before their answer ended", self.client_left.clone());
        frontend.register("retries", "Requests sent to another worker before their first byte, by reason", self.retries.clone());
        frontend.register(
            "migrations",
            "Answers of token-level workers that went on at another worker after their first token, by reason",
            self.migrations.clone(),
        );
        frontend.register(
            "legs",
            "Requests sent to token-level workers, by what part of a request they do; each choice of each prompt is one",
            self.legs.clone(),
        );
        frontend.register("prompts", "Prompts by where their tokens came from (kv mode)", self.prompts.clone());
        frontend.register(
            "untokenized_requests",
            "Requests routed by load for want of tokens, by reason (kv mode)",
            self.untokenized.clone(),
        );
        let unit = || Unit::Seconds;
        frontend.register_with_unit("request_duration", "From the request to the end of its answer", unit(), self.duration.clone());
        frontend.register_with_unit(
            "time_to_first_token",
            "From the request to the first event of its answer",
            unit(),
            self.first_event.clone(),
        );
        frontend.register_with_unit("tokenize", "From a parsed body to token ids", unit(), self.tokenize.clone());
        frontend.register_with_unit("routing", "From token ids to a chosen worker", unit(), self.routing.clone());
        frontend.register("input_tokens", "Prompt tokens, where known", self.input_tokens.clone());
        frontend.register("output_tokens", "Completion tokens, as engines report them", self.output_tokens.clone());
        frontend.register("cached_tokens", "Prompt tokens that engines report as cached", self.cached_tokens.clone());
        frontend.register("predicted_cached_tokens", "The same, as the router expected for those requests", self.predicted_tokens.clone());
    }

    /// Adds a collector that is asked at every scrape.
    pub(crate) fn collect_from(&self, collector: Box<dyn Collector>) {
        self.registry.lock().register_collector(collector);
    }

    /// The page of `/metrics`.
    pub(crate) fn page(&self) -> Result<String, fmt::Error> {
        let mut page = String::new();
        encode(&mut page, &self.registry.lock())?;
        Ok(page)
    }

    /// Counts the prompts of a request by the source of their tokens and the time that took.
    pub(crate) fn tokenized(&self, source: TokenSource, prompts: usize, took: Duration) {
        self.prompts.get_or_create(&SourceLabel { source: source.name() }).inc_by(prompts as u64);
        self.tokenize.observe(took.as_secs_f64());
    }

    /// Counts a request that has no tokens, by the reason.
    pub(crate) fn untokenized(&self, reason: &'static str) {
        self.untokenized.get_or_create(&ReasonLabel { reason }).inc();
    }
}

/// One metric with a row for each set of labels, written at a scrape.
pub(crate) fn family<'a, L: EncodeLabelSet + 'a, M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    prefix: &'static str,
    name: &str,
    help: &str,
    rows: impl Iterator<Item = (&'a L, M)>,
) -> fmt::Result {
    let mut rows = rows.peekable();
    let Some((_, first)) = rows.peek() else { return Ok(()) };
    let name = format!("{prefix}_{name}");
    let mut metric = encoder.encode_descriptor(&name, help, None::<&Unit>, first.metric_type())?;
    for (labels, value) in rows {
        value.encode(metric.encode_family(labels)?)?;
    }
    Ok(())
}
