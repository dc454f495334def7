//! `/metrics`: what vLLM's Prometheus page says about its cache and its life.

/// What was found on the page; names it does not have leave their values empty.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Metrics {
    /// Tokens in a block.
    pub block_size: Option<u32>,
    /// Seconds since 1970 at which the process started: another value is another life, with an empty cache.
    pub process_start_seconds: Option<f64>,
}

pub(super) fn read(page: &str) -> Metrics {
    let mut metrics = Metrics::default();
    for sample in page.lines().filter_map(sample) {
        match sample.name {
            "vllm:cache_config_info" => {
                metrics.block_size = metrics.block_size.or_else(|| sample.label("block_size")?.parse().ok());
            }
            "process_start_time_seconds" => metrics.process_start_seconds = Some(sample.value),
            _ => {}
        }
    }
    metrics.block_size = metrics.block_size.filter(|size| *size > 0);
    metrics
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
        assert_eq!(metrics, Metrics { block_size: Some(32), process_start_seconds: Some(1.796_047_019_06e9) });
    }

    #[test]
    fn labels_may_hold_anything_and_names_are_whole() {
        let page = "vllm:cache_config_info{cache_dtype=\"a\\\"},block_size=\\\"7\",block_size=\"64\"} 1 1700000000\n\
                    vllm:cache_config_info_total{block_size=\"9\"} 1\n\
                    process_start_time_seconds_total 9\n";
        assert_eq!(read(page), Metrics { block_size: Some(64), process_start_seconds: None });
    }

    #[test]
    fn what_is_not_there_stays_empty() {
        for page in
            ["", "# only comments", "vllm:cache_config_info{block_size=\"None\"} 1.0", "name{open=\"", "process_start_time_seconds NaN"]
        {
            assert_eq!(read(page), Metrics::default(), "{page}");
        }
    }

    #[test]
    fn any_page_is_read_without_a_panic() {
        bolero::check!().with_type::<String>().for_each(|page| {
            read(page);
            read(&format!("vllm:cache_config_info{{{page}"));
        });
    }
}
