//! What an engine's answer tells about its cache.

use std::time::Instant;

use index::{LocalHash, Seed};

/// One answer of an engine that says how much of its prompt was cached (rule 11).
///
/// Only an answer to a single prompt with one choice proves anything; leave the others out. Both numbers are in blocks, as
/// usable hits: the last token is always computed, so a full prompt counts one block less (rule 3).
#[derive(Clone, Debug)]
pub struct Observation {
    /// The rank that answered.
    pub rank: u32,
    /// The prompt's blocks.
    pub chain: Vec<LocalHash>,
    /// The seed `chain` was hashed under.
    pub seed: Seed,
    /// When the request was sent.
    pub dispatched: Instant,
    /// What the device lane held of it then.
    pub predicted_blocks: u32,
    /// What the engine says was cached.
    pub reported_blocks: u32,
}
