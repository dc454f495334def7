//! Prompts of so many blocks that work on them would hold up the requests that share a thread.

use std::time::Instant;

use prompt::{Pool, TokenError};
use sched::Ticket;
use tokio::runtime::Handle;

use crate::replicas::Announced;

/// Work on up to this many blocks is done where it comes up: hashing, looking up and booking them takes some 100
/// microseconds each. One lock is never held for more than 512 of them (rule 16); this is about the thread.
const SHORT_BLOCKS: u64 = 4096;

/// Does `work` on `blocks` blocks here, or on the pool's threads if they are many.
///
/// # Errors
/// The pool has no room, which it counts.
pub(super) async fn run<T: Send + 'static>(pool: &Pool, blocks: u64, work: impl FnOnce() -> T + Send + 'static) -> Result<T, TokenError> {
    if blocks <= SHORT_BLOCKS { Ok(work()) } else { pool.run_brief(work).await }
}

/// A ticket whose load is freed without holding up the thread that drops it.
pub(crate) struct Booked {
    /// `None` only while it is dropped.
    ticket: Option<Ticket>,
    blocks: u64,
    /// Other frontends have been told of it.
    announced: Option<Announced>,
}

impl Booked {
    pub(super) fn new(ticket: Ticket, blocks: u64, announced: Option<Announced>) -> Self {
        Self { ticket: Some(ticket), blocks, announced }
    }

    /// The prefill is over.
    pub(super) fn first_event(&self, now: Instant) {
        if let Some(ticket) = &self.ticket {
            ticket.first_event(now);
        }
        if let Some(announced) = &self.announced {
            announced.first_event();
        }
    }
}

impl Drop for Booked {
    fn drop(&mut self) {
        let ticket = self.ticket.take();
        if self.blocks > SHORT_BLOCKS
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn_blocking(move || drop(ticket));
        }
    }
}
