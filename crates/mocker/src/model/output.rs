//! What the engine says: tokens drawn from a word list, the same for the same prompt everywhere.

use std::sync::Arc;

use super::hash;

/// The tokens answers are made of.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    /// Tokens to draw from, at least one.
    pub words: Arc<[u32]>,
    /// The end-of-sequence token; without one, every answer runs to its `max_tokens`.
    pub eos: Option<u32>,
    /// Mean length of an answer that may end by itself, in tokens.
    pub mean_tokens: u32,
}

/// Denominator of the probability that an answer ends at a token.
const ODDS: u64 = 1 << 32;

impl Vocabulary {
    /// The token at `position` of an answer; the end-of-sequence token never comes first.
    pub(super) fn token(&self, answer: Answer, position: u32) -> u32 {
        let draw = hash::draw(answer.prompt, answer.choice, position);
        if let Some(eos) = self.eos
            && position > 0
            && !answer.ignore_eos
            && (draw >> 32) < ODDS / u64::from(self.mean_tokens.max(1))
        {
            return eos;
        }
        self.words[(draw % self.words.len() as u64) as usize]
    }
}

/// What an answer depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// Digest of prompt and adapter, the same in every process.
    pub(super) prompt: u64,
    /// Which of several answers to the prompt.
    pub(super) choice: u32,
    /// Never end by itself.
    pub(super) ignore_eos: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_end_by_themselves_near_the_mean() {
        let vocabulary = Vocabulary { words: vec![5, 6, 7].into(), eos: Some(1), mean_tokens: 50 };
        let length = |prompt| {
            let answer = Answer { prompt, choice: 0, ignore_eos: false };
            (0..10_000).position(|at| vocabulary.token(answer, at) == 1).unwrap()
        };
        let mean = (0..2_000).map(length).sum::<usize>() / 2_000;
        assert!((40..60).contains(&mean), "mean length {mean}");
        let endless = Answer { prompt: 3, choice: 0, ignore_eos: true };
        assert!((0..10_000).all(|at| vocabulary.token(endless, at) != 1));
    }
}
