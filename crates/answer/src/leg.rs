//! A choice and what is known of it beside its text.

use wire::generate::EngineOutput;

use crate::{
    choice::{Choice, End, Rules},
    delta::Delta,
    openai::nvext::Told,
    shape::{Fault, Shape, Workers},
    tools::Parsing,
};

/// Tokens at the end of a prompt among which is what opens or closes a thought, if anything does.
const TAIL_TOKENS: usize = 32;

/// One choice of an answer.
#[derive(Debug)]
pub(crate) struct Leg {
    pub(crate) choice: Choice,
    /// What takes thoughts and calls out of the text; without it text goes on as it is.
    parse: Option<Box<Parsing>>,
    /// What it made of the text.
    pub(crate) deltas: Vec<Delta>,
    has_called: bool,
    pub(crate) workers: Workers,
    pub(crate) told: Told,
    /// Tokens the client has been told by their ids.
    pub(crate) ids_told: usize,
    /// The client has been told the prompt's token ids.
    pub(crate) prompt_told: bool,
    /// The client has the first chunk.
    pub(crate) begun: bool,
    /// It has the last one.
    pub(crate) closed: bool,
}

impl Leg {
    /// `before`: characters shown in front, for each prompt.
    pub(crate) fn new(at: usize, shape: &Shape, rules: &Rules, before: &[usize]) -> Self {
        let prompt = shape.prompt_of(at).map_or(&[][..], |prompt| &prompt.ids);
        let before = before.get(at / shape.n.max(1) as usize).copied().unwrap_or_default();
        let parse = shape.plan().map(|plan| {
            let tail = rules.vocabulary.decode(&prompt[prompt.len().saturating_sub(TAIL_TOKENS)..], false);
            Box::new(plan.start(&tail, shape.seed.wrapping_add(at as u64)))
        });
        Self {
            choice: Choice::new(prompt, rules, before),
            parse,
            deltas: Vec::new(),
            has_called: false,
            workers: Workers::default(),
            told: Told::default(),
            ids_told: 0,
            prompt_told: false,
            begun: false,
            closed: false,
        }
    }

    /// Takes what an engine sent.
    ///
    /// # Errors
    /// As [`Choice::take`].
    pub(crate) fn take(&mut self, output: &EngineOutput, rules: &Rules) -> Result<(), Fault> {
        self.told.hear(output);
        let taken = self.choice.take(output, rules);
        self.parse_fresh();
        taken
    }

    /// Ends it where it stands.
    pub(crate) fn close(&mut self, end: End, rules: &Rules) {
        self.choice.close(end, rules);
        self.parse_fresh();
    }

    /// Whether its text goes through a parser.
    pub(crate) fn is_parsed(&self) -> bool {
        self.parse.is_some()
    }

    /// Whether a tool was called.
    pub(crate) fn has_called(&self) -> bool {
        self.has_called
    }

    fn parse_fresh(&mut self) {
        let Some(parse) = &mut self.parse else { return };
        let start = self.deltas.len();
        let text = self.choice.fresh();
        parse.push(text, &mut self.deltas);
        text.clear();
        if self.choice.end().is_some() {
            parse.finish(&mut self.deltas);
        }
        self.has_called |= self.deltas[start..].iter().any(|delta| matches!(delta, Delta::ToolCall { .. }));
    }
}
