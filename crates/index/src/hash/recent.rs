//! Prompts hashed a moment ago: one that extends another is hashed from where it departs from it.
//!
//! A conversation comes back with everything that was said before. Which of the prompts at hand it extends is found by
//! marks: a prompt is filed under the hash of one of its last blocks, at its length in blocks rounded down to
//! [`MARK_BITS`] significant bits, and a new prompt asks at every such length up to its own, the longest first. So a
//! prompt costs one entry and a question some tens of steps, and what two prompts must have in common to be
//! taken for the same conversation is all but a sixteenth of the older one. A mark proves nothing: what is taken over was
//! compared token by token.
//!
//! Comparing and copying are not free: a prompt of 131,072 tokens that has grown by 512 takes 0.4 of the time of hashing
//! it anew with blocks of 16, 0.6 with blocks of 64; one of 8,192 tokens takes 0.75 and 0.95. Most of what is saved is
//! the chain of identities, each of which waits for the one before.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;

use super::{BlockSize, LocalHash, Seed, SequenceHash, Window, windows::Windows};
use crate::keyed::KeyedMap;

/// Shorter prompts, in blocks, are hashed as fast as they are found.
const FEWEST_BLOCKS: usize = 64;
/// Lengths with so many significant bits: 16 between a length and its double.
const MARK_BITS: u32 = 5;
/// Tokens compared at once.
const COMPARED: usize = 1024;
/// What an entry takes beside tokens and hashes, roughly.
const ENTRY_BYTES: usize = 256;
/// No prompt takes more than this part of the memory.
const LARGEST_SHARE: usize = 4;

/// How a prompt is cut and hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Tokens per block.
    pub block_size: BlockSize,
    /// What a block's hash covers.
    pub window: Window,
    /// What it starts from.
    pub seed: Seed,
}

/// The hashes of one prompt.
#[derive(Clone, Debug)]
pub struct Hashed {
    /// Of each full block.
    pub locals: Arc<[LocalHash]>,
    /// Of each full block and all before it.
    pub sequences: Arc<[SequenceHash]>,
    /// How many of the blocks were known from an earlier prompt.
    pub known: usize,
}

/// Hashes prompts and remembers the last ones, up to a number of bytes.
#[derive(Debug)]
pub struct RecentPrompts {
    limit: usize,
    /// Guards what is remembered; held for some tens of map look-ups.
    memory: Mutex<Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    by_mark: KeyedMap<u64, Arc<Entry>>,
    /// Oldest first.
    entries: VecDeque<Arc<Entry>>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    recipe: Recipe,
    tokens: Arc<[u32]>,
    hashed: Hashed,
    mark: u64,
}

impl RecentPrompts {
    /// Remembers up to `limit` bytes of prompts and hashes.
    pub fn new(limit: usize) -> Self {
        Self { limit, memory: Mutex::default() }
    }

    /// The hashes of the full blocks among the first `length` of `tokens`.
    pub fn hash(&self, tokens: &Arc<[u32]>, length: usize, recipe: Recipe) -> Hashed {
        let text = &tokens[..length.min(tokens.len())];
        let blocks = recipe.blocks(text.len());
        if blocks < FEWEST_BLOCKS {
            return recipe.hash(text, None);
        }
        let marks: Vec<_> = lengths(blocks).map(|length| recipe.mark(text, length)).collect();
        let found = {
            let memory = self.memory.lock();
            marks.iter().find_map(|mark| memory.by_mark.get(mark).cloned())
        };
        let hashed = recipe.hash(text, found.as_deref());
        if hashed.known < blocks {
            self.remember(Entry { recipe, tokens: tokens.clone(), hashed: hashed.clone(), mark: marks[0] });
        }
        hashed
    }

    /// Bytes remembered, about.
    pub fn bytes(&self) -> usize {
        self.memory.lock().bytes
    }

    fn remember(&self, entry: Entry) {
        let bytes = entry.bytes();
        if bytes > self.limit / LARGEST_SHARE {
            return;
        }
        let entry = Arc::new(entry);
        let mut memory = self.memory.lock();
        memory.bytes += bytes;
        memory.by_mark.insert(entry.mark, entry.clone());
        memory.entries.push_back(entry);
        while memory.bytes > self.limit {
            let Some(oldest) = memory.entries.pop_front() else { break };
            memory.bytes -= oldest.bytes();
            if memory.by_mark.get(&oldest.mark).is_some_and(|marked| Arc::ptr_eq(marked, &oldest)) {
                memory.by_mark.remove(&oldest.mark);
            }
        }
    }
}

