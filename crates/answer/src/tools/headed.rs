//! Calls with a header before JSON arguments: DeepSeek V3 and V3.1, Kimi K2, and Mistral since its 11th tokenizer.
//!
//! - `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n{..}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>`
//! - `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{..}<｜tool▁call▁end｜><｜tool▁calls▁end｜>`
//! - `<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{..}<|tool_call_end|>...`
//! - `[TOOL_CALLS]NAME[ARGS]{..}`, with `[CALL_ID]ID` before `[ARGS]` in some versions

use super::{
    json::Scan,
    machine::{Io, Step, head_overflow, is_name},
    text::{Begins, Found, begins, blank_prefix, find},
};

/// Whose headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    DeepSeek,
    Kimi,
    Mistral,
}

struct Marks {
    call: &'static str,
    end: &'static str,
    sections: &'static [&'static str],
    /// All that can end a call's arguments: `end`, the ends of the section, the next call.
    stops: &'static [&'static str],
}

const DEEPSEEK: Marks = Marks {
    call: "<｜tool▁call▁begin｜>",
    end: "<｜tool▁call▁end｜>",
    sections: &["<｜tool▁calls▁end｜>"],
    stops: &["<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"],
};

const KIMI: Marks = Marks {
    call: "<|tool_call_begin|>",
    end: "<|tool_call_end|>",
    sections: &["<|tool_calls_section_end|>", "<|tool_call_section_end|>"],
    stops: &["<|tool_call_end|>", "<|tool_calls_section_end|>", "<|tool_call_section_end|>", "<|tool_call_begin|>"],
};

const MISTRAL: Marks = Marks { call: "[TOOL_CALLS]", end: "", sections: &[], stops: &["[TOOL_CALLS]"] };

/// Reads what stands behind the marker of a section or a call.
#[derive(Debug)]
pub(super) struct Headed {
    style: Style,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// A call is due, or the end of the section if there was one before.
    Section {
        first: bool,
    },
    Head(String),
    Arguments(Scan),
    /// Behind the arguments; `stray` once something stood there that is no part of a call.
    After {
        stray: bool,
    },
}

impl Headed {
    /// Behind the marker that opens a section of calls.
    pub(super) fn section(style: Style) -> Self {
        Self { style, place: Place::Section { first: true } }
    }

    /// Behind the marker that opens a call.
    pub(super) fn call(style: Style) -> Self {
        Self { style, place: Place::Head(String::new()) }
    }

    /// What was read of the call at hand may still turn out to be content.
    pub(super) fn is_undecided(&self) -> bool {
        match &self.place {
            Place::Section { first } => *first,
            Place::Head(_) => true,
            Place::Arguments(_) | Place::After { .. } => false,
        }
    }

