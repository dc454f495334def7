//! One chunk of a stream: a fixed head made once for the request, and what is new.

use bytes::{BufMut, BytesMut};

use super::json;
use crate::{
    delta::Delta,
    shape::{OpenAiError, Shape, Usage},
};
use prompt::Endpoint;

/// The end of a stream.
pub(crate) const DONE: &[u8] = b"data: [DONE]\n\n";

/// What is the same in every chunk of an answer.
#[derive(Debug)]
pub(crate) struct Head {
    /// Up to the bracket that opens `choices`.
    bytes: Box<[u8]>,
    endpoint: Endpoint,
}

/// What a chunk says of its choice.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part<'a> {
    /// Who speaks: the first of a chat's chunks.
    Role,
    /// More text.
    Text(&'a str),
    /// What a parser made of the text.
    Delta(&'a Delta),
    /// That it is over.
    End,
}

impl Head {
    pub(crate) fn new(shape: &Shape) -> Self {
        let object = match shape.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        };
        let mut bytes = BytesMut::from(&b"data: "[..]);
        fields(&mut bytes, shape, object);
        Self { bytes: bytes.as_ref().into(), endpoint: shape.endpoint }
    }

    /// Everything up to the value of `logprobs`.
    pub(crate) fn open(&self, out: &mut BytesMut, index: usize, part: Part<'_>) {
        out.extend_from_slice(&self.bytes);
        out.extend_from_slice(b"{\"index\":");
        json::integer(out, index);
        match self.endpoint {
            Endpoint::Chat => {
                out.extend_from_slice(b",\"delta\":{");
                match part {
                    Part::Role => out.extend_from_slice(b"\"role\":\"assistant\",\"content\":\"\""),
                    Part::Text(text) => named(out, "content", text),
                    Part::Delta(delta) => write_delta(out, delta),
                    Part::End => {}
                }
                out.put_u8(b'}');
            }
            Endpoint::Completions => {
                out.put_u8(b',');
                named(
                    out,
                    "text",
                    match part {
                        Part::Text(text) => text,
                        // Completions have neither roles nor parsers.
                        Part::Role | Part::Delta(_) | Part::End => "",
                    },
                );
            }
        }
        out.extend_from_slice(b",\"logprobs\":");
    }

    /// A chunk with nothing but usage.
    pub(crate) fn usage(&self, out: &mut BytesMut, counted: &Usage) {
        out.extend_from_slice(&self.bytes);
        out.extend_from_slice(b"],\"usage\":");
        usage(out, counted);
        close(out);
    }
}

/// Why a choice ended, or that it has not, and the bracket that closes `choices`.
pub(crate) fn finish(out: &mut BytesMut, reason: Option<&str>) {
    out.extend_from_slice(b",\"finish_reason\":");
    match reason {
        Some(reason) => json::text(out, reason),
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b"}]");
}

/// The end of an event.
pub(crate) fn close(out: &mut BytesMut) {
    out.extend_from_slice(b"}\n\n");
}

/// The first fields of a chunk or body, up to the bracket that opens `choices`.
pub(crate) fn fields(out: &mut BytesMut, shape: &Shape, object: &str) {
    out.extend_from_slice(b"{");
    named(out, "id", &shape.id);
    out.put_u8(b',');
    named(out, "object", object);
    out.extend_from_slice(b",\"created\":");
    json::integer(out, shape.created);
    out.put_u8(b',');
    named(out, "model", &shape.model);
    out.extend_from_slice(b",\"choices\":[");
}

/// A field with a text.
pub(crate) fn named(out: &mut BytesMut, name: &str, text: &str) {
    out.put_u8(b'"');
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
    json::text(out, text);
}

/// Token counts.
pub(crate) fn usage(out: &mut BytesMut, usage: &Usage) {
    out.extend_from_slice(b"{\"prompt_tokens\":");
    json::integer(out, usage.prompt_tokens);
    out.extend_from_slice(b",\"completion_tokens\":");
    json::integer(out, usage.completion_tokens);
    out.extend_from_slice(b",\"total_tokens\":");
    json::integer(out, usage.prompt_tokens.saturating_add(usage.completion_tokens));
    if let Some(cached) = usage.cached_tokens {
        out.extend_from_slice(b",\"prompt_tokens_details\":{\"cached_tokens\":");
        json::integer(out, cached);
        out.put_u8(b'}');
    }
    out.put_u8(b'}');
}

/// An event of its own that carries no data: its comment is a JSON string, as Dynamo writes it.
pub(crate) fn annotation(out: &mut BytesMut, name: &str, comment: &str) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\n: ");
    json::text(out, comment);
    out.extend_from_slice(b"\n\n");
}

/// An error, as the only thing in a body or an event.
pub(crate) fn error(out: &mut BytesMut, error: &OpenAiError<'_>) {
    out.extend_from_slice(b"{\"error\":");
    let mut fields = json::Fields::new(out, "{");
    json::text(fields.field("message"), error.message);
    json::text(fields.field("type"), error.kind);
    json::value(fields.field("param"), &error.param);
    json::value(fields.field("code"), &error.code);
    fields.end();
    out.put_u8(b'}');
}

fn write_delta(out: &mut BytesMut, delta: &Delta) {
    match delta {
        Delta::Reasoning(text) => named(out, "reasoning_content", text),
        Delta::Content(text) => named(out, "content", text),
        Delta::ToolCall { index, id, name, arguments } => {
            out.extend_from_slice(b"\"tool_calls\":[{\"index\":");
            json::integer(out, *index);
            if let Some(id) = id {
                out.put_u8(b',');
                named(out, "id", id);
                out.extend_from_slice(b",\"type\":\"function\"");
            }
            out.extend_from_slice(b",\"function\":{");
            if let Some(name) = name {
                named(out, "name", name);
                out.put_u8(b',');
            }
            named(out, "arguments", arguments);
            out.extend_from_slice(b"}}]");
        }
    }
}
