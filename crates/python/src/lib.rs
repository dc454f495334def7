//! `dynamo.llm` for Python: engines that publish KV events and serve generation, and routers that follow them.
//!
//! Nothing is decided here. What engines do is `worker`'s; this crate turns Python's arguments into its calls and its errors into
//! Python's, and carries requests to asyncio and answers back ([`bell`]). What a `fork` leaves behind is [`host`]'s.

#![allow(unreachable_pub, reason = "the macros of Python's classes write it")]

mod bell;
mod consume;
mod host;
mod log;
mod numbers;
mod once;
mod planes;
mod publisher;
mod serve;
mod spec;

use pyo3::prelude::*;

/// The native half of `dynamo.llm`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::{
        bell::Bell,
        consume::{PyIndexer, PySubscriber},
        host::leave,
        planes::{PyComponent, PyEndpoint, PyRuntime},
        publisher::PyPublisher,
        serve::{PyContext, Sink, register},
    };
}