impl Entry {
    fn bytes(&self) -> usize {
        size_of_val(&*self.tokens) + size_of_val(&*self.hashed.locals) + size_of_val(&*self.hashed.sequences) + ENTRY_BYTES
    }
}

impl Recipe {
    /// Blocks whose whole window lies in so many tokens.
    fn blocks(&self, tokens: usize) -> usize {
        match tokens.checked_sub(self.window.tokens(self.block_size)) {
            Some(beyond_first) => beyond_first / self.stride() + 1,
            None => 0,
        }
    }

    fn stride(&self) -> usize {
        self.block_size.get() as usize
    }

    /// The mark of a prompt whose length rounds down to `blocks`, which it has.
    fn mark(&self, text: &[u32], blocks: usize) -> u64 {
        let mut last = Vec::with_capacity(1);
        let from = (blocks - 1) * self.stride();
        let window = self.window.tokens(self.block_size);
        Windows::new(self.seed.0).hash_all(&text[from..from + window], window, self.stride(), &mut last);
        last.iter().fold(0, |_, local| SequenceHash::after(Some(SequenceHash(blocks as u64)), *local).0)
    }

    /// Takes over what `text` has in common with an earlier prompt, and hashes the rest.
    fn hash(&self, text: &[u32], earlier: Option<&Entry>) -> Hashed {
        let blocks = self.blocks(text.len());
        let (mut locals, mut sequences) = (Vec::with_capacity(blocks), Vec::with_capacity(blocks));
        let mut known = 0;
        if let Some(earlier) = earlier.filter(|earlier| earlier.recipe == *self) {
            known = self.blocks(common(text, &earlier.tokens)).min(earlier.hashed.locals.len());
            locals.extend_from_slice(&earlier.hashed.locals[..known]);
            sequences.extend_from_slice(&earlier.hashed.sequences[..known]);
        }
        if known < blocks {
            let window = self.window.tokens(self.block_size);
            Windows::new(self.seed.0).hash_all(&text[known * self.stride()..], window, self.stride(), &mut locals);
        }
        for local in &locals[known..] {
            sequences.push(SequenceHash::after(sequences.last().copied(), *local));
        }
        Hashed { locals: locals.into(), sequences: sequences.into(), known }
    }
}

/// Every length of [`MARK_BITS`] significant bits from `blocks` down to [`FEWEST_BLOCKS`].
fn lengths(blocks: usize) -> impl Iterator<Item = usize> {
    let rounded = |length: usize| length & (usize::MAX << (usize::BITS - length.leading_zeros()).saturating_sub(MARK_BITS));
    std::iter::successors(Some(rounded(blocks)), move |length| Some(rounded(length - 1))).take_while(|length| *length >= FEWEST_BLOCKS)
}

