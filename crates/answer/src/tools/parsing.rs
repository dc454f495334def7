//! All parsers of one choice, one behind the other: thoughts, then calls.

use std::sync::Arc;

use prompt::ToolChoice;

use super::{
    calls::IdStyle,
    channels::{CallsAre, Channels, Dialect},
    family::ToolParser,
    guided::{Choices, Guided, Named, Reader},
    schema::Schemas,
    text::{Voice, say},
};
use crate::{
    Delta,
    reasoning::{self, ReasoningParser},
};

/// What a choice's text is searched for.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The model card's parser of thoughts.
    pub reasoning: Option<ReasoningParser>,
    /// The model card's parser of calls.
    pub tools: Option<ToolParser>,
    /// The client's choice; [`ToolChoice::None`] where no tools are offered: what looks like a call is content then.
    pub choice: ToolChoice,
    /// Whether there may be more than one call; all but the first are left out otherwise.
    pub parallel: bool,
    /// The tools offered.
    pub schemas: Arc<Schemas>,
}

/// Parses one choice. The deltas are the same however the text is cut into pieces, but for the places where they are cut.
#[derive(Debug)]
pub struct Parsing {
    messages: Option<Messages>,
    reader: Reader,
    parallel: bool,
    tokens: Vec<&'static str>,
    between: Vec<Delta>,
}

#[derive(Debug)]
enum Messages {
    Thoughts(Box<reasoning::State>),
    Channels(Box<Channels>),
}

impl Plan {
    /// Whether there is anything to search for.
    pub(crate) fn is_plain(&self) -> bool {
        let calls = match self.choice {
            ToolChoice::Auto => self.tools.is_some(),
            ToolChoice::None => self.dialect().is_some(),
            ToolChoice::Required | ToolChoice::Named(_) => true,
        };
        self.reasoning.is_none() && !calls
    }

    /// Whether tokens that the tokenizer counts as special must become text, because markers are among them.
    pub(crate) fn wants_special_tokens(&self) -> bool {
        !self.tokens().is_empty()
    }

    /// Begins a choice behind a prompt that ends with `prompt_tail` (the last line is enough). `seed` is what the ids of calls
    /// are drawn from: let it be random, and another for each choice.
    pub fn start(&self, prompt_tail: &str, seed: u64) -> Parsing {
        let offered = self.choice != ToolChoice::None;
        let tools = self.tools.filter(|_| offered);
        let start = |parser: ToolParser| parser.start(Arc::clone(&self.schemas), seed);
        let messages = match (self.dialect(), self.reasoning) {
            (Some(dialect), _) => {
                let calls = if offered { CallsAre::Calls } else { CallsAre::Content };
                Some(Messages::Channels(Box::new(Channels::new(dialect, calls, start(dialect.parser())))))
            }
            (None, Some(parser)) => Some(Messages::Thoughts(Box::new(parser.start(prompt_tail, tools)))),
            (None, None) => None,
        };
        let family = tools.filter(|_| self.dialect().is_none()).map(start);
        let style = if self.tools == Some(ToolParser::Mistral) { IdStyle::Nine } else { IdStyle::Call };
        let guided = match &self.choice {
            ToolChoice::Auto | ToolChoice::None => None,
            ToolChoice::Required => Some(Guided::Required(Box::new(ToolParser::Generic.start_with(&self.schemas, style, seed)))),
            ToolChoice::Named(name) => Some(Guided::Named(Box::new(Named::new(name.clone(), style, seed)))),
        };
        let reader = match (guided, family) {
            (Some(guided), family) => Reader::Undecided(Box::new(Choices { guided, family, blank: String::new() })),
            (None, Some(state)) => Reader::Family(Box::new(state)),
            (None, None) => Reader::Plain,
        };
        Parsing { messages, reader, parallel: self.parallel, tokens: self.tokens(), between: Vec::new() }
    }

    /// The family whose answers are made of messages, if either parser is of one.
    fn dialect(&self) -> Option<Dialect> {
        match (self.tools, self.reasoning) {
            (Some(ToolParser::Harmony), _) | (_, Some(ReasoningParser::GptOss)) => Some(Dialect::Harmony),
            (Some(ToolParser::Muse), _) | (_, Some(ReasoningParser::Muse)) => Some(Dialect::Muse),
            (Some(ToolParser::Inkling), _) | (_, Some(ReasoningParser::Inkling)) => Some(Dialect::Inkling),
            _ => None,
        }
    }

    fn tokens(&self) -> Vec<&'static str> {
        let calls = self.tools.filter(|_| self.choice != ToolChoice::None).map_or(&[][..], ToolParser::tokens);
        let messages = self.dialect().map_or(&[][..], |dialect| dialect.parser().tokens());
        let thoughts = self.reasoning.map_or(&[][..], ReasoningParser::tokens);
        calls.iter().chain(messages).chain(thoughts).copied().collect()
    }
}

impl Parsing {
    /// Whether a special token with this text must become text, as a marker or part of one. All other special tokens can be
    /// skipped as usual.
    pub(crate) fn wants_token(&self, text: &str) -> bool {
        self.tokens.contains(&text.trim())
    }

    /// Takes more text.
    pub fn push(&mut self, text: &str, out: &mut Vec<Delta>) {
        let begun = out.len();
        match &mut self.messages {
            None => self.reader.push(text, out),
            Some(messages) => {
                match messages {
                    Messages::Thoughts(thoughts) => thoughts.push(text, &mut self.between),
                    Messages::Channels(channels) => channels.push(text, &mut self.between),
                }
                self.pass(out);
            }
        }
        self.limit(begun, out);
    }

    /// Nothing follows: what was held goes out.
    pub fn finish(&mut self, out: &mut Vec<Delta>) {
        let begun = out.len();
        match &mut self.messages {
            None => {}
            Some(Messages::Thoughts(thoughts)) => thoughts.finish(&mut self.between),
            Some(Messages::Channels(channels)) => channels.finish(&mut self.between),
        }
        self.pass(out);
        self.reader.finish(out);
        self.limit(begun, out);
    }

    /// Hands on what is no thought.
    fn pass(&mut self, out: &mut Vec<Delta>) {
        for delta in self.between.drain(..) {
            match delta {
                Delta::Content(text) => self.reader.push(&text, out),
                Delta::Reasoning(text) => say(Voice::Reasoning, &text, out),
                call @ Delta::ToolCall { .. } => out.push(call),
            }
        }
    }

    fn limit(&self, begun: usize, out: &mut Vec<Delta>) {
        if self.parallel {
            return;
        }
        let mut at = 0;
        out.retain(|delta| {
            at += 1;
            at <= begun || !matches!(delta, Delta::ToolCall { index: 1.., .. })
        });
    }
}
