//! Answers made of messages, each with a head that tells what it is: gpt-oss (harmony), Muse, Inkling. Thoughts and calls are
//! messages like the answer itself, so that one parser takes out both.
//!
//! - `<|channel|>analysis<|message|>THOUGHT<|end|><|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{..}<|call|>`
//! - ` to=self<|message|>THOUGHT<|eom|><|start|>assistant to=NAME<|message|><atem:function_calls>..<|eot|>`
//! - `<|message_model|><|content_thinking|>THOUGHT<|end_message|><|message_model|>NAME<|content_invoke_tool_json|>{"name": .., "args": {..}}<|end_message|>`

use super::{
    family::ToolParser,
    framed::Framed,
    machine::{head_overflow, is_name},
    state::{Machine, State},
    text::{Found, Voice, blank_prefix, find, say},
};
use crate::Delta;

/// Whose messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Harmony,
    Muse,
    Inkling,
}

/// Whether calls are taken out, or stay content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallsAre {
    Calls,
    Content,
}

/// Parses the messages of one choice.
#[derive(Debug)]
pub(super) struct Channels {
    dialect: Dialect,
    calls_are: CallsAre,
    place: Place,
    unread: String,
    /// Numbers the calls, and reads those bodies that have a form of their own.
    inner: State,
}

#[derive(Debug)]
enum Place {
    /// At the first character: a head, or an answer with no head at all.
    Start,
    Head(String),
    Body(Body),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Body {
    Said(Voice),
    /// Arguments as they are; `empty` until some came.
    Arguments {
        empty: bool,
    },
    /// Read by what reads this family's calls.
    Inner,
}

impl Dialect {
    /// The parser that is named for this family.
    pub(super) fn parser(self) -> ToolParser {
        match self {
            Self::Harmony => ToolParser::Harmony,
            Self::Muse => ToolParser::Muse,
            Self::Inkling => ToolParser::Inkling,
        }
    }

    fn starts(self) -> &'static [&'static str] {
        match self {
            Self::Harmony => &["<|channel|>", "<|start|>", "<|message|>", "to=", "assistant"],
            Self::Muse => &["<|start|>", "<|message|>", "to=", "assistant"],
            Self::Inkling => &["<|message_model|>", "<|content_thinking|>", "<|content_text|>", "<|content_invoke_tool_json|>"],
        }
    }

    /// What ends a head, and then what ends a message, each a token of its own.
    fn head_ends(self) -> &'static [&'static str] {
        match self {
            Self::Harmony => &["<|message|>", "<|end|>", "<|return|>", "<|call|>"],
            Self::Muse => &["<|message|>", "<|eom|>", "<|eot|>"],
            Self::Inkling => &[
                "<|content_thinking|>",
                "<|content_text|>",
                "<|content_invoke_tool_json|>",
                "<|end_message|>",
                "<|content_model_end_sampling|>",
            ],
        }
    }

    /// What ends a body; the last ones already belong to the next head.
    fn body_ends(self) -> (&'static [&'static str], usize) {
        match self {
            Self::Harmony => (&["<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>"], 3),
            Self::Muse => (&["<|eom|>", "<|eot|>", "<|start|>"], 2),
            Self::Inkling => (&["<|end_message|>", "<|content_model_end_sampling|>", "<|message_model|>"], 2),
        }
    }
}

impl Channels {
    /// `inner` is of the same family.
    pub(super) fn new(dialect: Dialect, calls_are: CallsAre, inner: State) -> Self {
        Self { dialect, calls_are, place: Place::Start, unread: String::new(), inner }
    }

    /// Takes more text.
    pub(super) fn push(&mut self, text: &str, out: &mut Vec<Delta>) {
        self.unread.push_str(text);
        self.run(false, out);
    }

    /// Nothing follows.
    pub(super) fn finish(&mut self, out: &mut Vec<Delta>) {
        self.run(true, out);
        let left = std::mem::take(&mut self.unread);
        match std::mem::replace(&mut self.place, Place::Start) {
            Place::Start => say(Voice::Content, &left, out),
            Place::Head(head) => self.drop_head(&(head + &left), out),
            Place::Body(body) => {
                self.say(&body, &left, out);
                self.end_body(body, out);
            }
        }
        self.inner.finish(out);
    }

    fn run(&mut self, last: bool, out: &mut Vec<Delta>) {
        let unread = std::mem::take(&mut self.unread);
        let mut at = 0;
        while at < unread.len() {
            let Some(taken) = self.step(&unread[at..], last, out) else { break };
            at += taken;
        }
        self.unread.push_str(&unread[at..]);
    }

    fn step(&mut self, rest: &str, last: bool, out: &mut Vec<Delta>) -> Option<usize> {
        match &mut self.place {
            Place::Start => {
                let text = &rest[blank_prefix(rest)..];
                let starts = self.dialect.starts();
                if !last && (text.is_empty() || starts.iter().any(|start| start.starts_with(text) && *start != text)) {
                    return None;
                }
                let headed = starts.iter().any(|start| text.starts_with(start));
                self.place = match (headed, self.dialect, self.calls_are) {
                    (true, _, _) => Place::Head(String::new()),
                    // Its calls have tags of their own, head or no head.
                    (false, Dialect::Muse, CallsAre::Calls) => Place::Body(Body::Inner),
                    (false, _, _) => Place::Body(Body::Said(Voice::Content)),
                };
                Some(0)
            }
            Place::Head(_) => self.head(rest, last, out),
            Place::Body(_) => self.body(rest, last, out),
        }
    }

