//! Which tokens of a choice have been told with its text: a token's log-probability goes to the client with the text that
//! the token makes, and not before it.

use std::collections::VecDeque;

use wire::generate::EngineOutput;

/// One token of an answer, for logprobs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    /// The token.
    pub(crate) id: u32,
    /// `None` where the engine did not say.
    pub(crate) logprob: Option<f64>,
    /// The likeliest tokens at its place, as many as were asked for.
    pub(crate) top: Vec<(u32, f64)>,
    /// Characters of the choice's text before it.
    pub(crate) offset: usize,
}

/// The tokens whose text has not been handed on.
#[derive(Debug, Default)]
pub(super) struct Track {
    waiting: VecDeque<Waiting>,
    /// Told with the next piece of text.
    pub(super) ready: Vec<Entry>,
}

#[derive(Debug)]
struct Waiting {
    entry: Entry,
    /// Bytes of the text before it.
    start: usize,
    /// Bytes of the text up to its end; `None` while its last character is not complete.
    end: Option<usize>,
}

impl Entry {
    /// The `at`-th token of `output`, with up to `top` alternatives. `None` where the engine told no log-probabilities.
    pub(super) fn of(output: &EngineOutput, at: usize, top: u32, offset: usize) -> Option<Self> {
        let logprobs = output.log_probs.as_ref()?;
        let alternatives = output.top_logprobs.as_ref().and_then(|lists| lists.get(at)).map_or(&[][..], Vec::as_slice);
        Some(Self {
            id: *output.token_ids.get(at)?,
            logprob: logprobs.get(at).copied(),
            top: alternatives.iter().take(top as usize).map(|token| (token.token_id, token.logprob)).collect(),
            offset,
        })
    }
}

impl Track {
    /// A token came whose text begins behind `start` bytes.
    pub(super) fn add(&mut self, entry: Entry, start: usize) {
        self.waiting.push_back(Waiting { entry, start, end: None });
    }

    /// All text of the tokens so far is known: `length` bytes.
    pub(super) fn settle(&mut self, length: usize) {
        for waiting in self.waiting.iter_mut().rev().take_while(|waiting| waiting.end.is_none()) {
            waiting.end = Some(length);
        }
    }

    /// The first `length` bytes of the text have been handed on.
    pub(super) fn release(&mut self, length: usize) {
        while let Some(next) = self.waiting.pop_front_if(|next| next.end.is_some_and(|end| end <= length)) {
            self.ready.push(next.entry);
        }
    }

    /// The text ends after `length` bytes: tokens that begin behind it are not told.
    pub(super) fn end(&mut self, length: usize) {
        while let Some(next) = self.waiting.pop_front_if(|next| next.start < length || next.end.is_some_and(|end| end <= length)) {
            self.ready.push(next.entry);
        }
        self.waiting.clear();
    }
}
