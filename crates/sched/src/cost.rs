//! The cost of a target for a request, in tokens, so that engines with different block sizes can be compared.
//!
//! The formula is the default policy of Dynamo 1.6.1, which counts in blocks; multiplied by the block size:
//!
//! ```text
//! decay  = 1                            without tracked prefill, or with a decay rate of 0
//!        = 1 / (1 + rate * ((P - minP) / B) / max(1, prompt blocks))
//! credit = B * (overlap_credit * decay * near + host_weight * host + disk_weight * disk + shared_weight * shared)
//!        = 0                            with an overlap_credit of 0
//! cost   = prefill_scale * max(0, P + prompt tokens - credit) + B * D + active_request_weight * B * R
//!          (without tracked prefill the sum under max is 0 - credit)
//! cost   = max(0, B * D - credit) + active_request_weight * B * R
//!          for label decode, without tracked prefill, with an overlap_credit above 0
//! cost   = B * D + active_request_weight * B * R
//!          for label decode only: the prompt is prefilled elsewhere
//! cost  *= exp(-tanh(preference))       unless the request names its worker
//! ```
//!
//! with P the active prefill tokens of the target, minP the smallest P among the eligible ones, B its block size, R its active
//! requests, D its active blocks plus those of the request not yet active there. `near` are blocks of the device lane and,
//! beyond it, of the confirmed and predicted lanes: all of them are believed to be on the device, so they weigh the same.
//!
//! A lower cost is better. Choosing among costs is the work of `pick`.

use index::{BlockSize, Target};

use crate::ask::{Label, Shape};
use crate::candidate::{Candidate, Exclusion, Overlap};
use crate::config::Config;

/// What a candidate would cost, and the figures behind it. Sums over the prompts of the request.
#[derive(Clone, Debug)]
pub struct Costed {
    /// The worker and rank.
    pub target: Target,
    /// Tokens per block.
    pub block_size: BlockSize,
    /// Blocks of the prompts, unfinished last ones included.
    pub prompt_blocks: u64,
    /// What the target holds.
    pub overlap: Overlap,
    /// Prompt tokens the engine is expected not to compute (rule 3), from all lanes, slower tiers by their weight.
    pub cached_tokens: u64,
    /// The other prompt tokens.
    pub new_prefill_tokens: u64,
    /// Prefill tokens under way at the target, this request's not included.
    pub active_prefill_tokens: u64,
    /// Active blocks of the target once this request runs there, blocks that requests share counted once.
    pub decode_blocks: u64,
    /// Active requests of the target, this one not included.
    pub active_requests: u64,
    /// The cost in tokens; lower is better. Known in every mode, used in mode kv.
    pub cost: f64,
    /// Why the candidate may not be chosen, if so.
    pub excluded: Option<Exclusion>,
}

/// The load of one target as the cost sees it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Burden {
    /// P.
    pub(crate) prefill_tokens: u64,
    /// D: active blocks, and those this request would add.
    pub(crate) decode_blocks: u64,
    /// R.
    pub(crate) active_requests: u64,
}

/// What all candidates of one request have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale<'a> {
    pub(crate) config: &'a Config,
    pub(crate) label: Label,
    pub(crate) prompt_tokens: u64,
    /// minP.
    pub(crate) least_prefill_tokens: u64,
    pub(crate) pinned: bool,
}

/// What all candidates with one block size have in common: weights in tokens for each block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tariff {
    block: f64,
    near: f64,
    host: f64,
    disk: f64,
    shared: f64,
    requests: f64,
    /// The credit for each candidate is full where it is zero; else its decay for each token of P beyond minP.
    decay: f64,
    least_prefill_tokens: u64,
    kind: Kind,
    pinned: bool,
}

/// What the credit is set against.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// The prefill: P and the prompt, times the scale.
    Prefill { scale: f64, prompt_tokens: f64 },
    /// The prefill, which is not tracked and counts as none.
    Untracked { scale: f64 },
    /// The load.
    Load,
}

impl Tariff {
    /// The cost of one candidate, in tokens.
    #[inline]
    pub(crate) fn cost(&self, candidate: &Candidate, burden: &Burden) -> f64 {
        let credit = self.credit(&candidate.overlap, burden);
        let decode = self.block * float(burden.decode_blocks);
        let requests = self.requests * float(burden.active_requests);
        let cost = match self.kind {
            Kind::Prefill { scale, prompt_tokens } => {
                scale * positive(float(burden.prefill_tokens) + prompt_tokens - credit) + decode + requests
            }
            Kind::Untracked { scale } => scale * positive(-credit) + decode + requests,
            Kind::Load => positive(decode - credit) + requests,
        };
        if candidate.preference == 0.0 { cost } else { cost * self.discount(candidate) }
    }

