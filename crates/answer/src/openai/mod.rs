//! OpenAI's shapes, written as bytes into the caller's buffer: no tree of values is made on the way.

pub(crate) mod body;
pub(crate) mod chunk;
pub(crate) mod json;
pub(crate) mod logprobs;
pub(crate) mod nvext;
