//! Prompts and candidates for the tests of this crate.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each test binary uses its own part, and fails by panicking")]

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use index::{BlockSize, SequenceHash, Slot, Target};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use sched::{Answer, Ask, Candidate, Chain, Config, Depths, Label, Mode, Overlap, Prompt, Scheduler};

pub const BLOCK: u32 = 16;

pub fn block_size() -> BlockSize {
    BlockSize::new(BLOCK).unwrap()
}

pub fn rng(seed: u64) -> SmallRng {
    SmallRng::seed_from_u64(seed)
}

pub fn scheduler(mode: Mode) -> Arc<Scheduler> {
    Scheduler::new(Config { mode, ..Config::default() }).unwrap()
}

pub fn target(slot: u16) -> Target {
    Target { slot: Slot::new(slot), generation: 0 }
}

/// A candidate that holds nothing.
pub fn cold(target: Target) -> Candidate {
    Candidate { target, block_size: block_size(), overlap: Overlap::default(), preference: 0.0, excluded: None }
}

pub fn cold_fleet(count: u16) -> Vec<Candidate> {
    (0..count).map(|slot| cold(target(slot))).collect()
}

/// A candidate that holds `blocks` leading blocks of a prompt in its device lane.
pub fn warm(target: Target, prompt_tokens: u32, blocks: u32) -> Candidate {
    let mut candidate = cold(target);
    candidate.overlap.add(prompt_tokens, block_size(), Depths { device: blocks, near: blocks, host: blocks, disk: blocks, shared: 0 });
    candidate
}

/// A prompt whose full blocks have these contents, followed by `tail` tokens of an unfinished block.
pub fn prompt(contents: &[u32], tail: u32) -> Prompt {
    let mut hashes = Vec::new();
    for end in 1..=contents.len() {
        let mut hasher = DefaultHasher::new();
        (end, contents[end - 1], hashes.last()).hash(&mut hasher);
        hashes.push(SequenceHash(hasher.finish()));
    }
    let tokens = contents.len() as u32 * BLOCK + tail;
    Prompt { tokens, chains: vec![Chain { block_size: block_size(), hashes: hashes.into() }] }
}

/// A prompt of this many full blocks like no other prompt with another `seed`.
pub fn unique_prompt(seed: u32, blocks: u32) -> Prompt {
    let contents: Vec<u32> = (0..blocks).map(|block| seed.wrapping_mul(100_003).wrapping_add(block)).collect();
    prompt(&contents, 1)
}

pub fn ask(prompts: &[Prompt]) -> Ask<'_> {
    Ask { prompts, answers_per_prompt: 1, answer: Answer::Stream, label: Label::Decode, pinned: false }
}