    fn marks(&self) -> &'static Marks {
        match self.style {
            Style::DeepSeek => &DEEPSEEK,
            Style::Kimi => &KIMI,
            Style::Mistral => &MISTRAL,
        }
    }

    /// Reads on.
    pub(super) fn step(&mut self, rest: &str, io: &mut Io<'_>) -> Step {
        match &mut self.place {
            Place::Section { first } => {
                let first = *first;
                self.section_step(rest, first, io.last)
            }
            Place::Head(_) => self.head(rest, io),
            Place::Arguments(_) => self.arguments(rest, io),
            Place::After { stray } => {
                let stray = *stray;
                self.after(rest, stray, io)
            }
        }
    }

    fn section_step(&mut self, rest: &str, first: bool, last: bool) -> Step {
        let blank = blank_prefix(rest);
        if blank > 0 {
            return Step::Took(blank);
        }
        if rest.is_empty() {
            return Step::More;
        }
        let marks = self.marks();
        let mut perhaps = false;
        for mark in std::iter::once(&marks.call).chain(marks.sections) {
            match begins(rest, mark) {
                Begins::With if *mark == marks.call => {
                    self.place = Place::Head(String::new());
                    return Step::Took(mark.len());
                }
                Begins::With if first => return Step::Malformed(mark.len()),
                Begins::With => return Step::Done(mark.len()),
                Begins::Perhaps => perhaps = true,
                Begins::No => {}
            }
        }
        match (perhaps, last, first) {
            (true, false, _) => Step::More,
            (true, true, false) => Step::Done(rest.len()),
            (_, _, true) => Step::Malformed(0),
            (false, _, false) => Step::Done(0),
        }
    }

    fn head(&mut self, rest: &str, io: &mut Io<'_>) -> Step {
        let marks = self.marks();
        let style = self.style;
        let Place::Head(head) = &mut self.place else { return Step::Malformed(0) };
        let stops = if marks.end.is_empty() { &["{"][..] } else { &["{", marks.end][..] };
        let found = find(stops, rest, io.last);
        let (Found::At { start: taken, .. } | Found::Safe(taken)) = found;
        if let Some(taken) = head_overflow(head.len(), rest, taken) {
            return Step::Malformed(taken);
        }
        head.push_str(&rest[..taken]);
        let Found::At { marker, .. } = found else { return Step::took_or_more(taken) };
        let Some((name, id)) = split_head(style, head) else { return Step::Malformed(taken) };
        io.begin(name, id);
        if marker == 0 {
            self.place = Place::Arguments(Scan::default());
        } else {
            io.arguments("{}");
            self.place = Place::After { stray: false };
        }
        Step::Took(taken)
    }

    fn arguments(&mut self, rest: &str, io: &mut Io<'_>) -> Step {
        let found = find(self.marks().stops, rest, io.last);
        let Place::Arguments(scan) = &mut self.place else { return Step::Malformed(0) };
        let (Found::At { start: limit, .. } | Found::Safe(limit)) = found;
        let end = scan.feed(&rest[..limit]);
        let taken = end.unwrap_or(limit);
        io.arguments(&rest[..taken]);
        if end.is_some() || matches!(found, Found::At { .. }) {
            self.place = Place::After { stray: false };
            return Step::Took(taken);
        }
        Step::took_or_more(taken)
    }

    fn after(&mut self, rest: &str, stray: bool, io: &mut Io<'_>) -> Step {
        let marks = self.marks();
        if marks.end.is_empty() {
            return Step::Done(0);
        }
        let found = find(marks.stops, rest, io.last);
        let (Found::At { start, .. } | Found::Safe(start)) = found;
        let mut between = &rest[..start];
        if !stray {
            between = between.trim_start_matches(|character: char| character.is_whitespace() || character == '`');
            self.place = Place::After { stray: !between.is_empty() };
        }
        io.content(between);
        let Found::At { marker, start: 0 } = found else { return Step::took_or_more(start) };
        let mark = marks.stops[marker];
        if marks.sections.contains(&mark) {
            return Step::Done(mark.len());
        }
        self.place = if mark == marks.call { Place::Head(String::new()) } else { Place::Section { first: false } };
        Step::Took(mark.len())
    }
}

/// The name, and the id where the header gives one; `None` where there is more in the header than belongs there.
fn split_head(style: Style, head: &str) -> Option<(&str, Option<String>)> {
    let head = head.trim();
    let (name, id, rest) = match style {
        Style::DeepSeek => {
            let (before, behind) = head.split_once("<｜tool▁sep｜>").unwrap_or((head, ""));
            let (name, rest) = match before.trim() {
                "function" => behind.split_once(['\n', '`']).unwrap_or((behind, "")),
                name => (name, behind),
            };
            (name, None, rest.trim().trim_matches('`').trim_start_matches("json"))
        }
        Style::Kimi => {
            let (id, rest) = head.split_once("<|tool_call_argument_begin|>").unwrap_or((head, ""));
            let id = id.trim();
            let name = id.strip_prefix("functions.").unwrap_or(id);
            (name.rsplit_once(':').map_or(name, |(name, _)| name), Some(id.to_owned()), rest)
        }
        Style::Mistral => {
            let head = head.strip_suffix("[ARGS]").unwrap_or(head);
            let (name, id) = head.split_once("[CALL_ID]").map_or((head, None), |(name, id)| (name, Some(id.trim())));
            (name, id.filter(|id| !id.is_empty()).map(str::to_owned), "")
        }
    };
    let name = name.trim();
    (is_name(name) && rest.trim().is_empty()).then_some((name, id))
}
