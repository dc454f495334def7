//! One choice: tokens in, text that may be shown out, and why it ended.

mod rules;
mod track;

use wire::generate::{EngineOutput, FinishReason, StopReason};

use self::{rules::Ends, track::Track};
use crate::{shape::Fault, stop::Match, text::Detokenizer};

pub(crate) use self::{rules::Rules, track::Entry};

/// A choice as it grows.
#[derive(Debug)]
pub(crate) struct Choice {
    detokenizer: Detokenizer,
    /// Where the stop strings' automaton stands.
    stop_state: u32,
    delivered: Vec<u32>,
    /// The end of the known text that may yet turn out to be a stop string.
    held: String,
    /// Text that may be shown and has not been taken.
    fresh: String,
    /// Bytes of the text that is known.
    known: usize,
    /// Characters in front of the text and of it.
    characters: usize,
    track: Track,
    end: Option<End>,
}

/// Why a choice ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    /// In OpenAI's words, calls of tools aside.
    pub(crate) finish: Finish,
    /// In Dynamo's words.
    pub(crate) detail: &'static str,
    /// What it stopped at.
    pub(crate) stop: Option<StopReason>,
}

/// OpenAI's reasons, calls of tools aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The model was done, or came to a stop.
    Stop,
    /// There was room for no more.
    Length,
    /// A filter.
    ContentFilter,
}

impl Choice {
    /// Nothing yet; `shown_before` characters are shown in front of it.
    pub(crate) fn new(prompt: &[u32], rules: &Rules, shown_before: usize) -> Self {
        Self {
            detokenizer: Detokenizer::after(prompt, &rules.vocabulary, |id| rules.shows(id)),
            stop_state: 0,
            delivered: Vec::new(),
            held: String::new(),
            fresh: String::new(),
            known: 0,
            characters: shown_before,
            track: Track::default(),
            end: None,
        }
    }

    /// The tokens so far, those included whose text is held back.
    pub(crate) fn delivered(&self) -> &[u32] {
        &self.delivered
    }

    /// Bytes of the text that is known, those included that are held back.
    pub(crate) fn known(&self) -> usize {
        self.known
    }

    /// Why it ended; `None` while it has not.
    pub(crate) fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// Text that may be shown. Who takes some of it takes it out.
    pub(crate) fn fresh(&mut self) -> &mut String {
        &mut self.fresh
    }

    /// The tokens of the text that was ever fresh. Who tells them takes them out.
    pub(crate) fn entries(&mut self) -> &mut Vec<Entry> {
        &mut self.track.ready
    }

    /// Takes what an engine sent.
    ///
    /// # Errors
    /// Where the engine gave up. The tokens it sent before count; the choice stays open.
    pub(crate) fn take(&mut self, output: &EngineOutput, rules: &Rules) -> Result<(), Fault> {
        for at in 0..output.token_ids.len() {
            if self.end.is_some() {
                return Ok(());
            }
            self.take_token(output, at, rules);
        }
        let (None, Some(reason)) = (&self.end, &output.finish_reason) else { return Ok(()) };
        let (finish, detail) = match reason {
            FinishReason::Eos => (Finish::Stop, "eos"),
            FinishReason::Stop => (Finish::Stop, "stop"),
            FinishReason::Length => (Finish::Length, "length"),
            FinishReason::ContentFilter => (Finish::ContentFilter, "content_filter"),
            FinishReason::Error(message) => return Err(Fault::Engine(message.clone())),
            FinishReason::Cancelled => return Err(Fault::Cancelled),
        };
        self.close(End { finish, detail, stop: output.stop_reason.clone() }, rules);
        Ok(())
    }

    /// Ends it where it stands.
    pub(crate) fn close(&mut self, end: End, rules: &Rules) {
        let start = self.held.len();
        self.detokenizer.finish(&rules.vocabulary, &mut self.held);
        self.learn(start);
        // The last piece of text may still complete a stop string.
        if !self.scan(start, rules) {
            self.fresh.push_str(&self.held);
            self.held.clear();
            self.track.end(self.known);
            self.end = Some(end);
        }
    }

    fn take_token(&mut self, output: &EngineOutput, at: usize, rules: &Rules) {
        if self.delivered.len() >= rules.max_tokens {
            return self.close(End { finish: Finish::Length, detail: "length", stop: None }, rules);
        }
        let id = output.token_ids[at];
        self.delivered.push(id);
        let ends = if self.is_past_minimum(rules) { rules.ends(id) } else { Ends::Not };
        if let Ends::Hidden(end) = ends {
            return self.close(end, rules);
        }
        if let Some(top) = rules.logprobs
            && let Some(entry) = Entry::of(output, at, top, self.characters)
        {
            self.track.add(entry, self.known);
        }
        let start = self.held.len();
        if rules.shows(id) {
            self.detokenizer.push(id, &rules.vocabulary, &mut self.held);
        }
        self.learn(start);
        if self.scan(start, rules) {
            return;
        }
        self.release(rules);
        if let Ends::Visible(end) = ends {
            self.close(end, rules);
        }
    }

    fn is_past_minimum(&self, rules: &Rules) -> bool {
        self.delivered.len() > rules.min_tokens
    }

    /// Notes that the text behind `start` of what is held is known now.
    fn learn(&mut self, start: usize) {
        let new = &self.held[start..];
        self.known += new.len();
        self.characters += new.chars().count();
        if self.detokenizer.is_settled() {
            self.track.settle(self.known);
        }
    }

    /// Looks for a stop string that ends behind `start` of what is held. Ends the choice there, and says so.
    fn scan(&mut self, start: usize, rules: &Rules) -> bool {
        let Some(strings) = &rules.strings else { return false };
        let armed = self.is_past_minimum(rules);
        let Some(Match { end, length }) = strings.scan(&mut self.stop_state, &self.held.as_bytes()[start..], armed) else {
            return false;
        };
        let end = start + end;
        let begin = end.saturating_sub(length);
        let cut = if rules.include { end } else { begin };
        // Stop strings are whole characters, and so is the text: what is equal to one begins and ends between two.
        let stop = self.held.get(begin..end).map(|text| StopReason::Text(text.to_owned()));
        self.fresh.push_str(self.held.get(..cut).unwrap_or_default());
        self.track.end(self.known - (self.held.len() - cut));
        self.held.clear();
        self.end = Some(End { finish: Finish::Stop, detail: "stop", stop });
        true
    }

    /// Hands on what cannot be the beginning of a stop string.
    fn release(&mut self, rules: &Rules) {
        let holding = rules.strings.as_ref().map_or(0, |strings| strings.held(self.stop_state));
        let free = self.held.floor_char_boundary(self.held.len().saturating_sub(holding));
        self.fresh.push_str(&self.held[..free]);
        self.held.drain(..free);
        self.track.release(self.known - self.held.len());
    }
}
