//! The chunks of a stream.

use bytes::BytesMut;

use crate::{
    answer::Answer,
    choice::Entry,
    openai::{
        chunk::{self, DONE, Part},
        json::Fields,
        logprobs::{self, Names},
        nvext,
    },
    shape::{ResponseNvext, Timing},
};
use prompt::Endpoint;

/// What a chunk tells beside its part.
#[derive(Debug, Clone, Copy, Default)]
struct Beside<'a> {
    /// The tokens of its text.
    entries: &'a [Entry],
    /// Only in the last chunk of a choice.
    finish: Option<&'static str>,
    /// Only in the last chunk of all.
    timing: Option<&'a Timing>,
}

impl<'a> Beside<'a> {
    fn tokens(entries: &'a [Entry]) -> Self {
        Self { entries, ..Self::default() }
    }
}

impl Answer {
    /// What is new of a choice.
    pub(crate) fn write_news(&mut self, at: usize, out: &mut BytesMut) {
        self.begin(at, out);
        let leg = &mut self.legs[at];
        let mut entries = std::mem::take(leg.choice.entries());
        if leg.is_parsed() {
            let mut deltas = std::mem::take(&mut leg.deltas);
            for delta in &deltas {
                self.chunk(at, Part::Delta(delta), Beside::tokens(&entries), out);
                entries.clear();
            }
            deltas.clear();
            self.legs[at].deltas = deltas;
        } else {
            let mut text = std::mem::take(leg.choice.fresh());
            if !text.is_empty() {
                self.chunk(at, Part::Text(&text), Beside::tokens(&entries), out);
                entries.clear();
                text.clear();
            }
            *self.legs[at].choice.fresh() = text;
        }
        let is_done = self.legs[at].choice.end().is_some();
        // The last chunk of all waits for the end where it is to tell the timing.
        if is_done && !(self.open == 0 && self.shape.fields.timing) {
            self.finish(at, Beside::tokens(&entries), out);
            entries.clear();
        }
        *self.legs[at].choice.entries() = entries;
    }

    /// What is left of all choices, usage, and the end.
    pub(crate) fn write_end(&mut self, extra: &ResponseNvext, out: &mut BytesMut) {
        let left: Vec<usize> = (0..self.legs.len()).filter(|at| !self.legs[*at].closed).collect();
        for at in &left {
            let timing = (self.shape.fields.timing && Some(at) == left.last()).then_some(&extra.timing);
            self.write_news(*at, out);
            if !self.legs[*at].closed {
                let entries = std::mem::take(self.legs[*at].choice.entries());
                self.finish(*at, Beside { timing, ..Beside::tokens(&entries) }, out);
            }
        }
        if self.shape.usage.in_stream {
            self.head.usage(out, &self.usage());
        }
        out.extend_from_slice(DONE);
    }

    /// The first chunk of each choice, and the end.
    pub(crate) fn write_advice(&mut self, out: &mut BytesMut) {
        for at in 0..self.legs.len() {
            self.head.open(out, at, Part::Role);
            out.extend_from_slice(b"null");
            chunk::finish(out, None);
            let mut fields = Fields::new(out, ",\"nvext\":{");
            nvext::workers(fields.field("worker_id"), &self.legs[at].workers);
            if let Some(prompt) = self.shape.prompt_of(at) {
                nvext::ids(fields.field("token_ids"), &prompt.ids);
            }
            fields.end();
            chunk::close(out);
        }
        out.extend_from_slice(DONE);
    }

    /// The first chunk of a choice, where there is one beside its text: who speaks, or the prompt.
    fn begin(&mut self, at: usize, out: &mut BytesMut) {
        if std::mem::replace(&mut self.legs[at].begun, true) {
            return;
        }
        match self.shape.endpoint {
            Endpoint::Chat => self.chunk(at, Part::Role, Beside::default(), out),
            Endpoint::Completions => {}
        }
        if let Some(echo) = self.echo_of(at) {
            let (echo, entries) = (echo.to_owned(), self.echo_entries(at));
            self.chunk(at, Part::Text(&echo), Beside::tokens(&entries), out);
        }
    }

    fn finish(&mut self, at: usize, beside: Beside<'_>, out: &mut BytesMut) {
        self.chunk(at, Part::End, Beside { finish: Some(self.finish_of(at)), ..beside }, out);
        self.legs[at].closed = true;
    }

    fn chunk(&mut self, at: usize, part: Part<'_>, beside: Beside<'_>, out: &mut BytesMut) {
        self.head.open(out, at, part);
        let names = Names { vocabulary: &self.rules.vocabulary, as_ids: self.shape.tokens_as_ids };
        match self.shape.endpoint {
            Endpoint::Chat => logprobs::chat(out, beside.entries, names),
            Endpoint::Completions => logprobs::completions(out, beside.entries, names),
        }
        chunk::finish(out, beside.finish);
        if self.shape.usage.each_chunk {
            out.extend_from_slice(b",\"usage\":");
            chunk::usage(out, &self.usage());
        } else if self.shape.usage.in_stream {
            out.extend_from_slice(b",\"usage\":null");
        }
        self.chunk_nvext(at, part, beside, out);
        chunk::close(out);
    }

    fn chunk_nvext(&mut self, at: usize, part: Part<'_>, beside: Beside<'_>, out: &mut BytesMut) {
        let wanted = self.shape.fields;
        let prompt = self.shape.prompt_of(at).map_or(&[][..], |prompt| &prompt.ids);
        let leg = &mut self.legs[at];
        let mut fields = Fields::new(out, ",\"nvext\":{");
        if wanted.worker_id {
            nvext::workers(fields.field("worker_id"), &leg.workers);
        }
        if wanted.prompt_token_ids && !std::mem::replace(&mut leg.prompt_told, true) {
            nvext::ids(fields.field("prompt_token_ids"), prompt);
        }
        let delivered = leg.choice.delivered();
        if wanted.completion_token_ids && !matches!(part, Part::Role) && leg.ids_told < delivered.len() {
            nvext::ids(fields.field("completion_token_ids"), &delivered[leg.ids_told..]);
            leg.ids_told = delivered.len();
        }
        if beside.finish.is_some() {
            nvext::last(&mut fields, wanted, std::slice::from_ref(leg));
        }
        if let Some(timing) = beside.timing {
            nvext::timing(fields.field("timing"), timing);
        }
        fields.end();
    }
}
