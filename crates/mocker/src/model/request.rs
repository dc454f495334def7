//! One sequence on its way through the engine.

use std::sync::Arc;

use super::blocks::{Block, Filled, Pool};
use super::output::Answer;
use super::{KvEvent, NewRequest, RequestId, StoredBlocks, hash};

/// A sequence: its tokens, and the blocks that hold what was computed of them.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: RequestId,
    pub(super) answer: Answer,
    /// Length at which the sequence ends, in tokens.
    pub(super) limit: usize,
    pub(super) prompt_tokens: usize,
    /// Prompt tokens found cached when first scheduled; `None` until then.
    pub(super) cached_tokens: Option<u32>,
    /// Leading tokens whose state is in `blocks`.
    pub(super) computed: usize,
    /// All but the last token came computed; until the sequence starts.
    pub(super) prefilled: bool,
    tokens: Vec<u32>,
    adapter: Option<Arc<str>>,
    salt: Option<Arc<str>>,
    root: u64,
    /// Hashes of the full blocks of `tokens`, as far as they were needed.
    hashes: Vec<u64>,
    blocks: Vec<Block>,
    /// Leading blocks whose content is known to the pool.
    filled: usize,
}

impl Request {
    pub(super) fn new(id: RequestId, new: NewRequest, hash_seed: u64, max_model_len: usize) -> Self {
        let text = hash::tokens(new.adapter.as_deref(), &new.prompt);
        let prompt_tokens = new.prompt.len();
        Self {
            id,
            answer: Answer { text, choice: new.choice, ignore_eos: new.ignore_eos, min_tokens: new.min_tokens },
            prefilled: new.prefilled,
            limit: (prompt_tokens + new.max_tokens as usize).min(max_model_len),
            prompt_tokens,
            cached_tokens: None,
            computed: 0,
            root: hash::root(hash_seed, new.adapter.as_deref(), new.salt.as_deref()),
            tokens: new.prompt,
            adapter: new.adapter,
            salt: new.salt,
            hashes: Vec::new(),
            blocks: Vec::new(),
            filled: 0,
        }
    }

    /// Tokens so far, prompt and output.
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_tokens
    }

    pub(super) fn push(&mut self, token: u32) {
        self.answer.push(token);
        self.tokens.push(token);
    }

    /// The blocks of the sequence that are cached. The last token is always computed, so a sequence of exactly `k`
    /// blocks hits at most `k - 1`.
    pub(super) fn hits(&mut self, pool: &Pool, block_size: usize) -> Vec<Block> {
        let most = (self.len() - 1) / block_size;
        self.extend_hashes(most, block_size);
        pool.lookup(&self.hashes[..most])
    }

    /// Starts on cached blocks.
    pub(super) fn start_on(&mut self, hits: &[Block], pool: &mut Pool, block_size: usize) {
        for &block in hits {
            pool.take(block);
        }
        self.blocks.extend_from_slice(hits);
        self.filled = hits.len();
        self.computed = hits.len() * block_size;
    }

    /// Blocks still to be had before `tokens` leading tokens fit.
    pub(super) fn missing(&self, tokens: usize, block_size: usize) -> usize {
        tokens.div_ceil(block_size).saturating_sub(self.blocks.len())
    }

    /// Takes the blocks that `tokens` leading tokens need. Says false, with nothing taken, if there are too few.
    pub(super) fn grow(&mut self, tokens: usize, pool: &mut Pool, block_size: usize) -> bool {
        let missing = self.missing(tokens, block_size);
        if !pool.has_room(&[], missing) {
            return false;
        }
        self.blocks.extend((0..missing).map_while(|_| pool.allocate()));
        true
    }

    /// Tells the pool about every block that the computed tokens fill, and announces those that are new to it.
    pub(super) fn publish(&mut self, pool: &mut Pool, block_size: usize) {
        let full = self.computed / block_size;
        self.extend_hashes(full, block_size);
        let mut run = self.filled;
        for at in self.filled..full {
            match pool.fill(self.blocks[at], self.hashes[at]) {
                Filled::Stored => {}
                Filled::Merged(other) => {
                    self.blocks[at] = other;
                    self.announce(run..at, pool, block_size);
                    run = at + 1;
                }
            }
        }
        self.announce(run..full, pool, block_size);
        self.filled = self.filled.max(full);
    }

    /// Gives back every block; what is full stays a hit until it is evicted.
    pub(super) fn release(&mut self, pool: &mut Pool) {
        pool.release(&self.blocks);
        self.blocks.clear();
        self.filled = 0;
        self.computed = 0;
    }

    fn announce(&self, run: std::ops::Range<usize>, pool: &mut Pool, block_size: usize) {
        if run.is_empty() {
            return;
        }
        pool.announce(KvEvent::Stored(StoredBlocks {
            hashes: self.hashes[run.clone()].to_vec(),
            parent: run.start.checked_sub(1).map(|before| self.hashes[before]),
            tokens: self.tokens[run.start * block_size..run.end * block_size].to_vec(),
            adapter: self.adapter.clone(),
            salt: self.salt.clone(),
        }));
    }

    fn extend_hashes(&mut self, blocks: usize, block_size: usize) {
        for at in self.hashes.len()..blocks {
            let parent = self.hashes.last().copied().unwrap_or(self.root);
            self.hashes.push(hash::block(parent, &self.tokens[at * block_size..(at + 1) * block_size]));
        }
    }
}
