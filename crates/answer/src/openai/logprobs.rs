//! Log-probabilities in OpenAI's two forms. A token is named by its text; one that is a part of a character, by U+FFFD, and its
//! bytes tell the truth.

use bytes::{BufMut, BytesMut};
use prompt::Vocabulary;

use super::json;
use crate::choice::Entry;

/// How tokens are named.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Names<'a> {
    pub(crate) vocabulary: &'a Vocabulary,
    /// As `token_id:N`.
    pub(crate) as_ids: bool,
}

impl Names<'_> {
    fn write(&self, out: &mut BytesMut, id: u32) {
        if self.as_ids {
            out.extend_from_slice(b"\"token_id:");
            json::integer(out, id);
            out.put_u8(b'"');
        } else {
            json::text(out, &String::from_utf8_lossy(self.vocabulary.token_bytes(id)));
        }
    }

    fn same(&self, a: u32, b: u32) -> bool {
        a == b || (!self.as_ids && self.vocabulary.token_bytes(a) == self.vocabulary.token_bytes(b))
    }
}

/// A chat's `logprobs`.
pub(crate) fn chat(out: &mut BytesMut, entries: &[Entry], names: Names<'_>) {
    if entries.is_empty() {
        return out.extend_from_slice(b"null");
    }
    out.extend_from_slice(b"{\"content\":");
    json::array(out, entries, |out, entry| {
        chat_token(out, entry.id, entry.logprob, names);
        out.extend_from_slice(b",\"top_logprobs\":");
        json::array(out, &entry.top, |out, (id, logprob)| {
            chat_token(out, *id, Some(*logprob), names);
            out.put_u8(b'}');
        });
        out.put_u8(b'}');
    });
    out.extend_from_slice(b",\"refusal\":null}");
}

/// A token's object, without the brace that closes it.
fn chat_token(out: &mut BytesMut, id: u32, logprob: Option<f64>, names: Names<'_>) {
    out.extend_from_slice(b"{\"token\":");
    names.write(out, id);
    out.extend_from_slice(b",\"logprob\":");
    json::logprob(out, logprob.unwrap_or(f64::NEG_INFINITY));
    out.extend_from_slice(b",\"bytes\":");
    json::array(out, names.vocabulary.token_bytes(id), |out, byte| json::integer(out, *byte));
}

/// The `logprobs` of completions. A token nobody told a log-probability of has null, as the first of an echoed prompt.
pub(crate) fn completions(out: &mut BytesMut, entries: &[Entry], names: Names<'_>) {
    if entries.is_empty() {
        return out.extend_from_slice(b"null");
    }
    out.extend_from_slice(b"{\"text_offset\":");
    json::array(out, entries, |out, entry| json::integer(out, entry.offset));
    out.extend_from_slice(b",\"token_logprobs\":");
    json::array(out, entries, |out, entry| match entry.logprob {
        Some(logprob) => json::logprob(out, logprob),
        None => out.extend_from_slice(b"null"),
    });
    out.extend_from_slice(b",\"tokens\":");
    json::array(out, entries, |out, entry| names.write(out, entry.id));
    out.extend_from_slice(b",\"top_logprobs\":");
    json::array(out, entries, |out, entry| alternatives(out, entry, names));
    out.put_u8(b'}');
}

/// The alternatives to a token and the token itself, by their names; of two with one name, the likelier.
fn alternatives(out: &mut BytesMut, entry: &Entry, names: Names<'_>) {
    let Some(logprob) = entry.logprob else { return out.extend_from_slice(b"null") };
    let itself = (entry.id, logprob);
    let all = || entry.top.iter().chain([&itself]);
    let mut before = b'{';
    for (at, (id, logprob)) in all().enumerate() {
        if all().take(at).any(|(earlier, _)| names.same(*earlier, *id)) {
            continue;
        }
        out.put_u8(before);
        names.write(out, *id);
        out.put_u8(b':');
        json::logprob(out, *logprob);
        before = b',';
    }
    out.put_u8(b'}');
}
