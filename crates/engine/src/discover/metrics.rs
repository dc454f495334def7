//! `/metrics`: what vLLM's Prometheus page says about its cache and its load.

use std::collections::BTreeMap;

/// What was found on the page; names it does not have leave their values empty.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Metrics {
    /// Tokens in a block.
    pub block_size: Option<u32>,
    /// Blocks on the device, for each rank.
    pub num_gpu_blocks: Option<u64>,
    /// Seconds since 1970 at which the process started: another value is another life, with an empty cache.
    pub process_start_seconds: Option<f64>,
    /// Load by data-parallel rank.
    pub ranks: BTreeMap<u32, RankLoad>,
}

/// The load of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RankLoad {
    /// Requests in its batch.
    pub running: Option<f64>,
    /// Requests before it.
    pub waiting: Option<f64>,
    /// Part of its blocks in use, 0 to 1.
    pub kv_usage: Option<f64>,
}

/// Ranks beyond this are not kept: labels are the worker's to choose.
const MAX_RANKS: usize = 1024;

pub(super) fn read(page: &str) -> Metrics {
    let mut metrics = Metrics::default();
    for sample in page.lines().filter_map(sample) {
        match sample.name {
            "vllm:cache_config_info" => {
                let number = |name| sample.label(name).and_then(|value| value.parse().ok());
                metrics.block_size = metrics.block_size.or(number("block_size").and_then(|size| u32::try_from(size).ok()));
                metrics.num_gpu_blocks = metrics.num_gpu_blocks.or(number("num_gpu_blocks"));
            }
            "process_start_time_seconds" => metrics.process_start_seconds = Some(sample.value),
            "vllm:num_requests_running" => metrics.set(&sample, |load| &mut load.running),
            "vllm:num_requests_waiting" => metrics.set(&sample, |load| &mut load.waiting),
            // The second name is that of releases before 0.10.
            "vllm:kv_cache_usage_perc" | "vllm:gpu_cache_usage_perc" => metrics.set(&sample, |load| &mut load.kv_usage),
            _ => {}
        }
    }
    metrics.block_size = metrics.block_size.filter(|size| *size > 0);
    metrics
}

impl Metrics {
    /// Adds a sample to its rank; one rank may serve several models.
    fn set(&mut self, sample: &Sample<'_>, field: impl Fn(&mut RankLoad) -> &mut Option<f64>) {
        let rank = sample.label("engine").and_then(|rank| rank.parse().ok()).unwrap_or(0);
        if self.ranks.len() < MAX_RANKS || self.ranks.contains_key(&rank) {
            let value = field(self.ranks.entry(rank).or_default());
            *value = Some(value.unwrap_or(0.0) + sample.value);
        }
    }
}

/// One line of the page.
struct Sample<'a> {
    name: &'a str,
    labels: &'a str,
    value: f64,
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let line = line.trim();
    if line.starts_with('#') {
        return None;
    }
    let name_end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at(name_end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => {
            let end = labels_end(rest)?;
            (&rest[..end], &rest[end + 1..])
        }
        None => ("", rest),
    };
    let value = rest.split_ascii_whitespace().next()?.parse().ok().filter(|value: &f64| value.is_finite())?;
    Some(Sample { name, labels, value })
}

/// Where the closing brace stands; braces within quotes do not count.
fn labels_end(labels: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in labels.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            b'}' if !quoted => return Some(at),
            _ => {}
        }
    }
    None
}

impl<'a> Sample<'a> {
    /// A label's value as it is written; those read here have no escapes.
    fn label(&self, name: &str) -> Option<&'a str> {
        let mut rest = self.labels;
        while let Some((found, after)) = rest.split_once("=\"") {
            let mut escaped = false;
            let end = after.bytes().position(|byte| {
                let ends = byte == b'"' && !escaped;
                escaped = byte == b'\\' && !escaped;
                ends
            })?;
            if found.trim_start_matches([',', ' ']) == name {
                return Some(&after[..end]);
            }
            rest = &after[end + 1..];
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_page_gives_blocks_and_load() {
        let metrics = read(include_str!("../../tests/data/metrics.txt"));
        assert_eq!((metrics.block_size, metrics.num_gpu_blocks), (Some(32), Some(100)));
        assert_eq!(metrics.process_start_seconds, Some(1.796_047_019_06e9));
        let load = RankLoad { running: Some(0.0), waiting: Some(0.0), kv_usage: Some(0.0) };
        assert_eq!(metrics.ranks, BTreeMap::from([(0, load)]));
    }

    #[test]
    fn labels_may_hold_anything_and_ranks_are_apart() {
        let page = "vllm:num_requests_running{model_name=\"a\\\"},engine=\\\"7\",engine=\"1\"} 3 1700000000\n\
                    vllm:num_requests_running{engine=\"0\",model_name=\"x\"} 2\n\
                    vllm:num_requests_running{engine=\"0\",model_name=\"y\"} 4.0\n\
                    vllm:num_requests_running_total 9\n";
        let running: Vec<_> = read(page).ranks.iter().map(|(rank, load)| (*rank, load.running)).collect();
        assert_eq!(running, [(0, Some(6.0)), (1, Some(3.0))]);
    }

    #[test]
    fn what_is_not_there_stays_empty() {
        for page in
            ["", "# only comments", "vllm:cache_config_info{block_size=\"None\"} 1.0", "name{open=\"", "vllm:num_requests_running NaN"]
        {
            assert_eq!(read(page), Metrics::default(), "{page}");
        }
    }

    #[test]
    fn any_page_is_read_without_a_panic() {
        bolero::check!().with_type::<String>().for_each(|page| {
            read(page);
            read(&format!("vllm:num_requests_running{{{page}"));
        });
    }
}
