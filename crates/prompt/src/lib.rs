//! From an OpenAI request body to what routing needs, model, cache salt and the token ids of each prompt; and to what a worker
//! needs that takes token ids instead of the body.
//!
//! [`parse`] reads a body without changing it (the original bytes are what is forwarded). [`Generation`] is the rest of it,
//! for workers that get no body: how to sample, when to stop, what to report; it refuses what it does not know. [`Folder`]
//! is a model's files: tokenizer, chat template, the tokens that end an answer, and the [`Vocabulary`], which turns ids into
//! text. [`Pool`] runs the work on threads of its own. [`remote`] is the way without a folder: the body of an engine's
//! `/tokenize` and its answer; whoever owns sockets makes the call. What none of them can do is a [`TokenError`]: where a
//! body is forwarded, the caller routes it by load and counts it; where it is not, there is nothing to send. This crate
//! opens no socket and reads no clock: `now` is an argument.

mod body;
mod cache;
mod chat;
mod content_format;
mod counters;
mod error;
mod fields;
mod files;
mod folder;
mod generation;
mod here;
mod ids;
mod kwargs;
mod layout;
mod plain;
mod pool;
mod python;
pub mod remote;
mod render;
mod request;
mod rewrite;
mod template;
mod tokenizer;
mod vocabulary;

pub use body::parse;
pub use counters::{Counter, Counters};
pub use error::{BadRequest, LoadError, TokenError};
pub use files::{File, Files};
pub use folder::{Folder, LoadOptions, Report};
pub use generation::{AgentHints, ExtraFields, Generation, Nvext, Sampling, Taints, Targets, Tool, ToolChoice, ToolUse, UsageWanted};
pub use pool::{Pool, PoolOptions};
pub use request::{Chat, Endpoint, Inputs, Json, Pin, Prompt, Request, Side, Tokens, Truncation};
pub use tokenizer::Engine;
pub use vocabulary::Vocabulary;