/// Leading tokens that are the same.
fn common(one: &[u32], other: &[u32]) -> usize {
    let mut same = 0;
    for (one, other) in one.chunks(COMPARED).zip(other.chunks(COMPARED)) {
        if one != other {
            return same + one.iter().zip(other).take_while(|(one, other)| one == other).count();
        }
        same += one.len();
    }
    same
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot set itself up has failed")]

    use proptest::prelude::*;

    use super::*;
    use crate::hash::{local_hashes, sequence_hashes};

    fn recipe(size: u32, window: Window, seed: Seed) -> Recipe {
        Recipe { block_size: BlockSize::new(size).unwrap(), window, seed }
    }

    fn tokens(count: u32, salt: u32) -> Vec<u32> {
        (0..count).map(|at| (at ^ salt).wrapping_mul(0x9E37_79B1) >> 8).collect()
    }

    fn assert_plain(hashed: &Hashed, text: &[u32], recipe: Recipe) {
        let (mut locals, mut sequences) = (Vec::new(), Vec::new());
        local_hashes(text, recipe.block_size, recipe.seed, recipe.window, &mut locals);
        sequence_hashes(&locals, &mut sequences);
        assert_eq!((&*hashed.locals, &*hashed.sequences), (&*locals, &*sequences));
    }

    #[test]
    fn an_extended_prompt_is_hashed_from_where_it_was_extended() {
        for window in [Window::Plain, Window::Eagle] {
            let (recent, recipe) = (RecentPrompts::new(1 << 20), recipe(16, window, Seed::BASE));
            let mut text = tokens(16 * 1000, 0);
            assert_eq!(recent.hash(&text.clone().into(), text.len(), recipe).known, 0);
            for turn in 1..10 {
                let before = recipe.blocks(text.len());
                text.extend(tokens(16 * 50, turn));
                let hashed = recent.hash(&text.clone().into(), text.len(), recipe);
                assert_eq!(hashed.known, before, "turn {turn}");
                assert_plain(&hashed, &text, recipe);
            }
        }
    }

    #[test]
    fn conversations_behind_one_long_system_prompt_are_told_apart() {
        let (recent, recipe) = (RecentPrompts::new(16 << 20), recipe(16, Window::Plain, Seed::BASE));
        let turn = |talk: u32, turns: u32| {
            let mut text = tokens(8192, 0);
            text.extend((1..=turns).flat_map(|turn| tokens(600, talk * 1000 + turn)));
            text
        };
        for turns in 2..6 {
            for talk in 1..20 {
                let text = turn(talk, turns);
                let hashed = recent.hash(&text.clone().into(), text.len(), recipe);
                let expected = if turns == 2 { 0..=8192 / 16 } else { turn(talk, turns - 1).len() / 16..=usize::MAX };
                assert!(expected.contains(&hashed.known), "{} known at turn {turns} of {talk}", hashed.known);
                assert_plain(&hashed, &text, recipe);
            }
        }
    }

    #[test]
    fn another_seed_size_or_window_takes_nothing_over() {
        let recent = RecentPrompts::new(1 << 20);
        let text: Arc<[u32]> = tokens(16 * 300, 0).into();
        let seeds = [Seed::BASE, Seed::new(Some("adapter"), None)];
        for seed in seeds {
            for recipe in [recipe(16, Window::Plain, seed), recipe(16, Window::Eagle, seed), recipe(32, Window::Plain, seed)] {
                let hashed = recent.hash(&text, text.len(), recipe);
                assert_eq!(hashed.known, 0);
                assert_plain(&hashed, &text, recipe);
                assert_eq!(recent.hash(&text, text.len(), recipe).known, recipe.blocks(text.len()));
            }
        }
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_go_first() {
        let limit = 1 << 20;
        let (recent, recipe) = (RecentPrompts::new(limit), recipe(16, Window::Plain, Seed::BASE));
        for prompt in 0..200 {
            let text: Arc<[u32]> = tokens(16 * 200, prompt << 16).into();
            recent.hash(&text, text.len(), recipe);
            assert!(recent.bytes() <= limit);
            assert_eq!(recent.hash(&text, text.len(), recipe).known, 200);
        }
        let memory = recent.memory.lock();
        assert_eq!(memory.by_mark.len(), memory.entries.len());
        drop(memory);
        let first: Arc<[u32]> = tokens(16 * 200, 0).into();
        assert_eq!(recent.hash(&first, first.len(), recipe).known, 0);
        let huge: Arc<[u32]> = tokens(1 << 17, 1).into();
        recent.hash(&huge, huge.len(), recipe);
        assert_eq!(recent.hash(&huge, huge.len(), recipe).known, 0, "it would push everything else out");
    }

    #[test]
    fn lengths_are_those_with_five_significant_bits() {
        let expected: Vec<_> = (FEWEST_BLOCKS..=1234).rev().filter(|length| length >> length.trailing_zeros() < 32).collect();
        assert_eq!(lengths(1234).collect::<Vec<_>>(), expected);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// Prompts that are cut off, extended and changed at random, over two tokens, so that marks often mislead.
        #[test]
        fn hashes_are_those_of_a_plain_run(edits in proptest::collection::vec((0..1500_usize, 0..1500_usize, any::<u32>()), 1..12), size in 1..8_u32) {
            let (recent, recipe) = (RecentPrompts::new(1 << 16), recipe(size, Window::Plain, Seed::BASE));
            let mut text: Vec<u32> = Vec::new();
            for (keep, more, salt) in edits {
                text.truncate(keep);
                text.extend(tokens(more as u32, salt).into_iter().map(|token| u32::from(token % 64 == 0)));
                assert_plain(&recent.hash(&text.clone().into(), text.len(), recipe), &text, recipe);
            }
        }
    }
}
