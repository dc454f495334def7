//! From an OpenAI request body to what routing needs: model, cache salt, and the token ids of each prompt.
//!
//! [`parse`] reads a body without changing it (the original bytes are what is forwarded). [`Folder`] is a local model
//! folder: tokenizer and chat template. [`Pool`] runs the work on threads of its own. [`remote`] is the way without a
//! folder: the body of an engine's `/tokenize` and its answer; whoever owns sockets makes the call. What none of them
//! can do is a [`TokenError`]: the caller routes by load and counts it, it refuses nothing. This crate opens no socket
//! and reads no clock: `now` is an argument.

mod body;
mod cache;
mod chat;
mod content_format;
mod error;
mod fields;
mod files;
mod folder;
mod generation;
mod here;
mod ids;
mod kwargs;
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
pub use error::{BadRequest, LoadError, TokenError};
pub use files::{File, Files};
pub use folder::{Chats, Folder, LoadOptions, Report};
pub use generation::{AgentHints, ExtraFields, Generation, Nvext, Sampling, Taints, Targets, Tool, ToolChoice, ToolUse, UsageWanted};
pub use pool::{Counter, Counters, Pool, PoolOptions};
pub use request::{Chat, Endpoint, Inputs, Json, Pin, Prompt, Request, Side, Tokens, Truncation};
pub use tokenizer::Engine;
pub use vocabulary::Vocabulary;
