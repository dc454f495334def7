//! Calls with each parameter between tags: Qwen3-Coder, GLM-4.5, MiniMax-M2, DeepSeek V3.2 and later, Kimi K3, Muse. A string
//! goes out as it comes; a value of another type when it is whole, as only then it can be read.

use super::{
    grammar::{Element, Grammar, HeadEnd, NameIs, attribute},
    json::quoted,
    machine::{Io, Step, head_overflow, is_name},
    object::{Object, Strictness},
    schema::Types,
    text::{Begins, Found, begins, blank_prefix, find},
    value::Value,
};

/// Reads what stands behind the tag that opens a run of calls, or one call.
#[derive(Debug)]
pub(super) struct Tagged {
    grammar: &'static Grammar,
    place: Place,
    /// The tool called at hand.
    function: String,
    filled: Filled,
    /// A call of this run went out.
    any: bool,
}

/// What went out of the arguments of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filled {
    Nothing,
    Parameters,
    /// The whole JSON text.
    Whole,
}

#[derive(Debug)]
enum Place {
    Outer,
    CallHead(String),
    /// Between parameters; `stray` once something stood there that is none.
    Call {
        stray: bool,
    },
    ParameterHead(String),
    Value(Value),
    /// All arguments as JSON: in the head of it, then in the text itself.
    WholeHead,
    Whole,
    Object(Object),
}

impl Tagged {
    /// Behind the tag around a run of calls.
    pub(super) fn run(grammar: &'static Grammar) -> Self {
        Self { grammar, place: Place::Outer, function: String::new(), filled: Filled::Nothing, any: false }
    }

    /// Behind the tag that opens a call.
    pub(super) fn call(grammar: &'static Grammar) -> Self {
        Self { place: Place::CallHead(String::new()), ..Self::run(grammar) }
    }

    /// What was read of the call at hand may still turn out to be content.
    pub(super) fn is_undecided(&self) -> bool {
        match &self.place {
            Place::Outer => !self.any,
            Place::CallHead(_) => true,
            Place::Object(object) => object.is_undecided(),
            Place::Call { .. } | Place::ParameterHead(_) | Place::Value(_) | Place::WholeHead | Place::Whole => false,
        }
    }

    /// The text ended: between parameters the arguments are whole, only the closing tag is missing; inside one they stay
    /// cut, so that nobody takes them for whole.
    pub(super) fn finish(&mut self, io: &mut Io<'_>) {
        match &mut self.place {
            Place::Call { .. } => self.close(io),
            Place::Value(value) => value.cut(io),
            Place::ParameterHead(head) => {
                io.content(self.grammar.parameter.open);
                io.content(head);
            }
            Place::Outer | Place::CallHead(_) | Place::Object(_) | Place::WholeHead | Place::Whole => {}
        }
    }

    /// Reads on.
    pub(super) fn step(&mut self, rest: &str, io: &mut Io<'_>) -> Step {
        match &mut self.place {
            Place::Outer => self.outer(rest, io.last),
            Place::CallHead(_) => self.call_head(rest, io),
            Place::Call { stray } => {
                let stray = *stray;
                self.inside(rest, stray, io)
            }
            Place::ParameterHead(_) => self.parameter_head(rest, io),
            Place::Value(_) => self.value(rest, io),
            Place::WholeHead | Place::Whole => self.whole_step(rest, io),
            Place::Object(object) => {
                let step = object.step(rest, io);
                let Step::Done(taken) = step else { return step };
                self.any = true;
                self.place = Place::Outer;
                Step::Took(taken)
            }
        }
    }

