//! What a request asks of the scheduler: its prompts, how it is answered, whom it names.

use std::sync::Arc;

use index::{BlockSize, SequenceHash};

/// One request: one body that goes to one worker whole, with one prompt or a list of them.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The prompts of the body.
    pub prompts: &'a [Prompt],
    /// Answers wanted for each prompt (`n`). They share the prefill and the blocks of their prompt, but each is an
    /// active request of its own. Zero counts as one.
    pub answers_per_prompt: u32,
    /// Whether the end of the prefill can be seen.
    pub answer: Answer,
    /// Which row of the cost table applies.
    pub label: Label,
    /// True where the request names its worker; the caller has excluded all others as [`crate::Exclusion::NotPinned`].
    pub pinned: bool,
}

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Event by event: the first one ends the prefill.
    Stream,
    /// In one piece at the end: the end of the prefill is estimated.
    Plain,
}

/// Which row of the cost table applies to a request's targets, see [`crate::cost`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Label {
    /// The request goes to workers that only prefill: prefill left to do plus load.
    Prefill,
    /// To workers that decode, or do both: the same, but load less credit where prefill is not tracked.
    Decode,
    /// To workers that only decode, as the prompt is prefilled elsewhere: load alone, and no prefill is booked.
    DecodeOnly,
}

/// One prompt.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// Its length in tokens; an estimate where it was not tokenised.
    pub tokens: u32,
    /// Its full blocks, once for each block size among the candidates. Blocks of a prompt that have no hash (not
    /// tokenised, or behind an image) are counted as shared with nobody.
    pub chains: Vec<Chain>,
}

/// The leading full blocks of a prompt for one block size.
#[derive(Clone, Debug)]
pub struct Chain {
    /// Tokens per block.
    pub block_size: BlockSize,
    /// The chained hash of each block, from the first on.
    pub hashes: Arc<[SequenceHash]>,
}

impl Ask<'_> {
    /// Tokens of all prompts.
    pub fn prompt_tokens(&self) -> u64 {
        self.prompts.iter().map(|prompt| u64::from(prompt.tokens)).sum()
    }

    /// Sequences that decode for this request.
    pub(crate) fn active_requests(&self) -> u64 {
        (self.prompts.len() as u64).saturating_mul(self.answers_per_prompt.max(1).into()).max(1)
    }
}

impl Prompt {
    pub(crate) fn chain(&self, block_size: BlockSize) -> Option<&Chain> {
        self.chains.iter().find(|chain| chain.block_size == block_size)
    }
}

/// A request measured in blocks of one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) block_size: BlockSize,
    /// Blocks of all prompts, the unfinished last ones included.
    pub(crate) prompt_blocks: u64,
    /// Full blocks of all prompts.
    pub(crate) full_blocks: u64,
    /// Those of them that have a hash.
    pub(crate) hashed_blocks: u64,
}

impl Shape {
    pub(crate) fn of(ask: &Ask<'_>, block_size: BlockSize) -> Shape {
        let mut shape = Shape { block_size, prompt_blocks: 0, full_blocks: 0, hashed_blocks: 0 };
        for prompt in ask.prompts {
            let hashed = prompt.chain(block_size).map_or(0, |chain| chain.hashes.len() as u64);
            shape.prompt_blocks += u64::from(prompt.tokens.div_ceil(block_size.get()));
            shape.full_blocks += u64::from(prompt.tokens / block_size.get()).max(hashed);
            shape.hashed_blocks += hashed;
        }
        shape
    }

    /// Full blocks without a hash: nothing can share them.
    pub(crate) fn private_blocks(&self) -> u64 {
        self.full_blocks - self.hashed_blocks
    }
}
