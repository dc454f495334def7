//! The answer to one request, as it comes.

use std::sync::Arc;

use bytes::BytesMut;
use prompt::{Endpoint, ToolChoice, Vocabulary};
use wire::generate::EngineOutput;

use crate::{
    choice::{End, Finish, Rules},
    leg::Leg,
    openai::chunk::{self, Head},
    shape::{Echo, OpenAiError, Progress, ResponseNvext, Shape, Usage, Workers},
    tally::Tally,
};

/// Bytes of a whole body for one token's id, for a token with its log-probability, and for such a token of a chat, which is spelt
/// in bytes too. Roughly: they bound what is kept.
const ID_BYTES: usize = 6;
const LOGPROB_BYTES: usize = 30;
const CHAT_LOGPROB_BYTES: usize = 72;

/// The answer to one request: takes what engines send, gives what the client gets.
///
/// It outlives the workers: a choice whose worker died goes on with the next push, from whatever worker, as if nothing had
/// been. The state of its text, of its stop strings and of its parsers is here, and needs no token twice.
#[derive(Debug)]
pub struct Answer {
    pub(crate) shape: Shape,
    pub(crate) rules: Rules,
    pub(crate) head: Head,
    pub(crate) legs: Vec<Leg>,
    /// For each prompt, what is shown in front of its choices.
    pub(crate) echoes: Vec<Option<String>>,
    pub(crate) tally: Tally,
    /// Choices that have not ended.
    pub(crate) open: usize,
    /// Bytes of a whole body so far, roughly.
    held: usize,
    /// The client has all it gets.
    over: bool,
}

impl Answer {
    /// An answer of which nothing has come.
    pub fn new(shape: Shape, vocabulary: Arc<Vocabulary>) -> Self {
        let rules = Rules::new(&shape, vocabulary);
        let echoes: Vec<Option<String>> = shape
            .prompts
            .iter()
            .map(|prompt| match &prompt.echo {
                Some(Echo::Text(text)) => Some(text.clone()),
                Some(Echo::Ids) => Some(rules.vocabulary.decode(&prompt.ids, shape.skip_special_tokens)),
                None => None,
            })
            .collect();
        let before: Vec<usize> = echoes.iter().map(|echo| echo.as_ref().map_or(0, |text| text.chars().count())).collect();
        let legs: Vec<Leg> = (0..shape.choices()).map(|at| Leg::new(at, &shape, &rules, &before)).collect();
        let (head, tally, open) = (Head::new(&shape), Tally::new(&shape), legs.len());
        let mut this = Self { head, tally, open, echoes, rules, legs, shape, held: 0, over: false };
        if !this.shape.stream {
            this.held = (0..open).map(|at| this.echoed_bytes(at)).sum();
        }
        this
    }

    /// Takes what an engine sent for one choice; what is ready for the client is appended to `out`. Nothing is, before the
    /// first token: until then the request can be tried elsewhere, or be refused with a status.
    ///
    /// Output for a choice that has ended, or of a number nobody asked for, counts for nothing.
    pub fn push(&mut self, choice: u32, output: &EngineOutput, out: &mut BytesMut) -> Progress {
        let at = choice as usize;
        let Some(leg) = self.legs.get_mut(at).filter(|leg| leg.choice.end().is_none() && !self.over) else {
            return Progress::ChoiceDone;
        };
        if let Some(other) = output.index.filter(|index| *index != 0) {
            return Progress::Failed(crate::Fault::WrongChoice(other));
        }
        let (before, known, told) = (leg.choice.delivered().len(), leg.choice.known(), leg.choice.entries().len());
        let taken = leg.take(output, &self.rules);
        let new = leg.choice.delivered().len() - before;
        if !self.shape.stream {
            let logprobs: usize = leg.choice.entries()[told..].iter().map(|entry| 1 + entry.top.len()).sum();
            self.held += new * ID_BYTES + (leg.choice.known() - known) + logprobs * self.shape.logprob_bytes();
        }
        let is_done = leg.choice.end().is_some();
        self.tally.count(at, new, output.completion_usage.as_ref());
        self.open -= usize::from(is_done);
        if self.shape.stream && (new > 0 || is_done) {
            self.write_news(at, out);
        }
        match taken {
            Err(fault) => Progress::Failed(fault),
            Ok(()) if is_done => Progress::ChoiceDone,
            Ok(()) => Progress::Going,
        }
    }