    fn outer(&mut self, rest: &str, last: bool) -> Step {
        let blank = blank_prefix(rest);
        if blank > 0 {
            return Step::Took(blank);
        }
        if rest.is_empty() {
            return Step::More;
        }
        if self.grammar.objects && rest.starts_with('{') {
            self.place = Place::Object(Object::new(Strictness::Marked));
            return Step::Took(0);
        }
        let call = begins(rest, self.grammar.call.open);
        if call == Begins::With {
            self.place = Place::CallHead(String::new());
            return Step::Took(self.grammar.call.open.len());
        }
        let close = self.grammar.outer.map_or(Begins::No, |(_, close)| begins(rest, close));
        match (close, self.any) {
            (Begins::With, true) => return Step::Done(self.grammar.outer.map_or(0, |(_, close)| close.len())),
            (Begins::Perhaps, true) if last => return Step::Done(rest.len()),
            _ => {}
        }
        if !last && (call == Begins::Perhaps || close == Begins::Perhaps) {
            return Step::More;
        }
        if self.any { Step::Done(0) } else { Step::Malformed(0) }
    }

    fn call_head(&mut self, rest: &str, io: &mut Io<'_>) -> Step {
        let grammar = self.grammar;
        let Place::CallHead(head) = &mut self.place else { return Step::Malformed(0) };
        let (taken, ended) = match read_head(&grammar.call, head, rest, io.last) {
            Head::Going(taken) => return Step::took_or_more(taken),
            Head::TooLong(taken) => return Step::Malformed(taken),
            Head::Ended { taken, name } => (taken, name),
        };
        let Some(name) = ended.filter(|name| is_name(name)) else { return Step::Malformed(taken) };
        io.begin(&name, None);
        self.function = name;
        (self.filled, self.any) = (Filled::Nothing, true);
        self.place = Place::Call { stray: false };
        Step::Took(taken)
    }

    fn inside(&mut self, rest: &str, stray: bool, io: &mut Io<'_>) -> Step {
        let grammar = self.grammar;
        let blank = if stray { 0 } else { blank_prefix(rest) };
        if blank > 0 {
            return Step::Took(blank);
        }
        if rest.is_empty() {
            return Step::More;
        }
        if let Some((open, ..)) = grammar.whole.filter(|_| self.filled == Filled::Nothing) {
            match begins(rest, open) {
                Begins::With => {
                    self.place = Place::WholeHead;
                    return Step::Took(open.len());
                }
                Begins::Perhaps if !io.last => return Step::More,
                Begins::Perhaps | Begins::No => {}
            }
        }
        let mut marks = vec![grammar.parameter.open, grammar.call.open];
        marks.extend(grammar.call.ends);
        let found = find(&marks, rest, io.last);
        let (Found::At { start, .. } | Found::Safe(start)) = found;
        if start > 0 {
            // It belongs to no parameter, and must not be lost.
            io.content(&rest[..start]);
            self.place = Place::Call { stray: true };
            return Step::Took(start);
        }
        match found {
            Found::Safe(_) => Step::More,
            Found::At { marker: 0, .. } => {
                self.place = Place::ParameterHead(String::new());
                Step::Took(grammar.parameter.open.len())
            }
            Found::At { marker: 1, .. } => {
                self.close(io);
                self.place = Place::CallHead(String::new());
                Step::Took(grammar.call.open.len())
            }
            Found::At { marker, .. } => {
                self.close(io);
                let taken = marks[marker].len();
                if marker > 2 || grammar.outer.is_none() {
                    return Step::Done(taken);
                }
                self.place = Place::Outer;
                Step::Took(taken)
            }
        }
    }

    fn whole_step(&mut self, rest: &str, io: &mut Io<'_>) -> Step {
        let Some((_, head_end, end)) = self.grammar.whole else { return Step::Malformed(0) };
        let in_head = matches!(self.place, Place::WholeHead);
        let mark = if in_head { head_end } else { end };
        let found = find(&[mark], rest, io.last);
        let (Found::At { start, .. } | Found::Safe(start)) = found;
        if !in_head && start > 0 {
            self.filled = Filled::Whole;
            io.arguments(&rest[..start]);
        }
        let Found::At { .. } = found else { return Step::took_or_more(start) };
        self.place = if in_head { Place::Whole } else { Place::Call { stray: false } };
        Step::Took(start + mark.len())
    }

