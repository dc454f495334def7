//! What the engine says: tokens drawn from a word list, each by all that is before it. The same prompt is answered alike everywhere, and an
//! answer goes on as it would have where its beginning is given as the end of a prompt.

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
    /// The token at `position` of an answer, behind what is there so far; the end-of-sequence token never comes first.
    pub(super) fn token(&self, answer: Answer, position: u32) -> u32 {
        let draw = hash::draw(answer.text, answer.choice);
        if let Some(eos) = self.eos
            && position >= answer.min_tokens.max(1)
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
    /// Digest of adapter, prompt and answer so far, the same in every process.
    pub(super) text: u64,
    /// Which of several answers to the prompt.
    pub(super) choice: u32,
    /// Never end by itself.
    pub(super) ignore_eos: bool,
    /// Do not before so many tokens.
    pub(super) min_tokens: u32,
}

impl Answer {
    /// One more token is there.
    pub(super) fn push(&mut self, token: u32) {
        self.text = hash::longer(self.text, token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_end_by_themselves_near_the_mean() {
        let vocabulary = Vocabulary { words: vec![5, 6, 7].into(), eos: Some(1), mean_tokens: 50 };
        let next = |answer: &mut Answer, at| {
            let token = vocabulary.token(*answer, at);
            answer.push(token);
            token
        };
        let length = |text| {
            let mut answer = Answer { text, choice: 0, ignore_eos: false, min_tokens: 0 };
            (0..10_000).position(|at| next(&mut answer, at) == 1).unwrap()
        };
        let mean = (0..2_000).map(length).sum::<usize>() / 2_000;
        assert!((40..60).contains(&mean), "mean length {mean}");
        let mut endless = Answer { text: 3, choice: 0, ignore_eos: true, min_tokens: 0 };
        assert!((0..10_000).all(|at| next(&mut endless, at) != 1));
        let mut late = Answer { text: 3, choice: 0, ignore_eos: false, min_tokens: 900 };
        assert!((0..900).all(|at| next(&mut late, at) != 1));
    }
}
