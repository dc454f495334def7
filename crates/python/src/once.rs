//! Older forms of calls: each warns once in a process, with the call that replaces it.

use std::{
    ffi::CString,
    sync::atomic::{AtomicBool, Ordering},
};

use pyo3::{exceptions::PyDeprecationWarning, prelude::*};

/// An older form.
pub(crate) struct Older {
    warned: AtomicBool,
    message: &'static str,
}

/// `worker_id=` of a publisher.
pub(crate) static WORKER_ID: Older = Older::new("worker_id= is not needed any more: KvEventPublisher(component=..., kv_block_size=...)");
/// `event_id=` of a publishing call.
pub(crate) static EVENT_ID: Older = Older::new("event_id= is not used any more, the publisher counts: publish_stored(token_ids=..., ...)");
/// `lora_id=` of a publishing call.
pub(crate) static LORA_ID: Older = Older::new("lora_id= is replaced by the adapter's name: publish_stored(..., lora_name=\"...\")");
/// `connection_id()` of an endpoint.
pub(crate) static CONNECTION_ID: Older =
    Older::new("connection_id() is replaced by endpoint.instance_id, which publishers know by themselves");

impl Older {
    const fn new(message: &'static str) -> Self {
        Self { warned: AtomicBool::new(false), message }
    }

    /// Warns whoever called, the first time.
    pub(crate) fn warn(&self, py: Python<'_>) -> PyResult<()> {
        if self.warned.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let message = CString::new(self.message).unwrap_or_default();
        PyErr::warn(py, &py.get_type::<PyDeprecationWarning>(), &message, 1)
    }
}
