//! Clients of workers, over OpenAI HTTP and over the request plane: sending a request, its answer, watching over a worker's
//! health, and asking an engine what it is.
//!
//! A [`Client`] sends one request to one worker and holds the head of the answer until the answer has begun
//! ([`Reply`]); until then a failure is a [`SendError`], and [`Moves`] says whether another worker is tried. After it,
//! a [`Relay`] carries the worker's bytes to the client and tells an [`Observer`] how it went. Each worker has a
//! [`Probe`] whose [`Pulse`] the requests share. [`tokens`] is the same for workers that take token ids.
//!
//! Left out: choosing workers, configuration, status codes and texts for clients, but for one: the error event that ends
//! a broken stream, which must follow on the very byte where the stream broke.

mod cause;
mod client;
mod dial;
pub mod discover;
mod error;
mod field;
mod headers;
pub mod health;
mod probe;
mod pulse;
mod relay;
mod reply;
mod sse;
pub mod tokens;
mod upstream;
mod url;
mod usage;

pub use client::{Client, Options, OptionsError, Outgoing};
pub use dial::Authorities;
pub use error::{Answer, Class, Failure, Moves, SendError, Verdict};
pub use probe::{Probe, ProbeOptions};
pub use pulse::Pulse;
pub use relay::{End, Observer, Relay, Summary};
pub use reply::{BytesReply, Reply};
pub use upstream::Break;
pub use url::{BaseUrl, UrlError};
pub use usage::Usage;