    fn close(&mut self, io: &mut Io<'_>) {
        io.arguments(match self.filled {
            Filled::Nothing => "{}",
            Filled::Parameters => "}",
            Filled::Whole => "",
        });
        self.place = Place::Outer;
    }

    fn parameter_head(&mut self, rest: &str, io: &mut Io<'_>) -> Step {
        let grammar = self.grammar;
        let Place::ParameterHead(head) = &mut self.place else { return Step::Malformed(0) };
        let held = head.len();
        let (taken, name) = match read_head(&grammar.parameter, head, rest, io.last) {
            Head::Going(taken) => return Step::took_or_more(taken),
            Head::TooLong(taken) => (taken, None),
            Head::Ended { taken, name } => (taken, name),
        };
        let head = std::mem::take(head);
        let Some(name) = name else {
            io.content(grammar.parameter.open);
            io.content(&head[..held]);
            io.content(&rest[..taken]);
            self.place = Place::Call { stray: true };
            return Step::Took(taken);
        };
        let types = declared(&head).unwrap_or_else(|| io.schemas.types(&self.function, &name));
        io.arguments(if self.filled == Filled::Parameters { "," } else { "{" });
        io.arguments(&quoted(&name));
        io.arguments(":");
        self.filled = Filled::Parameters;
        self.place = Place::Value(Value::new(types));
        Step::Took(taken)
    }

    fn value(&mut self, rest: &str, io: &mut Io<'_>) -> Step {
        let grammar = self.grammar;
        let Place::Value(value) = &mut self.place else { return Step::Malformed(0) };
        let found = find(grammar.parameter.ends, rest, io.last);
        let (Found::At { start, .. } | Found::Safe(start)) = found;
        value.push(&rest[..start], grammar.broken_lines, io);
        let Found::At { marker, .. } = found else { return Step::took_or_more(start) };
        value.close(io);
        self.place = Place::Call { stray: false };
        Step::Took(start + if marker == 0 { grammar.parameter.ends[0].len() } else { 0 })
    }
}

/// What came of reading a head.
enum Head {
    Going(usize),
    /// So many bytes more, and it would be longer than any.
    TooLong(usize),
    Ended {
        taken: usize,
        name: Option<String>,
    },
}

fn read_head(element: &Element, head: &mut String, rest: &str, last: bool) -> Head {
    let found = match &element.head_end {
        HeadEnd::With(end) => find(&[end], rest, last),
        HeadEnd::Before(ends) => find(ends, rest, last),
    };
    let (Found::At { start, .. } | Found::Safe(start)) = found;
    if let Some(taken) = head_overflow(head.len(), rest, start) {
        return Head::TooLong(taken);
    }
    head.push_str(&rest[..start]);
    let Found::At { .. } = found else { return Head::Going(start) };
    let behind = match &element.head_end {
        HeadEnd::With(end) => end.len(),
        HeadEnd::Before(_) => 0,
    };
    let name = match &element.name {
        NameIs::Whole => Some(head.trim().trim_matches(['"', '\'']).to_owned()),
        NameIs::Before(end) => {
            let ended = head.split_once(end).filter(|(_, rest)| rest.trim().is_empty());
            ended.map(|(name, _)| name.trim().to_owned())
        }
        NameIs::Attribute(name) => attribute(head, name).filter(|_| !head.contains('<')),
    };
    // With a tag in it, the head's own end is missing.
    let name = name.filter(|name| !name.is_empty() && !name.contains(['<', '\n']));
    Head::Ended { taken: start + behind, name }
}

/// The type that the tag itself tells: DeepSeek's `string="true"`, Kimi's `type="string"`.
fn declared(head: &str) -> Option<Types> {
    if let Some(text) = attribute(head, "string") {
        return Some(if text == "true" { Types::TEXT } else { Types::OTHER });
    }
    attribute(head, "type").map(|name| if name == "string" { Types::TEXT } else { Types::OTHER })
}