    fn head(&mut self, rest: &str, last: bool, out: &mut Vec<Delta>) -> Option<usize> {
        let Place::Head(head) = &mut self.place else { return None };
        let ends = self.dialect.head_ends();
        let found = find(ends, rest, last);
        let (Found::At { start, .. } | Found::Safe(start)) = found;
        if let Some(taken) = head_overflow(head.len(), rest, start) {
            say(Voice::Content, head, out);
            say(Voice::Content, &rest[..taken], out);
            self.place = Place::Body(Body::Said(Voice::Content));
            return Some(taken);
        }
        head.push_str(&rest[..start]);
        let Found::At { marker, .. } = found else { return (start > 0).then_some(start) };
        let head = std::mem::take(head);
        let mark = ends[marker];
        if self.dialect.body_ends().0.contains(&mark) {
            self.drop_head(&head, out);
        } else {
            let body = self.begin_body(&head, mark, out);
            self.place = Place::Body(body);
        }
        Some(start + mark.len())
    }

    /// A head with no body. What is no head, though a token is in it, is content.
    fn drop_head(&mut self, head: &str, out: &mut Vec<Delta>) {
        let tokens = self.dialect.parser().tokens();
        let behind = tokens.iter().filter_map(|token| head.rfind(token).map(|at| at + token.len())).max();
        let mut words = &head[behind.unwrap_or(0)..];
        // The text was cut inside a token.
        if let Some(at) = words.rfind('<').filter(|&at| tokens.iter().any(|token| token.starts_with(&words[at..]))) {
            words = &words[..at];
        }
        let is_word = |word: &str| word.starts_with("to=") || word.chars().all(|letter| letter.is_alphanumeric() || "_.-".contains(letter));
        let one = words.contains("to=") || words.split_whitespace().count() <= 1;
        if words.trim().is_empty() || (behind.is_some() && one && words.split_whitespace().all(is_word)) {
            return;
        }
        say(Voice::Content, words, out);
    }

    fn begin_body(&mut self, head: &str, mark: &str, out: &mut Vec<Delta>) -> Body {
        let recipient = head.split_once("to=").map(|(_, behind)| {
            let end = behind.find(|character: char| character.is_whitespace() || character == '<');
            &behind[..end.unwrap_or(behind.len())]
        });
        let calls = self.calls_are == CallsAre::Calls;
        match self.dialect {
            Dialect::Harmony => {
                let function = recipient.and_then(|to| to.strip_prefix("functions.")).filter(|name| is_name(name));
                let channel = head.rsplit_once("<|channel|>").map_or("", |(_, behind)| behind.trim_start());
                match (function, recipient) {
                    (Some(name), _) if calls => {
                        self.inner.begin(name, out);
                        Body::Arguments { empty: true }
                    }
                    (Some(_), _) => Body::Said(Voice::Content),
                    // A tool built into the model: how it thinks.
                    (None, Some(_)) => Body::Said(Voice::Reasoning),
                    (None, None) if channel.starts_with("analysis") => Body::Said(Voice::Reasoning),
                    (None, None) => Body::Said(Voice::Content),
                }
            }
            Dialect::Muse => match recipient {
                Some("self") => Body::Said(Voice::Reasoning),
                Some("user") | None => Body::Said(Voice::Content),
                Some(_) if calls => Body::Inner,
                Some(_) => Body::Said(Voice::Content),
            },
            Dialect::Inkling => match mark {
                "<|content_thinking|>" => Body::Said(Voice::Reasoning),
                "<|content_invoke_tool_json|>" if calls => {
                    self.inner.open(Machine::Framed(Framed::marked(&[])));
                    Body::Inner
                }
                _ => Body::Said(Voice::Content),
            },
        }
    }

    fn body(&mut self, rest: &str, last: bool, out: &mut Vec<Delta>) -> Option<usize> {
        let Place::Body(body) = &mut self.place else { return None };
        let mut body = body.clone();
        let (ends, whole) = self.dialect.body_ends();
        let found = find(ends, rest, last);
        let (Found::At { start, .. } | Found::Safe(start)) = found;
        let mut said = &rest[..start];
        if body == (Body::Arguments { empty: true }) {
            said = said.trim_start();
            body = Body::Arguments { empty: said.is_empty() };
        }
        self.say(&body, said, out);
        let Found::At { marker, .. } = found else {
            self.place = Place::Body(body);
            return (start > 0).then_some(start);
        };
        self.end_body(body, out);
        self.place = Place::Head(String::new());
        Some(if marker < whole { start + ends[marker].len() } else { start })
    }

    fn say(&mut self, body: &Body, text: &str, out: &mut Vec<Delta>) {
        match body {
            Body::Said(voice) => say(*voice, text, out),
            Body::Arguments { .. } => self.inner.arguments(text, out),
            Body::Inner => self.inner.push(text, out),
        }
    }

    fn end_body(&mut self, body: Body, out: &mut Vec<Delta>) {
        match body {
            Body::Said(_) | Body::Arguments { empty: false } => {}
            Body::Arguments { empty: true } => self.inner.arguments("{}", out),
            Body::Inner => self.inner.settle(out),
        }
    }
}
