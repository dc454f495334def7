//! `/metrics`: what the Prometheus page of vLLM or SGLang says about its cache and its life.

use std::collections::BTreeMap;

/// What was found on the page; names it does not have leave their values empty.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Metrics {
    /// Tokens in a block.
    pub block_size: Option<u32>,
    /// Seconds since 1970 at which the process started: another value is another life, with an empty cache.
    pub process_start_seconds: Option<f64>,
    /// How full the cache of each rank is.
    pub cache: BTreeMap<u32, CacheUse>,
}

/// How full the cache of one rank is.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CacheUse {
    /// Blocks there are (vLLM).
    pub blocks: Option<u64>,
    /// The share of them that running requests hold, 0 to 1 (vLLM).
    pub used: Option<f64>,
    /// Tokens that running requests hold (SGLang).
    pub used_tokens: Option<u64>,
}

impl CacheUse {
    /// Blocks of so many tokens that running requests hold, if the page told.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    pub fn used_blocks(&self, block_size: Option<u32>) -> Option<u64> {
        let by_share = || Some((self.used?.clamp(0.0, 1.0) * self.blocks? as f64).round() as u64);
        let by_tokens = || Some(self.used_tokens?.div_ceil(block_size?.max(1).into()));
        by_share().or_else(by_tokens)
    }
}

/// Ranks that are told apart: a bound against mistakes.
const MAX_RANKS: usize = super::MAX_RANKS as usize;

pub(super) fn read(page: &str) -> Metrics {
    let mut metrics = Metrics::default();
    for sample in page.lines().filter_map(sample) {
        match sample.name {
            "vllm:cache_config_info" => {
                metrics.block_size = metrics.block_size.or_else(|| sample.label("block_size")?.parse().ok());
                let blocks = sample.label("num_gpu_blocks").and_then(|blocks| blocks.parse().ok());
                metrics.rank(&sample, |rank| rank.blocks = blocks);
            }
            // The second name is that of vLLM before 0.10.
            "vllm:kv_cache_usage_perc" | "vllm:gpu_cache_usage_perc" => metrics.rank(&sample, |rank| rank.used = Some(sample.value)),
            "sglang:num_used_tokens" => metrics.rank(&sample, |rank| rank.used_tokens = whole(sample.value)),
            "process_start_time_seconds" => metrics.process_start_seconds = Some(sample.value),
            _ => {}
        }
    }
    metrics.block_size = metrics.block_size.filter(|size| *size > 0);
    metrics
}

impl Metrics {
    /// Notes something of the rank a sample is of; samples without one are of rank 0.
    fn rank(&mut self, sample: &Sample<'_>, note: impl FnOnce(&mut CacheUse)) {
        let label = sample.label("engine").or_else(|| sample.label("dp_rank"));
        let Ok(rank) = label.unwrap_or("0").parse() else { return };
        if self.cache.len() < MAX_RANKS || self.cache.contains_key(&rank) {
            note(self.cache.entry(rank).or_default());
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(value: f64) -> Option<u64> {
    (0.0..1e15).contains(&value).then_some(value as u64)
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
    fn a_real_page_gives_block_size_and_start() {
        let metrics = read(include_str!("../../tests/data/metrics.txt"));
        let cache = [(0, CacheUse { blocks: Some(100), used: Some(0.0), used_tokens: None })].into();
        assert_eq!(metrics, Metrics { block_size: Some(32), process_start_seconds: Some(1.796_047_019_06e9), cache });
    }

    #[test]
    fn each_rank_says_how_full_it_is() {
        let page = "vllm:cache_config_info{num_gpu_blocks=\"200\",engine=\"1\"} 1\n\
                    vllm:cache_config_info{num_gpu_blocks=\"None\",engine=\"0\"} 1\n\
                    vllm:kv_cache_usage_perc{engine=\"1\"} 0.25\nvllm:kv_cache_usage_perc{engine=\"x\"} 0.5\n\
                    sglang:num_used_tokens{dp_rank=\"2\"} 33\nsglang:num_used_tokens -1\n";
        let used = read(page).cache.into_iter().map(|(rank, cache)| (rank, cache.used_blocks(Some(16))));
        assert_eq!(used.collect::<Vec<_>>(), [(0, None), (1, Some(50)), (2, Some(3))]);
    }

    #[test]
    fn labels_may_hold_anything_and_names_are_whole() {
        let page = "vllm:cache_config_info{cache_dtype=\"a\\\"},block_size=\\\"7\",block_size=\"64\"} 1 1700000000\n\
                    vllm:cache_config_info_total{block_size=\"9\"} 1\n\
                    process_start_time_seconds_total 9\n";
        let cache = [(0, CacheUse::default())].into();
        assert_eq!(read(page), Metrics { block_size: Some(64), process_start_seconds: None, cache });
    }

    #[test]
    fn what_is_not_there_stays_empty() {
        for page in ["", "# only comments", "name{open=\"", "process_start_time_seconds NaN"] {
            assert_eq!(read(page), Metrics::default(), "{page}");
        }
        assert_eq!(read("vllm:cache_config_info{block_size=\"None\"} 1.0").block_size, None);
    }

    #[test]
    fn any_page_is_read_without_a_panic() {
        bolero::check!().with_type::<String>().for_each(|page| {
            read(page);
            read(&format!("vllm:cache_config_info{{{page}"));
        });
    }
}
