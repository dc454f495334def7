//! `/metrics` under the names real engines use.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

use super::App;
use crate::model::Style;
use crate::rank::RankView;

/// `GET /metrics`.
pub(super) async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page(&app))
}

/// A metric of every rank: name, type, help, value.
type Metric = (&'static str, &'static str, &'static str, fn(&RankView) -> f64);

const VLLM: [Metric; 9] = [
    ("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", |rank| rank.gauges.running as f64),
    ("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", |rank| rank.gauges.waiting as f64),
    ("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", usage),
    ("vllm:prefix_cache_queries_total", "counter", "Prefix cache queries, in tokens.", |rank| rank.totals.prompt_tokens as f64),
    ("vllm:prefix_cache_hits_total", "counter", "Prefix cache hits, in tokens.", |rank| rank.totals.cached_tokens as f64),
    ("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.", |rank| rank.totals.prompt_tokens as f64),
    ("vllm:prompt_tokens_cached_total", "counter", "Number of cached prompt tokens.", |rank| rank.totals.cached_tokens as f64),
    ("vllm:generation_tokens_total", "counter", "Number of generation tokens processed.", |rank| rank.totals.generated_tokens as f64),
    ("vllm:num_preemptions_total", "counter", "Cumulative number of preemptions.", |rank| rank.totals.preemptions as f64),
];

const SGLANG: [Metric; 6] = [
    ("sglang:num_running_reqs", "gauge", "Number of running requests.", |rank| rank.gauges.running as f64),
    ("sglang:num_queue_reqs", "gauge", "Number of requests in the waiting queue.", |rank| rank.gauges.waiting as f64),
    ("sglang:token_usage", "gauge", "Token usage.", usage),
    ("sglang:prompt_tokens_total", "counter", "Number of prefill tokens processed.", |rank| rank.totals.prompt_tokens as f64),
    ("sglang:cached_tokens_total", "counter", "Number of cached prompt tokens.", |rank| rank.totals.cached_tokens as f64),
    ("sglang:generation_tokens_total", "counter", "Number of generation tokens processed.", |rank| rank.totals.generated_tokens as f64),
];

fn usage(rank: &RankView) -> f64 {
    let gauges = rank.gauges;
    gauges.used_blocks as f64 / (gauges.used_blocks + gauges.free_blocks).max(1) as f64
}

fn page(app: &App) -> String {
    let ranks: Vec<RankView> = app.ranks.iter().map(|rank| rank.view()).collect();
    let model = escaped(&app.config.model);
    let (metrics, rank_label): (&[Metric], _) = match app.config.style() {
        Style::Vllm => (&VLLM, "engine"),
        Style::Sglang => (&SGLANG, "dp_rank"),
    };
    let mut out = String::new();
    let started = app.started.read().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    head(&mut out, "process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.");
    line(&mut out, "process_start_time_seconds", "", started);
    for (name, kind, help, value) in metrics {
        head(&mut out, name, kind, help);
        for (number, rank) in ranks.iter().enumerate() {
            line(&mut out, name, &format!("{{{rank_label}=\"{number}\",model_name=\"{model}\"}}"), value(rank));
        }
    }
    match app.config.style() {
        Style::Vllm => vllm_info(&mut out, app),
        Style::Sglang => {}
    }
    out
}

/// The two metrics of vLLM whose labels are the message.
fn vllm_info(out: &mut String, app: &App) {
    let config = &app.config;
    head(out, "vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
    for rank in 0..app.ranks.len() {
        let labels = format!(
            "{{block_size=\"{}\",enable_prefix_caching=\"True\",engine=\"{rank}\",kv_cache_size_tokens=\"{}\",num_gpu_blocks=\"{}\"}}",
            config.block_size,
            u64::from(config.blocks) * u64::from(config.block_size.get()),
            config.blocks
        );
        line(out, "vllm:cache_config_info", &labels, 1.0);
    }
    let adapters = app.adapters.names();
    if !adapters.is_empty() {
        head(out, "vllm:lora_requests_info", "gauge", "Running stats on lora requests.");
        let labels = format!("{{max_lora=\"{}\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"}}", adapters.len());
        line(out, "vllm:lora_requests_info", &labels, app.started.read().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64());
    }
}

// Writing to a string cannot fail.
fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line(out: &mut String, name: &str, labels: &str, value: f64) {
    let _ = writeln!(out, "{name}{labels} {value:?}");
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