    #[inline]
    fn credit(&self, overlap: &Overlap, burden: &Burden) -> f64 {
        let mut near = self.near * float(overlap.near_blocks());
        if self.decay != 0.0 {
            near /= 1.0 + self.decay * float(burden.prefill_tokens.saturating_sub(self.least_prefill_tokens));
        }
        near + overlap.slower_blocks(self.host, self.disk, self.shared)
    }

    /// The factor of preferred taints. A preference that is not a number says nothing.
    fn discount(&self, candidate: &Candidate) -> f64 {
        if self.pinned || candidate.preference.is_nan() {
            return 1.0;
        }
        (-candidate.preference.tanh()).exp()
    }
}

impl Scale<'_> {
    /// The tariff for one block size.
    pub(crate) fn tariff(&self, block_size: BlockSize, prompt_blocks: u64) -> Tariff {
        let config = self.config;
        let block = f64::from(block_size.get());
        let is_elsewhere = self.label == Label::DecodeOnly;
        let weight = |weight: f64| if config.overlap_credit == 0.0 || is_elsewhere { 0.0 } else { block * weight };
        let is_load = !config.track_prefill && self.label == Label::Decode && config.overlap_credit > 0.0;
        let kind = if is_elsewhere || is_load {
            Kind::Load
        } else if config.track_prefill {
            Kind::Prefill { scale: config.prefill_scale, prompt_tokens: float(self.prompt_tokens) }
        } else {
            Kind::Untracked { scale: config.prefill_scale }
        };
        Tariff {
            block,
            near: weight(config.overlap_credit),
            host: weight(config.host_weight),
            disk: weight(config.disk_weight),
            shared: weight(config.shared_weight),
            requests: config.active_request_weight * block,
            decay: if config.track_prefill { config.overlap_credit_decay / (block * float(prompt_blocks.max(1))) } else { 0.0 },
            least_prefill_tokens: self.least_prefill_tokens,
            kind,
            pinned: self.pinned,
        }
    }

    /// The figures of one candidate.
    pub(crate) fn costed(&self, candidate: &Candidate, shape: &Shape, burden: &Burden) -> Costed {
        let cached_tokens = cached_tokens(self.config, candidate).min(self.prompt_tokens);
        Costed {
            target: candidate.target,
            block_size: candidate.block_size,
            prompt_blocks: shape.prompt_blocks,
            overlap: candidate.overlap,
            cached_tokens,
            new_prefill_tokens: self.prompt_tokens - cached_tokens,
            active_prefill_tokens: burden.prefill_tokens,
            decode_blocks: burden.decode_blocks,
            active_requests: burden.active_requests,
            cost: self.tariff(candidate.block_size, shape.prompt_blocks).cost(candidate, burden),
            excluded: candidate.excluded,
        }
    }
}

/// A count as a float. Counts are far below 2^63, where the conversion of a signed number is one instruction.
#[inline]
fn float(count: u64) -> f64 {
    count as i64 as f64
}

#[inline]
fn positive(value: f64) -> f64 {
    if value > 0.0 { value } else { 0.0 }
}