    /// Who works for a choice from now on, for `nvext.worker_id`.
    pub fn served_by(&mut self, choice: u32, workers: Workers) {
        if let Some(leg) = self.legs.get_mut(choice as usize) {
            leg.workers = workers;
        }
    }

    /// The tokens of a choice so far, from all its workers: what a migration appends to the prompt, and how many less the next
    /// worker is to generate. Tokens whose text is still held back are among them.
    pub fn delivered(&self, choice: u32) -> &[u32] {
        self.legs.get(choice as usize).map_or(&[], |leg| leg.choice.delivered())
    }

    /// Whether a choice has ended.
    pub fn is_done(&self, choice: u32) -> bool {
        self.legs.get(choice as usize).is_none_or(|leg| leg.choice.end().is_some())
    }

    /// An annotation, an event of its own in a stream: before its first chunk. Nothing in a whole body.
    pub fn annotate(&self, name: &str, comment: &str, out: &mut BytesMut) {
        if self.shape.stream {
            chunk::annotation(out, name, comment);
        }
    }

    /// Ends the answer: the usage chunk, where it is wanted, and `[DONE]`; or the whole body. Choices that have not ended, end
    /// as if the engine had stopped there.
    pub fn end(&mut self, out: &mut BytesMut, extra: &ResponseNvext) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        for leg in self.legs.iter_mut().filter(|leg| leg.choice.end().is_none()) {
            leg.close(End { finish: Finish::Stop, detail: "stop", stop: None }, &self.rules);
        }
        self.open = 0;
        if self.shape.stream {
            self.write_end(extra, out);
        } else {
            self.write_body(extra, out);
        }
    }

    /// The answer to a dry run: no choice, but who would work for it and the prompt's token ids, in `nvext`.
    pub fn advise(&mut self, out: &mut BytesMut) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        if self.shape.stream {
            self.write_advice(out);
        } else {
            self.write_advice_body(out);
        }
    }

    /// Ends the answer with an error: one event, and no `[DONE]`; or the error as the whole body.
    pub fn error(&mut self, error: &OpenAiError<'_>, out: &mut BytesMut) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        if self.shape.stream {
            out.extend_from_slice(b"data: ");
            chunk::error(out, error);
            out.extend_from_slice(b"\n\n");
        } else {
            chunk::error(out, error);
        }
    }

    /// What is shown in front of a choice.
    pub(crate) fn echo_of(&self, at: usize) -> Option<&str> {
        self.echoes.get(at / self.shape.n.max(1) as usize)?.as_deref().filter(|text| !text.is_empty())
    }

    /// What it has cost so far.
    pub fn usage(&self) -> Usage {
        self.tally.usage()
    }

    /// Bytes of what is kept for a whole body, as it will be written, roughly; 0 for a stream. The caller bounds it.
    pub fn held_bytes(&self) -> usize {
        self.held
    }

    /// What stands in front of a choice.
    fn echoed_bytes(&self, at: usize) -> usize {
        let Some(echo) = self.echo_of(at) else { return 0 };
        let tokens = self.shape.prompt_of(at).map_or(0, |prompt| prompt.ids.len());
        let logprobs = self.shape.logprobs.map_or(0, |top| tokens * (1 + top as usize));
        echo.len() + logprobs * self.shape.logprob_bytes()
    }

    /// The finish reason of a choice in OpenAI's words. A call that the client has named is no reason of the model's.
    pub(crate) fn finish_of(&self, at: usize) -> &'static str {
        let leg = &self.legs[at];
        match leg.choice.end().map_or(Finish::Stop, |end| end.finish) {
            Finish::Stop if leg.has_called() && !matches!(self.shape.parse.choice, ToolChoice::Named(_)) => "tool_calls",
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::ContentFilter => "content_filter",
        }
    }
}

impl Shape {
    /// Bytes of a token with its log-probability in a whole body, roughly.
    fn logprob_bytes(&self) -> usize {
        match self.endpoint {
            Endpoint::Chat => CHAT_LOGPROB_BYTES,
            Endpoint::Completions => LOGPROB_BYTES,
        }
    }
}
