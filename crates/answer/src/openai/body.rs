//! Whole bodies.

use bytes::{BufMut, BytesMut};
use prompt::Endpoint;

use super::{
    chunk,
    json::{self, Fields},
    logprobs::{self, Names},
    nvext,
};
use crate::{answer::Answer, choice::Entry, delta::Delta, shape::ResponseNvext};

/// What the assistant said.
#[derive(Debug, Default)]
struct Message {
    content: String,
    reasoning: String,
    /// By their index.
    calls: Vec<Call>,
}

#[derive(Debug, Default)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

impl Answer {
    /// The body, once all choices have ended.
    pub(crate) fn write_body(&mut self, extra: &ResponseNvext, out: &mut BytesMut) {
        self.open_body(out);
        for at in 0..self.legs.len() {
            if at > 0 {
                out.put_u8(b',');
            }
            self.write_choice(at, out);
        }
        out.extend_from_slice(b"],\"usage\":");
        chunk::usage(out, &self.usage());
        self.body_nvext(extra, out);
        out.put_u8(b'}');
    }

    /// The body of a dry run.
    pub(crate) fn write_advice_body(&mut self, out: &mut BytesMut) {
        self.open_body(out);
        out.extend_from_slice(b"],\"usage\":");
        chunk::usage(out, &self.usage());
        let mut fields = Fields::new(out, ",\"nvext\":{");
        if let Some(leg) = self.legs.first() {
            nvext::workers(fields.field("worker_id"), &leg.workers);
        }
        nvext::each(fields.field("token_ids"), &self.shape.prompts, |out, prompt| nvext::ids(out, &prompt.ids));
        fields.end();
        out.put_u8(b'}');
    }

    fn open_body(&self, out: &mut BytesMut) {
        let object = match self.shape.endpoint {
            Endpoint::Chat => "chat.completion",
            Endpoint::Completions => "text_completion",
        };
        chunk::fields(out, &self.shape, object);
    }

    fn write_choice(&mut self, at: usize, out: &mut BytesMut) {
        let mut text = self.echo_of(at).unwrap_or_default().to_owned();
        let mut entries: Vec<Entry> = if text.is_empty() { Vec::new() } else { self.echo_entries(at) };
        let leg = &mut self.legs[at];
        entries.append(leg.choice.entries());
        let deltas = std::mem::take(&mut leg.deltas);
        text.push_str(leg.choice.fresh());
        leg.choice.fresh().clear();

        let names = Names { vocabulary: &self.rules.vocabulary, as_ids: self.shape.tokens_as_ids };
        out.extend_from_slice(b"{\"index\":");
        json::integer(out, at);
        match self.shape.endpoint {
            Endpoint::Chat => {
                out.extend_from_slice(b",\"message\":");
                Message::of(text, deltas).write(out);
                out.extend_from_slice(b",\"logprobs\":");
                logprobs::chat(out, &entries, names);
            }
            Endpoint::Completions => {
                out.put_u8(b',');
                chunk::named(out, "text", &text);
                out.extend_from_slice(b",\"logprobs\":");
                logprobs::completions(out, &entries, names);
            }
        }
        out.put_u8(b',');
        chunk::named(out, "finish_reason", self.finish_of(at));
        out.put_u8(b'}');
    }

    fn body_nvext(&self, extra: &ResponseNvext, out: &mut BytesMut) {
        let wanted = self.shape.fields;
        let mut fields = Fields::new(out, ",\"nvext\":{");
        if let Some(leg) = self.legs.first().filter(|_| wanted.worker_id) {
            nvext::workers(fields.field("worker_id"), &leg.workers);
        }
        if wanted.completion_token_ids {
            nvext::each(fields.field("completion_token_ids"), &self.legs, |out, leg| nvext::ids(out, leg.choice.delivered()));
        }
        if wanted.prompt_token_ids {
            nvext::each(fields.field("prompt_token_ids"), &self.shape.prompts, |out, prompt| nvext::ids(out, &prompt.ids));
        }
        nvext::last(&mut fields, wanted, &self.legs);
        if wanted.timing {
            nvext::timing(fields.field("timing"), &extra.timing);
        }
        fields.end();
    }
}

impl Message {
    /// `text` in front of what was parsed.
    fn of(text: String, deltas: Vec<Delta>) -> Self {
        let mut message = Self { content: text, ..Self::default() };
        for delta in deltas {
            match delta {
                Delta::Content(text) => message.content.push_str(&text),
                Delta::Reasoning(text) => message.reasoning.push_str(&text),
                Delta::ToolCall { index, id, name, arguments } => {
                    let index = index as usize;
                    // Calls come in order; an index beyond the next is none a parser gives.
                    if index == message.calls.len() {
                        message.calls.push(Call::default());
                    }
                    let Some(call) = message.calls.get_mut(index) else { continue };
                    call.id.push_str(&id.unwrap_or_default());
                    call.name.push_str(&name.unwrap_or_default());
                    call.arguments.push_str(&arguments);
                }
            }
        }
        message
    }

    fn write(&self, out: &mut BytesMut) {
        out.extend_from_slice(b"{\"role\":\"assistant\",\"content\":");
        if self.content.is_empty() && !(self.calls.is_empty() && self.reasoning.is_empty()) {
            out.extend_from_slice(b"null");
        } else {
            json::text(out, &self.content);
        }
        out.extend_from_slice(b",\"refusal\":null");
        if !self.reasoning.is_empty() {
            out.put_u8(b',');
            chunk::named(out, "reasoning_content", &self.reasoning);
        }
        if !self.calls.is_empty() {
            out.extend_from_slice(b",\"tool_calls\":");
            json::array(out, &self.calls, |out, call| {
                out.put_u8(b'{');
                chunk::named(out, "id", &call.id);
                out.extend_from_slice(b",\"type\":\"function\",\"function\":{");
                chunk::named(out, "name", &call.name);
                out.put_u8(b',');
                chunk::named(out, "arguments", &call.arguments);
                out.extend_from_slice(b"}}");
            });
        }
        out.put_u8(b'}');
    }
}