fn cached_tokens(config: &Config, candidate: &Candidate) -> u64 {
    let blocks = candidate.overlap.usable_blocks(config.host_weight, config.disk_weight);
    (blocks * f64::from(candidate.block_size.get())).round() as u64
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::candidate::Depths;
    use crate::pick;

    fn number(value: &Value, key: &str) -> f64 {
        value[key].as_f64().unwrap_or_else(|| panic!("{key} of {value}"))
    }

    fn count(value: &Value, key: &str) -> u64 {
        value[key].as_u64().unwrap_or_else(|| panic!("{key} of {value}"))
    }

    fn config(case: &Value) -> Config {
        let config = &case["config"];
        Config {
            overlap_credit: number(config, "overlap_score_credit"),
            overlap_credit_decay: number(config, "overlap_score_credit_decay"),
            prefill_scale: number(config, "prefill_load_scale"),
            host_weight: number(config, "host_cache_hit_weight"),
            disk_weight: number(config, "disk_cache_hit_weight"),
            shared_weight: config["shared_cache_multiplier"].as_f64().unwrap_or(0.0),
            active_request_weight: number(config, "decode_active_request_weight"),
            temperature: number(config, "router_temperature"),
            track_prefill: case["track_prefill_tokens"].as_bool().unwrap(),
            ..Config::default()
        }
    }

    fn candidate(case: &Value, worker: &Value, target: Target) -> Candidate {
        let block_size = BlockSize::new(count(case, "block_size") as u32).unwrap();
        let device = count(worker, "device") as u32;
        let host = device + count(worker, "host") as u32;
        let disk = host + count(worker, "disk") as u32;
        let beyond_device = |range: &Value| {
            let bounds = (range[0].as_u64().unwrap() as u32, range[1].as_u64().unwrap() as u32);
            bounds.1.saturating_sub(bounds.0.max(device))
        };
        let shared = case["shared_hit_ranges"].as_array().map_or(0, |ranges| ranges.iter().map(beyond_device).sum());
        let mut overlap = Overlap::default();
        overlap.add(count(case, "isl_tokens") as u32, block_size, Depths { device, near: device, host, disk, shared });
        // The system that made the vectors keeps weights of taints in single precision.
        let weight = |weights: &serde_json::Map<String, Value>| weights.values().map(|w| f64::from(w.as_f64().unwrap() as f32)).sum();
        let has_taint = worker["has_taint"].as_bool().unwrap();
        let preference = case["preferred_taint"].as_object().filter(|_| has_taint).map_or(0.0, weight);
        Candidate { target, block_size, overlap, preference, excluded: None }
    }

    /// The costs of the workers of one case, in tokens.
    fn costs(case: &Value, config: &Config) -> Vec<f64> {
        let workers = case["workers"].as_array().unwrap();
        let scale = Scale {
            config,
            label: if case["role"] == "decode" { Label::Decode } else { Label::Prefill },
            prompt_tokens: count(case, "isl_tokens"),
            least_prefill_tokens: workers.iter().map(|worker| count(worker, "active_prefill_tokens")).min().unwrap(),
            pinned: false,
        };
        let prompt_blocks = count(case, "isl_tokens").div_ceil(count(case, "block_size"));
        let cost = |worker: &Value| {
            let burden = Burden {
                prefill_tokens: count(worker, "active_prefill_tokens"),
                decode_blocks: count(worker, "active_decode_blocks") + count(worker, "additional_active_blocks"),
                active_requests: count(worker, "active_requests"),
            };
            let target = Target { slot: index::Slot::new(0), generation: 0 };
            let candidate = candidate(case, worker, target);
            scale.tariff(candidate.block_size, prompt_blocks).cost(&candidate, &burden)
        };
        workers.iter().map(cost).collect()
    }

    #[test]
    fn costs_and_choices_equal_the_vectors() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors/scheduler-vectors.json");
        let vectors: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let cases = vectors["cases"].as_array().unwrap();
        assert_eq!(cases.len(), 240);
        let mut rng: rand::rngs::SmallRng = rand::SeedableRng::seed_from_u64(1);
        for case in cases {
            let block_size = number(case, "block_size");
            let config = config(case);
            let workers = case["workers"].as_array().unwrap();
            let costs = costs(case, &config);
            for (worker, cost) in workers.iter().zip(&costs) {
                let expected = number(worker, "cost") * block_size;
                let tolerance = 1e-9 * expected.abs().max(1.0);
                assert!((cost - expected).abs() <= tolerance, "case {}, {}: {cost}, expected {expected}", case["case"], worker["worker"]);
            }
            let lowest = costs.iter().copied().fold(f64::INFINITY, f64::min);
            let is_lowest = |at: usize| costs[at] == lowest;
            assert!(is_lowest(pick::softmax(&costs, config.temperature, &mut rng)), "case {}", case["case"]);
            let selected = workers.iter().position(|worker| worker["worker"] == case["selected"]).unwrap();
            assert!(is_lowest(selected), "case {}: {} has not the lowest of {costs:?}", case["case"], case["selected"]);
            let ties = (0..costs.len()).filter(|at| is_lowest(*at)).count();
            assert_eq!(ties > 1, case["tie"].as_bool().unwrap(), "case {}", case["case"]);
        }
    }
}
