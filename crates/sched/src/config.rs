//! What an operator chooses about scheduling: the mode and the weights of the cost.
//!
//! Parsing of flags and environment stays with the caller; this file says which values are allowed.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// How a target is chosen among the candidates of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The lowest cost: prefill left to do plus load, see [`crate::cost`].
    Kv,
    /// The target that was chosen longest ago. Targets never chosen come first, in the order of the candidates.
    RoundRobin,
    /// Any target with equal probability.
    Random,
    /// Two distinct targets at random, then the one with fewer active requests.
    PowerOfTwo,
    /// The fewest active requests.
    LeastLoaded,
    /// Only what the request names; a request that names nothing is refused.
    Direct,
}

impl Mode {
    /// Every mode, in the order of the help text.
    pub const ALL: [Mode; 6] = [Mode::Kv, Mode::RoundRobin, Mode::Random, Mode::PowerOfTwo, Mode::LeastLoaded, Mode::Direct];

    /// The name used on the command line and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Kv => "kv",
            Mode::RoundRobin => "round-robin",
            Mode::Random => "random",
            Mode::PowerOfTwo => "power-of-two",
            Mode::LeastLoaded => "least-loaded",
            Mode::Direct => "direct",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        Mode::ALL.into_iter().find(|mode| mode.as_str() == text).ok_or_else(|| UnknownMode(text.to_owned()))
    }
}

/// A text that names no [`Mode`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown router mode {0:?}, use kv, round-robin, random, power-of-two, least-loaded or direct")]
pub struct UnknownMode(pub String);

/// The mode and the weights of the cost. Weights are plain factors without a unit.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How a target is chosen.
    pub mode: Mode,
    /// What a block on the device saves, in blocks of prefill. Zero: the cost ignores every cache.
    pub overlap_credit: f64,
    /// How fast the credit of a target fades as its prefill backlog grows beyond the smallest one. Zero: never.
    pub overlap_credit_decay: f64,
    /// What a token of prefill costs beside a token of decode memory.
    pub prefill_scale: f64,
    /// What a block in host memory saves, in blocks of prefill.
    pub host_weight: f64,
    /// What a block on disk saves, in blocks of prefill.
    pub disk_weight: f64,
    /// What a block of a cache shared by all targets saves, in blocks of prefill.
    pub shared_weight: f64,
    /// What an active request costs, in blocks.
    pub active_request_weight: f64,
    /// Zero: the lowest cost wins. Above: softmax over costs scaled to 0..1, flatter as it grows.
    pub temperature: f64,
    /// Whether prefill is counted, in the ledger and in the cost.
    pub track_prefill: bool,
}

impl Default for Config {
    /// The defaults of Dynamo 1.6.1, with mode kv.
    fn default() -> Self {
        Config {
            mode: Mode::Kv,
            overlap_credit: 1.0,
            overlap_credit_decay: 0.0,
            prefill_scale: 1.0,
            host_weight: 0.75,
            disk_weight: 0.25,
            shared_weight: 0.0,
            active_request_weight: 0.0,
            temperature: 0.0,
            track_prefill: true,
        }
    }
}

/// The largest weight or temperature accepted. With it every cost is finite: a finite weight of any size could
/// overflow, and a cost that is not finite cannot be compared.
pub const MAX_WEIGHT: f64 = 1e9;

impl Config {
    /// Checks that every weight is a number within 0..=[`MAX_WEIGHT`].
    pub fn check(&self) -> Result<(), BadWeight> {
        let weights = [
            ("overlap credit", self.overlap_credit),
            ("overlap credit decay", self.overlap_credit_decay),
            ("prefill scale", self.prefill_scale),
            ("host weight", self.host_weight),
            ("disk weight", self.disk_weight),
            ("shared weight", self.shared_weight),
            ("active request weight", self.active_request_weight),
            ("temperature", self.temperature),
        ];
        match weights.into_iter().find(|(_, value)| !(0.0..=MAX_WEIGHT).contains(value)) {
            Some((name, value)) => Err(BadWeight { name, value }),
            None => Ok(()),
        }
    }
}

/// A weight out of range.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{name} is {value}, use a number from 0 to {MAX_WEIGHT}")]
pub struct BadWeight {
    /// Which weight.
    pub name: &'static str,
    /// What it was set to.
    pub value: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_has_a_name_that_parses_back() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert_eq!("KV".parse::<Mode>(), Err(UnknownMode("KV".into())));
    }

    #[test]
    fn weights_that_cannot_be_compared_are_named() {
        assert_eq!(Config::default().check(), Ok(()));
        for value in [-0.5, f64::NAN, f64::INFINITY, 2e9] {
            let error = Config { temperature: value, ..Config::default() }.check().unwrap_err();
            assert_eq!(error.name, "temperature");
        }
    }
}
